"""Connection, Exchange: the simulated engine's HTTP/1.1, on raw transports.

Not aiohttp: the gateway's server side stands on it, and a double must not share its mistakes; faults are
bytes (a reset here, a lone CR there), easiest where bytes are written; and an engine should cost next to
nothing beside the gateway it tests. Semantics follow uvicorn: a client's half-close counts as leaving, idle
connections close after 5 s.

An Exchange is one request and its answer: `answer` gives it whole, or `begin`, `send`..., `end` as a stream.
When the client leaves first, `on_gone` is called, once, in the same tick. Requests that come early wait in
line.
"""

import asyncio
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote, urlsplit

import httptools

Headers = list[tuple[str, str]]
_LINGER_NOT = struct.pack("ii", 1, 0)  # close() then sends RST


class Owner(Protocol):
    """Who the connections belong to."""

    keep_alive_s: float
    resets_stale: bool

    def accepted(self, connection: "Connection") -> bool:
        """Say whether to keep a new connection; it is reset if not."""

    def handle(self, exchange: "Exchange") -> None:
        """Take a request whose body is here."""

    def answered(self, exchange: "Exchange") -> None:
        """Note an answer that was sent to its end."""

    def closed(self, connection: "Connection") -> None:
        """Forget a connection."""


class Exchange:
    """One request and its answer."""

    def __init__(self, connection: "Connection", method: str, target: str, headers: Headers, body: bytes) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.path = unquote(urlsplit(target).path)
        self.headers = headers
        self.body = body
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.is_over = False
        self.status = 0
        self.stamp: Headers = []
        """Headers of the answer, whatever it is."""
        self.is_crlf = False
        self.is_gzip = False
        self._deflate: zlib._Compress | None = None

    def header(self, name: str) -> str | None:
        """Give a header's value; the name in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def answer(
        self,
        status: int,
        body: bytes,
        content_type: str | None = "application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Answer whole."""
        extra = [*headers, *self.stamp]
        if self.is_gzip and body:
            packer = zlib.compressobj(wbits=31)
            body = packer.compress(body) + packer.flush()
            extra.append(("content-encoding", "gzip"))
        extra.append(("content-length", str(len(body))))
        self.status = status
        self.connection.write(_head(status, content_type, extra) + (b"" if self.method == "HEAD" else body))
        self._finish()

    def begin(self, status: int, content_type: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send the head of a stream."""
        extra = [*headers, *self.stamp, ("transfer-encoding", "chunked")]
        if self.is_gzip:
            self._deflate = zlib.compressobj(wbits=31)
            extra.append(("content-encoding", "gzip"))
        self.status = status
        self.connection.write(_head(status, content_type, extra))

    def send(self, data: bytes) -> None:
        """Send a piece of a stream, as one chunk."""
        if self.is_over or not data:
            return  # an empty chunk would end the stream
        if self.is_crlf:
            data = data.replace(b"\n", b"\r\n")
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End a stream cleanly."""
        if self.is_over:
            return
        if self._deflate is not None and (rest := self._deflate.flush()):
            self.connection.write(b"%x\r\n%b\r\n" % (len(rest), rest))
        self.connection.write(b"0\r\n\r\n")
        self._finish()

    def reset(self) -> None:
        """Break the connection with RST."""
        self.is_over = True
        self.connection.reset()

    def close(self) -> None:
        """Break the connection with FIN, wherever the answer stands."""
        self.is_over = True
        self.connection.close()

    def _finish(self) -> None:
        self.is_over = True
        self.connection.answered(self)


def _head(status: int, content_type: str | None, headers: Iterable[tuple[str, str]]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}", f"date: {_date(int(time.time()))}", "server: uvicorn"]
    if content_type is not None:
        lines.append(f"content-type: {content_type}")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._target = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._current: Exchange | None = None
        self._early: deque[tuple[Exchange, bool]] = deque()
        self._keeps = True
        self._idle: asyncio.TimerHandle | None = None
        self._is_stale = False
        self._unsent: list[bytes] = []
        self._dribble: deque[int] | None = None
        self._closes_after_dribble = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.requests = 0

    # what the transport says

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if not self._owner.accepted(self):
            self.reset()

    def data_received(self, data: bytes) -> None:
        if self._is_stale:
            self.reset()
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # h2c offers and the like are not taken up
        except httptools.HttpParserError:
            self.write(_head(400, "text/plain; charset=utf-8", [("content-length", "30"), ("connection", "close")]))
            self.write(b"Invalid HTTP request received.")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._transport = None
        self._can_write.set()
        self._owner.closed(self)
        exchange, self._current = self._current, None
        self._early.clear()
        if exchange is not None and not exchange.is_over:
            exchange.is_over = True
            if exchange.on_gone is not None:
                exchange.on_gone()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()
        if self._current is not None and self._current.on_writable is not None:
            self._current.on_writable()

    # what the parser says

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        target = self._target.decode("latin-1")
        exchange = Exchange(self, method, target, self._headers, b"".join(self._body))
        self._target, self._headers, self._body = b"", [], []
        self._early.append((exchange, self._parser.should_keep_alive()))
        if self._current is None:
            self._next()

    # what exchanges say

    @property
    def can_write(self) -> bool:
        """Whether the client reads as fast as we write."""
        return self._can_write.is_set()

    async def drain(self) -> None:
        """Wait until the client has read enough, or left."""
        await self._can_write.wait()

    def write(self, data: bytes) -> None:
        """Write bytes, at the end of this tick or one by one; a system call costs more than all else here."""
        if self._transport is None:
            return
        if self._dribble is None:
            if not self._unsent:
                self._loop.call_soon(self._flush)
            self._unsent.append(data)
            return
        if not self._dribble:
            self._loop.call_soon(self._drip)
        self._dribble.extend(data)

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def dribble(self) -> None:
        """From now on, send each byte in a TCP segment of its own."""
        self._dribble = deque()

    def _drip(self) -> None:
        if self._transport is None or not self._dribble:
            return
        self._transport.write(bytes((self._dribble.popleft(),)))
        if self._dribble:
            self._loop.call_soon(self._drip)
        elif self._closes_after_dribble:
            self.close()

    def answered(self, exchange: Exchange) -> None:
        """Go on to the next request, or wait for one."""
        self._owner.answered(exchange)
        self._current = None
        if not self._keeps:
            self.close()
        elif self._early:
            self._next()
        elif self._transport is not None:
            self._idle = self._loop.call_later(self._owner.keep_alive_s, self._too_old)

    def _next(self) -> None:
        self._current, self._keeps = self._early.popleft()
        self.requests += 1
        self._owner.handle(self._current)

    def _too_old(self) -> None:
        self._idle = None
        if self._owner.resets_stale:
            self._is_stale = True  # looks alive, and is reset at the next byte: the race every pool can lose
        else:
            self.close()

    def close(self) -> None:
        """Close with FIN, after what is written."""
        self._flush()
        if self._dribble:
            self._closes_after_dribble = True
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, as the kernel does when a process is killed."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close with RST, after what the kernel takes at once."""
        self._flush()
        if self._transport is not None:
            sock: socket.socket = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self._transport.abort()
