"""The line to Redis: batches, a breaker, and whatever a Redis may do to its clients; against real servers."""

import asyncio
import logging
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random

import pytest
import redis.crc

from gateway.redisline import Line, Servers, slot_of
from gateway.rediswire import LineDown, Refused, Script
from tests.fleet_fixtures import PATIENCE_S, until
from tests.redis_server import SERVICE, RedisServer, clustered, free_port, is_whole, serving, wait_until, watched

RETRY_S = 0.02  # 0.5 s, scaled
ECHO = Script("return {KEYS[1], ARGV[1], 42}")
COUNT = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


@asynccontextmanager
async def open_line(*urls: str, timeout_s: float = 0.1, **settings: object) -> AsyncIterator[Line]:
    """Open a line, and see at its end that nothing of it is left."""
    changes: list[bool] = []
    before = asyncio.all_tasks()
    servers = Servers(urls, timeout_s=timeout_s, retry_s=RETRY_S, **settings)  # type: ignore[arg-type]
    line = Line(servers, chance=Random(1), on_change=changes.append)
    await line.start()
    try:
        yield line
    finally:
        await line.close()
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}
    assert changes == [bool(at % 2) for at in range(len(changes))], "down and up take turns"


@pytest.fixture
async def line(redis_server: RedisServer) -> AsyncIterator[Line]:
    async with open_line(redis_server.url) as line:
        yield line
    assert redis_server.clients() == []


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the gateway logs."""
    caplog.set_level(logging.INFO, "gateway")
    return caplog


async def is_failing(asked: Awaitable[object]) -> str:
    with pytest.raises(LineDown) as caught:
        await asked
    return str(caught.value)


async def is_up(line: Line) -> None:
    await until(lambda: line.is_up, "the line is up")


async def is_resuming(line: Line) -> None:
    """Wait until a lost connection is noticed; a new one takes some turns of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while "resuming" not in repr(line):  # noqa: ASYNC110  # every turn counts
            await asyncio.sleep(0)


async def settled(line: Line) -> None:
    """Let so much time pass since the last try to connect that the next may begin at once."""
    now = time.monotonic()
    await until(lambda: time.monotonic() > now + 2 * RETRY_S, "time passes")


# Asking.


async def test_a_script_gets_its_keys_and_arguments(line: Line) -> None:
    assert await line.script(ECHO, ["key"], [b"\xff\r\n"]) == [b"key", b"\xff\r\n", 42]


async def test_commands_are_answered_as_redis_has_it(line: Line) -> None:
    assert await line.ask("HSET", "hash", "a", 1, "b", 2.5) == 2
    assert await line.ask("HGETALL", "hash") == [b"a", b"1", b"b", b"2.5"]
    assert await line.ask("GET", "nothing") is None
    assert await line.ask("PING") == b"PONG"


async def test_a_script_that_redis_forgot_is_loaded_again(line: Line, redis_server: RedisServer) -> None:
    assert await line.script(COUNT, ["n"], [1]) == 1
    redis_server.tell("SCRIPT FLUSH")
    assert await asyncio.gather(*(line.script(COUNT, ["n"], [1]) for _ in range(3))) == [2, 3, 4]
    loads = redis_server.tell("INFO", "commandstats")["cmdstat_eval"]["calls"]
    assert await line.script(COUNT, ["n"], [1]) == 5
    assert redis_server.tell("INFO", "commandstats")["cmdstat_eval"]["calls"] == loads


async def test_what_is_asked_in_one_turn_of_the_loop_is_one_round_trip(line: Line) -> None:
    before = line.counts.batches
    answers = await asyncio.gather(*(line.ask("INCR", "n") for _ in range(100)))
    assert answers == list(range(1, 101))
    assert line.counts.batches == before + 1


async def test_a_thousand_callers_share_one_connection(line: Line, redis_server: RedisServer) -> None:
    answers = await asyncio.gather(*(line.script(COUNT, ["n"], [1]) for _ in range(1000)))
    assert sorted(answers) == list(range(1, 1001))  # type: ignore[type-var]
    assert len(redis_server.clients()) == 1


