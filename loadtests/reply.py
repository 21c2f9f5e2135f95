"""Reply: a generation on its way from the model to the client, with what a fault does to it on the way.

A stream's head goes out at once, its events as tokens come; a client that does not read holds the events
back, not the model. The reply ends once: finished, broken by a fault, or left by its client, whom the model
forgets in the same tick.
"""

from collections.abc import Callable
from enum import Enum

from loadtests import refusals
from loadtests.faults import Fault, Kind
from loadtests.http1 import Exchange
from loadtests.pacer import Pacer
from loadtests.wire import DONE, Choice, Wire

SSE = "text/event-stream; charset=utf-8"
BREAKS = (Kind.RESET_AFTER, Kind.CLOSE_AFTER, Kind.TRUNCATE, Kind.HANG_AFTER, Kind.ERROR_DONE)


class End(Enum):
    """How a reply ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left."""
    BROKEN = "broken"
    """A fault, or the engine's own death, ended it."""


class Reply:
    """One answer under way.

    Args:
        on_first: Told when the first token is ready.
        on_end: Told once how it ended.
    """

    def __init__(
        self,
        exchange: Exchange,
        wire: Wire,
        pacer: Pacer,
        hits: dict[Kind, Fault],
        on_first: Callable[["Reply"], None],
        on_end: Callable[["Reply", End], None],
    ) -> None:
        self.exchange = exchange
        self.wire = wire
        self._pacer = pacer
        self._on_first = on_first
        self._on_end = on_end
        self._choices = {choice.id: choice for choice in wire.choices}
        self._left = len(self._choices)
        self._break = next((hits[kind] for kind in BREAKS if kind in hits), None)
        self._events = 0
        self._is_silent = False
        self._has_opened = False
        self.is_over = False
        self.started_at = 0.0
        self.first_at: float | None = None
        exchange.on_gone = self._gone
        exchange.on_writable = self._pump

    @property
    def made(self) -> int:
        """Output tokens so far."""
        return sum(choice.due for choice in self._choices.values())

    @property
    def is_started(self) -> bool:
        """Whether the first token is there."""
        return self._has_opened

    def start(self) -> None:
        """Send the head, if this is a stream."""
        if self.wire.ask.is_stream:
            self.exchange.begin(200, SSE)
            if greeting := self.wire.greeting():
                self.exchange.send(greeting)
            self._count(greeting.count(b"\n\n"))

    # what the model says

    def first_token(self, id: int, cached_tokens: int) -> None:
        """Open the stream; the token itself is told by `advance` or `finished`."""
        self._choices[id].cached_tokens = cached_tokens
        self._open()

    def _open(self) -> None:
        if self._has_opened or self.is_over:
            return
        self._has_opened = True
        self._on_first(self)
        if self.wire.ask.is_stream and (opening := self.wire.opening()):
            self._put(opening, opening.count(b"\n\n"))

    def advance(self, id: int, made: int) -> None:
        """Send what is new of a choice."""
        self._choices[id].due = made
        if self.exchange.connection.can_write:
            self._send(self._choices[id])

    def finished(self, id: int, cached_tokens: int) -> None:
        """Send the rest of a choice, and the end with the last one."""
        choice = self._choices[id]
        choice.cached_tokens = cached_tokens
        choice.due = choice.output_tokens
        self._left -= 1
        self._open()
        self._pump()

    def _pump(self) -> None:
        """Send what is due while the client reads."""
        if self.is_over or not self.exchange.connection.can_write:
            return
        for choice in self.wire.choices:
            self._send(choice)
        if self.is_over or self._left:
            return
        if not self.wire.ask.is_stream:
            self._answer()
        elif all(choice.sent == choice.due for choice in self.wire.choices):
            self._put(self.wire.ending(), 0)
            if not self._is_silent:
                self._over(End.FINISHED)
                self.exchange.end()

    def _send(self, choice: Choice) -> None:
        if not self.wire.ask.is_stream:
            return
        while choice.sent < choice.due and not self.is_over:
            choice.sent += 1
            self._put(self.wire.piece(choice, choice.language.word(choice.sent - 1)), 1)

    def _put(self, data: bytes, events: int) -> None:
        if self._is_silent or self.is_over:
            return
        self.exchange.send(data)
        self._count(events)

    # what faults do

    def _count(self, events: int) -> None:
        self._events += events
        if self._break is not None and self._events >= self._break.after:
            self._break_off(self._break)

    def _break_off(self, fault: Fault) -> None:
        if fault.kind is Kind.HANG_AFTER:
            self._is_silent = True
            return
        self._drop(End.BROKEN)
        if fault.kind is Kind.RESET_AFTER:
            self.exchange.reset()
        elif fault.kind is Kind.CLOSE_AFTER:
            self.exchange.close()
        elif fault.kind is Kind.TRUNCATE:
            self.exchange.end()
        else:
            self._dead()

    def _dead(self) -> None:
        if self.wire.ask.is_stream:
            self.exchange.send(self.wire.failure(refusals.DEAD, "InternalServerError", 500) + DONE)
            self.exchange.end()
        else:
            self.exchange.answer(500, refusals.error_body(refusals.DEAD, "InternalServerError", None, 500))

    def _answer(self) -> None:
        """Give the whole answer, or what a fault leaves of it."""
        fault = self._break
        if fault is not None and fault.kind is Kind.HANG_AFTER:
            return
        if fault is not None and fault.kind is not Kind.TRUNCATE:
            self._over(End.BROKEN)
            if fault.kind is Kind.RESET_AFTER:
                self.exchange.reset()
            elif fault.kind is Kind.CLOSE_AFTER:
                body = self.wire.whole()
                self.exchange.begin(200, self.wire.media)
                self.exchange.send(body[: len(body) // 2])
                self.exchange.close()
            else:
                self._dead()
            return
        self._over(End.FINISHED)
        self.exchange.answer(200, self.wire.whole(), self.wire.media)

    # how it ends

    def cut_short(self) -> None:
        """End now with finish_reason "abort", as vLLM does on SIGTERM: 200, usage, [DONE]."""
        if self.is_over:
            return
        for choice in self.wire.choices:
            self._pacer.abort(choice.id)
            if choice.due < choice.output_tokens:
                choice.due += 1
                choice.output_tokens = choice.due
                choice.reason = "abort"
        self._left = 0
        self._open()
        self._pump()

    def die(self) -> None:
        """End as vLLM does when its core is killed: an error event, then [DONE]; 500 if nothing was sent."""
        if not self.is_over:
            self._drop(End.BROKEN)
            self._dead()

    def go_silent(self) -> None:
        """Send nothing any more, and keep the connection."""
        self._is_silent = True
        if not self.wire.ask.is_stream:
            self._break = Fault(Kind.HANG_AFTER)

    def _gone(self) -> None:
        self._drop(End.ABORTED)

    def _drop(self, end: End) -> None:
        for choice in self.wire.choices:
            self._pacer.abort(choice.id)
        self._over(end)

    def _over(self, end: End) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_end(self, end)
