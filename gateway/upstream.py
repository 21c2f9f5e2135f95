"""Our HTTP/1.1 client: one request to one engine over pooled raw connections.

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
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from gateway.splice import Buffer

DRAIN_S = 1.0  # how long an engine may take to end a body whose [DONE] was seen, before its connection is closed
MAX_HEAD_BYTES = 65536


class UpstreamError(Exception):
    """An exchange with an engine failed; the message says how, for logs and the client's 502."""


class ConnectFailed(UpstreamError):
    """No connection: refused, unreachable, not in time. The engine saw nothing."""


class StaleConnection(UpstreamError):
    """A reused connection died before a byte of the answer: the engine had closed it."""


class BrokenAnswer(UpstreamError):
    """The engine closed, reset or garbled the connection before the answer was whole."""


class Stalled(UpstreamError):
    """Nothing came from the engine for too long."""


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


class Connection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
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
        "transport",
    )

    def __init__(self, pool: "EngineConnections") -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._parts: list[bytes] = []
        self._head = AnswerHead()
        self._head_bytes = 0
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
        self._head_bytes = 0
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
            self._drain_timer = self._pool.loop.call_later(DRAIN_S, self.abort)

    def pause(self) -> None:
        """Read no more for now: the client is slower than the engine."""
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
            self._fail(BrokenAnswer(f"the engine's answer is not HTTP: {error}"))
            return
        parts = self._parts
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if self._receiver is not None:
                self._receiver.on_body(body)
        if self._is_complete:
            self._finish()

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
        if self._saw_head and head.content_length is None and not head.is_chunked and exc is None:
            receiver.on_end()
        elif self._is_reused and not self._saw_bytes:
            receiver.on_broken(StaleConnection("the engine had closed the connection"))
        else:
            how = "reset" if exc is not None else "closed"
            when = "inside the answer" if self._saw_head else "before an answer"
            receiver.on_broken(BrokenAnswer(f"the engine {how} the connection {when}"))

    # What llhttp tells it.

    def on_status(self, reason: bytes) -> None:
        """Note the reason phrase."""
        self._head.reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise httptools.HttpParserError(f"head of more than {MAX_HEAD_BYTES} bytes")
        head = self._head
        head.headers.append((name, value))
        match name.lower():
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

    def on_headers_complete(self) -> None:
        """Hand over the head, unless it only says to wait for another (1xx)."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._head.status = status
        self._saw_head = True
        if self._receiver is not None:
            self._receiver.on_head(self._head)

    def on_body(self, data: bytes) -> None:
        """Collect; handed over once per read."""
        self._parts.append(data)

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


class EngineConnections:
    """The connections to one engine: opened when needed, kept for a while, last in first out."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        *,
        connect_s: float,
        idle_s: float,
        max_idle: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._max_idle = max_idle
        self._idle: list[Connection] = []
        self._reaper: asyncio.TimerHandle | None = None

    @property
    def idle_count(self) -> int:
        """How many are open and unused."""
        return len(self._idle)

    async def send(self, pieces: Sequence[Buffer], receiver: Receiver, *, is_fresh: bool = False) -> Connection:
        """Send a request over a kept connection, or a new one where there is none or `is_fresh` asks for it.

        Raises:
            ConnectFailed: no connection within `connect_s`.
        """
        if not is_fresh:
            now = self.loop.time()
            while self._idle:
                connection = self._idle.pop()
                transport = connection.transport
                if transport is not None and not transport.is_closing() and now < connection.idle_until:
                    connection.send(pieces, receiver, is_reused=True)
                    return connection
                connection.abort()
        connection = await self._connect()
        connection.send(pieces, receiver, is_reused=False)
        return connection

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise ConnectFailed(f"no connection within {self._connect_s:g} s") from error
        except OSError as error:
            raise ConnectFailed(error.strerror or str(error) or type(error).__name__) from error
        return connection

    def take_back(self, connection: Connection, head: AnswerHead) -> None:
        """Keep a connection for the next request; for less long where the engine says so (`Keep-Alive: timeout=`)."""
        keep_s = self._idle_s
        if head.keep_alive and (timeout_s := _keep_alive_timeout_s(head.keep_alive)) is not None:
            keep_s = min(keep_s, timeout_s / 2)
        if len(self._idle) >= self._max_idle or keep_s <= 0:
            connection.abort()
            return
        connection.idle_until = self.loop.time() + keep_s
        self._idle.append(connection)
        if self._reaper is None:
            self._reaper = self.loop.call_later(self._idle_s, self._reap)

    def forget(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all that is idle; busy ones end with their requests."""
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def _reap(self) -> None:
        self._reaper = None
        now = self.loop.time()
        old = [connection for connection in self._idle if connection.idle_until <= now]
        self._idle = [connection for connection in self._idle if connection.idle_until > now]
        for connection in old:
            connection.abort()
        if self._idle:
            self._reaper = self.loop.call_later(self._idle_s, self._reap)


class Upstream:
    """The connections to all engines, by URL."""

    def __init__(self, *, connect_s: float, idle_s: float, max_idle: int) -> None:
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._max_idle = max_idle
        self._engines: dict[str, EngineConnections] = {}

    def to(self, url: str) -> EngineConnections:
        """Give the connections to the engine at `url`."""
        connections = self._engines.get(url)
        if connections is None:
            parts = urlsplit(url)
            is_tls = parts.scheme == "https"
            assert parts.hostname is not None
            connections = self._engines[url] = EngineConnections(
                parts.hostname,
                parts.port or (443 if is_tls else 80),
                ssl.create_default_context() if is_tls else None,
                connect_s=self._connect_s,
                idle_s=self._idle_s,
                max_idle=self._max_idle,
            )
        return connections

    def forget(self, url: str) -> None:
        """Close what is open to an engine that has left."""
        connections = self._engines.pop(url, None)
        if connections is not None:
            connections.close()

    def close(self) -> None:
        """Close all idle connections."""
        for url in list(self._engines):
            self.forget(url)


def _keep_alive_timeout_s(value: bytes) -> float | None:
    for part in value.split(b","):
        name, _, number = part.strip().partition(b"=")
        if name == b"timeout" and number.isdigit():
            return float(number)
    return None
