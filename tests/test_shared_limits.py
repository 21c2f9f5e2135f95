"""Limits that several gateways share through a real redis-server: cases L1, L5, L8-L11, and what happens in between."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.sharedledger import SharedLedger
from loadtests.cluster import Cluster
from loadtests.settings import Settings
from tests.fleet_fixtures import CHAT, FAST, House, before, leave, prompt
from tests.gateway_process import GatewayProcess
from tests.redis_server import RedisServer
from tests.test_limits import ask, error, left, tenant
from tests.until import until

SLOW = Settings(time_scale=1.0)
RETRY_S = 2.0  # within so long a line that was down is up again


def shared(redis: RedisServer, *, on_redis_error: str = "local", **limits: Any) -> dict[str, Any]:
    """Configure one tenant, and the Redis that knows what it has used."""
    return {"tenants": [tenant(limits=limits, on_redis_error=on_redis_error)], "redis": {"url": redis.url}}


@pytest.fixture(autouse=True)
def are_heard_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gateways say that they live a hundred times as often."""
    monkeypatch.setattr("gateway.sharedledger.PRESENCE_S", 0.05)


@asynccontextmanager
async def gateways(
    count: int, redis: RedisServer, settings: Settings = FAST, **sections: Any
) -> AsyncIterator[list[House]]:
    """Run gateways before one engine, with one Redis."""
    async with Cluster(1, settings) as cluster, AsyncExitStack() as stack:
        houses = [await stack.enter_async_context(before(cluster, **shared(redis, **sections))) for _ in range(count)]
        for each in houses:
            await until(lambda: each.gateway.fleet.is_serving(), "ready")  # noqa: B023
            await until(lambda: ledger_of(each).gateways == count or not ledger_of(each).is_up, "all know each other")  # noqa: B023
        yield houses


def ledger_of(whole: House) -> SharedLedger:
    found = whole.gateway.limiter.shared
    assert found is not None
    return found


async def is_told(*houses: House) -> None:
    """Wait until Redis has been told everything."""
    for each in houses:
        await until(lambda: not ledger_of(each).owed, "all is settled")  # noqa: B023


async def test_l1_two_gateways_share_a_limit(redis_server: RedisServer) -> None:
    """1,000 tokens a minute, calls of some 100 tokens by turns: at most 10 get in."""
    async with gateways(2, redis_server, tokens_per_minute=1000) as houses:
        admitted = used = 0
        for at in range(30):
            reply = await ask(houses[at % 2], tokens=83, max_tokens=83)
            await is_told(*houses)
            if reply.status == 200:
                admitted += 1
                used += reply.json["usage"]["total_tokens"]
            else:
                assert reply.status == 429
        assert 8 <= admitted <= 10
        assert used <= 1020


async def test_l1_three_gateways_at_ten_times_the_limit(redis_server: RedisServer) -> None:
    async with gateways(3, redis_server, tokens_per_minute=6000) as houses:
        began = time.monotonic()
        replies = await asyncio.gather(*(ask(houses[at % 3], f"{at}", tokens=100, max_tokens=100) for at in range(500)))
        took_s = time.monotonic() - began
        used = sum(reply.json["usage"]["total_tokens"] for reply in replies if reply.status == 200)
        assert {reply.status for reply in replies} == {200, 429}
        assert used <= 1.02 * (6000 + 100 * took_s)
        assert used >= 0.7 * 6000  # what was set aside and not used came back late for this crowd


async def test_l5_slots_are_shared_and_come_back(redis_server: RedisServer) -> None:
    async with gateways(2, redis_server, SLOW, parallel=1) as (one, other):
        for at in range(5):
            task = asyncio.create_task(ask(one, f"u{at}", tokens=100_000, stream=True))
            await until(lambda: one.in_flight == [1], "streaming")
            assert (await ask(other)).status == 429
            await leave([task])
            await until(lambda: not one.gateway.proxy.active, "it is gone")
            await is_told(one)
        assert (await ask(other, tokens=1)).status == 200