async def test_a_caller_who_leaves_harms_nobody_and_loses_nothing(line: Line) -> None:
    at_once, stays, later = (asyncio.ensure_future(line.script(COUNT, ["n"], [1])) for _ in range(3))
    await asyncio.sleep(0)  # they have asked; nothing is sent yet, and the script will not be known
    at_once.cancel()
    await asyncio.sleep(0)
    later.cancel()
    assert await stays == 2
    assert await line.ask("GET", "n") == b"3"
    assert at_once.cancelled()
    assert later.cancelled()


async def test_an_answer_that_is_an_error_is_its_callers_alone(line: Line, log: pytest.LogCaptureFixture) -> None:
    await line.ask("SET", "text", "a")
    wrong, right = await asyncio.gather(line.script(COUNT, ["text"], [1]), line.ask("PING"), return_exceptions=True)
    assert isinstance(wrong, Refused)
    assert right == b"PONG"
    assert "unknown command" in await is_failing(line.ask("NONSENSE", "k", "secret"))
    assert line.is_up
    assert len(log.messages) == 1, "once a minute is enough"
    assert "not an integer" in log.messages[0]


async def test_arguments_of_a_refused_command_are_told_to_nobody(line: Line, log: pytest.LogCaptureFixture) -> None:
    assert "secret" not in await is_failing(line.ask("NONSENSE", "k", "secret"))
    assert len(log.messages) == 1
    assert "secret" not in log.messages[0]


# Failing, and returning.


async def test_a_frozen_redis_costs_one_timeout_and_then_nothing(
    line: Line, redis_server: RedisServer, log: pytest.LogCaptureFixture
) -> None:
    with redis_server.frozen():
        first = await asyncio.gather(*(is_failing(line.ask("PING")) for _ in range(10)))
        assert first == [f"redis 127.0.0.1:{redis_server.port}: no answer within 100 ms"] * 10
        assert not line.is_up
        sent = line.counts.batches
        await is_failing(line.script(ECHO, ["a"], ["b"]))
        assert line.counts.batches == sent, "nothing is sent while it is down"
        assert (line.counts.failures, line.counts.timeouts) == (11, 1)
    await is_up(line)
    assert await line.ask("PING") == b"PONG"
    assert [text.split(",")[0] for text in log.messages] == [
        f"redis 127.0.0.1:{redis_server.port} is down: no answer within 100 ms",
        f"redis 127.0.0.1:{redis_server.port} is up again",
    ]


async def test_a_redis_that_dies_and_returns_empty_goes_on(line: Line, redis_server: RedisServer) -> None:
    assert await line.script(COUNT, ["n"], [1]) == 1
    with redis_server.frozen():
        asked = asyncio.ensure_future(line.script(COUNT, ["n"], [1]))
        await asyncio.sleep(0)
        redis_server.kill()
    assert "connection" in await is_failing(asked)
    await until(lambda: "refused" in line.why, "it is refused a connection")
    redis_server.start()
    await is_up(line)
    assert await line.script(COUNT, ["n"], [1]) == 1


async def test_a_busy_redis_is_down_until_its_script_ends(line: Line, redis_server: RedisServer) -> None:
    with redis_server.busy():
        assert "BUSY" in await is_failing(line.script(COUNT, ["n"], [1]))
        assert not line.is_up
    await is_up(line)
    assert await line.script(COUNT, ["n"], [1]) == 1


async def test_paused_scripts_are_no_answer(line: Line, redis_server: RedisServer) -> None:
    with redis_server.paused():
        assert "no answer" in await is_failing(line.script(COUNT, ["n"], [1]))
    await is_up(line)


