"""What takes minutes, in real time (`make soak`, with figures to read), each with a scaled twin that always runs.

Cases S7 (patience), R5, C1, C7 (4,000 streams), C10 (an hour of health checks), P3, P4 and P5.
"""

import asyncio
import json
import logging
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import aiohttp
import pytest

from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from policies.health import State
from tests.fleet_fixtures import CHAT, FAST, allow_open_files, house, prompt
from tests.gateway_process import GatewayProcess
from tests.test_process import MB, ask, client_of, make_it_fail_now_and_then, many
from tests.until import until

STEP_S = 0.007  # of the simulated engine, for a token
MINUTE_S = 60.0
EVERY_SECOND: dict[str, object] = {"interval_s": 1, "state_interval_s": 1, "timeout_s": 3}
PATIENT: dict[str, object] = {"timeout_s": 60}
"""Of health checks: where a crowd of clients comes at once, and engines share their loop, who is late is not ill."""
IN_REAL_TIME = pytest.param(1.0, marks=pytest.mark.soak, id="in real time")


def scaled(factor: float) -> pytest.MarkDecorator:
    """Run with times `factor` of the real ones, and in `make soak` with the real ones."""
    return pytest.mark.parametrize("scale", [pytest.param(factor, id=f"at {factor:g}"), IN_REAL_TIME])


# S7: patience.


@scaled(1 / 300)
async def test_s7_a_trickle_of_a_quarter_of_an_hour_survives(scale: float) -> None:
    """A token every ten seconds, for fifteen minutes: far longer than any timeout, but never silent for so long."""
    timeouts = {"first_byte_s": 300 * scale, "idle_s": 120 * scale, "deadline_s": 600 * scale}
    async with house(1, Settings(time_scale=10 * scale / STEP_S), timeouts=timeouts) as whole:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        answer = await whole.ask(tokens=90, stream=True, timeout_s=20 * MINUTE_S)
        assert answer.is_whole_stream
        assert loop.time() - started_at > 14 * MINUTE_S * scale


@scaled(1 / 300)
async def test_s7_an_engine_that_never_answers_is_a_504_at_the_deadline_and_frees_its_place(scale: float) -> None:
    deadline_s = 2 * MINUTE_S * scale
    async with house(1, FAST, timeouts={"deadline_s": deadline_s, "first_byte_s": 300 * scale}) as whole:
        await whole.cluster[0].inject(Fault(Kind.HANG))
        loop = asyncio.get_running_loop()
        for stream in (False, True):
            started_at = loop.time()
            answer = await whole.ask(stream=stream, timeout_s=20 * MINUTE_S)
            assert (answer.status, answer.json["error"]["code"]) == (504, "upstream_timeout")
            assert deadline_s - 0.01 <= loop.time() - started_at <= deadline_s + 2
            await until(lambda: whole.in_flight == [0] and not whole.cluster[0].facts.connections > 2, "place free")
        await whole.cluster.clear()
        assert (await whole.ask()).status == 200


@scaled(1 / 600)
async def test_s7_six_minutes_to_the_first_byte_are_fine_when_configured(scale: float) -> None:
    timeouts = {"first_byte_s": 7 * MINUTE_S * scale, "deadline_s": 8 * MINUTE_S * scale, "idle_s": 0.2}
    async with house(1, Settings(time_scale=0.1), timeouts=timeouts) as whole:
        await whole.cluster.stall(0)
        running = asyncio.create_task(whole.ask(tokens=4, stream=True, timeout_s=20 * MINUTE_S))
        await asyncio.sleep(6 * MINUTE_S * scale)
        assert not running.done()
        await whole.cluster.clear()
        assert (await running).is_whole_stream


# R5: in the time of the case.


