"""The limiter by a clock of its own, counting in process: cases L3 and L13, and grants that are settled once."""

import pytest

from gateway.errors import LimitReached
from gateway.limiter import FREE, Limiter
from gateway.metrics import Metrics
from gateway.tenancy import LimitsConfig
from gateway.tenants import Tenant
from policies.bucket import MINUTE_US
from policies.tariff import NOTHING, Amounts, Tariff

START_US = 1_800_000_000_000_000
ONE = Amounts(1, 0, 0)


class World:
    """A limiter and the time."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.limiter = Limiter(Metrics(), lambda: self.now_us)

    async def passes(self, tenant: Tenant, estimate: Amounts, used: Amounts | None = None) -> bool:
        """Let a request come, and be over at once."""
        try:
            grant = await self.limiter.reserve(tenant, "m", estimate, estimate)
        except LimitReached:
            return False
        grant.settle(estimate if used is None else used)
        return True


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("per_minute", [7, 60, 600, 999, 6000])
@pytest.mark.parametrize("burst", [1, None])
async def test_l3_whoever_keeps_exactly_to_the_limit_is_never_refused(
    world: World, per_minute: int, burst: int | None
) -> None:
    """Five minutes, as evenly as whole microseconds allow, even where no burst is allowed at all."""
    tenant = Tenant("t", limits=LimitsConfig(requests_per_minute=per_minute, burst_requests=burst))
    for number in range(5 * per_minute):
        world.now_us = START_US + -(-number * MINUTE_US // per_minute)
        assert await world.passes(tenant, ONE)


async def test_l3_a_minute_has_no_edges(world: World) -> None:
    """A minute's worth at the end of one minute, and again at the beginning of the next: the second half waits."""
    tenant = Tenant("t", limits=LimitsConfig(requests_per_minute=60))
    world.now_us += MINUTE_US - 1_000_000
    assert [await world.passes(tenant, ONE) for _ in range(60)] == [True] * 60
    world.now_us += 2_000_000
    assert [await world.passes(tenant, ONE) for _ in range(5)] == [True] * 2 + [False] * 3


async def test_l13_who_shares_prefixes_gets_more_of_the_same_limit(world: World) -> None:
    """Prompts of 1,000 tokens of which 800 are cached, at a weight of 0.1, for ten minutes: 1 / (0.2 + 0.08) times."""
    counts = []
    for name, weight in (("plain", 1.0), ("rewarded", 0.1)):
        tenant = Tenant(name, limits=LimitsConfig(tokens_per_minute=60_000))
        tariff = Tariff.of(cached_weight=weight)
        world.now_us = START_US
        passed = 0
        while world.now_us < START_US + 10 * MINUTE_US:
            passed += await world.passes(tenant, tariff.amounts(1000, 0, 0), tariff.amounts(1000, 800, 0))
            world.now_us += 100_000
        counts.append(passed)
    assert counts[1] / counts[0] == pytest.approx(3.6, rel=0.05)


async def test_a_grant_is_settled_once(world: World) -> None:
    tenant = Tenant("t", limits=LimitsConfig(tokens_per_day=1000, parallel=1))
    grant = await world.limiter.reserve(tenant, "m", Amounts(1, 500, 0), NOTHING)
    grant.settle(Amounts(1, 300, 0))
    grant.settle(Amounts(1, 900, 0))
    left = {quota.name: allowance.remaining for quota, allowance in await world.limiter.look(tenant) or ()}
    assert left == {"parallel": 1, "tokens_per_day": 700}


async def test_who_has_no_limits_costs_nothing(world: World) -> None:
    assert world.limiter.quotas_of(Tenant("t"), "m") == ()
    FREE.settle(ONE)
    assert len(world.limiter.ledger) == 0


async def test_a_tenant_that_changed_is_limited_by_what_it_is_now(world: World) -> None:
    assert await world.passes(Tenant("t", limits=LimitsConfig(requests_per_minute=1)), ONE)
    assert not await world.passes(Tenant("t", limits=LimitsConfig(requests_per_minute=1)), ONE)
    world.now_us += 1
    assert await world.passes(Tenant("t", limits=LimitsConfig(requests_per_minute=1, burst_requests=3)), ONE)
