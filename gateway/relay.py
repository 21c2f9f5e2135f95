"""Engine bytes to client bytes.

An Answer receives one try's answer from `upstream` and, once it is known to be good, hands it to the client. Until then
it holds back: engines send the head before they prefill, so a status 200 says nothing. What is held, and until when:

    error status        all of it, up to MAX_ERROR_BYTES     until the end: it may be retried, or put into shape
    event stream        the first event                      a first event that is an error can still be retried
    JSON                all of it, up to MAX_HELD_BYTES      until the end: a 200 may hold an error or an abort
    anything else       nothing                              the first bytes commit

    waiting --first byte, end, failure--> opened --deliver--> relaying --end, break, [DONE], idle--> ended

While relaying, a read from the engine is a write to the client in the same callback: no await, no future, no JSON per
token. A client that reads slowly pauses the reading from the engine. A stream that breaks ends with an error event and
without [DONE]; any other body is severed. What never happens: a second try after the first byte; a broken body that
ends like a whole one.
"""

import asyncio
import re
from collections.abc import Callable
from enum import Enum
from time import monotonic  # to the microsecond, where the loop's own clock counts milliseconds
from typing import Any

from aiohttp.web import StreamResponse

from gateway.client import ClientAnswer
from gateway.connection import AnswerHead, BrokenAnswer, Connection, Stalled, UpstreamError
from gateway.failures import broken_event, is_json, json_failure
from gateway.plain import PlainReader
from gateway.routes import RESPONSES, Shape
from gateway.sse import EventReader
from gateway.unpack import ENCODINGS, BadPacking, Unpacker
from gateway.usage import Usage

MAX_ERROR_BYTES = 65536  # an error longer than this is not one that a client reads
MAX_HELD_BYTES = 65536
CUT_SHORT = "the engine ended the stream without saying that it is done"

_ID = re.compile(rb'"id"\s*:\s*"([A-Za-z0-9_-]{1,128})"')


class AnswerKind(Enum):
    """What an answer is, by its head."""

    ERROR = "error"
    EVENTS = "events"
    JSON = "json"
    OTHER = "other"


_ERROR, _EVENTS, _JSON, _OTHER = AnswerKind  # before Python 3.12, to ask the class takes 0.2 us