async def test_l5_a_killed_gateway_frees_its_slots(redis_server: RedisServer, tmp_path: Path) -> None:
    """Its lease ends within half a minute; that time passes at once here."""
    async with Cluster(1, SLOW) as cluster:
        async with (
            GatewayProcess.serving(tmp_path, cluster.urls, **shared(redis_server, parallel=1)) as dying,
            aiohttp.ClientSession(headers={"authorization": "Bearer acme"}) as session,
        ):
            await ready(dying, session)
            async with session.post(dying.url + CHAT, json=prompt("x", tokens=100_000, stream=True)) as response:
                assert response.status == 200
                dying.process.kill()
                await dying.process.wait()
        with redis_server.ask() as redis:
            ((_, expires_us),) = leases(redis)
            assert expires_us / 1e6 - time.time() < 30
        async with before(cluster, **shared(redis_server, parallel=1)) as whole:
            await until(lambda: whole.gateway.fleet.is_serving(), "ready")
            assert (await ask(whole)).status == 429
            with redis_server.ask() as redis:  # so much time passes
                ((grant, _),) = leases(redis)
                redis.zadd("kvlane:1:{acme}:due", {grant: 1})
            assert (await ask(whole, tokens=1)).status == 200


def leases(redis: Any) -> list[tuple[str, float]]:
    """Give the grants of the tenant, and when they expire."""
    found: list[tuple[str, float]] = redis.zrange("kvlane:1:{acme}:due", 0, -1, withscores=True)
    return found


