"""Accounts in Redis: what gateways add is added once, whatever becomes of Redis and its answers."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.accounts import Keeper
from gateway.redisline import Line, Servers
from gateway.usageredis import PREFIX, UsageInRedis
from gateway.usagestore import Batch, StoreError
from policies.accounts import DAY_S, Sums
from policies.health import State
from tests.fleet_fixtures import before, house
from tests.gateway.test_accounts import NEXT_DAY, keeper, kept_in, note, served
from tests.policies.test_accounts import DAY, NOON
from tests.redis_server import RedisServer, clustered
from tests.until import until


@pytest.fixture(autouse=True)
def do_not_try_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end, to save what Redis cannot take."""
    monkeypatch.setattr("gateway.accounts.STOP_S", 0.5)


RETRY_S = 0.02


@asynccontextmanager
async def line_to(*urls: str, **settings: Any) -> AsyncIterator[Line]:
    line = Line(Servers(urls, retry_s=RETRY_S, **settings), chance=Random(1))
    await line.start()
    try:
        yield line
    finally:
        await line.close()


@pytest.fixture
async def line(redis_server: RedisServer) -> AsyncIterator[Line]:
    async with line_to(redis_server.url) as line:
        yield line


def shared(line: Line, gateway: str = "g1") -> UsageInRedis:
    return UsageInRedis(line, gateway, days=400)


async def saved(one: Keeper) -> None:
    """Save, as often as it takes a line to come back."""
    done = False

    async def trying() -> None:
        nonlocal done
        while not done:
            done = await one.save()
            await asyncio.sleep(RETRY_S)

    task = asyncio.create_task(trying())
    await until(lambda: done, "saved")
    await task


async def test_two_gateways_add_up(line: Line) -> None:
    one, two = keeper(shared(line)), keeper(shared(line, "g2"))
    note(one, 2)
    note(two, 3)
    note(two, tenant="u", model="a\tb")
    assert await one.save()
    assert await two.save()
    assert await served(one) == await served(two) == {"t": 5, "u": 1}
    assert (await one.usage([DAY]))[0][1].keys() == {("t", "m"), ("u", "a\tb")}


async def test_what_is_not_saved_is_known_to_its_gateway_alone(line: Line) -> None:
    one, two = keeper(shared(line)), keeper(shared(line, "g2"))
    note(one)
    assert (await served(one), await served(two)) == ({"t": 1}, {})


async def test_a_batch_that_comes_twice_counts_once(line: Line) -> None:
    store = shared(line)
    sums: Sums = {("t", "m"): {"served": 7}}
    for number in (1, 1, 2, 1, 2):
        await store.add(Batch(number, DAY, sums))
    assert (await store.read(DAY)).sums == {("t", "m"): {"served": 14}}
    await store.add(Batch(1, NEXT_DAY, sums))  # each day knows for itself
    assert (await store.read(NEXT_DAY)).sums == sums


async def test_a_gateway_that_starts_anew_begins_to_number_anew(line: Line) -> None:
    for name in ("first life", "second life"):
        one = keeper(shared(line, name))
        note(one)
        await one.save()
    assert await served(one) == {"t": 2}


async def test_an_answer_that_is_lost_does_not_make_it_count_twice(line: Line, redis_server: RedisServer) -> None:
    """Redis stands still, so that the batch is in its socket; it is added when it goes on, and then comes again."""
    one = keeper(shared(line))
    note(one)
    assert await one.save()  # so that Redis knows the script
    note(one)
    with redis_server.frozen():
        assert not await one.save()
    note(one)
    await saved(one)
    await saved(one)
    assert await served(one) == {"t": 3}


async def test_what_redis_has_of_an_unanswered_batch_is_not_told_twice(line: Line, redis_server: RedisServer) -> None:
    one = keeper(shared(line))
    note(one)
    assert await one.save()
    note(one)
    with redis_server.frozen():
        assert not await one.save()
    field = "t\tm\tserved"
    await until(lambda: redis_server.tell("HGET", PREFIX + DAY, field) == "2", "the batch has arrived")
    await until(lambda: line.is_up, "the line is up")
    assert await served(one) == {"t": 2}


async def test_redis_that_goes_and_comes_back_loses_nothing_of_what_comes_meanwhile(
    line: Line, redis_server: RedisServer
) -> None:
    one = keeper(shared(line))
    redis_server.kill()
    for _ in range(3):
        note(one, 10)
        assert not await one.save()
    with pytest.raises(StoreError, match="redis"):
        await one.usage([DAY])
    redis_server.start()
    await saved(one)
    await saved(one)  # the first saves what was taken before it was away, the second what came since
    assert await served(one) == {"t": 30}