class Answer:
    """One engine's answer to one try.

    What most answers never need to change stands on the class: an instance costs what it sets.
    """

    head = AnswerHead()
    kind = _OTHER
    connection: Connection | None = None
    encoding = b""
    """What the body is packed in, where that is nothing we can undo: it passes packed and unread."""
    error: UpstreamError | None = None
    """What went wrong with the connection, before or inside the answer."""
    is_whole = False
    is_client_stuck = False
    """Whether the client took nothing for so long that it was cut off."""
    is_truncated = False
    """Whether an error's body was longer than what was kept of it."""
    was_paused = False
    """Whether the engine had to wait for the client."""
    first_token_at: float | None = None
    _held_bytes = 0
    _done: asyncio.Future[None] | None = None
    _events: EventReader | None = None
    _plain: PlainReader | None = None
    _unpacker: Unpacker | None = None
    _response_id: str | None = None
    _client: ClientAnswer | None = None
    _response: StreamResponse | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    _idle_s = 0.0

    def __init__(self, shape: Shape, *, hides_usage: bool, on_first_token: Callable[[], None]) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._shape = shape
        self._hides_usage = hides_usage
        self._on_first_token = on_first_token
        self.opened: asyncio.Future[None] = loop.create_future()
        """Done when it is known what this answer is: good, bad or broken."""
        self.last_byte_at = monotonic()
        self._held: list[bytes] = []

    # What upstream tells.

    def on_head(self, head: AnswerHead) -> None:
        """Learn what kind of answer it is."""
        self.head = head
        if head.content_encoding in ENCODINGS:
            self._unpacker = Unpacker(head.content_encoding)
        elif head.content_encoding not in (b"", b"identity"):
            self.encoding = head.content_encoding
        if not 200 <= head.status < 300:  # a redirect leads a client past the gateway, into the fleet's own network
            self.kind = _ERROR
        elif self.encoding:
            self.kind = _OTHER
        elif head.content_type.startswith(b"text/event-stream"):
            self.kind = _EVENTS
            self._events = EventReader(self._shape, hides_usage=self._hides_usage)
        elif head.content_type.startswith(b"application/json") or b"+json" in head.content_type:
            self.kind = _JSON

    def on_body(self, data: bytes) -> None:
        """Hold, or relay."""
        self.last_byte_at = monotonic()
        if self._unpacker is not None:
            try:
                data = self._unpacker.feed(data)
            except BadPacking as error:
                self._break(BrokenAnswer(f"the engine's answer does not unpack: {error}"))
                return
            if not data:
                return
        if self._client is None:
            self._hold(data)
        elif self._response is None:
            events = self._events
            if events is None:
                assert self._plain is not None
                self._plain.note(data)
                self._client.write(data)
                return
            data = events.feed(data)
            if data:
                self._client.write(data)
            if self.first_token_at is None or events.is_over:
                self._follow_events(events)

    def on_end(self) -> None:
        """Take the end of the engine's answer."""
        if self._unpacker is not None and not self._unpacker.is_whole:
            self.on_broken(BrokenAnswer("the engine's answer ends in the middle of its compression"))
            return
        if self._events is not None:
            rest = self._events.flush()
            if self._client is None:
                self._held.append(rest)
            elif self._response is None:
                if rest:
                    self._client.write(rest)
                self._follow_events(self._events)
        self.is_whole = True
        if self._client is None:
            if self.kind is _JSON and self.head.ends_by_close and not is_json(self.held):
                self.error = BrokenAnswer("the engine closed the connection inside the answer")
            self._open()
        elif self._response is None:
            self._conclude()

    def on_broken(self, error: UpstreamError) -> None:
        """Take it that there is no more to come."""
        if self.error is None:
            self.error = error
        if self._client is None:
            self._open()
        else:
            self._break(error)

    # What the proxy asks.

    def abandon(self, error: UpstreamError) -> None:
        """Wait no longer for what does not come; nothing happens to an answer that has ended."""
        if self._client is None and self.opened.done():
            return
        if self.connection is not None:
            self.connection.abort()
        self.on_broken(error)

    def reopen(self) -> None:
        """Forget a try that the engine never saw."""
        self.opened = self._loop.create_future()
        self.error = None

    def give_up_if_silent(self, for_s: float) -> None:
        """Wait no longer, where nothing has come for so long and the engine takes no more connections."""
        if self.quiet_s >= for_s:
            self.abandon(BrokenAnswer("the engine is gone: it takes no more connections, and fell silent"))

    @property
    def quiet_s(self) -> float:
        """How long nothing has come from the engine; 0 while it is the client that is slow."""
        if self.connection is not None and self.connection.is_paused:
            return 0.0
        return monotonic() - self.last_byte_at

    @property
    def held(self) -> bytes:
        """What was held back."""
        return self._held[0] if len(self._held) == 1 else b"".join(self._held)

    @property
    def failure(self) -> dict[str, Any] | None:
        """The error that a 200 holds: the first event of a stream, or the whole of a JSON body."""
        if self._events is not None:
            return self._events.failure
        if self.kind is _JSON and self.is_whole:
            held = self.held
            if b'"error"' in held or b'"abort"' in held:
                return json_failure(held)
        return None

    @property
    def is_good(self) -> bool:
        """Whether it may be delivered."""
        return self.error is None and self.kind is not _ERROR and self.failure is None and not self._is_cut_short

    @property
    def usage(self) -> Usage | None:
        """What the engine says it used."""
        if self._events is not None:
            return self._events.usage
        return self._plain.usage if self._plain is not None else None

    @property
    def counted_tokens(self) -> int:
        """What has come so far of the output, in tokens, for where the engine does not tell; at any moment."""
        if self._events is not None:
            return self._events.deltas.tokens
        return self._plain.tokens if self._plain is not None else 0

    @property
    def texts(self) -> list[str] | None:
        """What an answer that is no stream holds; None where not all of it is here any more."""
        return self._plain.texts if self._plain is not None else None

    @property
    def response_id(self) -> str | None:
        """The id that a stored response has."""
        if self._events is not None:
            return self._events.response_id
        return self._response_id

    def deliver(self, client: ClientAnswer, lines: bytes, idle_s: float) -> None:
        """Commit: give the client the head and what was held; from here on bytes go through."""
        self._client = client
        self._idle_s = idle_s
        held = self.held
        self._held.clear()
        if self._shape is RESPONSES and (found := _ID.search(held)):
            self._response_id = found[1].decode()
        length = None
        if self._events is None:
            self._plain = PlainReader(self._shape, is_json=self.kind is _JSON)
            self._plain.note(held)
            length = len(held) if self.is_whole else None if self._unpacker else self.head.content_length
        client.start(self.head.status, lines, length, held)
        self._note_first_token()
        if self._events is not None and self._events.is_done and self._events.ends_at_done:
            self._finish()
        elif self.is_whole:
            self._conclude()
        else:
            client.on_pressure(self._pause, self._resume)
            self._idle_timer = self._loop.call_later(idle_s, self._check_idle)

    async def relayed(self) -> StreamResponse:
        """Wait for the end. Whoever is cancelled here has lost its client, and closes the answer."""
        if self._response is None:
            self._done = self._loop.create_future()
            await self._done
        assert self._response is not None
        return self._response

    def close(self) -> None:
        """Let go of the connection; an answer that is not whole is cut off at the engine."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._client is not None:
            self._client.on_pressure(None, None)
        if self.connection is not None and not self.is_whole and self._response is None:
            self.connection.abort()

    # Inside.

    def _open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)

    def _hold(self, data: bytes) -> None:
        if self._events is not None:
            passed = self._events.feed(data)
            self._held.append(passed)
            self._held_bytes += len(passed)
            if self._events.has_payload or self._held_bytes > MAX_HELD_BYTES:
                self._open()
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self.kind is _ERROR:
            if self._held_bytes > MAX_ERROR_BYTES:
                self.is_truncated = True
                if self.connection is not None:
                    self.connection.abort()
                self._open()
        elif self.kind is _OTHER or self._held_bytes > MAX_HELD_BYTES:
            self._open()

    def _follow_events(self, events: EventReader) -> None:
        """Do what the events just read call for."""
        if self.first_token_at is None:
            self._note_first_token()
        if events.is_over:
            if events.failure is not None:
                self._break(BrokenAnswer("the engine failed inside the stream"))
            elif events.ends_at_done:
                self._finish()

    def _pause(self) -> None:
        self.was_paused = True
        if self.connection is not None:
            self.connection.pause()

    def _resume(self) -> None:
        if self.connection is not None:
            self.last_byte_at = monotonic()
            self.connection.resume()

    def _note_first_token(self) -> None:
        if self._events is None or self._events.has_content:
            self.first_token_at = self.last_byte_at
            self._on_first_token()

    @property
    def _is_cut_short(self) -> bool:
        return self.is_whole and self._events is not None and self._events.ends_by_mark and not self._events.is_done

    def _conclude(self) -> None:
        if self._is_cut_short:
            self._break(BrokenAnswer(CUT_SHORT))
        else:
            self._finish()

    def _finish(self) -> None:
        assert self._client is not None
        self._end(self._client.finish())
        if not self.is_whole and self.connection is not None:
            self.connection.detach()

    def _break(self, error: UpstreamError) -> None:
        """End a body that has begun but will not be whole, in the way its client notices."""
        self.was_paused = True
        self.error = error
        if self.connection is not None:
            self.connection.abort()
        client = self._client
        if client is None:
            self._open()
        elif self._response is None:
            if self._events is None:
                self._end(client.sever())
            else:
                client.write(self._events.failure_event or broken_event(self._shape, error))
                self._end(client.finish())

    def _end(self, response: StreamResponse) -> None:
        self._response = response
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _check_idle(self) -> None:
        if self._response is not None:
            return
        if self._client is not None and self._client.is_stuck(monotonic()):
            self._drop_client(self._client)
        elif self.quiet_s < self._idle_s:
            self._idle_timer = self._loop.call_later(self._idle_s - self.quiet_s, self._check_idle)
        else:
            self._break(Stalled(f"nothing came from the engine for {self._idle_s:.3g} s"))

    def _drop_client(self, client: ClientAnswer) -> None:
        self.is_client_stuck = True
        if self.connection is not None:
            self.connection.abort()
        self._end(client.cut())
