"""Who waits and who is told no, through the real application: cases A1-A5, A7, A8."""

import asyncio
import hashlib
from functools import partial
from typing import Any

import pytest

from loadtests.cluster import Cluster
from loadtests.settings import Settings
from policies.health import State
from tests.fleet_fixtures import CHAT, FAST, House, Reply, before, leave, prompt
from tests.fleet_fixtures import house as any_house
from tests.until import until

house = partial(any_house, policy="least_work")

STEP_S = 0.007  # of the simulated engine, for a token
SLOW = Settings(time_scale=1.0)


def door(limit: int | None, **fields: Any) -> dict[str, Any]:
    """Configure one class, and so many requests at each endpoint."""
    return {"max_inflight": limit, "classes": [{"name": "interactive", **fields}]}


def tenant(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "key_sha256": [hashlib.sha256(name.encode()).hexdigest()], **fields}


async def ask_as(whole: House, name: str, text: str, *, tokens: int) -> Reply:
    return await whole.post(CHAT, prompt(text, tokens=tokens), headers={"authorization": f"Bearer {name}"})


@pytest.mark.parametrize("stream", [False, True])
async def test_a1_what_finds_no_place_is_refused_at_once(stream: bool) -> None:
    """Limit 2, queue 3, 40 at once: 5 are served and 35 told no, with a body, a code and a time to come back."""
    async with house(1, SLOW, admission=door(2, max_queued=3)) as whole:
        answers = await asyncio.gather(*(whole.ask(f"u{at}", tokens=60, stream=stream) for at in range(40)))
        served = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 503]
        assert (len(served), len(refused)) == (5, 35)
        for answer in refused:
            assert answer.json["error"]["code"] == "server_overloaded"
            assert "as many wait as may" in answer.json["error"]["message"]
            assert int(answer.headers["retry-after"]) >= 1
        assert await whole.metric("kvlane_admission_refusals_total", reason="queue_full") == 35
        assert await whole.metric("kvlane_queue_wait_seconds_count", **{"class": "interactive"}) == 3
        assert sum(whole.cluster.engine_calls) == 5


async def test_a2_all_of_a_queue_are_served_in_turn() -> None:
    async with house(1, SLOW, admission=door(2)) as whole:
        answers = await asyncio.gather(*(whole.ask(f"u{at}", tokens=20) for at in range(10)))
        assert {answer.status for answer in answers} == {200}
        waits = sorted(int(answer.headers["x-kvlane-queue-ms"]) for answer in answers)
        assert waits[-1] >= 3 * 20 * STEP_S * 1000


async def test_a2_a_stream_holds_its_place_to_its_last_byte() -> None:
    async with house(1, SLOW, admission=door(1)) as whole:
        first = asyncio.create_task(whole.ask("first", tokens=80, stream=True))
        await until(lambda: whole.in_flight == [1], "streaming")
        second = await whole.ask("second", tokens=1)
        assert first.done()
        assert second.status == 200
        assert (await first).is_whole_stream


async def test_a3_clients_that_leave_the_queue_leave_nothing_behind() -> None:
    async with house(1, SLOW, admission=door(1, max_queued=2000)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        waiting = [asyncio.create_task(whole.ask(f"u{at}", stream=True)) for at in range(300)]
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 300, "all wait")
        await leave(waiting)
        await until(lambda: queue.waiting == 0, "all gone")
        await leave([running])
        assert (await whole.ask("next", tokens=1)).status == 200
        assert sum(whole.cluster.engine_calls) == 2
        assert queue.running == 0


async def test_a3_a_grant_and_a_cancel_in_one_tick_lose_no_place() -> None:
    """As one ends, the client of the one that gets its place goes: in many turns, in whatever order it happens."""
    async with house(1, FAST, admission=door(1)) as whole:
        for turn in range(100):
            first = asyncio.create_task(whole.ask(f"a{turn}", tokens=3, stream=True))
            second = asyncio.create_task(whole.ask(f"b{turn}", tokens=3, stream=True))
            await first
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        await whole.rests()
        (queue,) = whole.gateway.gate.queues.values()
        assert (queue.running, queue.waiting) == (0, 0)


async def test_a4_one_tenants_queue_is_not_anothers() -> None:
    """A has 100 requests waiting, B's only one is served within two service times."""
    tokens = 20
    async with house(1, SLOW, admission=door(1), tenants=[tenant("a"), tenant("b")]) as whole:
        crowd = [asyncio.create_task(ask_as(whole, "a", f"u{at}", tokens=tokens)) for at in range(100)]
        await until(lambda: whole.gateway.gate.queues, "asked for")
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting > 90, "a crowd")
        single = await ask_as(whole, "b", "mine", tokens=tokens)
        assert single.status == 200
        assert int(single.headers["x-kvlane-queue-ms"]) <= 2.5 * tokens * STEP_S * 1000
        await leave(crowd)


