"""One raw connection to an engine: our HTTP/1.1 client, of which `upstream.py` keeps pools.

Why our own: aiohttp's client costs 60 us a request and hands bodies over in awaits; here the engine's bytes reach the
receiver in the very callback that read them, and nothing per chunk awaits or allocates a future. llhttp (httptools)
finds heads and ends.

States of a connection:

    connecting --> busy --head, body, end--> idle (in its pool, last in first out) --> busy …
                    |  \\--detached after [DONE]--> draining --end--> idle
                    |                                  \\--1 s--> closed
                    \\--abort, reset, nonsense--> closed

What never happens: a connection with unread or unsent bytes goes back to the pool; two requests share a connection; a
receiver hears anything after `on_end` or `on_broken`.

Engines close idle connections after 5 s; ours close earlier. Where both cross, the send that dies on a *reused*
connection before a single byte is reported as StaleConnection: the caller may try it once more on a fresh one, since
the engine never saw it.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import httptools

from gateway.splice import Buffer

log = logging.getLogger(__name__)

DRAIN_S = 1.0  # how long an engine may take to end a body whose [DONE] was seen, before its connection is closed
MAX_HEAD_BYTES = 65536
_HEARD = frozenset(
    (b"content-type", b"content-length", b"transfer-encoding", b"content-encoding", b"keep-alive", b"connection")
)
"""Headers that say something here; most do not."""


class UpstreamError(Exception):
    """An exchange with an engine failed; the message says how, for logs and the client's 502."""


class ConnectFailed(UpstreamError):
    """No connection: refused, unreachable, not in time. The engine saw nothing."""


class ConnectTimedOut(ConnectFailed):
    """No connection in time."""

    def __init__(self, after_s: float) -> None:
        super().__init__(f"no connection within {after_s:.3g} s")
        self.after_s = after_s


class NoFilesLeft(ConnectFailed):
    """This process may open no more files: the engine has no part in it."""


class StaleConnection(UpstreamError):
    """A reused connection died before a byte of the answer: the engine had closed it."""


class BrokenAnswer(UpstreamError):
    """The engine closed, reset or garbled the connection before the answer was whole."""


class Stalled(UpstreamError):
    """Nothing came from the engine for too long."""


class DeadlinePassed(Stalled):
    """Nothing came from the engine in the time that the client gave: no word about the engine."""


