"""limiter.lua: in a real Redis, the same limits as the ledger's, answer by answer.

The state machine plays one ledger and one Redis the same calls, at the same times, and compares what they say. 40 runs
of up to 40 calls.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis.crc import key_slot

import gateway
from policies import bucket
from policies.bucket import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from policies.ledger import SWEEP, Allowance, Kind, Ledger, Take
from tests.policies.limits import CASES, LEASE_S, NOON_US, TENANT, Step, are_granted, daily, monthly, rate, slot
from tests.redis_server import RedisServer

SCRIPT = (Path(gateway.__file__).parent / "limiter.lua").read_text()
LEASE_US = LEASE_S * SECOND_US


class InRedis:
    """The script with a connection: what `Limits` says."""

    def __init__(self, client: "redis.Redis") -> None:
        self._script: Callable[..., Any] = client.register_script(SCRIPT)

    def call(self, tenant: str, *arguments: str | int) -> Any:
        return self._script(keys_of(tenant), arguments)

    def reserve(
        self, tenant: str, grant: str, ttl_us: int, takes: Sequence[Take], now_us: int
    ) -> tuple[Allowance, ...]:
        flat = [each for take in takes for each in written(take)]
        reply = self.call(tenant, "reserve", now_us, grant, ttl_us, *flat)
        return tuple(
            Allowance(remaining, reset_us, None if wait_us < 0 else wait_us)
            for remaining, reset_us, wait_us in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        )

    def settle(self, tenant: str, grant: str, finals: Sequence[int], now_us: int) -> bool:
        return bool(self.call(tenant, "settle", now_us, grant, *finals))

    def renew(self, tenant: str, grants: Sequence[str], ttl_us: int, now_us: int) -> tuple[bool, ...]:
        return tuple(bool(known) for known in self.call(tenant, "renew", now_us, ttl_us, *grants))


def keys_of(tenant: str) -> list[str]:
    return [f"kvlane:1:{{{tenant}}}:state", f"kvlane:1:{{{tenant}}}:due"]


def told_us(client: "redis.Redis") -> int:
    seconds, us = client.time()
    return int(seconds) * SECOND_US + int(us)


def written(take: Take) -> tuple[str | int, ...]:
    return take.name, take.amount, take.kept, take.most


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator["redis.Redis"]:
    with redis_server.ask() as client:
        yield client


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_a_case_of_limits(client: "redis.Redis", steps: tuple[Step, ...]) -> None:
    limits = InRedis(client)
    for step in steps:
        step.run(limits)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2254, 1, 1)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_days_and_months_end_when_they_do(client: "redis.Redis", when: datetime) -> None:
    now = (when.replace(tzinfo=UTC) - bucket.EPOCH) // timedelta(microseconds=1)
    day, month = InRedis(client).reserve(TENANT, "", 0, [daily(101), monthly(101)], now)
    assert now + day.reset_us == bucket.day_end_us(now)
    assert now + month.reset_us == bucket.month_end_us(now)


def test_the_clock_is_that_of_redis(client: "redis.Redis") -> None:
    limits = InRedis(client)
    before = told_us(client)
    (budget,) = limits.reserve(TENANT, "a", LEASE_US, [daily(1)], 0)
    after = told_us(client)
    ends = bucket.day_end_us(after)
    assert ends - after <= budget.reset_us <= ends - before or bucket.day_end_us(before) != ends


def test_one_call_sweeps_a_bounded_number_of_grants(client: "redis.Redis") -> None:
    for limits in (InRedis(client), Ledger()):
        for number in range(2 * SWEEP):
            assert are_granted(limits.reserve(TENANT, str(number), LEASE_US, [slot(2 * SWEEP)], NOON_US))
        later = NOON_US + LEASE_US
        (slots,) = limits.reserve(TENANT, "a", LEASE_US, [slot(2 * SWEEP)], later)
        assert slots.remaining == SWEEP - 1
        (slots,) = limits.reserve(TENANT, "b", LEASE_US, [slot(2 * SWEEP)], later)
        assert slots.remaining == 2 * SWEEP - 2


def test_what_changes_nothing_leaves_nothing(client: "redis.Redis") -> None:
    limits = InRedis(client)
    assert not are_granted(limits.reserve(TENANT, "a", LEASE_US, [rate(61), slot()], NOON_US))
    assert not limits.settle(TENANT, "a", [0, 0], NOON_US)
    assert limits.renew(TENANT, ["a", "b"], LEASE_US, NOON_US) == (False, False)
    assert client.dbsize() == 0


def test_keys_live_until_all_is_full_and_forgotten(client: "redis.Redis") -> None:
    limits = InRedis(client)
    state, due = keys_of(TENANT)

    def lives_for_us(key: str) -> int:
        return client.pttl(key) * bucket.MS_US

    def is_about(us: int, wanted_us: int) -> bool:
        """Up to two minutes longer, less what the test took."""
        return wanted_us < us <= wanted_us + 2 * MINUTE_US

    limits.reserve(TENANT, "a", LEASE_US, [rate(1), slot()], NOON_US)
    assert all(is_about(lives_for_us(key), HOUR_US + LEASE_US) for key in (state, due))
    limits.settle(TENANT, "a", [7200 * SECOND_US, 0], NOON_US)
    assert is_about(lives_for_us(state), 2 * HOUR_US)
    limits.reserve(TENANT, "b", LEASE_US, [monthly(1)], NOON_US)
    to_month_end_us = bucket.month_end_us(NOON_US) - NOON_US
    assert all(is_about(lives_for_us(key), to_month_end_us) for key in (state, due))


def test_the_keys_of_a_tenant_are_in_one_slot_of_a_cluster(client: "redis.Redis") -> None:
    assert len({key_slot(key.encode()) for key in keys_of("a tenant")}) == 1


def test_grants_that_are_due_and_unknown_are_let_go(client: "redis.Redis") -> None:
    """As when half of the state was evicted."""
    limits = InRedis(client)
    limits.reserve(TENANT, "a", LEASE_US, [slot()], NOON_US)
    client.delete(keys_of(TENANT)[0])
    assert are_granted(limits.reserve(TENANT, "b", LEASE_US, [slot()], NOON_US + LEASE_US))
    assert client.zrange(keys_of(TENANT)[1], 0, -1) == ["b"]


def up_to(most: int, take: Callable[..., Take], *more: st.SearchStrategy[Any]) -> st.SearchStrategy[Take]:
    """Draw a take of up to so much, of which a part is kept."""
    amounts = st.tuples(st.integers(0, most), st.integers(0, most)).map(sorted)
    return st.builds(lambda pair, *rest: take(pair[1], pair[0], *rest), amounts, *more)


takes = st.tuples(
    up_to(66, rate, st.sampled_from((60, 60, 60, 45))),
    up_to(10**6, lambda amount, kept: Take("r:odd", Kind.RATE, amount, kept, 2 * 10**6 + 1)),
    st.builds(slot, st.integers(0, 4)),
    st.builds(slot, st.integers(1, 3), st.just("slots:llama")),
    up_to(40, daily),
    up_to(60, monthly, st.sampled_from((200, 2**40))),
).flatmap(lambda all_of_them: st.lists(st.sampled_from(all_of_them), max_size=5, unique_by=lambda take: take.name))

tenants = st.sampled_from((TENANT, "globex"))
grants = st.sampled_from("abcdefgh")
jumps = st.one_of(st.integers(0, 5 * SECOND_US), st.sampled_from((LEASE_US, 60 * SECOND_US, HOUR_US, DAY_US // 2)))


class Agreement(RuleBasedStateMachine):
    """One ledger, one Redis, one clock."""

    client: "redis.Redis"

    @initialize(start=st.sampled_from(("a leap day", "a year's end", "noon")))
    def begin(self, start: str) -> None:
        self.client.flushall()
        self.redis, self.ledger = InRedis(self.client), Ledger()
        self.now = NOON_US + {"a leap day": DAY_US // 2, "a year's end": 307 * DAY_US, "noon": 0}[start]
        self.latest = self.now

    @rule(tenant=tenants, grant=grants, takes=takes, ttl_us=st.sampled_from((LEASE_US, LEASE_US, 3 * SECOND_US)))
    def reserve(self, tenant: str, grant: str, takes: list[Take], ttl_us: int) -> None:
        answer = self.ledger.reserve(tenant, grant, ttl_us, takes, self.now)
        assert self.redis.reserve(tenant, grant, ttl_us, takes, self.now) == answer

    @rule(tenant=tenants, grant=grants, per_cent=st.integers(0, 300))
    def settle(self, tenant: str, grant: str, per_cent: int) -> None:
        account = self.ledger._accounts.get(tenant)
        known = account.grants.get(grant) if account else None
        finals = [charge.amount * per_cent // 100 for charge in known.charges] if known else []
        was_known = self.ledger.settle(tenant, grant, finals, self.now)
        assert self.redis.settle(tenant, grant, finals, self.now) == was_known

    @rule(tenant=tenants, some=st.lists(grants, max_size=4))
    def renew(self, tenant: str, some: list[str]) -> None:
        were_known = self.ledger.renew(tenant, some, LEASE_US, self.now)
        assert self.redis.renew(tenant, some, LEASE_US, self.now) == were_known

    @rule(jump=jumps)
    def go_on(self, jump: int) -> None:
        self.now += jump
        self.latest = max(self.latest, self.now)

    @rule(jump=jumps)
    def jump_back(self, jump: int) -> None:
        """By an hour: for so long the ledger keeps what it will forget."""
        self.now = max(self.now - jump, self.latest - HOUR_US)

    @rule()
    def flush(self) -> None:
        self.client.flushall()
        self.ledger = Ledger()

    @invariant()
    def no_key_stays_for_ever(self) -> None:
        assert all(self.client.pttl(key) > 0 for key in self.client.scan_iter())


def test_redis_and_the_ledger_agree_whatever_happens(client: "redis.Redis") -> None:
    class WithClient(Agreement):
        pass

    WithClient.client = client
    run_state_machine_as_test(
        WithClient,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