async def test_a5_a_deadline_that_passes_in_the_queue_is_refused_then_and_never_sent() -> None:
    async with house(1, SLOW, admission=door(1)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        loop = asyncio.get_running_loop()
        began = loop.time()
        late = await whole.post(CHAT, prompt("late"), headers={"x-stainless-read-timeout": "0.3"})
        assert late.status == 503
        assert "has waited as long as" in late.json["error"]["message"] or "deadline" in late.json["error"]["message"]
        assert 0.25 <= loop.time() - began <= 2
        await leave([running])
        assert sum(whole.cluster.engine_calls) == 1


async def test_a5_the_bound_of_a_class_is_kept() -> None:
    async with house(1, SLOW, admission=door(1, max_queue_wait_s=0.2)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        assert (await whole.ask("late")).status == 503
        assert await whole.metric("kvlane_admission_refusals_total", reason="expired") == 1
        await leave([running])


async def test_a7_a_burst_between_two_readings_of_the_engines_is_held_to_capacity() -> None:
    slowly = {"interval_s": 1, "state_interval_s": 1}
    async with house(2, SLOW, admission=door(8), health=slowly) as whole:
        tasks = [asyncio.create_task(whole.ask(f"u{at}", tokens=10)) for at in range(200)]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, sum(engine.facts.live for engine in whole.cluster))
            await asyncio.sleep(0.002)
        assert {(await task).status for task in tasks} == {200}
        assert 8 <= most <= 16


async def test_a8_what_is_cached_counts_little_and_what_is_cold_queues() -> None:
    """Long prompts: the first is work for half a minute, and once it is cached ten of them are none."""
    settings = Settings(time_scale=0.05, max_context_tokens=131_072)
    long = list(range(60_000))
    body: dict[str, Any] = {"model": "sim", "max_tokens": 400, "sim": {"output_tokens": 400}}
    async with house(1, settings) as whole:
        cold = [
            asyncio.create_task(whole.post("/v1/completions", {**body, "prompt": [at, *long]})) for at in range(1, 6)
        ]
        await until(lambda: whole.gateway.gate.queues and sum(whole.in_flight) >= 1, "one at work")
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 4, "the others wait")
        assert whole.in_flight == [1]
        await leave(cold)
        await whole.rests()
        warm = {**body, "prompt": [9, *long]}
        assert (await whole.post("/v1/completions", warm | {"max_tokens": 1})).status == 200
        again = [asyncio.create_task(whole.post("/v1/completions", warm)) for _ in range(4)]
        await until(lambda: whole.in_flight == [4], "all at once")
        await asyncio.gather(*again)


async def test_a_burst_is_held_for_its_window_and_placed_in_fair_order() -> None:
    """Ten of A at once and then one of B, four places: with the window B has one of them, without it none."""
    tenants = [tenant("a"), tenant("b")]
    for smoothing_s, is_soon in ((0.2, True), (0, False)):
        rules = door(2) | {"smoothing_s": smoothing_s}
        async with house(2, SLOW, admission=rules, tenants=tenants) as whole:
            crowd = [asyncio.create_task(ask_as(whole, "a", f"a{at}", tokens=40)) for at in range(10)]
            await until(lambda: whole.gateway.proxy.active == 10, "all of A are at the door")
            late = await ask_as(whole, "b", "b", tokens=40)
            ended = sum(task.done() for task in crowd)
            assert (ended < 4) is is_soon
            assert {answer.status for answer in [late, *await asyncio.gather(*crowd)]} == {200}


async def test_without_admission_engines_queue_for_themselves() -> None:
    async with house(1, SLOW, admission={"enabled": False, "max_inflight": 1}) as whole:
        tasks = [asyncio.create_task(whole.ask(f"u{at}", tokens=200)) for at in range(8)]
        await until(lambda: whole.in_flight == [8], "all sent")
        await leave(tasks)


@pytest.mark.parametrize(
    ("fields", "headers", "expected"),
    [
        ({}, {}, "interactive"),
        ({"service_tier": "flex"}, {}, "batch"),
        ({"service_tier": "auto"}, {}, "interactive"),
        ({"service_tier": "flex"}, {"x-kvlane-class": "interactive"}, "interactive"),
        ({}, {"x-kvlane-class": "batch"}, "batch"),
        ({}, {"x-kvlane-class": "none such"}, "interactive"),
        ({"service_tier": 7}, {}, "interactive"),
    ],
)
async def test_the_class_is_what_header_and_tier_ask_for(
    fields: dict[str, Any], headers: dict[str, str], expected: str
) -> None:
    admission = {"max_inflight": 1}
    async with house(1, SLOW, admission=admission) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        waiting = asyncio.create_task(whole.post(CHAT, prompt("x") | fields, headers=headers))
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 1, "waiting")
        assert queue.waiting_in(expected) == 1
        await leave([waiting, running])