@dataclass(slots=True)
class AnswerHead:
    """Status and headers of an engine's answer."""

    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Names as the engine spelt them."""
    content_type: bytes = b""
    content_encoding: bytes = b""
    content_length: int | None = None
    is_chunked: bool = False
    keep_alive: bytes = b""
    connection: bytes = b""
    """Names further headers that are not to be passed on."""

    @property
    def ends_by_close(self) -> bool:
        """Whether only the close of the connection says where the body ends."""
        return self.content_length is None and not self.is_chunked


class Receiver(Protocol):
    """Who gets an answer. Called from the event loop as bytes arrive; must not block."""

    def on_head(self, head: AnswerHead) -> None:
        """Take status and headers; called once, first."""

    def on_body(self, data: bytes) -> None:
        """Take bytes of the body, unchunked."""

    def on_end(self) -> None:
        """The answer is whole."""

    def on_broken(self, error: UpstreamError) -> None:
        """The answer will not be whole."""


class Pool(Protocol):
    """Where a connection comes from and goes back to."""

    loop: asyncio.AbstractEventLoop

    def drain(self, connection: "Connection") -> None:
        """Know of a connection whose answer is only waited for to end."""

    def take_back(self, connection: "Connection", head: AnswerHead) -> None:
        """Keep it for the next request, or close it."""

    def forget(self, connection: "Connection") -> None:
        """Note that it is gone."""


class Connection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
        "_bytes_before_head",
        "_drain_timer",
        "_head",
        "_head_bytes",
        "_is_complete",
        "_is_reused",
        "_keeps_alive",
        "_parser",
        "_parts",
        "_pool",
        "_receiver",
        "_saw_bytes",
        "_saw_head",
        "idle_until",
        "is_paused",
        "on_body",
        "transport",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._parts: list[bytes] = []
        self.on_body = self._parts.append  # llhttp's pieces of a body, collected without a Python frame for each
        self._head = AnswerHead()
        self._head_bytes = self._bytes_before_head = 0
        self._saw_bytes = self._saw_head = self._is_complete = self._is_reused = self._keeps_alive = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self.idle_until = 0.0
        self.is_paused = False

    # What the gateway does with it.

    def send(self, pieces: Sequence[Buffer], receiver: Receiver, *, is_reused: bool) -> None:
        """Send one request, head and body, and let `receiver` have the answer."""
        assert self.transport is not None
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._head = AnswerHead()
        self._head_bytes = self._bytes_before_head = 0
        self._saw_bytes = self._saw_head = self._is_complete = False
        self._is_reused = is_reused
        self.transport.writelines(pieces)

    def abort(self) -> None:
        """Close at once, whatever is under way: that is how engines learn to stop."""
        self._receiver = None
        if self.transport is not None:
            self.transport.abort()

    def detach(self) -> None:
        """Stop listening to an answer that has said all; keep the connection if it ends soon."""
        self._receiver = None
        if not self._is_complete and self.transport is not None:
            self.resume()
            self._pool.drain(self)
            self._drain_timer = self._pool.loop.call_later(DRAIN_S, self.abort)

    def pause(self) -> None:
        """Stop reading until `resume`: the client is slower than the engine."""
        if self.transport is not None and not self.is_paused and not self.transport.is_closing():
            self.is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.transport is not None and self.is_paused and not self.transport.is_closing():
            self.is_paused = False
            self.transport.resume_reading()

    # What asyncio tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport; uvloop has set TCP_NODELAY."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class says so only to duck typing

    def data_received(self, data: bytes) -> None:
        """Parse, and hand over what there is of the body."""
        if self._parser is None:  # idle, and the engine speaks: a late 408, or nonsense
            self.abort()
            return
        self._saw_bytes = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_complete:
                self._fail(BrokenAnswer(f"the engine's answer is not HTTP: {error}"))
                return
            self._keeps_alive = False  # the answer is whole, and what came behind it is nobody's
        if not self._saw_head:
            self._bytes_before_head += len(data)
            if self._bytes_before_head > MAX_HEAD_BYTES:
                self._fail(BrokenAnswer(f"the engine's answer has no head within {MAX_HEAD_BYTES} bytes"))
                return
        parts = self._parts
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if self._receiver is not None and not self._is_taken(self._receiver, body):
                return
        if self._is_complete:
            self._finish()

    def _is_taken(self, receiver: Receiver, body: bytes) -> bool:
        """Hand over a piece; a fault of ours in reading it ends this one answer, in words."""
        try:
            receiver.on_body(body)
        except Exception:
            log.exception("reading an engine's answer failed inside the gateway")
            self._receiver = receiver
            self._fail(BrokenAnswer("the gateway could not read the engine's answer"))
            return False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End an answer that only the close ends; else it is broken."""
        self.transport = None
        self._pool.forget(self)
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        head = self._head
        if self._saw_head and head.ends_by_close and exc is None:
            receiver.on_end()
        elif self._is_reused and not self._saw_bytes:
            receiver.on_broken(StaleConnection("the engine had closed the connection"))
        else:
            how = "reset" if exc is not None else "closed"
            when = "inside the answer" if self._saw_head else "before an answer"
            receiver.on_broken(BrokenAnswer(f"the engine {how} the connection {when}"))

    # What llhttp tells it.

    def on_message_begin(self) -> None:
        """Refuse to read a second answer to one request."""
        if self._is_complete:
            raise httptools.HttpParserError("bytes behind the end of the answer")

    def on_status(self, reason: bytes) -> None:
        """Note the reason phrase."""
        self._head.reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        if self._saw_head:  # a trailer behind a chunked body: it says nothing that a client needs
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES:
            raise httptools.HttpParserError(f"head of more than {MAX_HEAD_BYTES} bytes")
        head = self._head
        head.headers.append((name, value))
        known = name.lower()
        if known not in _HEARD:
            return
        match known:
            case b"content-type":
                head.content_type = value.lower()
            case b"content-length":
                head.content_length = int(value)
            case b"transfer-encoding":
                head.is_chunked = b"chunked" in value.lower()
            case b"content-encoding":
                head.content_encoding = value.lower()
            case b"keep-alive":
                head.keep_alive = value.lower()
            case b"connection":
                head.connection += b"," + value if head.connection else value

    def on_headers_complete(self) -> None:
        """Hand over the head, unless it only says to wait for another (1xx)."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 100:  # what follows may have a body, which nothing would tell from the body of the answer
            raise httptools.HttpParserError(f"the status is {status}")
        if status < 200:
            return
        self._head.status = status
        self._saw_head = True
        if self._receiver is not None:
            self._receiver.on_head(self._head)

    def on_message_complete(self) -> None:
        """Note the end, unless it was that of a 1xx."""
        if self._saw_head:
            assert self._parser is not None
            self._is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()  # llhttp forgets it right after this
        else:
            self._head = AnswerHead()

    # Ends.

    def _finish(self) -> None:
        receiver, self._receiver = self._receiver, None
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        transport = self.transport
        self._parser = None
        if transport is not None and not transport.is_closing():
            if self._keeps_alive and not transport.get_write_buffer_size():
                self.resume()
                self._pool.take_back(self, self._head)
            else:
                transport.abort()
        if receiver is not None:
            receiver.on_end()

    def _fail(self, error: UpstreamError) -> None:
        receiver, self._receiver = self._receiver, None
        self._parts.clear()
        self.abort()
        if receiver is not None:
            receiver.on_broken(error)