@pytest.mark.soak
async def test_r5_eight_six_second_requests_are_counted_all_along() -> None:
    """While health is asked for every second: a look every 10 ms finds eight, from the first token to the last."""
    async with house(2, Settings(time_scale=1.0), health=EVERY_SECOND) as whole:
        tokens = int(6 / STEP_S)
        running = [asyncio.create_task(whole.ask(f"unique {at}", tokens=tokens, stream=True)) for at in range(8)]
        await until(lambda: sum(whole.in_flight) == 8, "eight in flight")
        looks: Counter[int] = Counter()
        while not any(task.done() for task in running):
            looks[sum(whole.in_flight)] += 1
            await asyncio.sleep(0.01)
        assert sum(looks.values()) > 400
        assert looks[8] >= sum(looks.values()) - 1  # the last look may come when one has ended
        assert all(answer.is_whole_stream for answer in await asyncio.gather(*running))


# C1: in the time of the case; its scaled twins are in test_connections.


@pytest.mark.soak
async def test_c1_five_hundred_requests_at_the_edge_of_a_seconds_keep_alive() -> None:
    chance = Random(1)
    async with house(
        1, FAST, health={"interval_s": 3600, "state_interval_s": 3600}, connections={"idle_s": 3}
    ) as whole:
        facts = whole.cluster[0].facts
        await whole.cluster[0].inject(Fault(Kind.STALE_REUSE, seconds=1.0))
        loop = asyncio.get_running_loop()
        stale = 0
        for _ in range(500):
            started_at, before = loop.time(), facts.connections_total
            assert (await whole.ask(tokens=1)).status == 200
            extra = facts.connections_total - before
            assert extra <= 1
            stale += extra
            await asyncio.sleep(max(0, started_at + chance.uniform(0.95, 1.05) - loop.time()))
        assert whole.cluster.engine_calls == [500]
        print(f"\nC1: {stale} of 500 requests met a stale connection, each cost one extra try")
        assert 50 < stale < 450, "the edge was not met"


# C7: crowds.


@pytest.mark.parametrize("count", [400, pytest.param(4000, marks=pytest.mark.soak)])
async def test_c7_four_thousand_streams_at_once(tmp_path: Path, count: int) -> None:
    """All open at one moment, each past its first bytes, then all read to their ends: no failure."""
    allow_open_files(2 * count + 1000)
    async with (
        Cluster(4, Settings(time_scale=0.01, max_num_seqs=count)) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls, health=PATIENT) as gateway,
        client_of(gateway) as session,
    ):
        opened: set[int] = set()
        baseline = gateway.rss_bytes

        async def stream(at: int) -> str:
            body = prompt(f"unique {at}", tokens=30, stream=True)
            timeout = aiohttp.ClientTimeout(total=None)
            async with session.post(CHAT, json=body, timeout=timeout) as response:
                text = await response.content.readany()
                opened.add(at)
                await all_open.wait()
                text += await response.read()
                return (
                    "whole" if response.status == 200 and text.endswith(b"data: [DONE]\n\n") else f"{response.status}"
                )

        all_open = asyncio.Event()
        streams = [asyncio.create_task(stream(at)) for at in range(count)]
        await until(lambda: len(opened) == count or any(task.done() for task in streams), "all open", 300)
        grown = gateway.rss_bytes - baseline
        all_open.set()
        ends = Counter(await asyncio.gather(*streams))
        print(f"\nC7: {count} streams open, {grown / count / 1000:.1f} KB of RSS each, ends {dict(ends)}")
        assert ends == {"whole": count}
        assert not gateway.has_traceback, "".join(gateway.log[-20:])


# C10: an hour of health checks; scaled twins are in test_health.