async def ready(gateway: GatewayProcess, session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(10):
        while True:
            async with session.get(gateway.url + "/readyz") as response:
                if response.status == 200:
                    return


async def test_l5_a_long_stream_keeps_its_slot(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an hour, scaled: the lease is 0.3 s and renewed every 0.1 s, the stream takes 2 s."""
    monkeypatch.setattr("gateway.sharedledger.LEASE_S", 0.3)
    monkeypatch.setattr("gateway.sharedledger.RENEW_S", 0.1)
    async with gateways(2, redis_server, SLOW, parallel=1) as (one, other):
        task = asyncio.create_task(ask(one, tokens=280, stream=True))
        await until(lambda: one.in_flight == [1], "streaming")
        while not task.done():
            reply = await ask(other)
            assert reply.status == 429 or task.done()
        assert (await task).is_whole_stream
        await is_told(one)
        assert (await ask(other, tokens=1)).status == 200


async def test_l8_fifty_at_once_on_a_budget_for_five(redis_server: RedisServer) -> None:
    async with gateways(2, redis_server, SLOW, tokens_per_month=5 * 600) as houses:
        replies = await asyncio.gather(
            *(ask(houses[at % 2], "word " * 100, tokens=400, max_tokens=400) for at in range(50))
        )
        assert 4 <= sum(reply.status == 200 for reply in replies) <= 6


async def test_l9_a_frozen_redis_holds_up_the_first_and_nobody_after(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Two gateways live, so each lets half of the limit pass; what comes later waits for nothing."""
    caplog.set_level(logging.INFO)
    async with gateways(2, redis_server, requests_per_minute=20) as (one, _):
        assert (await ask(one)).status == 200
        await is_told(one)
        caplog.clear()
        with redis_server.frozen():
            began = time.monotonic()
            assert (await ask(one)).status == 200
            first_s = time.monotonic() - began
            assert not ledger_of(one).is_up
            assert await one.metric("kvlane_limiter_up") == 0
            statuses = [(await ask(one)).status for _ in range(12)]
            assert first_s < 0.5  # 100 ms, and a noisy machine
            assert statuses == [200] * 9 + [429] * 3  # with the first: half of 20
            assert len([record for record in caplog.records if "down" in record.getMessage().lower()]) <= 2
        await until(lambda: ledger_of(one).is_up, "it is up again", within_s=RETRY_S + 10)
        assert (await ask(one)).status == 200
        assert await one.metric("kvlane_limiter_up") == 1


@pytest.mark.parametrize(("rule", "status"), [("open", 200), ("closed", 503), ("local", 200)])
async def test_l9_each_tenant_says_what_happens_without_redis(
    redis_server: RedisServer, rule: str, status: int
) -> None:
    async with gateways(1, redis_server, on_redis_error=rule, requests_per_minute=2) as (whole,):
        with redis_server.frozen():
            replies = [await ask(whole) for _ in range(4)]
            assert replies[0].status == status
            last = {"open": 200, "closed": 503, "local": 429}[rule]
            assert replies[-1].status == last
            if rule == "closed":
                assert error(replies[0])["code"] == "server_overloaded"
                assert "retry-after" in replies[0].headers
        await until(lambda: ledger_of(whole).is_up, "it is up again")


async def test_l9_budgets_are_charged_later_for_what_was_used_meanwhile(redis_server: RedisServer) -> None:
    async with gateways(1, redis_server, tokens_per_day=10_000) as (whole,):
        first = await ask(whole, tokens=100)
        await is_told(whole)
        with redis_server.frozen():
            second = await ask(whole, tokens=100)
        assert second.status == 200
        await until(lambda: ledger_of(whole).is_up, "it is up again")
        await is_told(whole)
        used = sum(reply.json["usage"]["total_tokens"] for reply in (first, second))
        assert 10_000 - (await left(whole))["tokens_per_day"] == used


async def test_l10_a_redis_that_forgot_everything_limits_on(redis_server: RedisServer) -> None:
    async with gateways(1, redis_server, requests_per_minute=3) as (whole,):
        assert [(await ask(whole)).status for _ in range(4)] == [200, 200, 200, 429]
        await is_told(whole)
        redis_server.flush()
        assert [(await ask(whole)).status for _ in range(4)] == [200, 200, 200, 429]
        await is_told(whole)
        redis_server.restart()
        await until(lambda: ledger_of(whole).is_up, "it is up again")
        statuses = [(await ask(whole)).status for _ in range(8)]  # three by its own share, if it is down once more
        assert statuses[-1] == 429
        assert set(statuses) == {200, 429}


async def test_l10_a_redis_whose_scripts_hang_is_as_good_as_away(redis_server: RedisServer) -> None:
    async with gateways(1, redis_server, requests_per_minute=30) as (whole,):
        assert (await ask(whole)).status == 200
        with redis_server.busy():
            assert {(await ask(whole)).status for _ in range(5)} == {200}
        await until(lambda: ledger_of(whole).is_up, "it is up again")
        assert (await ask(whole)).status == 200


async def test_l10_slots_that_redis_forgot_are_taken_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.sharedledger.RENEW_S", 0.05)
    async with gateways(2, redis_server, SLOW, parallel=1) as (one, other):
        task = asyncio.create_task(ask(one, tokens=100_000, stream=True))
        await until(lambda: one.in_flight == [1], "streaming")
        redis_server.flush()
        with redis_server.ask() as redis:
            await until(lambda: redis.exists("kvlane:1:{acme}:due"), "it is there again")
        assert (await ask(other)).status == 429
        await leave([task])


async def test_l11_a_thousand_at_once_need_one_connection(redis_server: RedisServer) -> None:
    async with gateways(1, redis_server, requests_per_minute=100_000) as (whole,):
        replies = await asyncio.gather(*(ask(whole, f"{at}") for at in range(1000)))
        assert {reply.status for reply in replies} == {200}
        with redis_server.ask() as redis:
            assert len(redis.client_list()) <= 3  # the gateway's, and ours


async def test_a_redis_that_is_away_at_the_start_keeps_nobody_out(redis_server: RedisServer) -> None:
    redis_server.kill()
    async with gateways(1, redis_server, requests_per_minute=5) as (whole,):
        assert [(await ask(whole)).status for _ in range(6)] == [200] * 5 + [429]
        (tenant,) = whole.gateway.tenants
        assert await whole.gateway.limiter.look(tenant) is None
        redis_server.start()
        await until(lambda: ledger_of(whole).is_up, "it is up")
        assert (await ask(whole)).status == 200
