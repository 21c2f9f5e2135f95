"""The line to Redis: batches, a breaker, and whatever a Redis may do to its clients; against real servers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from gateway.redisline import Line
from gateway.rediswire import Refused
from tests.gateway.lines import COUNT, ECHO, is_failing, is_resuming, is_up, open_line, settled
from tests.redis_server import RedisServer, serving
from tests.until import PATIENCE_S, until

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
