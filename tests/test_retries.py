"""Second chances through the real application: cases C2, C3, C6, C11, the retry budget, engines that drain."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from policies.health import State
from tests.fleet_fixtures import FAST, SELDOM, House, Reply, house, leave
from tests.until import until

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
PATIENT = {"floor": 1000}
"""Of the retry budget: tests of single retries must not run into it."""


async def ask_until(whole: House, endpoint: str, fault: Fault, **fields: Any) -> tuple[Reply, int]:
    """Ask until the engine with a fault was asked; give that answer and the engine calls it took in all."""
    at = int(endpoint[1:])
    await whole.cluster[at].inject(fault)
    for _ in range(50):
        calls = whole.cluster.engine_calls
        answer = await whole.ask("hello", **fields)
        if whole.cluster.engine_calls[at] > calls[at] or await whole.metric("kvlane_retries_total"):
            return answer, sum(whole.cluster.engine_calls) - sum(calls)
    raise AssertionError(f"{endpoint} was never asked")


# C2: what succeeds elsewhere, once.


@STREAMED
@pytest.mark.parametrize(
    "fault",
    [
        Fault(Kind.RESET),
        Fault(Kind.RESET_ON_ACCEPT),
        Fault(Kind.STATUS, status=500),  # "cannot schedule new futures after shutdown"
        Fault(Kind.STATUS, status=500, body='{"error": {"message": "boom", "type": "x", "param": null, "code": 500}}'),
        Fault(Kind.STATUS, status=502, body="<html>bad gateway</html>"),
        Fault(Kind.STATUS, status=503),
        Fault(Kind.STATUS, status=503, retry_after_s=1),
        Fault(Kind.STATUS, status=429, retry_after_s=1),
        Fault(Kind.ERROR_FIRST),
    ],
    ids=lambda fault: f"{fault.kind.value} {fault.status}",
)
async def test_c2_what_fails_before_the_first_byte_succeeds_elsewhere_once(fault: Fault, stream: bool) -> None:
    async with house(2, health=SELDOM, connections={"max_idle": 1, "idle_s": 0.01}) as whole:
        answer, calls = await ask_until(whole, "e0", fault, stream=stream)
        assert (answer.status, answer.endpoint) == (200, "e1")
        assert calls == (1 if fault.kind is Kind.RESET_ON_ACCEPT else 2)
        assert await whole.metric("kvlane_retries_total") == 1


@STREAMED
async def test_c2_a_refused_connection_succeeds_elsewhere_once(stream: bool) -> None:
    """Health checks are an hour apart, so that only requests can find it out."""
    async with house(2, health={"interval_s": 3600, "state_interval_s": 3600}) as whole:
        await whole.cluster.kill(0)
        answers = [await whole.ask("hello", stream=stream) for _ in range(6)]
        assert {(answer.status, answer.endpoint) for answer in answers} == {(200, "e1")}
        assert whole.cluster.engine_calls[1] == 6
        assert 1 <= await whole.metric("kvlane_endpoint_failures_total", endpoint="e0", kind="connect") <= 2
        assert whole.states == [State.SUSPECT, State.READY]


async def test_c2_each_endpoint_is_tried_at_most_once() -> None:
    async with house(3, retries={"max_tries": 10}) as whole:
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.STATUS, status=500, body="boom"))
        answer = await whole.ask()
        assert answer.status == 500
        assert whole.cluster.engine_calls == [1, 1, 1]


async def test_c2_no_more_endpoints_are_tried_than_is_allowed() -> None:
    async with house(4, retries={"max_tries": 2}) as whole:
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.RESET))
        answer = await whole.ask()
        assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_error")
        assert sum(whole.cluster.engine_calls) == 2


async def test_c2_eighty_client_errors_open_no_breaker() -> None:
    async with house(2) as whole:
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.STATUS, times=40, status=400, body='{"error": {"message": "bad"}}'))
        bad = [await whole.ask() for _ in range(80)]
        assert {answer.status for answer in bad} == {400}
        assert whole.states == [State.READY] * 2
        assert (await whole.ask()).status == 200
        assert sum(whole.cluster.engine_calls) == 81
        assert await whole.metric("kvlane_retries_total") == 0


@pytest.mark.parametrize("status", [400, 404, 405, 413, 415, 422])
async def test_c2_a_client_error_is_never_tried_elsewhere(status: int) -> None:
    async with house(2) as whole:
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.STATUS, status=status, body='{"error": {"message": "bad"}}'))
        for _ in range(4):
            await whole.ask()
        assert sum(whole.cluster.engine_calls) == 4
        assert whole.states == [State.READY] * 2


@pytest.mark.parametrize("status", [401, 403])
async def test_c2_an_engine_that_refuses_the_gateways_own_key_is_passed_over(status: int) -> None:
    """No mistake of the client, whose key the engine never sees."""
    async with house(2) as whole:
        answer, calls = await ask_until(whole, "e0", Fault(Kind.STATUS, status=status, body="who are you?"))
        assert (answer.status, answer.endpoint, calls) == (200, "e1", 2)


async def test_c2_a_prompt_that_is_too_long_is_never_tried_elsewhere() -> None:
    async with house(2, Settings(time_scale=0.0, max_context_tokens=100)) as whole:
        answers = [await whole.ask("word " * 1000) for _ in range(4)]
        assert {answer.status for answer in answers} == {400}
        assert sum(whole.cluster.engine_calls) <= 4  # none, where the gateway knows the limit itself
        assert whole.states == [State.READY] * 2


# C3: "not now".


@pytest.mark.parametrize("status", [429, 503])
async def test_c3_an_engine_that_asks_for_time_gets_it_and_comes_back(status: int) -> None:
    """Retry-After of 0.4 s: nothing goes there meanwhile, and traffic is back within a second of its end."""
    wait_s = 0.4
    async with house(2) as whole:
        loop = asyncio.get_running_loop()
        answer, _ = await ask_until(
            whole, "e0", Fault(Kind.STATUS, times=1, status=status, retry_after_ms=wait_s * 1000)
        )
        asked_at = loop.time()
        assert answer.endpoint == "e1"
        assert whole.states == [State.READY] * 2, "it is not a failure"
        calls = whole.cluster.engine_calls[0]
        while (answer := await whole.ask()).endpoint == "e1":
            assert loop.time() < asked_at + wait_s + 1
        back_s = loop.time() - asked_at
        assert back_s >= wait_s - 0.1  # less what the answer took on its way to us
        assert whole.cluster.engine_calls[0] == calls + 1


async def test_c3_when_all_ask_for_time_the_client_is_told_how_long() -> None:
    async with house(1) as whole:
        await whole.cluster[0].inject(Fault(Kind.STATUS, times=1, status=429, retry_after_s=7))
        first = await whole.ask()
        assert (first.status, first.headers["retry-after"]) == (429, "7")
        second = await whole.ask()
        assert (second.status, second.json["error"]["code"]) == (503, "server_overloaded")
        assert second.headers["retry-after"] in ("6", "7")
        assert whole.cluster.engine_calls == [1]


async def test_c3_a_busy_engine_does_not_end_readiness_for_good() -> None:
    async with house(1) as whole:
        await whole.cluster[0].inject(Fault(Kind.STATUS, times=1, status=429, retry_after_ms=200))
        assert (await whole.ask()).status == 429
        await until(lambda: whole.endpoints[0].health.is_ready(asyncio.get_running_loop().time()), "ready again")
        assert (await whole.ask()).status == 200


# C6, C11: what must not take an endpoint out.


async def test_c6_one_connection_in_a_hundred_failing_ejects_nobody() -> None:
    """N = 4 endpoints, R = 1,000 requests, 20 at a time, a new connection each, 1 % reset: all 200, none ejected."""
    seen: Counter[State] = Counter()
    async with house(4, connections={"max_idle": 1, "idle_s": 0.001}) as whole:
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.RESET_ON_ACCEPT, probability=0.01))
        places = asyncio.Semaphore(20)

        async def one(at: int) -> int:
            async with places:
                answer = await whole.ask(f"unique {at}", tokens=2)
                seen.update(whole.states)
                return answer.status

        statuses = Counter(await asyncio.gather(*(one(at) for at in range(1000))))
        failures = await whole.metric("kvlane_endpoint_failures_total")
        assert statuses == {200: 1000}
        assert failures > 0, "the fault is meant to strike"
        assert set(seen) <= {State.READY, State.SUSPECT}


@STREAMED
async def test_c11_impatient_clients_take_no_endpoint_out_of_rotation(stream: bool) -> None:
    """100 clients that leave after 50 ms, while nothing is answered; every look finds the endpoint ready."""
    async with house(1, Settings(time_scale=1.0)) as whole:
        await whole.cluster.stall(0)
        clients = [asyncio.create_task(whole.ask(f"unique {at}", stream=stream)) for at in range(100)]
        await until(lambda: whole.in_flight == [100], "100 in flight")
        await leave(clients)
        await whole.rests()
        assert whole.states == [State.READY]
        await whole.cluster.clear()
        assert (await whole.ask(tokens=2)).status == 200


async def test_c11_a_clients_own_short_deadline_is_no_failure_of_the_engine() -> None:
    """The official clients tell their timeout: 100 of 50 ms pass, the engine stays ready."""
    async with house(1, Settings(time_scale=1.0)) as whole:
        await whole.cluster.stall(0)
        body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hello"}]}).encode()
        answers = await asyncio.gather(
            *(
                whole.post("/v1/chat/completions", body, headers={"x-stainless-read-timeout": "0.05"})
                for _ in range(100)
            )
        )
        statuses = Counter(answer.status for answer in answers)
        assert statuses[504] > 50, statuses
        assert statuses[504] + statuses[503] == 100, statuses  # on a busy machine some run out of time at the door
        assert whole.states == [State.READY]
        await whole.cluster.clear()
        assert (await whole.ask(tokens=2)).status == 200


# The budget.


@pytest.mark.parametrize(
    "fault",
    [
        Fault(Kind.STATUS, status=500, body="boom"),
        Fault(Kind.STATUS, status=503),
        Fault(Kind.RESET),
        Fault(Kind.ERROR_FIRST),
    ],
    ids=lambda fault: f"{fault.kind.value} {fault.status}",
)
async def test_an_outage_is_not_made_worse_by_retries(fault: Fault) -> None:
    """R = 500 requests, 50 at a time, to 4 endpoints that all fail: at most 1.2 engine calls each, and the floor."""
    async with house(4, retries={"budget": 0.2, "floor": 10, "window_s": 60}) as whole:
        for engine in whole.cluster:
            await engine.inject(fault)
        places = asyncio.Semaphore(50)

        async def one() -> Reply:
            async with places:
                return await whole.ask()

        answers = await asyncio.gather(*(one() for _ in range(500)))
        assert all(answer.status >= 500 for answer in answers)
        assert sum(whole.cluster.engine_calls) <= 1.2 * 500 + 10
        assert await whole.metric("kvlane_retries_total") <= 0.2 * 500 + 10
        assert await whole.metric("kvlane_retries_denied_total") > 0


# Engines that shut down.


@STREAMED
async def test_a_draining_engine_is_taken_out_at_its_word_and_comes_back_as_another(stream: bool) -> None:
    """vLLM under SIGTERM with a grace period: what runs ends, new requests get a 500, /health says 200 to the end."""
    async with house(2, Settings(time_scale=0.1), policy="round_robin") as whole:
        running = asyncio.create_task(whole.ask("long", tokens=1000, stream=True))
        await until(lambda: any(engine.facts.live for engine in whole.cluster), "one is running")
        at = whole.in_flight.index(1)
        old = whole.endpoints[at]
        await whole.cluster[at].terminate("finish")
        answers = [await whole.ask(f"unique {count}", stream=stream) for count in range(20)]
        assert {answer.status for answer in answers} == {200}
        assert {answer.endpoint for answer in answers} == {f"e{1 - at}"}
        assert whole.cluster.engine_calls[at] == 2, "the long one, and the one that it refused"
        assert old.health.state is State.DRAINING
        assert (await running).is_whole_stream
        await until(lambda: whole.endpoints[at].health.failed_probes, "seen to be gone")
        await whole.cluster.restart(at)
        await whole.is_ready(at)
        assert whole.endpoints[at] is not old
        assert old.outstanding.requests == 0
        chosen = {(await whole.ask(f"unique {count}")).endpoint for count in range(8)}
        assert chosen == {"e0", "e1"}


async def test_a_restarted_engine_is_a_new_endpoint_with_clean_books() -> None:
    """Restarted faster than a health check notices: its process_start_time_seconds tells."""
    async with house(1, Settings(time_scale=1.0), health={"interval_s": 0.2, "state_interval_s": 0.1}) as whole:
        running = [asyncio.create_task(whole.ask(f"long {at}", tokens=10_000, stream=True)) for at in range(5)]
        await until(lambda: whole.in_flight == [5], "5 in flight")
        old = whole.endpoints[0]
        await whole.restart(0)
        broken = await asyncio.gather(*running)
        assert not any(answer.is_whole_stream for answer in broken)
        await until(lambda: whole.endpoints[0] is not old, "a new incarnation")
        await whole.is_ready(0)
        assert old.outstanding.requests == 0
        assert whole.in_flight == [0]
        assert (await whole.ask(tokens=2)).status == 200


async def test_leases_on_a_lost_incarnation_end_there() -> None:
    async with house(1, FAST) as whole:
        fleet = whole.gateway.fleet
        member = fleet.pools[0].members[0]
        await whole.cluster.stall(0)
        running = [asyncio.create_task(whole.ask(f"long {at}", stream=True)) for at in range(5)]
        await until(lambda: whole.in_flight == [5], "5 in flight")
        old = whole.endpoints[0]
        fleet.renew(member)
        assert whole.in_flight == [0]
        assert old.outstanding.requests == 5
        await leave(running)
        await until(lambda: not old.outstanding.requests, "given back")
        assert whole.in_flight == [0]
        await whole.cluster.clear()
