"""ScriptedEngine: an engine of which a test writes every byte, for what a simulated engine would never do.

Polls (GET, but for stored responses) are answered with an empty 200; a gateway that is told kind and models takes that
for health. Everything else is handed to the script, one request at a time a connection.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from tests.until import PATIENCE_S
from tests.wire.client import RST_ON_CLOSE

EVENTS_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass(slots=True)
class Call:
    """A request as it came, and the connection to answer it on."""

    method: str
    target: str
    headers: list[tuple[str, bytes]]
    """Names in lower case."""
    body: bytes
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)

    def all(self, name: str) -> list[bytes]:
        """Give every value of a header."""
        return [value for key, value in self.headers if key == name]

    def write(self, *data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.writelines(data)

    async def flush(self) -> None:
        """Let go of what is written, in a segment of its own."""
        await self.writer.drain()
        await asyncio.sleep(0)

    async def write_slowly(self, data: bytes) -> None:
        """Write each byte in a segment of its own."""
        for at in range(len(data)):
            self.writer.write(data[at : at + 1])
            await self.flush()

    async def gone(self) -> None:
        """Wait until the gateway has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                assert await self.reader.read() == b""

    def close(self) -> None:
        """Close with FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Close with RST, what is written and not sent included."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
        self.writer.transport.abort()


Script: TypeAlias = Callable[[Call], Awaitable[None]]


class ScriptedEngine:
    """An engine on a port of its own."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls: list[Call] = []

    @property
    def url(self) -> str:
        """Where it is."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, AssertionError | TimeoutError):
                raise outcome

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer), name="scripted engine"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while call := await _next_call(reader, writer):
                if call.method == "GET" and not call.target.startswith("/v1/responses/"):
                    call.write(EMPTY)
                    continue
                self.calls.append(call)
                await self._script(call)
        except ConnectionError:
            pass  # the gateway may close whenever it likes
        finally:
            writer.close()


async def _next_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    request_line, *lines = raw[:-4].split(b"\r\n")
    method, target, _ = request_line.decode().split(" ")
    headers = [(name.decode().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    body = await reader.readexactly(length) if length else b""
    return Call(method, target, headers, body, reader, writer)


def chunk(data: bytes) -> bytes:
    """Frame bytes as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    """Write an answer of known length."""
    lines = [f"HTTP/1.1 {status} Said", f"content-type: {content_type}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(answer: bytes) -> Script:
    """Make a script that gives one answer to everything."""

    async def script(call: Call) -> None:
        call.write(answer)

    return script


def streams(body: bytes) -> Script:
    """Make a script that streams a body in one chunk."""
    return says(EVENTS_HEAD + chunk(body) + b"0\r\n\r\n")


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Give the URL of a listener whose queue is full: connecting to it neither succeeds nor fails."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield "http://{}:{}".format(*listener.getsockname())
