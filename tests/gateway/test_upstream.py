"""Connections to engines, byte by byte: a server that says what a test wants, a receiver that notes what it hears."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import connection as connections
from gateway.connection import (
    AnswerHead,
    BrokenAnswer,
    ConnectFailed,
    Connection,
    ConnectTimedOut,
    StaleConnection,
    UpstreamError,
)
from gateway.upstream import EngineConnections, Upstream
from tests.until import until
from tests.wire.engine import black_hole

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\ntrailer: t\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\nhello"
WITHIN_S = 5.0


@dataclass
class Notes:
    """A receiver that notes what it hears, in order."""

    heard: list[str] = field(default_factory=list)
    body: bytes = b""
    head: AnswerHead | None = None
    error: UpstreamError | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def on_head(self, head: AnswerHead) -> None:
        self.heard.append(f"head {head.status}")
        self.head = head

    def on_body(self, data: bytes) -> None:
        if self.heard[-1:] != ["body"]:
            self.heard.append("body")
        self.body += data

    def on_end(self) -> None:
        self.heard.append("end")
        self.over.set()

    def on_broken(self, error: UpstreamError) -> None:
        self.heard.append(type(error).__name__)
        self.error = error
        self.over.set()

    async def whole(self) -> "Notes":
        """Wait for the end, in whatever way it comes."""
        async with asyncio.timeout(WITHIN_S):
            await self.over.wait()
        return self


class Script(asyncio.Protocol):
    """One connection of the server: for each request it is told what to say, and whether to close then."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class says so only to duck typing
        self.engine.open.append(self)

    def data_received(self, data: bytes) -> None:
        self.engine.received += data
        if data.endswith(b"\r\n\r\n"):
            self.engine.requests += 1
            self.engine.answer(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.open.remove(self)

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.transport.write(piece)

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        sock: socket.socket = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.transport.abort()


class Engine:
    """The server, and our connections to it."""

    def __init__(self) -> None:
        self.open: list[Script] = []
        self.requests = 0
        self.received = b""
        self.answer: Callable[[Script], None] = lambda script: script.say(LENGTH)
        self.pool: EngineConnections

    async def ask(self, *, is_fresh: bool = False) -> Notes:
        """Send a request, wait for its end."""
        notes, _ = await self.send(is_fresh=is_fresh)
        return await notes.whole()

    async def send(self, *, is_fresh: bool = False) -> tuple[Notes, Connection]:
        notes = Notes()
        return notes, await self.pool.send([REQUEST], notes, within_s=WITHIN_S, is_fresh=is_fresh)


@contextlib.asynccontextmanager
async def serving(*, connect_s: float = 1, idle_s: float = 3, max_idle: int = 10) -> AsyncIterator[Engine]:
    engine = Engine()
    server = await asyncio.get_running_loop().create_server(lambda: Script(engine), "127.0.0.1", 0)
    upstream = Upstream(connect_s=connect_s, idle_s=idle_s, max_idle=max_idle)
    port = server.sockets[0].getsockname()[1]
    engine.pool = upstream.to(f"http://127.0.0.1:{port}")
    try:
        yield engine
    finally:
        upstream.close()
        server.close()
        for script in list(engine.open):
            script.close()
        await until(lambda: not engine.open, "all closed")


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with serving(idle_s=3600) as engine:
        yield engine


def says(*pieces: bytes, then: str = "") -> Callable[[Script], None]:
    """Make an answer of pieces; `then` close or reset."""

    def answer(script: Script) -> None:
        script.say(*pieces)
        if then:
            getattr(script, then)()

    return answer


# Whole answers.


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED], ids=["length", "chunked"])
async def test_an_answer_is_told_head_body_end_and_its_connection_kept(engine: Engine, answer: bytes) -> None:
    engine.answer = says(answer)
    for _ in range(3):
        notes = await engine.ask()
        assert (notes.heard, notes.body) == (["head 200", "body", "end"], b"hello")
    assert len(engine.open) == 1
    assert engine.pool.idle_count == 1


async def test_an_answer_without_framing_ends_with_its_connection(engine: Engine) -> None:
    engine.answer = says(TO_THE_END, then="close")
    notes = await engine.ask()
    assert (notes.heard, notes.body) == (["head 200", "body", "end"], b"hello")
    assert engine.pool.idle_count == 0


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])
async def test_an_answer_may_have_no_body(engine: Engine, head: bytes) -> None:
    engine.answer = says(head)
    assert (await engine.ask()).heard == [f"head {head[9:12].decode()}", "end"]
    assert engine.pool.idle_count == 1