@pytest.mark.parametrize(
    ("kind", "break_it", "mend_it"),
    [
        ("READONLY", [("REPLICAOF", "127.0.0.1", "1")], [("REPLICAOF", "NO", "ONE")]),
        (
            "MASTERDOWN",
            [("CONFIG SET", "replica-serve-stale-data", "no"), ("REPLICAOF", "127.0.0.1", "1")],
            [("REPLICAOF", "NO", "ONE")],
        ),
        ("OOM", [("CONFIG SET", "maxmemory", "1")], [("CONFIG SET", "maxmemory", "0")]),
    ],
)
async def test_a_redis_that_takes_no_writes_is_down(
    kind: str, break_it: list[tuple[str, ...]], mend_it: list[tuple[str, ...]]
) -> None:
    with serving() as server:
        async with open_line(server.url) as line:
            assert await line.script(COUNT, ["n"], [1]) == 1
            for command in break_it:
                server.tell(*command)
            await is_failing(line.script(COUNT, ["n"], [1]))
            await until(lambda: kind in line.why, f"{kind} is the reason, not {line.why}")
            assert not line.is_up
            for command in mend_it:
                server.tell(*command)
            await is_up(line)
            assert await line.script(COUNT, ["n"], [1]) == 2


async def test_a_redis_that_is_down_at_the_start_is_found_later(redis_server: RedisServer) -> None:
    redis_server.kill()
    async with open_line(redis_server.url) as line:
        assert not line.is_up
        await is_failing(line.ask("PING"))
        redis_server.start()
        await is_up(line)
        assert await line.ask("PING") == b"PONG"


async def test_a_silent_connection_that_was_closed_is_nobodys_failure(
    line: Line, redis_server: RedisServer, log: pytest.LogCaptureFixture
) -> None:
    await settled(line)
    redis_server.tell("CLIENT KILL", "TYPE", "normal")
    await is_resuming(line)
    assert await asyncio.gather(*(line.ask("PING") for _ in range(2))) == [b"PONG", b"PONG"]
    assert log.messages == []


async def test_callers_wait_one_timeout_for_a_connection_that_resumes(line: Line, redis_server: RedisServer) -> None:
    await settled(line)
    redis_server.tell("CLIENT KILL", "TYPE", "normal")
    with redis_server.frozen():
        await is_resuming(line)
        assert await is_failing(line.ask("PING")) == f"redis 127.0.0.1:{redis_server.port}: no connection in time"
        assert not line.is_up
    await is_up(line)


async def test_a_loop_that_was_held_up_is_not_taken_for_a_silent_redis(redis_server: RedisServer) -> None:
    async with open_line(redis_server.url, timeout_s=0.05) as line:
        for turns in range(4):
            asked = asyncio.ensure_future(line.ask("PING"))
            for _ in range(turns):
                await asyncio.sleep(0)
            ends_at = time.monotonic() + 0.1
            while time.monotonic() < ends_at:
                pass
            assert await asked == b"PONG"
        assert line.counts.timeouts == 0


