"""The gateway as a process: memory, signals, and how it starts or says why not. Cases P1, P3, P4, P5, P6, P9."""

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from random import Random

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli import app as kvlane
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from tests.fleet_fixtures import CHAT, FAST, prompt
from tests.gateway_process import LISTENS, GatewayProcess, command, run
from tests.until import PATIENCE_S, until

MB = 1_000_000
MIB = 1 << 20
LIMIT = 64 * MIB  # of a body, by default


@asynccontextmanager
async def client_of(gateway: GatewayProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(gateway.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        await ready(session)
        yield session


async def ready(session: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + PATIENCE_S
    while await status_of(session, "/readyz") != 200:
        assert loop.time() < ends_at, "not ready"
        await asyncio.sleep(0.01)


async def status_of(session: aiohttp.ClientSession, path: str) -> int:
    async with session.get(path) as response:
        return response.status


async def ask(session: aiohttp.ClientSession, text: str = "hello", *, tokens: int = 4, stream: bool = False) -> int:
    async with session.post(CHAT, json=prompt(text, tokens=tokens, stream=stream)) as response:
        await response.read()
        return response.status


def padded(size: int) -> bytes:
    """Make a chat request of exactly `size` bytes: the engine ignores what it does not know, the gateway passes it."""
    empty = json.dumps(prompt("hello", padding="")).encode()
    return json.dumps(prompt("hello", padding="x" * (size - len(empty)))).encode()


# P1: large bodies.


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
async def test_p1_a_body_passes_with_a_peak_of_three_bodies(tmp_path: Path, is_chunked: bool) -> None:
    """Bodies of 1, 8 and 64 MB, one after the other: at most three of each over what was there before.

    And 2 MB for whatever else a request, a health check and the allocator need meanwhile.
    """
    async with (
        Cluster(1, Settings(time_scale=0.0, recent=20)) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        for _ in range(20):
            assert await ask(session) == 200
        over: dict[int, float] = {}
        for size in (1 * MB, 8 * MB, 64 * MB):
            body = padded(size)
            baseline = gateway.forget_peak()
            async with session.post(
                CHAT, data=pieces(body) if is_chunked else BytesIO(body), headers={"content-type": "application/json"}
            ) as response:
                assert response.status == 200
                await response.read()
            over[size] = gateway.peak_bytes - baseline
            assert last_call(cluster) == body
        told = ", ".join(f"{size / MB:g} MB: {grown / MB:.2f} MB" for size, grown in over.items())
        print(f"\nP1 {'chunked' if is_chunked else 'length'}: peak over baseline for a body of {told}")
        assert all(grown <= 3 * size + 2 * MB for size, grown in over.items()), told


def last_call(cluster: Cluster) -> bytes:
    return next(seen.body for seen in reversed(cluster[0].facts.recent) if seen.method == "POST")


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 1 << 16):
        yield body[at : at + (1 << 16)]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
async def test_p1_a_byte_over_the_limit_is_refused_in_json(tmp_path: Path, is_chunked: bool) -> None:
    """To a client that sends everything before it reads, as the official ones do."""
    async with (
        Cluster(1, Settings(time_scale=0.0, recent=20)) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        body = padded(LIMIT + 1)
        async with session.post(
            CHAT, data=pieces(body) if is_chunked else BytesIO(body), headers={"content-type": "application/json"}
        ) as response:
            answer = await response.json()
        assert response.status == 413
        assert answer["error"]["code"] == "request_too_large"
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert cluster.engine_calls == [0]
        assert await ask(session) == 200


async def test_p1_a_huge_error_of_an_engine_is_capped(tmp_path: Path) -> None:
    """100 MB of error text: the client gets a short JSON error, and the gateway grows by less than 2 MB."""
    async with (
        Cluster(1, FAST) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        await cluster[0].inject(Fault(Kind.HUGE_ERROR, status=400, size=100 * MB, times=3))
        for _ in range(20):  # of which the first meet the fault, and warm up what it needs
            await ask(session)
        await cluster[0].inject(Fault(Kind.HUGE_ERROR, status=400, size=100 * MB, times=1))
        baseline = gateway.forget_peak()
        async with session.post(CHAT, json=prompt("hello")) as response:
            body = await response.read()
        grown = gateway.peak_bytes - baseline
        print(f"\nP1 huge error: peak {grown / MB:.2f} MB over baseline")
        assert response.status == 400
        assert len(body) < 70_000
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        assert grown < 2 * MB


# P3: a slow reader.


@pytest.mark.parametrize("behind_a_stream", [False, True])
async def test_a_client_that_asks_on_and_never_reads_costs_no_memory(tmp_path: Path, behind_a_stream: bool) -> None:
    """Pipelined requests, as many as the gateway takes within two seconds, and not one answer read."""
    async with (
        Cluster(1, FAST) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        assert await ask(session, stream=True) == 200
        if behind_a_stream:
            await cluster[0].inject(Fault(Kind.HANG_AFTER, after=1, times=1))
        loop = asyncio.get_running_loop()
        body = json.dumps(prompt("hello", stream=True)).encode()
        first = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        many = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 1000
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, (host, int(port)))
            if behind_a_stream:
                await loop.sock_sendall(sock, first)
            baseline = gateway.forget_peak()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    while True:
                        await loop.sock_sendall(sock, many)
            grown = gateway.peak_bytes - baseline
        print(f"\nnever read: peak {grown / MB:.2f} MB over baseline")
        assert grown < 3 * MB


async def test_p3_a_slow_reader_of_a_long_stream_costs_no_memory(tmp_path: Path) -> None:
    """50 MB, of which a client reads 1 KB every 10 ms for two seconds, and then the rest: all of it, bounded memory."""
    async with (
        Cluster(1, FAST) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        for _ in range(20):
            assert await ask(session, stream=True) == 200
        await cluster[0].inject(Fault(Kind.HUGE_ANSWER, size=50 * MB, times=1))
        loop = asyncio.get_running_loop()
        body = json.dumps(prompt("hello", stream=True)).encode()
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, (host, int(port)))
            baseline = gateway.forget_peak()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(sock, head.encode() + body)
            received = 0
            for _ in range(200):
                received += len(await loop.sock_recv(sock, 1024))
                await asyncio.sleep(0.01)
            grown_slow = gateway.peak_bytes - baseline
            assert received < MB
            tail = b""
            while data := await loop.sock_recv(sock, 1 << 16):
                received += len(data)
                tail = (tail + data)[-200:]
            grown = gateway.peak_bytes - baseline
        print(f"\nP3: peak {grown_slow / MB:.2f} MB over baseline while slow, {grown / MB:.2f} MB in all")
        assert grown < 3 * MB
        assert received > 50 * MB
        assert b"data: [DONE]\n\n" in tail


# P4: no leak.


async def mixed_request(session: aiohttp.ClientSession, chance: Random) -> None:
    """Send a request that is answered, refused, broken off by the engine or abandoned."""
    kind = chance.randrange(6)
    text = f"unique {chance.random()}"
    try:
        if kind == 0:
            await ask(session, text)
        elif kind == 1:
            await ask(session, text, tokens=20, stream=True)
        elif kind == 2:
            async with session.post(CHAT, data=b"{" + text.encode()) as response:
                await response.read()
        elif kind == 3:
            async with session.get(f"/v1/models/{text}") as response:
                await response.read()
        else:
            body = prompt(text, tokens=50, stream=kind == 4)
            timeout = aiohttp.ClientTimeout(total=chance.random() * 0.05)
            async with session.post(CHAT, json=body, timeout=timeout) as response:
                await response.content.read(50)
    except (aiohttp.ClientError, TimeoutError):
        pass


async def many(session: aiohttp.ClientSession, count: int, chance: Random, at_once: int = 32) -> None:
    """Send so many mixed requests, some at once."""
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await mixed_request(session, chance)

    await asyncio.gather(*(client() for _ in range(at_once)))


async def make_it_fail_now_and_then(cluster: Cluster) -> None:
    for engine in cluster:
        await engine.inject(Fault(Kind.RESET_AFTER, probability=0.03, after=3))
        await engine.inject(Fault(Kind.RESET, probability=0.03))
        await engine.inject(Fault(Kind.STATUS, probability=0.03, status=503))


async def test_p4_memory_does_not_grow_with_requests(tmp_path: Path) -> None:
    """Mixed requests with aborts: 3,000 to warm up, then 3,000 more, which leave less than 1.5 MB behind.

    Caches are small, so that what is remembered of them is as large as it gets after the first 3,000.
    """
    chance = Random(4)
    async with (
        Cluster(2, Settings(time_scale=0.02, recent=1, kv_tokens=16_000)) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        await make_it_fail_now_and_then(cluster)
        await many(session, 3000, chance)
        baseline = gateway.rss_bytes
        await many(session, 3000, chance)
        grown = gateway.rss_bytes - baseline
        print(f"\nP4 scaled: RSS {baseline / MB:.1f} MB, {grown / MB:+.2f} MB after 3,000 more requests")
        assert grown < 1.5 * MB
        assert not gateway.has_traceback, "".join(gateway.log[-40:])


# P5: start.


async def test_p5_little_work_is_done_before_it_is_ready(tmp_path: Path) -> None:
    """Ready within 1.5 s, in processor time, since how long that takes is the machine's affair."""
    async with (
        Cluster(2, FAST) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        cpu_s = gateway.cpu_s
        assert await ask(session) == 200
        print(f"\nP5: {cpu_s:.2f} s of processor time until ready")
        assert cpu_s < 1.5


# P6: stop.


@asynccontextmanager
async def streaming(tmp_path: Path, **shutdown: float) -> AsyncIterator[tuple[Cluster, GatewayProcess, "Stream"]]:
    """Give a gateway with one stream that is past its first token and stands still until the faults are cleared."""
    async with (
        Cluster(2, Settings(time_scale=0.01)) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls, shutdown=dict(shutdown)) as gateway,
        client_of(gateway) as session,
        session.post(CHAT, json=prompt("long", tokens=30_000, stream=True)) as response,
    ):
        await response.content.readany()
        for at in range(2):
            await cluster.stall(at)
        yield cluster, gateway, Stream(session, response)


class Stream:
    """A stream under way, and its client."""

    def __init__(self, session: aiohttp.ClientSession, response: aiohttp.ClientResponse) -> None:
        self.session = session
        self._response = response

    async def rest(self) -> bytes:
        """Read to the end; what it gave before it broke, where it does."""
        body = b""
        try:
            async for piece, _ in self._response.content.iter_chunks():
                body = (body + piece)[-1000:]
        except aiohttp.ClientPayloadError:
            return b"broken"
        return body


async def test_p6_sigterm_serves_on_for_a_while_and_lets_the_stream_end(tmp_path: Path) -> None:
    async with streaming(tmp_path, grace_s=2) as (cluster, gateway, stream):
        gateway.signal(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + 1  # "at once"
        while (status := await status_of(stream.session, "/readyz")) != 503:
            assert loop.time() < ends_at
        assert status == 503
        assert await status_of(stream.session, "/healthz") == 200
        await cluster[1].clear()
        await cluster[0].clear()
        assert await ask(stream.session) == 200
        assert (await stream.rest()).endswith(b"data: [DONE]\n\n")
        assert await gateway.exit_status() == 0
        assert not gateway.has_traceback


async def test_p6_after_the_grace_nothing_new_is_taken_and_the_stream_still_ends(tmp_path: Path) -> None:
    async with streaming(tmp_path, grace_s=0.2) as (cluster, gateway, stream):
        gateway.signal(signal.SIGTERM)
        await refuses(gateway)
        await cluster.clear()
        assert (await stream.rest()).endswith(b"data: [DONE]\n\n")
        assert await gateway.exit_status() == 0


async def refuses(gateway: GatewayProcess) -> None:
    """Wait until connections are refused."""
    host, port = gateway.url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + PATIENCE_S
    while True:
        assert loop.time() < ends_at
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.01)


async def test_p6_sigint_lets_the_stream_end_without_grace(tmp_path: Path) -> None:
    async with streaming(tmp_path, grace_s=3600) as (cluster, gateway, stream):
        gateway.signal(signal.SIGINT)
        await refuses(gateway)
        await cluster.clear()
        assert (await stream.rest()).endswith(b"data: [DONE]\n\n")
        assert await gateway.exit_status() == 0
        assert not gateway.has_traceback


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_p6_a_second_signal_ends_at_once(tmp_path: Path, first: signal.Signals) -> None:
    async with streaming(tmp_path, grace_s=3600, drain_s=3600) as (cluster, gateway, stream):
        gateway.signal(first)
        await until(lambda: any("draining" in line for line in gateway.log), "drains")
        gateway.signal(signal.SIGTERM)
        await gateway.exit_status()
        assert not (await stream.rest()).endswith(b"data: [DONE]\n\n"), "a stream that is cut off must not look whole"
        assert not gateway.has_traceback, "".join(gateway.log)
        await until(lambda: not any(engine.facts.live for engine in cluster), "the engine has seen the close")


async def test_p6_what_does_not_end_in_time_is_cut_off(tmp_path: Path) -> None:
    async with streaming(tmp_path, grace_s=0, drain_s=0.3) as (_, gateway, stream):
        gateway.signal(signal.SIGTERM)
        assert await gateway.exit_status() == 0
        assert not (await stream.rest()).endswith(b"data: [DONE]\n\n")
        assert not gateway.has_traceback, "".join(gateway.log)


async def test_p6_an_idle_gateway_stops_when_the_grace_is_over(tmp_path: Path) -> None:
    async with (
        Cluster(1, FAST) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls, shutdown={"grace_s": 0.1}) as gateway,
        client_of(gateway) as session,
    ):
        assert await ask(session) == 200  # whose connection stays open
        gateway.signal(signal.SIGTERM)
        assert await gateway.exit_status() == 0
        assert not gateway.has_traceback


# P9: what is wrong is said in one line.

ANYBODY = "anonymous: {}\n"
GOOD = ANYBODY + "pools: [{endpoints: [{url: 'http://127.0.0.1:9'}]}]\n"


def written(text: str) -> Callable[[Path], list[str]]:
    def arguments(directory: Path) -> list[str]:
        file = directory / "kvlane.yaml"
        file.write_text(text)
        return [str(file)]

    return arguments


def bytes_written(directory: Path) -> list[str]:
    file = directory / "kvlane.yaml"
    file.write_bytes(b"listen: \xff\xfe")
    return [str(file)]


WRONG: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no such file": (lambda directory: [str(directory / "none.yaml")], "none.yaml: No such file or directory"),
    "a directory": (lambda directory: [str(directory)], "Is a directory"),
    "not text": (bytes_written, "is not UTF-8 text"),
    "not YAML": (written("pools: [}"), "kvlane.yaml: "),
    "not a mapping": (written("- a\n"), "must be a mapping of sections, is list"),
    "empty": (written(""), "must be a mapping of sections, is NoneType"),
    "an unknown key": (written(GOOD + "lisen: {port: 1}\n"), "lisen: unknown key"),
    "a bad value": (written(GOOD + "listen: {port: 70000}\n"), "listen.port: "),
    "no engine": (written(ANYBODY + "pools: []\n"), "pools: "),
    "nobody who may call": (
        written("pools: [{endpoints: [{url: 'http://127.0.0.1:9'}]}]\n"),
        "anonymous: who may call? Name tenants (`kvlane key` makes keys), or write `anonymous: {}`",
    ),
    "tenants that cannot be read": (
        written("tenants_file: .\npools: [{endpoints: [{url: 'http://127.0.0.1:9'}]}]\n"),
        ": Is a directory",
    ),
    "a secret that is not set": (
        written(ANYBODY + "pools: [{endpoints: [{url: 'http://127.0.0.1:9', api_key: '${KVLANE_TEST_NO_SUCH}'}]}]\n"),
        "environment variable KVLANE_TEST_NO_SUCH is not set",
    ),
    "a bad URL": (lambda _: ["--endpoint", "127.0.0.1:8000"], "must be http://host:port"),
    "the same URL twice": (
        lambda _: ["--endpoint", "http://127.0.0.1:9", "--endpoint", "http://127.0.0.1:9"],
        "is there twice",
    ),
    "nothing to serve": (lambda _: [], "say either which FILE to serve or one --endpoint URL"),
    "both": (lambda _: ["kvlane.yaml", "--endpoint", "http://127.0.0.1:9"], "say either which FILE to serve"),
    "a log that cannot be written": (
        written(GOOD + "listen: {port: 0, admin_port: 0}\naccess_log: {path: /no/such/directory/log}\n"),
        "cannot write the access log /no/such/directory/log: No such file or directory",
    ),
    "an address of another machine": (
        written(GOOD + "listen: {host: 192.0.2.1, port: 0, admin_port: 0}\n"),
        "cannot listen on 192.0.2.1:0: ",
    ),
}


IN_A_PROCESS = ("no such file", "not YAML", "a bad value", "a bad URL", "a log that cannot be written")
"""As an operator meets them; the others are run in this process, since each start takes a second."""


@pytest.mark.parametrize("case", WRONG)
def test_p9_what_is_wrong_is_said_in_one_line(case: str, tmp_path: Path) -> None:
    arguments, words = WRONG[case]
    if case in IN_A_PROCESS:
        status, out, err = asyncio.run(run("serve", *arguments(tmp_path)))
    else:
        result = CliRunner().invoke(kvlane, ["serve", *arguments(tmp_path)])
        status, out, err = result.exit_code, result.stdout, result.stderr
    assert status == 2
    assert out == ""
    assert err.startswith("kvlane: ")
    assert words in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize("which", ["port", "admin_port"])
async def test_p9_a_port_in_use_is_named(which: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = tmp_path / "kvlane.yaml"
        file.write_text(GOOD + f"listen: {json.dumps({'port': 0, 'admin_port': 0, which: port})}\n")
        status, _, err = await run("serve", str(file))
    assert status == 2
    assert err.count("\n") == 1, err
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert "Address already in use" in err


async def test_p9_every_problem_is_named_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text(ANYBODY + "listen: {port: -1, hots: x}\npools: [{policy: best, endpoints: [{url: nowhere}]}]\n")
    for verb in ("serve", "check"):
        status, out, err = await run(verb, str(file))
        assert (status, out) == (2, "")
        lines = err.splitlines()
        assert len(lines) == 4
        for path in ("listen.port: ", "listen.hots: ", "pools[0].policy: ", "pools[0].endpoints[0].url: "):
            assert sum(f"{file}: {path}" in line for line in lines) == 1, lines


async def test_check_says_that_a_good_file_is_good(tmp_path: Path) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text(GOOD)
    assert await run("check", str(file)) == (0, f"{file} is good: 1 pool, 1 endpoint\n", "")


async def test_a_newcomer_checks_serves_and_then_makes_the_first_key(tmp_path: Path) -> None:
    """The file of tenants comes with the first key: before that nothing is wrong, and it is said what to do."""
    file, tenants = tmp_path / "kvlane.yaml", tmp_path / "tenants.yaml"
    async with (
        Cluster(1, FAST) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls, tenants_file=tenants.name) as gateway,
    ):
        status, out, err = await run("check", str(file))
        assert (status, out) == (0, f"{file} is good: 1 pool, 1 endpoint\n")
        assert err.count("\n") == 1
        assert f"note: {tenants}: No such file or directory" in err
        assert "kvlane key new" in err
        async with aiohttp.ClientSession(gateway.url) as session:
            assert await status_of(session, "/readyz") == 503
            await until(lambda: any("kvlane key new" in line for line in gateway.log), "it is said")
            status, secret, _ = await run("key", "new", str(file), "team-a", "--create")
            assert status == 0
            made_at = asyncio.get_running_loop().time()
            while await status_of(session, "/readyz") != 200:
                assert asyncio.get_running_loop().time() < made_at + 2
                await asyncio.sleep(0.01)
            headers = {"authorization": f"Bearer {secret.strip()}"}
            async with session.post(CHAT, json=prompt("hello"), headers=headers) as response:
                assert response.status == 200
            assert await ask(session) == 401
        status, out, err = await run("check", str(file))
        assert (status, err) == (0, "")


async def test_a_quick_start_needs_no_file(tmp_path: Path) -> None:
    async with Cluster(1, FAST) as cluster:
        process = await command("serve", "--endpoint", cluster.urls[0], "--port", "0", "--admin-port", "0")
        try:
            assert process.stderr is not None
            line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
            found = LISTENS.search(line)
            assert found is not None
            async with aiohttp.ClientSession(found[1]) as session:
                await ready(session)
                assert await ask(session) == 200
            process.terminate()
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