@pytest.mark.soak
async def test_c10_an_hour_of_flapping_writes_a_bounded_log(caplog: pytest.LogCaptureFixture) -> None:
    """3,600 health checks, which is an hour at the usual interval, of an engine that fails a third of them at random.

    And of one that is down for good. A line a change of state of the first; the second writes nothing after its first.
    """
    caplog.set_level(logging.INFO)
    async with house(3, FAST) as whole:
        flapping, down = whole.cluster[0], whole.cluster[1]
        await flapping.inject(Fault(Kind.STATUS, status=503, paths=("/health",), body="", probability=1 / 3))
        await down.inject(Fault(Kind.UNHEALTHY))
        await until(lambda: whole.states[1] is State.EJECTED, "ejected")
        caplog.clear()
        asked = flapping.facts.calls["/health"]
        failed = 0
        while flapping.facts.calls["/health"] < asked + 3600:
            failed += (await whole.ask()).status != 200
            await asyncio.sleep(0.05)
        lines = Counter(record.getMessage().split()[1] for record in caplog.records)
        print(f"\nC10: lines by endpoint in 3,600 checks: {dict(lines)}")
        assert failed == 0
        assert lines["e1"] == 0
        assert lines["e0"] <= 3600
        await whole.cluster.clear()


# P3, P4, P5: their scaled twins are in test_process.


@pytest.mark.soak
async def test_p3_a_kilobyte_a_second_of_fifty_megabytes(tmp_path: Path) -> None:
    """For two minutes; the scaled twin reads the rest, too."""
    async with (
        Cluster(1, FAST) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        for _ in range(20):
            assert await ask(session, stream=True) == 200
        await cluster[0].inject(Fault(Kind.HUGE_ANSWER, size=50 * MB, times=1))
        body = json.dumps(prompt("hello", stream=True)).encode()
        host, port = gateway.url.removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, (host, int(port)))
            baseline = gateway.forget_peak()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
            await loop.sock_sendall(sock, head.encode() + body)
            for _ in range(120):
                assert await loop.sock_recv(sock, 1024), "cut off"
                await asyncio.sleep(1)
            grown = gateway.peak_bytes - baseline
        print(f"\nP3: peak {grown / MB:.2f} MB over {baseline / MB:.1f} MB in two minutes at 1 KB/s")
        assert grown < 3 * MB


@pytest.mark.soak
async def test_p4_two_hundred_thousand_mixed_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """RSS after each 20,000; between the first third and the end it grows by less than 10 bytes a request."""
    chance = Random(4)
    async with (
        Cluster(2, Settings(time_scale=0.02, recent=1)) as cluster,
        GatewayProcess.serving(tmp_path, cluster.urls) as gateway,
        client_of(gateway) as session,
    ):
        await make_it_fail_now_and_then(cluster)
        sizes: list[int] = []
        for part in range(10):
            started_at = time.monotonic()
            await many(session, 20_000, chance)
            sizes.append(gateway.rss_bytes)
            rate = 20_000 / (time.monotonic() - started_at)
            print(
                f"\nP4: {20_000 * (part + 1):7,} requests, RSS {sizes[-1] / MB:.2f} MB, {rate:.0f} requests/s", end=""
            )
        per_request = slope(sizes[3:]) / 20_000
        print(f"\nP4: slope {per_request:+.2f} bytes a request")
        assert per_request < 10
        assert not gateway.has_traceback, "".join(gateway.log[-20:])


def slope(values: list[int]) -> float:
    """Give the growth a step, by least squares."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    above = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return above / sum((at - middle) ** 2 for at in range(len(values)))


@pytest.mark.soak
async def test_p5_ready_within_a_second_and_a_half(tmp_path: Path) -> None:
    """From starting the process to a 200 of /readyz, engines being up: the best of five.

    Less what it waited for a core that others had: it is about the gateway, whatever else runs on the machine.
    """
    taken: list[float] = []
    async with Cluster(2, FAST) as cluster:
        for _ in range(5):
            async with AsyncExitStack() as stack:
                started_at = time.monotonic()
                gateway = await stack.enter_async_context(GatewayProcess.serving(tmp_path, cluster.urls))
                await stack.enter_async_context(client_of(gateway))
                taken.append(time.monotonic() - started_at - gateway.starved_s)
    print(f"\nP5: ready after {', '.join(f'{seconds:.2f}' for seconds in sorted(taken))} s")
    assert min(taken) <= 1.5