@asynccontextmanager
async def saying(words: bytes) -> AsyncIterator[str]:
    """Serve the same words to whatever comes; give the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while await reader.read(65_536):
                writer.write(words)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_what_is_no_redis_is_down() -> None:
    async with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url, open_line(url) as line:
        assert not line.is_up
        assert "does not speak as Redis does" in line.why


@pytest.mark.parametrize(
    "words",
    [b"-MOVED\r\n", b"-MOVED 99999 a:1\r\n", b"-MOVED x y:z\r\n", b"-ASK -1 \r\n", b"-\r\n", b"*1\r\n-MOVED 1 a:1\r\n"],
)
async def test_nonsense_keeps_nobody_waiting(words: bytes) -> None:
    async with saying(words) as url, open_line(url, is_cluster=True) as line, asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            await asyncio.gather(line.script(ECHO, ["a"], ["b"]), return_exceptions=True)


async def test_a_name_that_cannot_be_is_down_and_tried_again(log: pytest.LogCaptureFixture) -> None:
    async with open_line(f"redis://{'a' * 70}.example") as line:
        assert not line.is_up
        await is_failing(line.ask("PING"))
        await settled(line)
        assert len(log.messages) == 2, "what happened, and that it is down"


async def test_what_was_asked_is_answered_before_the_end(redis_server: RedisServer) -> None:
    async with open_line(redis_server.url) as line:
        asked = [asyncio.ensure_future(line.ask("INCR", "n")) for _ in range(3)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*asked) == [1, 2, 3]
    await is_failing(line.ask("PING"))


async def test_a_frozen_redis_does_not_keep_the_line_from_ending(redis_server: RedisServer) -> None:
    with redis_server.frozen():
        async with open_line(redis_server.url) as line:
            assert not line.is_up
    async with open_line(redis_server.url) as line:
        with redis_server.frozen():
            asked = asyncio.ensure_future(line.ask("PING"))
            await asyncio.sleep(0)
            await line.close()
            await is_failing(asked)


# Where it is, and who we are.


async def test_a_password_lets_in_and_is_told_to_nobody(log: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        server.tell("ACL SETUSER", "kvlane", "on", ">se:cret", "~kvlane:*", "+@all")
        server.tell("ACL SETUSER", "default", "resetpass", "off")
        at = f"127.0.0.1:{server.port}"
        async with open_line(f"redis://kvlane:se%3Acret@{at}/3") as line:
            assert await line.ask("SET", "kvlane:a", 1) == b"OK"
            await is_failing(line.ask("SET", "other", 1))
            assert line.is_up
        async with open_line(f"redis://{at}", username="kvlane", password="se:cret", database=3) as line:
            assert await line.ask("GET", "kvlane:a") == b"1"
        async with open_line(f"redis://{at}", username="kvlane", password="wrong secret") as line:
            assert "WRONGPASS" in line.why
            assert "secret" not in f"{log.text} {line!r} {line.why} {Servers(('redis://a',), password='secret')}"


async def test_a_redis_may_listen_on_a_path(tmp_path: Path) -> None:
    with serving(tmp_path, "--unixsocket", str(tmp_path / "redis.sock")):
        async with open_line(f"unix://{tmp_path}/redis.sock") as line:
            assert await line.ask("PING") == b"PONG"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is nothing to make a certificate with")
async def test_a_redis_behind_tls_is_asked_if_its_certificate_is_right(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1"]
    making = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    process = await asyncio.create_subprocess_exec(
        *making, *subject, "-keyout", str(key), "-out", str(certificate), stderr=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(65_536):
                writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", redis_server.port)
        await asyncio.gather(copy(reader, outer), copy(inner, writer), return_exceptions=True)

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=tls) as server:
        url = f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        trusted = Line(Servers((url,), ca_file=str(certificate), timeout_s=1), chance=Random(1))
        await trusted.start()
        assert await trusted.ask("PING") == b"PONG"
        await trusted.close()
        doubted = Line(Servers((url,)), chance=Random(1))
        await doubted.start()
        assert "certificate" in doubted.why
        await doubted.close()


async def test_a_redis_with_too_many_clients_is_down(line: Line, redis_server: RedisServer) -> None:
    assert await line.ask("CONFIG", "SET", "maxclients", 1) == b"OK"
    async with open_line(redis_server.url) as other:
        assert "max number of clients" in other.why
        assert await line.ask("CONFIG", "SET", "maxclients", 1000) == b"OK"
        await is_up(other)


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@host",
        "secret",
        "redis://",
        "unix://",
        "redis://:sec/secret@host",
        "redis://secret@host:port",
        "redis://host/secret",
        "redis://host?password=secret",
    ],
)
def test_what_is_no_url_of_redis_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a Redis") as caught:
        Line(Servers((url,)), chance=Random(1))
    assert "sec" not in str(caught.value)


# Cluster and sentinels.


@pytest.mark.parametrize("key", ["", "a", "{a}b", "b{a}", "{}a", "{a", "a{b}{c}", "{{a}}", "ä{ö}"])
def test_a_key_has_the_slot_that_clusters_give_it(key: str) -> None:
    assert slot_of(key) == redis.crc.key_slot(key.encode())


async def test_a_cluster_is_asked_where_the_key_is(tmp_path: Path) -> None:
    with clustered(tmp_path) as nodes:
        urls = [f"redis://127.0.0.1:{free_port()}", *(f"redis://localhost:{node.port}" for node in nodes)]
        async with open_line(*urls, is_cluster=True) as line:
            await is_up(line)
            tenants = [f"kvlane:1:{{tenant{at}}}" for at in range(50)]
            asked = [line.script(COUNT, [f"{tenant}:n"], [1]) for tenant in tenants]
            assert await asyncio.gather(*asked) == [1] * 50
            assert [len(node.clients()) >= 1 for node in nodes] == [True] * 3
            assert all(node.tell("DBSIZE") > 5 for node in nodes)

            slot = slot_of(tenants[0])
            old = nodes[slot * 3 // 16_384]
            new = nodes[nodes.index(old) - 1]
            ids = {node.port: node.tell("CLUSTER MYID") for node in nodes}

            # On its way: what is not there any more is asked for at the new node.
            new.tell("CLUSTER SETSLOT", slot, "IMPORTING", ids[old.port])
            old.tell("CLUSTER SETSLOT", slot, "MIGRATING", ids[new.port])
            assert await line.script(COUNT, [f"{tenants[0]}:fresh"], [1]) == 1
            assert await line.script(COUNT, [f"{tenants[0]}:n"], [1]) == 2

            # Moved.
            old.tell("MIGRATE", "127.0.0.1", new.port, f"{tenants[0]}:n", 0, 1000)
            for node in (new, old):
                node.tell("CLUSTER SETSLOT", slot, "NODE", ids[new.port])
            assert await line.script(COUNT, [f"{tenants[0]}:n"], [1]) == 3
            assert await line.script(COUNT, [f"{tenants[0]}:fresh"], [1]) == 2

            # One node that stands still is down alone.
            with new.frozen():
                await is_failing(line.script(COUNT, [f"{tenants[0]}:n"], [1]))
                assert not line.is_up
                here = next(tenant for tenant in tenants[1:] if slot_of(tenant) * 3 // 16_384 == nodes.index(old))
                assert await line.ask("GET", f"{here}:n") in {b"1", b"2", b"3"}
            await is_up(line)
            # What had no answer was run all the same, since it had been sent.
            assert await line.script(COUNT, [f"{tenants[0]}:n"], [1]) == 5


async def test_a_replica_that_takes_over_a_dead_nodes_slots_is_found(tmp_path: Path) -> None:
    home = tmp_path / "replica"
    home.mkdir()
    with clustered(tmp_path) as nodes, serving(home, "--cluster-enabled", "yes") as replica:
        master = nodes[0]
        replica.tell("CLUSTER MEET", "127.0.0.1", master.port)
        wait_until(lambda: all(is_whole(node, 4) for node in (*nodes, replica)), "all know the replica")
        wait_until(lambda: replica.tell("CLUSTER REPLICATE", master.tell("CLUSTER MYID")), "it knows its master")
        key = next(key for key in map(str, range(100)) if slot_of(key) < 5000)
        async with open_line(master.url, is_cluster=True) as line:
            assert await line.script(COUNT, [key], [1]) == 1
            await until(lambda: "slave0" in master.tell("INFO", "replication"), "it replicates")
            await until(lambda: replica.tell("INFO", "replication")["master_link_status"] == "up", "it replicates")
            master.kill()
            await until(lambda: not line.is_up, "the node is missed")
            replica.tell("CLUSTER FAILOVER", "TAKEOVER")
            await is_up(line)
            assert await line.script(COUNT, [key], [1]) == 2


async def test_the_line_follows_the_master_that_the_sentinels_name(tmp_path: Path) -> None:
    with watched(tmp_path) as sentinel:
        urls = (f"redis://127.0.0.1:{free_port()}", sentinel.url)
        async with open_line(*urls, service=SERVICE) as line:
            await is_up(line)
            assert await line.script(COUNT, ["n"], [1]) == 1
            await until(lambda: sentinel.replica.tell("GET", "n") == "1", "it is replicated")
            await asyncio.to_thread(sentinel.fail_over)
            await is_up(line)
            assert await line.script(COUNT, ["n"], [1]) == 2
            assert sentinel.replica.tell("GET", "n") == "2"


async def test_a_service_that_no_sentinel_knows_is_down(tmp_path: Path) -> None:
    with watched(tmp_path) as sentinel:
        async with open_line(sentinel.url, service="other") as line:
            assert line.why.endswith("no sentinel knows a master called other")