async def test_sums_that_are_too_many_for_one_batch_are_all_saved(line: Line) -> None:
    one = keeper(shared(line))
    for at in range(250):
        note(one, tenant=f"t{at}")
    assert await one.save()
    assert len(await served(one)) == 250
    assert line.counts.calls == 4


async def test_days_in_redis_expire(line: Line, redis_server: RedisServer) -> None:
    one = keeper(shared(line))
    note(one)
    note(one, arrived_at=NOON + DAY_S)
    await one.save()
    for day in (DAY, NEXT_DAY):
        assert 399 * DAY_S < redis_server.tell("TTL", PREFIX + day) <= 400 * DAY_S


async def test_redis_that_is_full_has_counted_nothing(line: Line, redis_server: RedisServer) -> None:
    one = keeper(shared(line))
    note(one)
    redis_server.tell("CONFIG", "SET", "maxmemory", 1)
    try:
        assert not await one.save()
    finally:
        redis_server.tell("CONFIG", "SET", "maxmemory", 0)
    await saved(one)
    assert await served(one) == {"t": 1}


async def test_what_was_counted_is_saved_at_the_end(line: Line) -> None:
    async with kept_in(shared(line)) as one:
        note(one, 3)
    assert await served(keeper(shared(line, "g2"))) == {"t": 3}


# At the end.


async def test_what_redis_cannot_take_at_the_end_is_added_by_who_starts_next_once(
    line: Line, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Two batches: one that Redis has got, though no answer came, and what was counted after it."""
    one = keeper(UsageInRedis(line, "g1", 400, tmp_path / "spool"))
    note(one)
    assert await one.save()
    await one.start()
    note(one, 2)
    with redis_server.frozen():
        assert not await one.save()
        note(one, 4)
        await one.close()
    assert len(os.listdir(tmp_path / "spool")) == 1
    await until(lambda: line.is_up, "the line is up")
    for name in ("g2", "g3"):
        other = keeper(UsageInRedis(line, name, 400, tmp_path / "spool"))
        await saved(other)
        assert await served(other) == {"t": 7}
    assert os.listdir(tmp_path / "spool") == []


async def test_without_a_place_for_it_what_redis_cannot_take_at_the_end_is_lost_and_told(
    line: Line, redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    redis_server.kill()
    for place in (None, tmp_path / "file"):
        async with kept_in(UsageInRedis(line, "g1", 400, place)) as one:
            note(one)
    lost = [record.message for record in caplog.records if "is lost" in record.message]
    assert len(lost) == 2
    assert all(", 1 requests of 1050 weighted tokens: redis" in line for line in lost)


@pytest.mark.parametrize("content", ["", "[]", '{"gateway": "g0", "batches": [{"number": 1, "day": "d"}]}'])
async def test_what_makes_no_sense_there_keeps_nothing_from_being_saved(
    line: Line, tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "unsaved-g0.json").write_text(content)
    one = keeper(UsageInRedis(line, "g1", 400, tmp_path))
    note(one)
    assert await one.save()
    assert await one.save()
    assert caplog.text.count("makes no sense") == 1
    assert (tmp_path / "unsaved-g0.json").read_text() == content


async def test_a_cluster_keeps_days_where_it_likes(tmp_path: Path) -> None:
    with clustered(tmp_path) as servers:
        async with line_to(servers[0].url, is_cluster=True) as line:
            one = keeper(shared(line))
            days = [f"2027-02-{at:02}" for at in range(1, 13)]
            for at in range(12):
                note(one, arrived_at=NOON + DAY_S * (at + 1))
            assert await one.save()
            found = [sums["t", "m"]["served"] for _, sums in await one.usage(days)]
            assert found == [1] * 12


async def test_gateways_that_share_a_redis_share_their_accounts(redis_server: RedisServer) -> None:
    shared_redis = {"url": redis_server.url}
    async with house(1, redis=shared_redis) as one:
        async with before(one.cluster, redis=shared_redis) as other:
            await until(lambda: set(other.states) == {State.READY}, "the other gateway sees the engine")
            await other.ask()
            await other.ask()
            await other.rests()
        await one.ask()
        await one.rests()
        rows = (await one.get("/admin/usage?by=total", admin=True)).json["rows"]
        assert [(row["tenant"], row["model"], row["served"]) for row in rows] == [("anonymous", "sim", 3)]