async def test_a_tenant_gets_no_better_class_than_its_own() -> None:
    tenants = [tenant("a", service_class="batch")]
    async with house(1, SLOW, admission={"max_inflight": 1}, tenants=tenants) as whole:
        running = asyncio.create_task(ask_as(whole, "a", "running", tokens=100_000))
        await until(lambda: whole.in_flight == [1], "running")
        headers = {"authorization": "Bearer a", "x-kvlane-class": "interactive"}
        waiting = asyncio.create_task(whole.post(CHAT, prompt("x"), headers=headers))
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting_in("batch") == 1, "waiting")
        await leave([waiting, running])


async def test_nobody_waits_where_nobody_is_left_to_serve() -> None:
    async with house(1, SLOW, admission=door(1)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        waiting = asyncio.create_task(whole.ask("waiting"))
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 1, "waiting")
        await whole.cluster.kill(0)
        refused = await waiting
        assert refused.status in (502, 503)  # as its own try finds the door closed, or health before it
        await leave([running])


async def test_a_stream_that_waits_is_kept_alive_in_the_form_that_clients_survive() -> None:
    async with house(1, SLOW, admission=door(1) | {"keepalive_s": 0.05}) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=40, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        waiting = await whole.ask("waiting", tokens=4, stream=True)
        assert waiting.status == 200
        pings, _, events = waiting.body.partition(b"data: ")
        assert pings.count(b": ping\n") >= 2
        assert pings == b": ping\n" * pings.count(b": ping\n")
        assert waiting.is_whole_stream
        assert "x-kvlane-endpoint" not in waiting.headers
        assert waiting.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (await running).is_whole_stream
        assert b": ping" not in (await whole.ask("at once", tokens=4, stream=True)).body
        assert events


async def test_a_refusal_after_a_ping_is_an_event_of_the_stream() -> None:
    admission = door(1, max_queue_wait_s=0.2) | {"keepalive_s": 0.05}
    async with house(1, SLOW, admission=admission) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        waiting = await whole.ask("waiting", stream=True)
        assert waiting.status == 200
        assert waiting.body.startswith(b": ping\n")
        assert b'data: {"error":{"message":"pool default is full' in waiting.body
        assert b"[DONE]" not in waiting.body
        assert await whole.metric("kvlane_requests_total", outcome="refused") == 1
        await leave([running])


async def test_a_pool_for_batch_lends_what_is_idle_and_is_named() -> None:
    """Interactive requests have a pool of their own; when that has prefills to do, the batch pool's engine helps."""
    async with Cluster(2, SLOW) as cluster:
        endpoints = [{"name": f"e{at}", "url": url, "kv_events": "off"} for at, url in enumerate(cluster.urls)]
        pools = [
            {"name": "fast", "classes": ["interactive"], "endpoints": endpoints[:1]},
            {"name": "slow", "classes": ["batch"], "endpoints": endpoints[1:]},
        ]
        async with before(cluster, pools=pools) as whole:
            await until(lambda: set(whole.states) == {State.READY}, "all ready")
            assert (await whole.ask("now", tokens=1)).headers["x-kvlane-pool"] == "fast"
            assert (await whole.ask("later", tokens=1, service_tier="flex")).headers["x-kvlane-pool"] == "slow"
            ids = {"model": "sim", "prompt": list(range(20_000)), "max_tokens": 2}
            busy = asyncio.create_task(whole.post("/v1/completions", ids))
            await until(lambda: whole.in_flight[0] == 1, "the fast pool is at work")
            lent = await whole.ask("now", tokens=1)
            assert (lent.headers["x-kvlane-pool"], lent.headers["x-kvlane-reason"]) == ("slow", "lent")
            assert (await busy).headers["x-kvlane-pool"] == "fast"


async def test_an_engine_that_asks_for_time_does_not_empty_the_queue() -> None:
    async with house(1, SLOW, admission=door(1)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=60, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        waiting = [asyncio.create_task(whole.ask(f"w{at}", tokens=1)) for at in range(5)]
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 5, "waiting")
        whole.endpoints[0].health.not_now(asyncio.get_running_loop().time(), 1.0)
        assert (await running).is_whole_stream
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}


async def test_what_an_engine_only_counts_does_not_wait() -> None:
    async with house(1, SLOW, admission=door(1)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "running")
        assert (await whole.post("/tokenize", {"model": "sim", "prompt": "hello"})).status == 200
        await leave([running])
