"""The client's side: its connection, and the answer that is written to it.

aiohttp's low-level server reads requests (hardened parsing, every oddity of HTTP/1.1); answers are written by us, as
bytes, straight to the transport: an answer is mostly somebody else's bytes, and a stream must cost nothing per chunk.
aiohttp then gets a response object that has nothing left to write (DELIVERED).

An answer is written in one of two ways: whole (`reply`), or as `start`, `write` …, `finish`. It can be broken off
(`sever`): the connection closes without the end of the body, so that no client takes the rest for granted. The length
of a body that is not known beforehand is told by chunks, to HTTP/1.0 clients by the close of the connection.

A stream may be kept alive before anything is known of its answer (`ping`). It has its status then, and whatever would
have had another comes as an error event.
"""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import HttpVersion11
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web import Response, Server, StreamResponse
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from gateway.errors import BrokenBody, GatewayError, HeadTooLarge, InternalError, MalformedRequest, error_body, render


class _Delivered(StreamResponse):
    """What aiohttp is given for an answer that is already on its way."""

    def __init__(self, *, keeps_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keeps_alive

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Nothing is left to prepare; but the next request waits until its client has read most of this answer."""
        connection = request.protocol
        assert isinstance(connection, ClientConnection)
        if connection.writing_paused:
            await connection.drained()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


class ClientConnection(RequestHandler):
    """One client's connection: tells when it can take more, and words aiohttp's own refusals as ours."""

    __slots__ = (
        "_drained",
        "_new_id",
        "_waiting_bytes",
        "_waiting_since",
        "_write_timeout_s",
        "is_serving",
        "on_full",
        "on_writable",
    )

    def __init__(self, *args: Any, new_id: Callable[[], str], write_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._new_id = new_id
        self._write_timeout_s = write_timeout_s
        self._waiting_bytes = 0
        self._waiting_since = 0.0
        self._drained: asyncio.Future[None] | None = None
        self.on_full: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.is_serving = False
        """Whether a request is under way."""

    async def drained(self) -> None:
        """Wait until the client has read what piled up, or is cut off; one that leaves cancels whoever waits here."""
        loop = asyncio.get_running_loop()
        while self.writing_paused and not self.is_stuck(loop.time()):
            self._drained = loop.create_future()
            await asyncio.wait([self._drained], timeout=self._write_timeout_s)
        if self.writing_paused and self.transport is not None:
            self.transport.abort()

    def is_stuck(self, now: float) -> bool:
        """Whether the client has taken nothing for too long; asked now and then, since that is how it is known."""
        waiting_bytes = self.transport.get_write_buffer_size() if self.transport is not None else 0
        if waiting_bytes != self._waiting_bytes:
            self._waiting_bytes, self._waiting_since = waiting_bytes, now
        return bool(waiting_bytes) and now - self._waiting_since >= self._write_timeout_s

    def eof_received(self) -> None:
        """Take a client that ends its side in the middle of a request as one that has left.

        Else uvloop waits until all is sent, for ever where the client reads no more, and the engine works on.
        """
        if self.is_serving and self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent to."""
        super().pause_writing()
        if self.on_full is not None:
            self.on_full()

    def resume_writing(self) -> None:
        """The client has read what had piled up."""
        super().resume_writing()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.on_writable is not None:
            self.on_writable()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Refuse what aiohttp could not read, in the shape that every error of ours has."""
        if status >= 500:
            self.logger.error("unhandled error", exc_info=exc)
            error: GatewayError = InternalError("the gateway failed on this request; its log says why")
        elif isinstance(exc, LineTooLong):
            error = HeadTooLarge("the request line or a header is too long")
        else:
            error = MalformedRequest("the request is not valid HTTP/1.1")
        status, headers, body = render(error)
        named = [*headers, ("x-request-id", self._new_id()), ("server", "kvlane")]
        response = Response(status=status, body=body, headers=named)
        response.force_close()
        return response


class ClientServer(Server):
    """aiohttp's low-level server, with connections of ours."""

    def __init__(self, handler: Callable[[BaseRequest], Awaitable[StreamResponse]], **options: Any) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._options = options

    def __call__(self) -> RequestHandler:
        """Make the protocol of a new connection."""
        return ClientConnection(self, loop=self._loop, access_log=None, **self._options)


class ClientAnswer:
    """What one client gets for one request."""

    __slots__ = (
        "_connection",
        "_expects_continue",
        "_is_chunked",
        "_is_head",
        "_is_old",
        "_keeps_alive",
        "_transport",
        "is_pinged",
        "is_started",
        "status",
    )

    def __init__(self, request: BaseRequest) -> None:
        connection = request.protocol
        transport = request.transport
        assert isinstance(connection, ClientConnection)
        assert transport is not None
        self._connection = connection
        connection.is_serving = True
        self._transport = transport
        self._keeps_alive = request.keep_alive
        self._is_old = request.version < HttpVersion11
        self._is_chunked = not self._is_old
        self._is_head = request.method == "HEAD"
        self._expects_continue = request.headers.get("expect")
        self.is_started = False
        """Whether a byte was written: from then on there is no other status, and no second try."""
        self.is_pinged = False
        """Whether a stream was begun for the sake of its comments alone."""
        self.status = 0

    def ping(self, lines: bytes) -> None:
        """Send a comment, so that nobody on the way takes the connection for dead; `lines` are a stream's headers."""
        if self.is_started:
            self.write(PING)
        else:
            self.is_pinged = True
            self.start(200, lines, None, PING)

    def go_on(self) -> None:
        """Ask for the body, if the client waits to be asked."""
        expected = self._expects_continue
        if expected is not None and self._is_chunked and expected.lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def reply(self, status: int, lines: bytes, body: bytes, *, closes: bool = False) -> StreamResponse:
        """Write a whole answer; `lines` are its headers, each ending in CRLF."""
        if self.is_pinged:
            return self._tell(body)
        self._keeps_alive = self._keeps_alive and not closes
        head = self._head(status, lines, len(body))
        self._send(head if self._is_head else head + body)
        return self._delivered()

    def refuse(self, error: GatewayError, lines: bytes) -> StreamResponse:
        """Write a refusal."""
        status, headers, body = render(error)
        own = "".join(f"{name}: {value}\r\n" for name, value in headers).encode()
        response = self.reply(status, own + lines, body, closes=error.closes)
        if isinstance(error, BrokenBody):
            self._connection.force_close()  # else aiohttp reads on in a body that cannot be read, and logs that
        return response

    def start(self, status: int, lines: bytes, length: int | None, first: bytes) -> None:
        """Write the head and the first bytes of a body, of `length` in all where that is known."""
        if self.is_started:  # pinged
            if first:
                self.write(first)
            return
        if length is not None:
            self._is_chunked = False
        elif not self._is_chunked:
            self._keeps_alive = False
        head = self._head(status, lines, length)
        self._send(b"%b%x\r\n%b\r\n" % (head, len(first), first) if self._is_chunked and first else head + first)

    def write(self, data: bytes) -> None:
        """Write more of the body."""
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def finish(self) -> StreamResponse:
        """End the body."""
        if self._is_chunked:
            self._send(b"0\r\n\r\n")
        return self._delivered()

    def _tell(self, body: bytes) -> StreamResponse:
        """End a stream that was only kept alive with the error that would have been its answer."""
        try:
            event = orjson.dumps(orjson.loads(body))  # in one line
        except orjson.JSONDecodeError:
            event = error_body("the engine refused the request", "server_error", None, "upstream_error")
        self.write(b"data: %b\n\n" % event)
        return self.finish()

    def sever(self) -> StreamResponse:
        """Break off: close without the end of the body, which every HTTP client takes for an error."""
        self._keeps_alive = False
        if self._is_chunked:
            self._transport.close()  # without the last chunk
        else:
            self._transport.abort()  # only the close says where the body ends: a clean one would look like the end
        return self._delivered()

    def is_stuck(self, now: float) -> bool:
        """Whether the client has taken nothing of what waits for it, for too long."""
        return self._connection.is_stuck(now)

    def cut(self) -> StreamResponse:
        """Close at once, what waits to be read included."""
        self._keeps_alive = False
        self._transport.abort()
        return self._delivered()

    def on_pressure(self, full: Callable[[], None] | None, writable: Callable[[], None] | None) -> None:
        """Let `full` be told when too much waits for the client to read it, `writable` when it has caught up."""
        self._connection.on_full = full
        self._connection.on_writable = writable
        if full is not None and self._connection.writing_paused:
            full()

    def _send(self, data: bytes) -> None:
        """Write, unless the client has just gone: then this request is about to be cancelled."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def _head(self, status: int, lines: bytes, length: int | None) -> bytes:
        self.is_started = True
        self.status = status
        first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        if status == NO_CONTENT:
            framing = b""  # which says all: RFC 9110 8.6 wants no length
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        else:
            framing = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        if not self._keeps_alive:
            fate = b"connection: close\r\n"
        else:
            fate = b"connection: keep-alive\r\n" if self._is_old else b""  # which HTTP/1.0 does not take for granted
        return b"%b%b%b%b\r\n" % (first, lines, framing, fate)

    def _delivered(self) -> StreamResponse:
        self._connection.is_serving = False
        return DELIVERED if self._keeps_alive else DELIVERED_AND_CLOSE


NO_CONTENT = 204
PING = b": ping\n"  # with one newline: with two, some clients fail where events carry ids
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
DELIVERED = _Delivered(keeps_alive=True)
DELIVERED_AND_CLOSE = _Delivered(keeps_alive=False)
