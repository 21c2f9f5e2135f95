"""Who may not go just anywhere: what one engine holds, and second tries. They wait, and are told no, like all."""

import asyncio
from functools import partial

from loadtests.faults import Fault, Kind
from tests.fleet_fixtures import House, Reply, leave
from tests.fleet_fixtures import house as any_house
from tests.test_admission import SLOW, door
from tests.until import until

house = partial(any_house, policy="least_work")


async def follow_up(whole: House, before: Reply, tokens: int = 1) -> Reply:
    """Go on from a stored response."""
    body = {"model": "sim", "input": "and then?", "previous_response_id": before.json["id"]}
    return await whole.post("/v1/responses", body | {"sim": {"output_tokens": tokens}})


async def test_what_one_engine_holds_waits_for_room_at_that_engine() -> None:
    async with house(2, SLOW, admission=door(1)) as whole:
        made = await whole.post("/v1/responses", {"model": "sim", "input": "hello"})
        holder = int(made.endpoint[1])
        running: dict[int, asyncio.Task[Reply]] = {}
        for at in range(2):
            task = asyncio.create_task(whole.ask(f"r{at}", tokens=100_000, stream=True))
            await until(lambda: sum(whole.in_flight) == len(running) + 1, "running")
            running[next(e for e in range(2) if whole.in_flight[e] and e not in running)] = task
        waiting = asyncio.create_task(follow_up(whole, made))
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 1, "it waits")
        read = await whole.get(f"/v1/responses/{made.json['id']}")
        assert (read.status, read.endpoint) == (200, made.endpoint)  # to read it costs nothing
        await leave([running.pop(1 - holder)])
        await until(lambda: whole.in_flight[1 - holder] == 0, "room elsewhere")
        assert (await whole.ask("goes there", tokens=1)).status == 200
        assert (queue.waiting, whole.in_flight[holder]) == (1, 1)
        await leave([running.pop(holder)])
        answer = await waiting
        assert (answer.status, answer.endpoint, answer.headers["x-kvlane-reason"]) == (200, made.endpoint, "holds")
        assert int(answer.headers["x-kvlane-queue-ms"]) > 0


async def test_what_one_engine_holds_is_refused_like_all_else_and_when_that_engine_is_lost() -> None:
    async with house(2, SLOW, admission=door(1, max_queued=1)) as whole:
        made = await whole.post("/v1/responses", {"model": "sim", "input": "hello"})
        holder = int(made.endpoint[1])
        running = [asyncio.create_task(whole.ask(f"r{at}", tokens=100_000, stream=True)) for at in range(2)]
        await until(lambda: all(each.outstanding.decoding for each in whole.endpoints), "beyond a second try")
        waiting = asyncio.create_task(follow_up(whole, made))
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 1, "it waits")
        refused = await follow_up(whole, made)
        assert (refused.status, refused.json["error"]["code"]) == (503, "server_overloaded")
        assert "as many wait as may" in refused.json["error"]["message"]
        await whole.cluster.kill(holder)
        assert (await waiting).status in (502, 503)  # as its own try finds the door closed, or health before it
        assert queue.waiting == 0
        await leave(running)


async def test_a_second_try_waits_for_room_too_and_before_those_that_wait_already() -> None:
    async with house(2, SLOW, admission=door(1)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: sum(whole.in_flight) == 1, "running")
        busy, free = (0, 1) if whole.in_flight[0] else (1, 0)
        await whole.cluster[free].inject(Fault(Kind.STATUS, status=503, retry_after_s=60))
        second = asyncio.create_task(whole.ask("second", tokens=1))
        await until(lambda: whole.cluster.engine_calls[free] == 1, "its first try")
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 1, "it waits")
        others = [asyncio.create_task(whole.ask(f"w{at}", tokens=40)) for at in range(3)]
        await until(lambda: queue.waiting == 4, "others wait")
        assert (whole.in_flight[busy], whole.cluster.engine_calls[busy]) == (1, 1)
        await leave([running])
        answer = await second
        assert (answer.status, answer.endpoint) == (200, f"e{busy}")
        assert not any(task.done() for task in others)
        assert {each.status for each in await asyncio.gather(*others)} == {200}


async def test_a_second_try_that_finds_no_room_in_time_gets_the_answer_of_the_first() -> None:
    async with house(2, SLOW, admission=door(1, max_queue_wait_s=0.2)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: sum(whole.in_flight) == 1, "running")
        free = whole.in_flight.index(0)
        await whole.cluster[free].inject(Fault(Kind.STATUS, status=500, body="boom"))
        answer = await whole.ask("second", tokens=1)
        assert (answer.status, whole.cluster.engine_calls[free]) == (500, 1)
        assert whole.cluster.engine_calls[1 - free] == 1
        await leave([running])


async def test_a_client_that_leaves_while_its_second_try_waits_leaves_nothing_behind() -> None:
    async with house(2, SLOW, admission=door(1)) as whole:
        running = asyncio.create_task(whole.ask("running", tokens=100_000, stream=True))
        await until(lambda: sum(whole.in_flight) == 1, "running")
        free = whole.in_flight.index(0)
        await whole.cluster[free].inject(Fault(Kind.STATUS, status=503, retry_after_s=60))
        second = asyncio.create_task(whole.ask("second", tokens=1))
        (queue,) = whole.gateway.gate.queues.values()
        await until(lambda: queue.waiting == 1, "it waits")
        await leave([second, running])
        await whole.rests()
        assert (queue.running, queue.waiting) == (0, 0)