async def test_what_only_says_to_wait_is_passed_over(engine: Engine) -> None:
    engine.answer = says(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + LENGTH)
    notes = await engine.ask()
    assert (notes.heard, notes.body) == (["head 200", "body", "end"], b"hello")
    assert notes.head is not None
    assert notes.head.headers == [(b"content-length", b"5")]
    assert (await engine.ask()).heard == ["head 200", "body", "end"]


async def test_headers_come_as_the_engine_spelt_them_and_as_we_read_them(engine: Engine) -> None:
    engine.answer = says(
        b"HTTP/1.1 299 Fine\r\nContent-Type: Text/Event-Stream\r\nX-A: 1\r\nx-a: 2\r\n",
        b"Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
    )
    head = (await engine.ask()).head
    assert head is not None
    assert (head.status, head.reason, head.content_type) == (299, b"Fine", b"text/event-stream")
    assert (head.is_chunked, head.content_length) == (True, None)
    assert head.headers[1:3] == [(b"X-A", b"1"), (b"x-a", b"2")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(data=st.data(), answer=st.sampled_from([LENGTH, CHUNKED]))
def test_however_an_answer_is_cut_it_is_the_same(data: st.DataObject, answer: bytes) -> None:
    """Each piece is a call of its own: what TCP may do, without TCP's timing."""
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=len(answer)))
    places = [0, *sorted(cuts), len(answer)]

    async def read() -> Notes:
        pool = Kept(asyncio.get_running_loop())
        connection, notes = Connection(pool), Notes()
        transport = Silent()
        connection.connection_made(transport)
        connection.send([REQUEST], notes, is_reused=False)
        for start, end in pairwise(places):
            if start < end:
                connection.data_received(answer[start:end])
        assert pool.kept == [connection]
        return notes

    notes = asyncio.run(read())
    assert (notes.heard, notes.body) == (["head 200", "body", "end"], b"hello")


class Silent(asyncio.Transport):
    """A transport that goes nowhere."""

    def writelines(self, pieces: Sequence[object]) -> None: ...  # type: ignore[override]

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


@dataclass
class Kept:
    """A pool that keeps whatever comes back."""

    loop: asyncio.AbstractEventLoop
    kept: list[Connection] = field(default_factory=list)

    def drain(self, connection: Connection) -> None: ...

    def take_back(self, connection: Connection, head: AnswerHead) -> None:
        self.kept.append(connection)

    def forget(self, connection: Connection) -> None: ...


# Broken ones.


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (b"", []),
        (b"HTTP/1.1 2", []),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", ["head 200"]),
        (LENGTH[:-1], ["head 200", "body"]),
        (CHUNKED[:-2], ["head 200", "body"]),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", ["head 200", "body"]),
    ],
)
async def test_an_answer_that_ends_early_is_broken(engine: Engine, said: bytes, heard: list[str], then: str) -> None:
    engine.answer = says(said, then=then)
    notes = await engine.ask()
    if then == "close":  # a reset may overtake what was said before
        assert notes.heard[:-1] == heard
    assert isinstance(notes.error, BrokenAnswer)
    assert not isinstance(notes.error, StaleConnection)
    assert engine.pool.idle_count == 0


async def test_an_answer_that_only_a_reset_ends_is_broken(engine: Engine) -> None:
    """Where only the close says that it is whole, the close must be a good one."""
    engine.answer = says(TO_THE_END)
    notes, _ = await engine.send()
    await until(lambda: notes.body == b"hello", "the body")
    engine.open[0].reset()
    assert (await notes.whole()).heard == ["head 200", "body", "BrokenAnswer"]


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 099 Low\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"\x00" * 100,
    ],
    ids=lambda said: said[:40].decode(errors="replace"),
)
async def test_nonsense_is_a_broken_answer_and_its_connection_closed(engine: Engine, said: bytes) -> None:
    engine.answer = says(said)
    notes = await engine.ask()
    assert isinstance(notes.error, BrokenAnswer)
    assert notes.heard.count("BrokenAnswer") == 1
    await until(lambda: not engine.open, "closed")


