"""Quotas: weighted tokens, money, what is set aside and what stays."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import bucket
from policies.ledger import Kind, Ledger
from policies.quotas import Quota, Unit, finals, takes
from policies.tariff import NOTHING, Amounts, Tariff
from tests.policies.limits import are_granted

REQUESTS = Quota("requests_per_minute", Kind.RATE, Unit.REQUESTS, 60, 60)
TOKENS = Quota("tokens_per_minute", Kind.RATE, Unit.TOKENS, 6000, 1000)
SLOTS = Quota("parallel", Kind.PARALLEL, Unit.SLOTS, 5)
DAY = Quota("tokens_per_day", Kind.DAY, Unit.TOKENS, 1000)
COST = Quota("cost_per_month", Kind.MONTH, Unit.COST, 5_000_000, model="m")
ALL = (REQUESTS, TOKENS, SLOTS, DAY, COST)


def test_tokens_are_weighted_and_cost_their_price() -> None:
    tariff = Tariff.of(cached_weight=0.1, output_weight=2.0, input_price=3.0, cached_price=0.3, output_price=15.0)
    assert tariff.amounts(1000, 800, 100) == Amounts(1, 200 + 80 + 200, (600 + 240 + 1500) * 1000)
    assert Tariff().amounts(1000, 800, 100) == Amounts(1, 1100, 0)


def test_parts_of_a_token_are_charged_whole_and_rounding_adds_none() -> None:
    assert Tariff.of(cached_weight=0.1).amounts(3, 3, 0).tokens == 1
    assert Tariff.of(cached_weight=0.1).amounts(30, 30, 0).tokens == 3


def test_a_request_takes_of_every_limit_in_its_own_unit() -> None:
    found = takes(ALL, Amounts(1, 500, 700), Amounts(1, 200, 300))
    assert [(take.name, take.amount, take.kept) for take in found] == [
        ("r:requests@60", 1_000_000, 1_000_000),
        ("r:tokens@6000", 5_000_000, 2_000_000),
        ("p:slots", 1, 1),
        ("d:tokens", 500, 200),
        ("m:cost:m", 700, 300),
    ]
    assert finals(ALL, NOTHING) == [0, 0, 1, 0, 0]
    assert finals(ALL, Amounts(1, 100, 50)) == [1_000_000, 1_000_000, 1, 100, 50]


def test_what_was_charged_too_much_goes_back_to_budgets_and_not_to_rates() -> None:
    """Time has given it back to them: or whoever saved up what he gets back could have it all in one moment."""
    assert finals(ALL, Amounts(1, -400, -50)) == [1_000_000, 0, 1, -400, -50]


def test_what_is_set_aside_for_output_is_cut_to_the_limit_and_a_prompt_is_not() -> None:
    assert TOKENS.take(Amounts(1, 9000, 0), Amounts(1, 900, 0)).amount == bucket.amount_us(1000, 6000)
    assert DAY.take(Amounts(1, 9000, 0), Amounts(1, 900, 0)).amount == 1000
    long = TOKENS.take(Amounts(1, 9000, 0), Amounts(1, 1001, 0))
    assert long.amount > long.most


def test_what_is_left_is_told_in_the_units_of_the_limit() -> None:
    assert TOKENS.left(bucket.amount_us(250, 6000)) == 250
    assert TOKENS.left(2 * bucket.amount_us(250, 6000), parts=2) == 250
    assert DAY.left(77) == 77


def test_limits_tell_budgets_and_models_apart() -> None:
    assert [quota.is_budget for quota in ALL] == [False, False, False, True, True]
    assert [quota.key for quota in ALL] == ["r:requests@60", "r:tokens@6000", "p:slots", "d:tokens", "m:cost:m"]
    assert replace(TOKENS, model="m").key == "r:tokens@6000:m"


def test_a_rate_that_is_raised_lets_at_once_who_was_in_debt_under_the_old_one() -> None:
    ledger, raised = Ledger(), replace(TOKENS, limit=600_000, burst=600_000)
    for at, quota in enumerate((TOKENS, TOKENS, raised)):
        wanted = takes([quota], Amounts(1, 500, 0), Amounts(1, 500, 0))
        granted = are_granted(ledger.reserve("acme", str(at), bucket.MINUTE_US, wanted, 0))
        assert granted == (at != 1)
        ledger.settle("acme", str(at), finals([quota], Amounts(1, 60_000, 0)), 0)


def test_no_more_is_left_of_a_rate_than_its_burst() -> None:
    quick = Quota("requests_per_minute", Kind.RATE, Unit.REQUESTS, 100_000, 100_000)
    assert quick.left(bucket.burst_us(100_000, 100_000)) == 100_000


@given(st.integers(1, 8), st.integers(1, 100))
def test_gateways_that_cannot_ask_each_other_let_no_more_pass_together(parts: int, size: int) -> None:
    ledgers = [Ledger() for _ in range(parts)]
    amounts = Amounts(1, size, 0)
    passed = 0
    for ledger in ledgers:
        number = 0
        while are_granted(ledger.reserve("t", str(number), 10**9, [TOKENS.take(amounts, amounts, parts)], 10**15)):
            number += 1
        passed += number
    assert passed * size <= 1000 + parts  # microseconds are rounded


@pytest.mark.parametrize("parts", [1, 3])
def test_what_is_settled_is_what_was_used(parts: int) -> None:
    ledger = Ledger()
    wanted = takes(ALL, Amounts(1, 300, 9), Amounts(1, 100, 5), parts)
    first = ledger.reserve("t", "a", 10**9, wanted, 10**15)
    assert are_granted(first)
    ledger.settle("t", "a", finals(ALL, Amounts(1, 100, 5), parts), 10**15)
    after = ledger.reserve("t", "b", 10**9, takes(ALL, NOTHING, NOTHING, parts), 10**15)
    left = [quota.left(allowance.remaining, parts) for quota, allowance in zip(ALL, after, strict=True)]
    assert left[1] == 1000 // parts - 100
    assert left[3] == 1000 // parts - 100
