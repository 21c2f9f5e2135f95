"""Ledger: the limits of tenants, in process. What it shares with the script in Redis is in `limits.py`."""

import json
import pickle
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import bucket
from policies.bucket import DAY_US, HOUR_US, SECOND_US
from policies.ledger import LOOKS, SWEEP, Ledger
from tests.policies.limits import CASES, LEASE_S, NOON_US, TENANT, Step, are_granted, daily, monthly, rate, slot

LEASE_US = LEASE_S * SECOND_US


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_a_case_of_limits(steps: tuple[Step, ...]) -> None:
    ledger = Ledger()
    for step in steps:
        step.run(ledger)


@given(
    burst=st.integers(1, 100),
    events=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 120), st.integers(0, 120)), max_size=50),
)
def test_within_any_time_what_is_taken_less_what_is_given_back_is_burst_and_rate(
    burst: int, events: list[tuple[int, int, int]]
) -> None:
    """Each event: seconds later a grant asks for so much, and the grant before it turns out to have used so much."""
    ledger, now = Ledger(), NOON_US
    moves: list[tuple[int, int]] = []  # when, and how much was taken or given back
    before: tuple[str, int] | None = None
    for number, (gap_s, asked, final) in enumerate(events):
        now += gap_s * SECOND_US
        take = rate(asked, asked, burst)
        if are_granted(ledger.reserve(TENANT, str(number), LEASE_US, [take], now)):
            moves.append((now, take.amount))
            if before is not None:
                used = min(final * SECOND_US, before[1])
                assert ledger.settle(TENANT, before[0], [used], now)
                moves.append((now, used - before[1]))
            before = str(number), take.amount
        (allowance,) = ledger.reserve(TENANT, "probe", LEASE_US, [rate(burst + 1, 0, burst)], now)
        assert 0 <= allowance.remaining <= burst * SECOND_US
    for first, (begin, _) in enumerate(moves):
        total = 0
        for at, moved in moves[first:]:
            total += moved
            assert total <= burst * SECOND_US + at - begin


@given(
    offers=st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 80), st.integers(0, 3), st.integers(0, 60)), max_size=50
    )
)
def test_a_refusal_consumes_nothing(offers: list[tuple[int, int, int, int]]) -> None:
    """One ledger has all offers, another those only that the first granted: they give the same answers."""
    all_of_them, granted = Ledger(), Ledger()
    now = NOON_US
    for number, (gap_s, tokens, slots, budget) in enumerate(offers):
        now += gap_s * SECOND_US
        takes = [rate(tokens), slot(slots), daily(budget, budget)]
        answer = all_of_them.reserve(TENANT, str(number), LEASE_US, takes, now)
        if are_granted(answer):
            assert granted.reserve(TENANT, str(number), LEASE_US, takes, now) == answer


def test_a_thousand_settled_in_any_order_leave_what_was_used() -> None:
    ledger, chance, used = Ledger(), Random(5), 0
    running: list[str] = []
    for number in range(1000):
        takes = [daily(50, 10, 10**6), slot(100)]
        if are_granted(ledger.reserve(TENANT, str(number), LEASE_US, takes, NOON_US)):
            running.append(str(number))
        while running and (len(running) == 100 or chance.random() < 0.4 or number == 999):
            final = chance.randrange(80)
            assert ledger.settle(TENANT, running.pop(chance.randrange(len(running))), [final, 0], NOON_US)
            used += final
    budget, slots = ledger.reserve(TENANT, "probe", LEASE_US, [daily(0, 0, 10**6), slot(100)], NOON_US)
    assert (10**6 - budget.remaining, slots.remaining) == (used, 99)


def test_one_call_sweeps_a_bounded_number_of_grants() -> None:
    ledger = Ledger()
    for number in range(SWEEP + 1):
        ledger.reserve(TENANT, str(number), LEASE_US, [slot(SWEEP + 1)], NOON_US)
    (slots,) = ledger.reserve(TENANT, "a", LEASE_US, [slot(1)], NOON_US + LEASE_US)
    assert (slots.wait_us, slots.remaining) == (SECOND_US, 0)
    (slots,) = ledger.reserve(TENANT, "a", LEASE_US, [slot(1)], NOON_US + LEASE_US)
    assert slots.wait_us == 0


def test_settled_grants_of_long_leases_leave_nothing_behind() -> None:
    """A process leases for years what it counts alone: nothing of a request may stay until then."""
    ledger = Ledger()
    assert are_granted(ledger.reserve(TENANT, "runs on", DAY_US, [slot(9)], NOON_US))

    def size_after(rounds: int) -> int:
        for number in range(rounds):
            assert are_granted(ledger.reserve(TENANT, f"{number:9}", DAY_US, [rate(1, 1), slot(9)], NOON_US))
            assert ledger.settle(TENANT, f"{number:9}", [0, 0], NOON_US)
        return len(pickle.dumps(ledger))

    few = size_after(50)
    assert size_after(5000) <= 2 * few
    assert ledger.renew(TENANT, ["runs on"], LEASE_US, NOON_US) == (True,)


