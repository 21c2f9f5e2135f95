"""Wire: one connection to a Redis. Questions go out in batches, answers come back in their order.

Why our own: through redis-py's pipeline a call costs 89 us of this process when one comes at a time and 21 us when
200 do; here 17 and 5, and what happens on a timeout or a cancellation is ours to say. hiredis packs and reads.

    send --> batch --end of the loop's turn: one write--> waiting, in order --answer--> the caller's future
                                                             |
                                                             \\--no answer in time, reset, nonsense--> lost

All that is asked within one turn of the loop is one write. A further batch does not wait for the answers to the one
before. A caller who leaves leaves his question: it is sent all the same, and its answer is dropped.

Time is counted from the write, and only once what has already arrived has been read: a loop that was held up is not
taken for a Redis that does not answer. A wire that is lost is never used again; its questions go back to whoever
holds it, unanswered: Redis may have acted on them or not.
"""

import asyncio
import hashlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, cast

import hiredis

Answer: TypeAlias = "bytes | int | list[Answer] | None"
Part: TypeAlias = str | bytes | int | float

CONNECT_S = 1.0  # nobody waits for it; a handshake of TLS between data centres takes a good part of it
GRACE_S = 0.001  # any time at all lets the loop read its sockets before it looks at its clock again


class LineDown(Exception):
    """Redis gave no answer; the message says why. It may have acted on the question all the same."""


class Refused(LineDown):
    """Redis is well, and answered this very command with an error."""


