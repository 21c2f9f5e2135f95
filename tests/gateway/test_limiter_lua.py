"""limiter.lua: in a real Redis, the same limits as the ledger's, answer by answer.

The state machine plays one ledger and one Redis the same calls, at the same times, and compares what they say. 60 runs
of up to 40 calls.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import gateway
from policies.bucket import DAY_US, HOUR_US, SECOND_US
from policies.ledger import Allowance, Kind, Ledger, Take, are_granted
from tests.policies.limits import CASES, LEASE_S, NOON_US, TENANT, Step, daily, monthly, rate, slot
from tests.redis_server import RedisServer

SCRIPT = (Path(gateway.__file__).parent / "limiter.lua").read_text()
LEASE_US = LEASE_S * SECOND_US


class InRedis:
    """The script with a connection: what `Limits` says."""

    def __init__(self, client: "redis.Redis") -> None:
        self._script: Callable[..., Any] = client.register_script(SCRIPT)

    def call(self, tenant: str, *arguments: str | int) -> Any:
        keys = [f"kvlane:1:{{{tenant}}}:state", f"kvlane:1:{{{tenant}}}:due"]
        return self._script(keys, arguments)

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


def up_to(most: int, take: Callable[..., Take], *more: st.SearchStrategy[Any]) -> st.SearchStrategy[Take]:
    """Draw a take of up to so much, of which a part is kept."""
    amounts = st.tuples(st.integers(0, most), st.integers(0, most)).map(sorted)
    return st.builds(lambda pair, *rest: take(pair[1], pair[0], *rest), amounts, *more)


takes = st.tuples(
    up_to(66, rate, st.sampled_from((60, 60, 60, 45))),
    up_to(10**6, lambda amount, kept: Take("odd", Kind.RATE, amount, kept, 2 * 10**6 + 1)),
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
        self.taken: dict[tuple[str, str], Sequence[Take]] = {}

    @rule(tenant=tenants, grant=grants, takes=takes, ttl_us=st.sampled_from((LEASE_US, LEASE_US, 3 * SECOND_US)))
    def reserve(self, tenant: str, grant: str, takes: list[Take], ttl_us: int) -> None:
        answer = self.ledger.reserve(tenant, grant, ttl_us, takes, self.now)
        assert self.redis.reserve(tenant, grant, ttl_us, takes, self.now) == answer
        if are_granted(answer):
            self.taken.setdefault((tenant, grant), takes)

    @rule(tenant=tenants, grant=grants, per_cent=st.integers(0, 300))
    def settle(self, tenant: str, grant: str, per_cent: int) -> None:
        takes = self.taken.pop((tenant, grant), ())
        finals = [take.amount * per_cent // 100 for take in takes]
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
        """Within the day: of a day gone by the ledger may have forgotten what Redis still has."""
        self.now = max(self.now - jump, self.latest - self.latest % DAY_US)

    @rule()
    def flush(self) -> None:
        self.client.flushall()
        self.ledger = Ledger()
        self.taken.clear()

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
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
