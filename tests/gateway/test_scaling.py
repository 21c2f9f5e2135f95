"""Scaling: a gateway that runs tells an autoscaler what it needs."""

import asyncio
from dataclasses import replace

import pytest

from gateway.config import ConfigError
from loadtests.settings import Settings
from policies.record import RequestRecord
from policies.scaling import FEW
from tests.fleet_fixtures import House, config, house, leave
from tests.policies.test_record import RECORD
from tests.until import PATIENCE_S, until

STREAM = replace(RECORD, is_stream=True, pool="default", ttft_s=0.3, tpot_s=0.02)


async def signal(whole: House, name: str) -> float:
    return await whole.metric(name, pool="default")


def note(whole: House, *records: RequestRecord) -> None:
    for record in records:
        whole.gateway.scaling.note(record)
    whole.gateway.scaling.look()


async def test_a_pool_at_rest_needs_nothing_and_is_left_as_it_is_at_first() -> None:
    async with house(2) as whole:
        whole.gateway.scaling.look()
        assert await signal(whole, "kvlane_pool_busy_replicas") == 0
        assert await signal(whole, "kvlane_pool_backlog_seconds") == 0
        assert await signal(whole, "kvlane_pool_needed_replicas") == 0
        assert await signal(whole, "kvlane_pool_recommended_replicas") == 2


async def test_what_runs_and_what_waits_is_needed_for() -> None:
    async with house(1, Settings(time_scale=1.0), admission={"max_inflight": 2}) as whole:
        short = [asyncio.create_task(whole.ask(tokens=2)) for _ in range(4)]  # so that the queue's pace is known
        tasks = [asyncio.create_task(whole.ask(tokens=2000, stream=True)) for _ in range(8)]
        await asyncio.gather(*short)
        await until(lambda: whole.in_flight == [2], "two run")
        whole.gateway.scaling.look()
        assert await signal(whole, "kvlane_pool_busy_replicas") == 1.0
        async with asyncio.timeout(PATIENCE_S):  # to ask takes some milliseconds
            while await signal(whole, "kvlane_pool_backlog_seconds") <= 0.0:
                pass
            while await signal(whole, "kvlane_pool_needed_replicas") <= 0.1:
                pass
        await leave(tasks)


async def test_objectives_are_counted_as_met_and_missed() -> None:
    async with house(1, scaling={"ttft_slo_s": 0.5}, admission={"tpot_slo_s": 0.02}) as whole:
        late = replace(STREAM, ttft_s=0.6, tpot_s=0.021)
        note(whole, STREAM, STREAM, late, replace(STREAM, tpot_s=None), RECORD, replace(STREAM, pool=None))

        async def counted(slo: str) -> list[float]:
            return [
                await whole.metric("kvlane_slo_requests_total", pool="default", slo=slo, result=result)
                for result in ("met", "missed")
            ]

        assert await counted("ttft") == [3, 1]
        assert await counted("tpot") == [2, 1]
        assert await whole.metric("kvlane_slo_target_seconds", slo="ttft") == 0.5
        assert await whole.metric("kvlane_slo_target_seconds", slo="tpot") == 0.02
        assert await signal(whole, "kvlane_slo_attainment_ratio") == 0  # of so few none is told
        note(whole, *[STREAM] * FEW)
        told = await whole.metric("kvlane_slo_attainment_ratio", pool="default", slo="ttft")
        assert told == pytest.approx((FEW + 3) / (FEW + 4), abs=0.01)


def test_bounds_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_replicas must not be less than min_replicas"):
        config(["http://127.0.0.1:9"], scaling={"min_replicas": 3, "max_replicas": 2})
