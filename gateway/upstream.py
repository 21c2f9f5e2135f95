"""The connections to the engines: opened when needed, kept for a while, last in first out.

An idle connection is closed before its engine would do it: after `idle_s`, or half of what the engine says it keeps
(`Keep-Alive: timeout=`). Where both cross all the same, `Connection` reports it as stale.
"""

import asyncio
import errno
import logging
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.connection import AnswerHead, ConnectFailed, Connection, ConnectTimedOut, NoFilesLeft, Receiver
from gateway.patience import Patience
from gateway.splice import Buffer

log = logging.getLogger(__name__)

COMPLAIN_EVERY_S = 60.0


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
        self._draining: set[Connection] = set()
        self._is_closed = False
        self._complained_at = float("-inf")
        self._reaper: asyncio.TimerHandle | None = None

    @property
    def idle_count(self) -> int:
        """How many are open and unused."""
        return len(self._idle)

    async def send(
        self, pieces: Sequence[Buffer], receiver: Receiver, *, within_s: float, is_fresh: bool = False
    ) -> Connection:
        """Send a request over a kept connection, or a new one where there is none or `is_fresh` asks for it.

        Raises:
            ConnectFailed: no connection within `connect_s`, or `within_s`; where our loop is late, only the latter.
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
        connection = await self._connect(self._connect_s, within_s)
        connection.send(pieces, receiver, is_reused=False)
        return connection

    async def _connect(self, connect_s: float, within_s: float) -> Connection:
        try:
            async with Patience(connect_s, within_s):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise ConnectTimedOut(min(connect_s, within_s)) from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._complain()
                raise NoFilesLeft("the gateway is out of file descriptors") from error
            raise ConnectFailed(error.strerror or str(error) or type(error).__name__) from error
        return connection

    def _complain(self) -> None:
        now = self.loop.time()
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            log.error("out of file descriptors: raise the limit (ulimit -n); each stream needs two")

    def drain(self, connection: Connection) -> None:
        """Know of a connection that waits for the end of an answer which nobody needs any more."""
        self._draining.add(connection)

    def take_back(self, connection: Connection, head: AnswerHead) -> None:
        """Keep a connection for the next request; for less long where the engine says so (`Keep-Alive: timeout=`)."""
        keep_s = self._idle_s
        if head.keep_alive and (timeout_s := _keep_alive_timeout_s(head.keep_alive)) is not None:
            keep_s = min(keep_s, timeout_s / 2)
        self._draining.discard(connection)
        if self._is_closed or len(self._idle) >= self._max_idle or keep_s <= 0:
            connection.abort()
            return
        connection.idle_until = self.loop.time() + keep_s
        self._idle.append(connection)
        if self._reaper is None:
            self._reaper = self.loop.call_later(self._idle_s, self._reap)

    def forget(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self._draining.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all that is idle, for good; busy ones end with their requests."""
        self._is_closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        unused, self._idle = [*self._idle, *self._draining], []
        for connection in unused:
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
        self._tls: ssl.SSLContext | None = None

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
                self._tls_context() if is_tls else None,
                connect_s=self._connect_s,
                idle_s=self._idle_s,
                max_idle=self._max_idle,
            )
        return connections

    def _tls_context(self) -> ssl.SSLContext:
        """Make one context for all engines: reading the certificates takes tens of milliseconds."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

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