class Address(NamedTuple):
    """Where a Redis listens: a host and port, or the path of a socket."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the name that Redis gives it."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


class Refusal(Exception):
    """An answer that is an error. Its first word says of which kind: BUSY, MOVED, ERR…"""

    @property
    def kind(self) -> str:
        """The kind; for what a script ran into, the kind of that.

        Redis 6 wraps it: `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM command …`
        """
        text = str(self)
        if text.startswith("ERR Error running script") and ": -" in text:
            text = text.rpartition(": -")[2]
        return text.partition(" ")[0].lstrip("-")


@dataclass(eq=False, slots=True)
class Question:
    """A command, and who waits for its answer."""

    command: tuple[Part, ...]
    future: asyncio.Future[Answer]
    script: Script | None = None
    """What the command runs by its name, for a Redis that does not know it yet."""
    hops: int = 0
    """How often it was sent on from one node of a cluster to another."""

    def fail(self, error: LineDown) -> bool:
        """Tell the caller that there is no answer; give whether he was still there."""
        if self.future.done():
            return False
        self.future.set_exception(error)
        return True


@dataclass(frozen=True, slots=True)
class Access:
    """How to talk to a Redis, wherever it is."""

    username: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = None
    timeout_s: float = 0.1
    """For each answer."""
    retry_s: float = 0.5
    """From one try to connect to the next."""


class Holder(Protocol):
    """Who holds a wire; it is called from within the loop, and never awaits."""

    def batch_left(self) -> None:
        """A batch went out."""

    def refused(self, question: Question, refusal: Refusal) -> None:
        """An answer is an error."""

    def lost(self, why: str, questions: Sequence[Question], *, is_timeout: bool) -> None:
        """The wire is of no more use; these were not answered."""


class _Asker:
    """Holds a wire for whoever awaits each answer: what is wrong is raised."""

    def batch_left(self) -> None:
        pass

    def refused(self, question: Question, refusal: Refusal) -> None:
        if not question.future.done():
            question.future.set_exception(refusal)

    def lost(self, why: str, questions: Sequence[Question], *, is_timeout: bool) -> None:
        for question in questions:
            question.fail(LineDown(why))


class Wire(asyncio.Protocol):
    """A connection."""

    def __init__(self, timeout_s: float) -> None:
        self._holder: Holder = _Asker()
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=Refusal)
        self._transport: asyncio.Transport | None = None
        self._batch: list[bytes] = []
        self._waiting: deque[Question] = deque()
        self._sent = 0
        self._answered = 0
        self._batches: deque[tuple[int, float]] = deque()
        """Of each batch: how many questions were sent with its end, and when."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._why = ""
        self._gone = self._loop.create_future()

    @classmethod
    async def open(cls, address: Address, access: Access) -> "Wire":
        """Connect and log in.

        Raises:
            OSError: there is no connection, or none in time (TimeoutError).
            Refusal: the server does not let us in.
            LineDown: it does not answer.
        """
        loop = asyncio.get_running_loop()
        wire = cls(access.timeout_s)
        async with asyncio.timeout(CONNECT_S):
            if address.path:
                await loop.create_unix_connection(lambda: wire, address.path)
            else:
                await loop.create_connection(lambda: wire, address.host, address.port, ssl=access.tls)
        async with wire.unless_it_fails():
            greeting: list[tuple[Part, ...]] = []
            if access.password:
                greeting.append(("AUTH", *([access.username] if access.username else []), access.password))
            if access.database:
                greeting.append(("SELECT", access.database))
            for answer in [wire.ask(*command) for command in greeting]:
                await answer
        return wire

    @asynccontextmanager
    async def unless_it_fails(self) -> AsyncIterator[None]:
        """End the connection if the block fails."""
        try:
            yield
        except BaseException:
            self.lose("given up")
            await self._gone
            raise

    def adopt(self, holder: Holder) -> None:
        """Tell somebody else from now on.

        Raises:
            LineDown: it is lost already.
        """
        if self._is_lost:
            raise LineDown(self._why)
        self._holder = holder

    def send(self, question: Question) -> None:
        """Ask, with all else that is asked in this turn of the loop."""
        if self._is_lost:
            question.fail(LineDown(self._why))
            return
        packed = hiredis.pack_command(question.command)  # type: ignore[arg-type]  # its stub wants tuples of one
        if not self._batch:
            self._loop.call_soon(self._flush)
        self._batch.append(packed)
        self._waiting.append(question)

    def ask(self, *command: Part) -> asyncio.Future[Answer]:
        """Ask for oneself."""
        question = Question(command, self._loop.create_future())
        self.send(question)
        return question.future

    async def close(self) -> None:
        """Let what was asked be answered, within the time that it may take; then end the connection."""
        if waiting := [question.future for question in self._waiting]:
            await asyncio.wait(waiting, timeout=self._timeout_s)
        self.lose("closed")
        await self._gone

    def lose(self, why: str, *, is_timeout: bool = False) -> None:
        """Give the connection up."""
        if self._is_lost:
            return
        self._is_lost = True
        self._why = why
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        questions = list(self._waiting)
        self._waiting.clear()
        self._batch.clear()
        self._holder.lost(why, questions, is_timeout=is_timeout)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are, but do not inherit

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(f"the connection was lost: {exc}" if exc else "the connection was closed")
        self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._take(answer)
                if self._is_lost:
                    return
        except hiredis.ProtocolError as error:
            self.lose(f"it does not speak as Redis does: {error}")

    def _take(self, answer: "Answer | Refusal") -> None:
        if not self._waiting:
            # Redis does so where it has too many clients already.
            self.lose(str(answer) if isinstance(answer, Refusal) else "it answers what was not asked")
            return
        question = self._waiting.popleft()
        self._answered += 1
        if isinstance(answer, Refusal):
            self._holder.refused(question, answer)
        elif not question.future.done():
            question.future.set_result(answer)

    def _flush(self) -> None:
        if self._is_lost or self._transport is None:
            return
        self._transport.write(b"".join(self._batch))
        self._sent += len(self._batch)
        self._batch.clear()
        self._batches.append((self._sent, time.monotonic()))
        self._holder.batch_left()
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._when_late)

    def _when_late(self) -> None:
        """Look only after the sockets have been read once more."""
        self._timer = self._loop.call_later(GRACE_S, self._look)

    def _look(self) -> None:
        """Give the connection up if the oldest batch has waited for too long."""
        while self._batches and self._batches[0][0] <= self._answered:
            self._batches.popleft()
        self._timer = None
        if self._batches:
            left_s = self._batches[0][1] + self._timeout_s - time.monotonic()
            if left_s <= 0:
                self.lose(f"no answer within {self._timeout_s * 1000:.0f} ms", is_timeout=True)
            else:
                self._timer = self._loop.call_later(left_s, self._when_late)
