"""The client's side: its connection, and the answer that is written to it.

aiohttp's low-level server reads requests (hardened parsing, every oddity of HTTP/1.1); answers are written by us, as
bytes, straight to the transport: an answer is mostly somebody else's bytes, and a stream must cost nothing per chunk.
aiohttp then gets a response object that has nothing left to write (DELIVERED).

An answer is written in one of two ways: whole (`reply`), or as `start`, `write` …, `finish`. It can be broken off
(`sever`): the connection closes without the end of the body, so that no client takes the rest for granted. The length
of a body that is not known beforehand is told by chunks, to HTTP/1.0 clients by the close of the connection.
"""

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion11
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web import Response, Server, StreamResponse
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from gateway.errors import GatewayError, HeadTooLarge, InternalError, MalformedRequest, render

Header = tuple[str, str]


class _Delivered(StreamResponse):
    """What aiohttp is given for an answer that is already on its way."""

    def __init__(self, *, keeps_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keeps_alive

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Nothing is left to prepare."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


class ClientConnection(RequestHandler):
    """One client's connection: tells when it can take more, and words aiohttp's own refusals as ours."""

    __slots__ = ("on_writable",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_writable: Callable[[], None] | None = None

    def resume_writing(self) -> None:
        """The client has read what had piled up."""
        super().resume_writing()
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
        response = Response(status=status, body=body, headers=headers)
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
        "_keeps_alive",
        "_transport",
        "is_started",
        "status",
    )

    def __init__(self, request: BaseRequest) -> None:
        connection = request.protocol
        assert isinstance(connection, ClientConnection)
        assert request.transport is not None
        self._connection = connection
        self._transport = request.transport
        self._keeps_alive = request.keep_alive
        self._is_chunked = request.version >= HttpVersion11
        self._is_head = request.method == "HEAD"
        self._expects_continue = request.headers.get("expect", "").lower() == "100-continue"
        self.is_started = False
        """Whether a byte was written: from then on there is no other status, and no second try."""
        self.status = 0

    def go_on(self) -> None:
        """Ask for the body, if the client waits to be asked."""
        if self._expects_continue and self._is_chunked:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def reply(self, status: int, headers: Iterable[Header], body: bytes, *, closes: bool = False) -> StreamResponse:
        """Write a whole answer."""
        self._keeps_alive = self._keeps_alive and not closes
        head = self._head(status, headers, len(body))
        self._transport.write(head if self._is_head else head + body)
        return self._delivered()

    def refuse(self, error: GatewayError, headers: Iterable[Header], *, closes: bool = False) -> StreamResponse:
        """Write a refusal."""
        status, own, body = render(error)
        return self.reply(status, [*own, *headers], body, closes=closes)

    def start(self, status: int, headers: Iterable[Header], length: int | None, first: bytes) -> None:
        """Write the head and the first bytes of a body, of `length` in all where that is known."""
        if length is not None:
            self._is_chunked = False
        elif not self._is_chunked:
            self._keeps_alive = False
        head = self._head(status, headers, length)
        if self._is_chunked and first:
            self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(first), first))
        else:
            self._transport.write(head + first)

    def write(self, data: bytes) -> bool:
        """Write more of the body; False asks to send no more until the connection's `on_writable`."""
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._transport.write(data)
        return not self._connection.writing_paused

    def finish(self) -> StreamResponse:
        """End the body."""
        if self._is_chunked:
            self._transport.write(b"0\r\n\r\n")
        return self._delivered()

    def sever(self) -> StreamResponse:
        """Break off: close without the end of the body, which every HTTP client takes for an error."""
        self._keeps_alive = False
        self._transport.abort() if self._is_length_hidden else self._transport.close()
        return self._delivered()

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        """Let `callback` be told when the client has caught up."""
        self._connection.on_writable = callback

    @property
    def _is_length_hidden(self) -> bool:
        """Whether only the close says where the body ends, so that a clean close would look like the end."""
        return not self._is_chunked

    def _head(self, status: int, headers: Iterable[Header], length: int | None) -> bytes:
        self.is_started = True
        self.status = status
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if length is not None:
            lines.append(f"content-length: {length}")
        elif self._is_chunked:
            lines.append("transfer-encoding: chunked")
        if not self._keeps_alive:
            lines.append("connection: close")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape")

    def _delivered(self) -> StreamResponse:
        return DELIVERED if self._keeps_alive else DELIVERED_AND_CLOSE


_REASONS = {status.value: status.phrase for status in HTTPStatus}
DELIVERED = _Delivered(keeps_alive=True)
DELIVERED_AND_CLOSE = _Delivered(keeps_alive=False)
