"""RawClient: an HTTP client of which a test writes and reads every byte.

No client library: those mend, fold, retry and pool, and then a test shows what the library makes of an answer. Answers
are parsed strictly, and one that ends early is told apart from one that is whole.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from tests.until import PATIENCE_S

RST_ON_CLOSE = struct.pack("ii", 1, 0)
CHAT = "/v1/chat/completions"

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of an answer."""

    version: str
    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""

    def all(self, name: str) -> list[str]:
        """Give every value of a header."""
        return [value for key, value in self.headers if key == name]

    def __getitem__(self, name: str) -> str:
        """Give the value of a header that is there once."""
        (value,) = self.all(name)
        return value

    def __contains__(self, name: str) -> bool:
        return bool(self.all(name))


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """A head and what came of its body."""

    head: Head
    body: bytes
    is_whole: bool = True
    """Whether the body ended as its framing says."""

    def __repr__(self) -> str:
        headers = ", ".join(f"{name}: {value}" for name, value in self.head.headers)
        whole = "whole" if self.is_whole else "broken"
        return f"<Answer {self.status} {whole}, {len(self.body)} bytes {self.body[:300]!r}, {headers}>"

    @property
    def status(self) -> int:
        """The status code."""
        return self.head.status

    @property
    def json(self) -> Any:
        """The parsed body."""
        assert self.head["content-type"].startswith("application/json"), self
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, str | None]:
        """The error object, once it is sure that it has the one shape that errors have."""
        assert self.status >= 400, self
        error: dict[str, str | None] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"]
        assert error["type"]
        assert all(isinstance(value, str) for value in error.values() if value is not None), error
        return error

    @property
    def refusal(self) -> tuple[int, str | None, str | None]:
        """Status, type and code of an error."""
        return self.status, self.error["type"], self.error["code"]


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator["RawClient"]:
        """Connect; close at the end."""
        place = urlsplit(url)
        client = cls(*await asyncio.open_connection(place.hostname, place.port))
        try:
            yield client
        finally:
            client.close()
            with contextlib.suppress(OSError):
                await client._writer.wait_closed()

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)

    async def flush(self) -> None:
        """Let go of what is written, in a segment of its own."""
        await self._writer.drain()
        await asyncio.sleep(0)

    def ask(self, target: str, body: bytes, headers: Headers = (), *, method: str = "POST") -> None:
        """Write a request."""
        self.send(request(target, body, headers, method=method))

    async def head(self) -> Head:
        """Read a head."""
        async with asyncio.timeout(PATIENCE_S):
            raw = await self._reader.readuntil(b"\r\n\r\n")
        status_line, *lines = raw[:-4].decode("utf-8", "surrogateescape").split("\r\n")
        version, status, _ = status_line.split(" ", 2)
        pairs = [line.split(": ", 1) for line in lines]
        return Head(version, int(status), tuple((name.lower(), value) for name, value in pairs))

    async def answer(self, *, method: str = "POST") -> Answer:
        """Read a whole answer to a request of `method`."""
        head = await self.head()
        received: list[bytes] = []
        try:
            async for piece in self.pieces(head, method=method):
                received.append(piece)  # noqa: PERF401  # what came before a break counts
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if isinstance(error, asyncio.IncompleteReadError):
                received.append(error.partial)
            return Answer(head, b"".join(received), is_whole=False)
        return Answer(head, b"".join(received))

    async def pieces(self, head: Head, *, method: str = "POST") -> AsyncIterator[bytes]:
        """Read a body, chunk by chunk where it has chunks.

        Raises:
            IncompleteReadError, ConnectionError: it broke off.
        """
        assert not ("content-length" in head and "transfer-encoding" in head), head
        if method == "HEAD" or head.status < 200 or head.status in (204, 304):
            return
        if "transfer-encoding" in head:
            assert head["transfer-encoding"] == "chunked"
            while piece := await self._chunk():
                yield piece
        elif "content-length" in head:
            async with asyncio.timeout(PATIENCE_S):
                yield await self._reader.readexactly(int(head["content-length"]))
        else:
            assert head["connection"] == "close"
            async with asyncio.timeout(PATIENCE_S):
                while piece := await self._reader.read(65536):
                    yield piece

    async def _chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            try:
                size = int((await self._reader.readuntil(b"\r\n"))[:-2], 16)
            except asyncio.IncompleteReadError as error:
                raise ConnectionError("closed between chunks") from error
            data = await self._reader.readexactly(size + 2)
        assert data[-2:] == b"\r\n"
        return data[:-2]

    async def rest(self) -> bytes:
        """Read until the other side closes."""
        received: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while piece := await self._reader.read(65536):
                    received.append(piece)  # what came before a reset counts
        return b"".join(received)

    def half_close(self) -> None:
        """Send FIN, and go on reading."""
        self._writer.write_eof()

    def close(self) -> None:
        """Close both directions."""
        self._writer.close()

    def reset(self) -> None:
        """Close with RST."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
        self._writer.transport.abort()


def request(
    target: str, body: bytes = b"", headers: Headers = (), *, method: str = "POST", version: str = "1.1"
) -> bytes:
    """Write a request; Host, and for POST a length and JSON's type, are put where `headers` has none."""
    given = list(headers)
    names = {name.lower() for name, _ in given}
    own = [("Host", "localhost"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if method != "POST" and not body:
        own = own[:1]
    if "transfer-encoding" in names:
        own = own[:-1]
    lines = [f"{name}: {value}" for name, value in [*(pair for pair in own if pair[0].lower() not in names), *given]]
    head = "\r\n".join([f"{method} {target} HTTP/{version}", *lines]) + "\r\n\r\n"
    return head.encode("utf-8", "surrogateescape") + body


async def call(url: str, target: str, body: bytes = b"", headers: Headers = (), *, method: str = "POST") -> Answer:
    """Send one request over a connection of its own, give the answer."""
    async with RawClient.to(url) as client:
        client.ask(target, body, headers, method=method)
        return await client.answer(method=method)


async def get(url: str, target: str, headers: Headers = ()) -> Answer:
    """GET over a connection of its own."""
    return await call(url, target, headers=headers, method="GET")


def chat(text: str = "Hello", /, **fields: Any) -> bytes:
    """Write the body of a chat completion."""
    return orjson.dumps({"model": "sim", "messages": [{"role": "user", "content": text}], **fields})


def events(body: bytes) -> Iterator[str]:
    """Give the data of each event of a stream."""
    for block in body.decode().replace("\r\n", "\n").split("\n\n"):
        lines = [line.removeprefix("data:").removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if lines:
            yield "\n".join(lines)


def errors(body: bytes) -> list[dict[str, object]]:
    """Give the error objects of a stream."""
    found = [orjson.loads(data) for data in events(body) if data != "[DONE]"]
    return [payload["error"] for payload in found if payload.get("error")]