def test_tenants_know_nothing_of_each_other() -> None:
    ledger = Ledger()
    assert are_granted(ledger.reserve("a", "1", LEASE_US, [slot()], NOON_US))
    assert are_granted(ledger.reserve("b", "1", LEASE_US, [slot()], NOON_US))
    assert ledger.settle("a", "1", [0], NOON_US)
    assert not are_granted(ledger.reserve("b", "2", LEASE_US, [slot()], NOON_US))
    assert not ledger.settle("nobody", "1", [0], NOON_US)
    assert ledger.renew("nobody", ["1", "2"], LEASE_US, NOON_US) == (False, False)


def test_idle_tenants_are_forgotten_and_the_busy_are_not() -> None:
    ledger = Ledger()
    for number in range(100):
        assert are_granted(ledger.reserve(f"t{number}", "1", LEASE_US, [rate(60, 60), slot()], NOON_US))
    assert ledger.settle("t0", "1", [60 * SECOND_US, 0], NOON_US)
    ledger.reserve("t1", "2", DAY_US, [slot(2), monthly(1, 1)], NOON_US)
    assert repr(ledger) == "<Ledger 100 tenants, 100 grants>"

    def reserve_often(now_us: int) -> str:
        for _ in range(100 // LOOKS + 1):
            ledger.reserve("t2", "big", LEASE_US, [rate(61)], now_us)
        return repr(ledger)

    full = NOON_US + 60 * SECOND_US + HOUR_US
    assert reserve_often(full - 1).startswith("<Ledger 100 tenants")
    assert reserve_often(full).startswith("<Ledger 99 tenants")  # t0, settled and full for an hour
    forgotten = NOON_US + LEASE_US + 2 * HOUR_US
    assert reserve_often(forgotten - 1).startswith("<Ledger 99 tenants")
    assert reserve_often(forgotten) == "<Ledger 1 tenants, 2 grants>"  # all but t1, whose month it is
    assert reserve_often(NOON_US + 2 * DAY_US) == "<Ledger 0 tenants, 0 grants>"


def test_a_tenant_that_was_forgotten_in_between_is_answered_as_if_it_was_not() -> None:
    """Two ledgers have the same offers by one tenant; in one of them others make it forget. Seeded, 2,000 offers."""
    alone, among, chance = Ledger(), Ledger(), Random(11)
    now, forgotten = NOON_US, 0
    for number in range(2000):
        now += chance.choice((0, 3, 40, 90, 9000)) * SECOND_US
        among.reserve("other", "1", LEASE_US, [rate(61)], now)
        among.reserve("another", "1", LEASE_US, [rate(61)], now)
        forgotten += TENANT not in among._accounts
        tokens = chance.randrange(62)
        takes = [rate(tokens, tokens // 3), slot(2)]
        answer = alone.reserve(TENANT, str(number), LEASE_US, takes, now)
        assert among.reserve(TENANT, str(number), LEASE_US, takes, now) == answer
        settled = str(number - chance.randrange(3))
        finals = [chance.randrange(90) * SECOND_US, 0]
        assert alone.settle(TENANT, settled, finals, now) == among.settle(TENANT, settled, finals, now)
    assert forgotten > 100


def test_budgets_live_on_over_a_restart_as_plain_data() -> None:
    ledger = Ledger()
    ledger.reserve("a", "1", LEASE_US, [daily(50, 10), monthly(50, 10), rate(50)], NOON_US)
    ledger.reserve("a", "2", LEASE_US, [daily(20), monthly(20)], NOON_US)
    ledger.settle("a", "2", [15, 15], NOON_US)
    ledger.reserve("b", "1", LEASE_US, [rate(50), slot()], NOON_US)
    plain = json.loads(json.dumps(ledger.budgets(NOON_US)))
    day_end, month_end = bucket.day_end_us(NOON_US), bucket.month_end_us(NOON_US)
    assert plain == {"a": {"d:budget": [day_end, 25], "m:budget": [month_end, 25]}}

    after = Ledger()
    after.reserve("a", "3", LEASE_US, [daily(1)], NOON_US)
    after.restore(plain, NOON_US)
    assert [each.remaining for each in after.reserve("a", "4", LEASE_US, [daily(0), monthly(0)], NOON_US)] == [74, 75]

    assert set(ledger.budgets(day_end)["a"]) == {"m:budget"}
    next_day = Ledger()
    next_day.restore(plain, day_end)
    assert next_day.budgets(day_end) == {"a": {"m:budget": [month_end, 25]}}
    assert ledger.budgets(month_end) == {}
    next_day.restore(plain, month_end)
    assert len(next_day) == 1


def test_what_a_grant_took_of_a_day_gone_by_is_not_taken_off_todays() -> None:
    ledger = Ledger()
    day_end = bucket.day_end_us(NOON_US)
    ledger.reserve(TENANT, "1", DAY_US, [daily(50, 10)], day_end - 1)
    ledger.reserve(TENANT, "2", DAY_US, [daily(30, 30)], day_end)
    assert ledger.budgets(day_end) == {TENANT: {"d:budget": [day_end + DAY_US, 30]}}
