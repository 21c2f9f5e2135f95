"""Connections to engines and crowds of clients: cases C1 and C7, and what the pool of connections promises."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from tests.fleet_fixtures import CHAT, SELDOM, House, allow_open_files, house, leave, prompt
from tests.until import until
from tests.wire.engine import black_hole

STALE_S = 0.03  # a second, scaled
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@contextlib.asynccontextmanager
async def stale(count: int = 1) -> AsyncIterator[House]:
    """Give engines that reset a connection when it is used again after 30 ms, and a gateway that keeps them longer."""
    async with house(count, health=SELDOM, connections={"idle_s": 3}) as whole:
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.STALE_REUSE, seconds=STALE_S))
        yield whole


def opened(whole: House) -> int:
    return sum(engine.facts.connections_total for engine in whole.cluster)


# C1.


@STREAMED
async def test_c1_a_connection_that_went_stale_costs_one_extra_try_and_no_error(stream: bool) -> None:
    """R = 30 requests, each after the engine has given up the connection of the one before."""
    async with stale() as whole:
        assert (await whole.ask(stream=stream)).status == 200
        before, calls = opened(whole), whole.cluster.engine_calls[0]
        for _ in range(30):
            await asyncio.sleep(1.5 * STALE_S)
            assert (await whole.ask(stream=stream)).status == 200
        assert opened(whole) - before == 30
        assert whole.cluster.engine_calls[0] - calls == 30
        assert await whole.metric("kvlane_retries_total") == 0, "the engine never saw it: no retry, no budget"
        assert await whole.metric("kvlane_endpoint_failures_total") == 0


async def test_c1_requests_at_the_very_edge_of_keep_alive_never_fail() -> None:
    """R = 100 requests every 30 +- 1.5 ms (1.00 +- 0.05 s, scaled): stale or not, each costs at most one extra try."""
    chance = Random(1)
    async with stale() as whole:
        loop = asyncio.get_running_loop()
        for _ in range(100):
            started_at, before = loop.time(), opened(whole)
            assert (await whole.ask(tokens=1)).status == 200
            assert opened(whole) - before <= 1
            await asyncio.sleep(max(0, started_at + STALE_S * chance.uniform(0.95, 1.05) - loop.time()))
        assert whole.cluster.engine_calls[0] == 100


async def test_c1_after_a_stale_connection_a_fresh_one_is_used_not_another_stale_one() -> None:
    async with stale() as whole:
        await whole.cluster.stall(0)
        crowd = [asyncio.create_task(whole.ask(f"unique {at}")) for at in range(10)]
        await until(lambda: whole.cluster[0].facts.live == 10, "ten connections")
        await whole.cluster[0].clear(Kind.STALL)
        await asyncio.gather(*crowd)
        before = opened(whole)
        await asyncio.sleep(2 * STALE_S)
        assert (await whole.ask()).status == 200
        assert opened(whole) - before == 1


async def test_c1_a_crowd_on_stale_connections_costs_one_extra_try_each() -> None:
    async with stale(2) as whole:
        assert {answer.status for answer in await asyncio.gather(*(whole.ask(f"a {at}") for at in range(40)))} == {200}
        await asyncio.sleep(2 * STALE_S)
        before, calls = opened(whole), sum(whole.cluster.engine_calls)
        answers = await asyncio.gather(*(whole.ask(f"b {at}") for at in range(40)))
        assert {answer.status for answer in answers} == {200}
        assert opened(whole) - before <= 40
        assert sum(whole.cluster.engine_calls) - calls == 40
        assert await whole.metric("kvlane_retries_total") == 0


async def test_a_reset_on_a_fresh_connection_is_no_stale_one() -> None:
    """It counts as a failure, and is retried elsewhere if at all."""
    async with house(1, health=SELDOM) as whole:
        await whole.cluster[0].inject(Fault(Kind.RESET_ON_ACCEPT))
        before = opened(whole)
        answer = await whole.ask()
        assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_error")
        assert opened(whole) - before == 1


async def test_a_request_that_the_engine_has_read_is_not_sent_twice_to_it() -> None:
    """A reset after the request was read, on a reused connection: the engine may have acted on it."""
    async with house(1, health=SELDOM) as whole:
        assert (await whole.ask()).status == 200
        await whole.cluster[0].inject(Fault(Kind.HANG_AFTER, after=0))
        calls = whole.cluster.engine_calls[0]
        running = asyncio.create_task(whole.ask(stream=True))
        await until(lambda: whole.cluster.engine_calls[0] == calls + 1, "sent")
        await whole.cluster.kill(0)
        assert (await running).status == 502
        assert whole.cluster.engine_calls[0] == calls + 1


async def test_connections_are_kept_and_used_again() -> None:
    async with house(1, health=SELDOM) as whole:
        before = opened(whole)
        for at in range(50):
            await whole.ask(f"unique {at}", stream=at % 2 == 0)
        assert opened(whole) - before == 1


async def test_no_more_idle_connections_are_kept_than_allowed() -> None:
    async with house(1, health=SELDOM, connections={"max_idle": 3}) as whole:
        engine = whole.cluster[0]
        polls = engine.facts.connections
        await whole.cluster.stall(0)
        crowd = [asyncio.create_task(whole.ask(f"unique {at}")) for at in range(20)]
        await until(lambda: engine.facts.live == 20, "20 in flight")
        await whole.cluster.clear()
        await asyncio.gather(*crowd)
        await until(lambda: engine.facts.connections == polls + 3, "three kept")


async def test_idle_connections_are_closed_before_the_engine_would() -> None:
    async with house(1, health=SELDOM, connections={"idle_s": 0.1}) as whole:
        engine = whole.cluster[0]
        await asyncio.gather(*(whole.ask(f"unique {at}") for at in range(10)))
        await until(lambda: engine.facts.connections == 0, "all closed")


@pytest.mark.parametrize("deadline_s", [None, 0.2])
async def test_a_connection_that_does_not_open_ends_by_its_timeout_or_the_clients_deadline(
    deadline_s: float | None,
) -> None:
    connect_s = 0.2 if deadline_s is None else 30.0
    headers = {} if deadline_s is None else {"x-stainless-read-timeout": str(deadline_s)}
    with black_hole() as url:
        async with house(1, timeouts={"connect_s": connect_s}, health=SELDOM) as whole:
            whole.endpoints[0].url = url
            answer = await whole.post(CHAT, prompt("hello"), timeout_s=10, headers=headers)
            assert answer.status == (502 if deadline_s is None else 504)


# C7.


async def test_c7_two_thousand_requests_at_once_on_eight_endpoints() -> None:
    """N = 8 endpoints, 2,048 streams that are all in flight at one moment: no error, 256 on each endpoint."""
    allow_open_files(4 * 2048 + 500)
    async with house(8, Settings(time_scale=0.001)) as whole:
        for at in range(8):
            await whole.cluster.stall(at)
        crowd = [asyncio.create_task(whole.ask(f"unique {at}", stream=True, timeout_s=90)) for at in range(2048)]
        await until(lambda: sum(engine.facts.live for engine in whole.cluster) == 2048, "2,048 at once", 60)
        assert whole.in_flight == [256] * 8
        await whole.cluster.clear()
        answers = await asyncio.gather(*crowd)
        assert Counter(answer.status for answer in answers) == {200: 2048}
        assert all(answer.is_whole_stream for answer in answers)
        assert sum(whole.cluster.engine_calls) == 2048


async def test_c7_a_thousand_streams_to_one_endpoint_all_get_their_first_byte() -> None:
    """While none of them ends: each is read until its first bytes, and then stays open in silence."""
    allow_open_files(4 * 1000 + 500)
    async with house(1, Settings(time_scale=0.01, max_num_seqs=1000)) as whole:
        await whole.cluster[0].inject(Fault(Kind.HANG_AFTER, after=2))

        async def first_byte(at: int) -> None:
            body = prompt(f"unique {at}", stream=True)
            async with whole.session.post(whole.gateway.url + CHAT, json=body) as response:
                assert response.status == 200
                assert await response.content.readany()
                started.add(at)
                await everybody.wait()

        started: set[int] = set()
        everybody = asyncio.Event()
        crowd = [asyncio.create_task(first_byte(at)) for at in range(1000)]
        await until(lambda: len(started) == 1000 or any(task.done() for task in crowd), "a thousand first bytes", 60)
        assert len(started) == 1000
        assert whole.in_flight == [1000]
        await leave(crowd)
