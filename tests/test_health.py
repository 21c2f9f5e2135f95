"""Engines that die, come late, drain, flap or fall silent: cases C4, C5, C8, C9, C10, R11, through the application."""

import asyncio
import logging
from collections import Counter

import pytest

from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from policies.health import State
from tests.fleet_fixtures import FAST, INTERVAL_S, House, before, house
from tests.until import until

DEADLINE_S = 2.0  # of C4, C5 and C8, in real time though health checks are twenty times as often


async def is_up(whole: House) -> bool:
    return (await whole.get("/readyz")).status == 200


# C8: late, or not at all.


async def test_c8_one_dead_endpoint_of_four_at_the_start_does_not_delay_the_others() -> None:
    async with Cluster(4, FAST) as cluster:
        await cluster.kill(1)
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        async with before(cluster) as whole:
            while (await whole.ask()).status != 200:
                assert loop.time() < started_at + DEADLINE_S
            await until(lambda: Counter(whole.states) == {State.READY: 3, State.STARTING: 1}, "three ready")
            answers = [await whole.ask(f"unique {at}") for at in range(40)]
            assert Counter(answer.status for answer in answers) == {200: 40}
            assert cluster.engine_calls[1] == 0
            await cluster.restart(1)
            await whole.is_ready(1)
            assert "e1" in {(await whole.ask(f"unique {at}")).endpoint for at in range(8)}


async def test_c8_an_engine_that_is_not_ready_gets_nothing_until_it_is() -> None:
    """Ready after half a second instead of thirty."""
    async with house(2, FAST, waits=False) as whole:
        await whole.cluster[1].inject(Fault(Kind.NOT_READY))
        await whole.is_ready(0)
        polls = whole.cluster[1].facts.calls["/health"]
        while whole.cluster[1].facts.calls["/health"] < polls + 10:
            assert (await whole.ask()).endpoint == "e0"
        assert whole.cluster.engine_calls[1] == 0
        assert whole.states[1] is State.STARTING
        await whole.cluster.clear()
        await whole.is_ready(1)
        assert {(await whole.ask()).endpoint for _ in range(8)} == {"e0", "e1"}


async def test_nobody_is_sent_anything_before_an_engine_has_answered() -> None:
    async with Cluster(1, FAST) as cluster:
        await cluster[0].inject(Fault(Kind.NOT_READY))
        async with before(cluster) as whole:
            answer = await whole.ask()
            assert (answer.status, answer.json["error"]["code"]) == (503, "server_overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            assert not await is_up(whole)
            await cluster.clear()
            await whole.is_ready(0)
            assert await is_up(whole)
            assert (await whole.ask()).status == 200


# C4, C5: killed.


async def test_c4_a_killed_endpoint_costs_at_most_one_request_in_a_hundred() -> None:
    """N = 4 endpoints, 16 clients one request after the other; the first second holds the kill, later none fails."""
    async with house(4, Settings(time_scale=0.05)) as whole:
        loop = asyncio.get_running_loop()
        killed_at = float("inf")
        ended: list[tuple[float, bool]] = []
        is_over = False

        async def client(number: int) -> None:
            while not is_over:
                began_at = loop.time()
                answer = await whole.ask(f"client {number}", tokens=20)
                ended.append((began_at, answer.status == 200))

        clients = [asyncio.create_task(client(number)) for number in range(16)]
        await until(lambda: len(ended) >= 100, "under load")
        killed_at = loop.time()
        await whole.cluster.kill(2)
        await until(lambda: whole.states[2] is State.EJECTED, "seen to be dead")
        noticed_at, count = loop.time(), len(ended)
        await until(lambda: len(ended) >= count + 300, "under load without it", 30)
        is_over = True
        await asyncio.gather(*clients)
        failed = [at for at, is_good in ended if not is_good]
        assert len(failed) <= len(ended) / 100
        assert not [at for at in failed if at > noticed_at]
        assert noticed_at - killed_at < DEADLINE_S


async def test_c5_after_an_outage_of_all_the_first_to_come_back_serves_at_once() -> None:
    async with house(3, FAST) as whole:
        loop = asyncio.get_running_loop()
        for at in range(3):
            await whole.cluster.kill(at)
        await until(lambda: set(whole.states) == {State.EJECTED}, "all seen to be dead")
        assert not await is_up(whole)
        answer = await whole.ask()
        assert (answer.status, answer.json["error"]["type"]) == (503, "service_unavailable_error")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await whole.get("/healthz")).status == 200
        await whole.cluster.restart(1)
        back_at = loop.time()
        while (await whole.ask()).status != 200:
            assert loop.time() < back_at + DEADLINE_S
            await asyncio.sleep(INTERVAL_S / 5)
        assert await is_up(whole)


# C9: SIGTERM.