@pytest.mark.parametrize(
    "extra",
    [LENGTH, b"HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\nevil", b"garbage", b"\r\n\r\n\r\n", b"H"],
    ids=["another answer", "an error", "garbage", "blank lines", "the start of an answer"],
)
@pytest.mark.parametrize("apart", [False, True], ids=["at once", "apart"])
async def test_what_an_engine_says_beyond_its_answer_reaches_nobody(engine: Engine, extra: bytes, apart: bool) -> None:
    """Or the next request would get an answer that is not its own."""
    engine.answer = says(LENGTH, extra) if apart else says(LENGTH + extra)
    notes = await engine.ask()
    assert (notes.heard, notes.body) == (["head 200", "body", "end"], b"hello")
    engine.answer = says(b"HTTP/1.1 201 Own\r\ncontent-length: 3\r\n\r\nown")
    if not extra.strip():
        return  # blank lines before an answer are allowed
    await until(lambda: not engine.open, "a connection with unread words closed", 1.0)
    own = await engine.ask()
    assert (own.heard, own.body) == (["head 201", "body", "end"], b"own")


# Kept connections.


async def test_an_engine_that_says_close_is_believed(engine: Engine) -> None:
    engine.answer = says(LENGTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    await engine.ask()
    assert engine.pool.idle_count == 0
    await until(lambda: not engine.open, "closed")


async def test_an_old_engine_does_not_keep_its_connection(engine: Engine) -> None:
    engine.answer = says(LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await engine.ask()).heard == ["head 200", "body", "end"]
    assert engine.pool.idle_count == 0


@pytest.mark.parametrize(("said", "kept"), [(b"timeout=60", 1), (b"timeout=0", 0), (b"max=5", 1), (b"timeout=x", 1)])
async def test_an_engine_says_how_long_it_keeps_a_connection(engine: Engine, said: bytes, kept: int) -> None:
    engine.answer = says(LENGTH.replace(b"\r\n\r\n", b"\r\nkeep-alive: " + said + b"\r\n\r\n"))
    await engine.ask()
    assert engine.pool.idle_count == kept


async def test_a_connection_that_is_too_old_is_not_used_again() -> None:
    async with serving(idle_s=0.05) as engine:
        await engine.ask()
        first = engine.open[0]
        await until(lambda: not engine.pool.idle_count, "reaped")
        await engine.ask()
        assert first not in engine.open


async def test_a_fresh_connection_is_opened_where_it_is_asked_for(engine: Engine) -> None:
    await engine.ask()
    await engine.ask(is_fresh=True)
    assert len(engine.open) == 2
    assert engine.pool.idle_count == 2


async def test_no_more_are_kept_than_allowed() -> None:
    async with serving(max_idle=2) as engine:
        engine.answer = lambda script: None
        running = [(await engine.send())[0] for _ in range(5)]
        await until(lambda: engine.requests == 5, "all sent")
        for script in list(engine.open):
            script.say(LENGTH)
        for notes in running:
            await notes.whole()
        assert engine.pool.idle_count == 2
        await until(lambda: len(engine.open) == 2, "the others closed")


async def test_the_last_one_that_came_back_is_used_first(engine: Engine) -> None:
    """So that a quiet time lets the others grow old."""
    engine.answer = lambda script: None
    running = [(await engine.send())[0] for _ in range(3)]
    await until(lambda: engine.requests == 3, "all sent")
    last = engine.open[1]
    for script in (engine.open[0], engine.open[2], last):
        script.say(LENGTH)
        await asyncio.sleep(0.01)
    for notes in running:
        await notes.whole()
    engine.answer = lambda script: script.say(LENGTH if script is last else b"")
    assert (await engine.ask()).body == b"hello"


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_kept_connection_that_closes_is_forgotten(engine: Engine, then: str) -> None:
    await engine.ask()
    getattr(engine.open[0], then)()
    await until(lambda: engine.pool.idle_count == 0, "forgotten")
    assert (await engine.ask()).heard == ["head 200", "body", "end"]


async def test_a_kept_connection_that_talks_is_closed(engine: Engine) -> None:
    """A late 408, or nonsense."""
    await engine.ask()
    engine.open[0].say(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
    await until(lambda: not engine.open, "closed")
    assert engine.pool.idle_count == 0


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_only_a_reused_connection_that_dies_before_a_byte_is_stale(engine: Engine, then: str) -> None:
    await engine.ask()
    engine.answer = says(then=then)
    assert isinstance((await engine.ask()).error, StaleConnection)
    fresh = await engine.ask(is_fresh=True)
    assert isinstance(fresh.error, BrokenAnswer)


async def test_a_reused_connection_that_dies_after_a_byte_is_not_stale(engine: Engine) -> None:
    await engine.ask()
    engine.answer = says(b"H", then="close")
    assert isinstance((await engine.ask()).error, BrokenAnswer)


# Letting go.


async def test_an_abort_is_heard_by_the_engine_and_by_nobody_else(engine: Engine) -> None:
    engine.answer = says(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe")
    notes, connection = await engine.send()
    await until(lambda: notes.body == b"he", "half")
    connection.abort()
    await until(lambda: not engine.open, "closed")
    assert notes.heard == ["head 200", "body"]


async def test_a_detached_connection_whose_answer_ends_is_kept(engine: Engine) -> None:
    engine.answer = says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    notes, connection = await engine.send()
    await until(lambda: notes.body == b"hello", "what matters")
    connection.detach()
    engine.open[0].say(b"1\r\n!\r\n0\r\n\r\n")
    await until(lambda: engine.pool.idle_count == 1, "kept")
    assert notes.heard == ["head 200", "body"]
    assert notes.body == b"hello"
    assert len(engine.open) == 1


async def test_a_detached_connection_whose_answer_does_not_end_is_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "DRAIN_S", 0.05)
    engine.answer = says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    notes, connection = await engine.send()
    await until(lambda: notes.body == b"hello", "what matters")
    connection.detach()
    await until(lambda: not engine.open, "closed")
    assert engine.pool.idle_count == 0


async def test_a_paused_connection_reads_no_more_and_reads_on(engine: Engine) -> None:
    size = 20_000_000
    engine.answer = says(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, b"x" * size)
    notes, connection = await engine.send()
    await until(lambda: notes.body, "a beginning")
    connection.pause()
    seen = len(notes.body)
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert len(notes.body) == seen < size
    connection.resume()
    assert len((await notes.whole()).body) == size
    assert engine.pool.idle_count == 1


async def test_closing_closes_what_is_idle_and_lets_the_rest_end() -> None:
    async with serving() as engine:
        await engine.ask()
        engine.answer = lambda script: None
        busy, _ = await engine.send(is_fresh=True)
        await until(lambda: engine.requests == 2, "sent")
        engine.pool.close()
        await until(lambda: len(engine.open) == 1, "the idle one closed")
        engine.open[0].say(LENGTH)
        assert (await busy.whole()).heard == ["head 200", "body", "end"]


# Connecting.


async def test_a_refused_connection_is_told_by_its_reason() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        upstream = Upstream(connect_s=1, idle_s=1, max_idle=1)
        with pytest.raises(ConnectFailed, match="refused"):
            await upstream.to(url).send([REQUEST], Notes(), within_s=1)


async def test_a_name_that_does_not_exist_is_a_failed_connection() -> None:
    upstream = Upstream(connect_s=5, idle_s=1, max_idle=1)
    with pytest.raises(ConnectFailed):
        await upstream.to("http://no-such-host.invalid:1").send([REQUEST], Notes(), within_s=5)


@pytest.mark.parametrize(("connect_s", "within_s"), [(0.05, 5), (5, 0.05)])
async def test_connecting_takes_no_longer_than_allowed(connect_s: float, within_s: float) -> None:
    upstream = Upstream(connect_s=connect_s, idle_s=1, max_idle=1)
    with black_hole() as url, pytest.raises(ConnectTimedOut) as caught:
        await upstream.to(url).send([REQUEST], Notes(), within_s=within_s)
    assert caught.value.after_s == 0.05


async def test_a_loop_that_was_busy_does_not_blame_the_engine() -> None:
    async with serving(connect_s=0.1) as engine:
        asking = asyncio.create_task(engine.ask())
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251  the kernel has connected long since
        assert (await asking).heard == ["head 200", "body", "end"]


async def test_the_engines_of_a_url_share_their_connections() -> None:
    upstream = Upstream(connect_s=1, idle_s=1, max_idle=1)
    first = upstream.to("http://127.0.0.1:1")
    assert upstream.to("http://127.0.0.1:1") is first
    assert upstream.to("http://127.0.0.1:2") is not first
    upstream.forget("http://127.0.0.1:1")
    upstream.forget("http://127.0.0.1:1")
    assert upstream.to("http://127.0.0.1:1") is not first
    upstream.close()


async def test_the_pieces_of_a_request_arrive_in_order_as_they_were(engine: Engine) -> None:
    body = memoryview(bytearray(b"abc"))
    notes = Notes()
    await engine.pool.send([b"POST / HTTP/1.1\r\n", body[:2], body, b"\r\n\r\n"], notes, within_s=WITHIN_S)
    await notes.whole()
    assert engine.received == b"POST / HTTP/1.1\r\nababc\r\n\r\n"


async def test_closing_ends_a_detached_connection_too(engine: Engine) -> None:
    engine.answer = says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    notes, connection = await engine.send()
    await until(lambda: notes.body == b"hello", "what matters")
    connection.detach()
    engine.pool.close()
    await until(lambda: not engine.open, "closed", 0.5)