async def test_c9_an_engine_that_hangs_under_sigterm_is_cut_off_and_reported() -> None:
    """vLLM as it is by default: running streams fall silent, connections are refused."""
    async with house(2, Settings(time_scale=0.1), timeouts={"idle_s": 0.5}) as whole:
        stream = asyncio.create_task(whole.ask("long", tokens=30_000, stream=True))
        await until(lambda: any(endpoint.outstanding.decoding for endpoint in whole.endpoints), "past its first token")
        at = whole.in_flight.index(1)
        await whole.cluster[at].terminate("hang")
        answer = await stream
        assert answer.status == 200
        assert b'"error"' in answer.body
        assert b"[DONE]" not in answer.body
        await until(lambda: whole.states[at] is State.EJECTED, "seen to be gone")
        assert await whole.metric("kvlane_endpoint_failures_total", endpoint=f"e{at}", kind="stalled") == 1
        assert {(await whole.ask()).endpoint for _ in range(4)} == {f"e{1 - at}"}


async def test_c9_an_engine_that_aborts_under_sigterm_has_not_answered() -> None:
    """finish_reason "abort" and [DONE] look like success, and are none."""
    async with house(1, Settings(time_scale=0.1)) as whole:
        stream = asyncio.create_task(whole.ask("long", tokens=30_000, stream=True))
        await until(lambda: whole.endpoints[0].outstanding.decoding, "past its first token")
        await whole.cluster[0].terminate("abort")
        answer = await stream
        assert b'"error"' in answer.body
        assert b"[DONE]" not in answer.body


async def test_c9_nothing_new_goes_to_a_draining_endpoint_and_what_runs_there_ends() -> None:
    async with house(2, Settings(time_scale=0.1)) as whole:
        stream = asyncio.create_task(whole.ask("long", tokens=500, stream=True))
        await until(lambda: sum(whole.in_flight) == 1, "in flight")
        at = whole.in_flight.index(1)
        whole.endpoints[at].health.drain()
        calls = whole.cluster.engine_calls[at]
        assert {(await whole.ask(f"unique {count}")).endpoint for count in range(20)} == {f"e{1 - at}"}
        assert whole.cluster.engine_calls[at] <= calls + 1  # the stream itself may only now arrive
        assert (await stream).is_whole_stream


# C10: flapping, silence.


async def test_c10_a_flapping_engine_writes_one_line_a_change_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with house(2, FAST) as whole:
        caplog.clear()
        changes = 0
        for _ in range(10):
            for fault, state in ((True, State.EJECTED), (False, State.READY)):
                if fault:
                    await whole.cluster[0].inject(Fault(Kind.UNHEALTHY))
                else:
                    await whole.cluster.clear()
                await until(lambda state=state: whole.states[0] is state, "the change seen")  # type: ignore[misc]
                changes += 1
            assert (await whole.ask()).status == 200
        assert len(caplog.records) <= 1.5 * changes  # suspect, ejected, ready: three a flap


async def test_c10_an_engine_that_stays_down_writes_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with house(2, FAST) as whole:
        engine = whole.cluster[0]
        await engine.inject(Fault(Kind.UNHEALTHY))
        await until(lambda: whole.states[0] is State.EJECTED, "ejected")
        caplog.clear()
        polls = engine.facts.calls["/health"]
        await until(lambda: engine.facts.calls["/health"] > polls + 20, "twenty more polls")
        assert not caplog.records


async def test_c10_a_black_hole_is_ejected_and_costs_the_others_nothing() -> None:
    """Health checks time out after 0.1 s; requests caught there go elsewhere after 0.3 s, those that follow at once."""
    health = {"interval_s": INTERVAL_S, "timeout_s": 0.1}
    async with house(4, FAST, health=health, timeouts={"first_byte_s": 0.3}) as whole:
        await whole.cluster[3].inject(Fault(Kind.BLACK_HOLE))
        caught = await asyncio.gather(*(whole.ask(f"unique {at}") for at in range(16)))
        assert {answer.status for answer in caught} == {200}
        await until(lambda: whole.states[3] is State.EJECTED, "ejected")
        calls = whole.cluster.engine_calls[3]
        answers = await asyncio.gather(*(whole.ask(f"unique {at}") for at in range(100)))
        assert {answer.status for answer in answers} == {200}
        assert whole.cluster.engine_calls[3] == calls


# R11: another run of the same engine.


async def test_r11_an_engine_that_restarts_between_two_looks_is_noticed_within_one() -> None:
    async with house(2, FAST) as whole:
        old = whole.endpoints[0]
        restarted = whole.cluster[0]
        await whole.restart(0)
        polls = restarted.facts.calls["/metrics"]
        await until(lambda: whole.endpoints[0] is not old, "another incarnation")
        assert restarted.facts.calls["/metrics"] <= polls + 2
        await whole.is_ready(0)
        assert whole.endpoints[0].name == old.name


async def test_a_restarted_engine_may_serve_another_model() -> None:
    async with house(1, FAST) as whole:
        engine = whole.cluster[0]
        old = whole.endpoints[0]
        await engine.kill()
        await until(lambda: whole.states[0] is State.EJECTED, "seen to be gone")
        engine.settings = Settings(time_scale=0.0, models=("other",))
        await engine.start()
        await until(lambda: whole.endpoints[0] is not old and whole.states[0] is State.READY, "ready again")
        assert (await whole.ask(model="other")).status == 200
        gone = await whole.ask(model="sim")
        assert (gone.status, gone.json["error"]["code"]) == (404, "model_not_found")
