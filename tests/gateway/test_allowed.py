"""What limits say to a client: headers, durations, refusals in words."""

from dataclasses import replace

import pytest

from gateway.allowed import duration, lines_of, money, refusal_of, span
from gateway.errors import BudgetSpent, LimitReached, render
from policies.bucket import DAY_US, HOUR_US, amount_us, burst_us
from policies.ledger import Allowance, Kind
from policies.quotas import Quota, Unit, takes
from policies.tariff import NOTHING, Amounts

REQUESTS = Quota("requests_per_minute", Kind.RATE, Unit.REQUESTS, 60, 60)
TOKENS = Quota("tokens_per_minute", Kind.RATE, Unit.TOKENS, 6000, 6000)
OF_MODEL = Quota("tokens_per_minute", Kind.RATE, Unit.TOKENS, 600, 600, "m")
COST = Quota("cost_per_day", Kind.DAY, Unit.COST, 2_500_000_000)
ONE = Amounts(1, 0, 0)
SLOTS = Quota("parallel", Kind.PARALLEL, Unit.SLOTS, 5)


@pytest.mark.parametrize(
    ("us", "told"),
    [
        (0, "0ms"),
        (12_000, "12ms"),
        (12_001, "13ms"),
        (1_000_000, "1s"),
        (1_500_000, "1.5s"),
        (59_999_001, "1m0s"),
        (360_000_000, "6m0s"),
        (3_723_000_000, "1h2m3s"),
    ],
)
def test_durations_are_written_as_go_does(us: int, told: str) -> None:
    assert duration(us) == told


def test_long_times_are_told_as_people_do() -> None:
    assert span(DAY_US * 2 + 1) == "2 days and 1 hour"
    assert span(DAY_US - 1) == "1 day"
    assert span(HOUR_US * 3 - 1) == "3 hours"
    assert span(HOUR_US - 1) == "60 minutes"
    assert span(11_000_000) == "1 minute"


def test_the_limit_that_leaves_the_least_is_told() -> None:
    allowances = [Allowance(amount_us(100, 6000), 59_000_000, 0), Allowance(amount_us(70, 600), 53_000_000, 0)]
    assert lines_of([TOKENS, OF_MODEL], allowances).decode().splitlines() == [
        "x-ratelimit-limit-tokens: 600",
        "x-ratelimit-remaining-tokens: 70",
        "x-ratelimit-reset-tokens: 53s",
    ]


def test_slots_and_budgets_have_no_headers() -> None:
    assert lines_of([COST, SLOTS], [Allowance(3, 1, 0), Allowance(4, 0, 0)]) == b""


def test_nobody_refuses_where_all_pass() -> None:
    assert refusal_of("t", [SLOTS], takes([SLOTS], NOTHING, NOTHING), [Allowance(4, 0, 0)]) is None


def test_of_several_limits_that_refuse_the_one_that_does_so_longest_is_named() -> None:
    quotas = [REQUESTS, TOKENS]
    wanted = takes(quotas, Amounts(1, 300, 0), Amounts(1, 300, 0))
    refused = refusal_of("acme", quotas, wanted, [Allowance(0, 9, 500_000), Allowance(100_000, 9, 2_900_000)])
    assert refused is not None
    assert isinstance(refused.error, LimitReached)
    assert refused.quota is TOKENS
    status, headers, body = render(refused.error)
    assert status == 429
    assert dict(headers)["retry-after-ms"] == "2900"
    assert b"tenant acme may have 6,000 tokens a minute" in body
    assert b"needs about 300, 10 are left" in body


def test_what_is_larger_than_a_limit_is_told_so_for_good() -> None:
    wanted = takes([TOKENS], Amounts(1, 9000, 0), Amounts(1, 9000, 0))
    refused = refusal_of("acme", [TOKENS], wanted, [Allowance(burst_us(6000, 6000), 0, None)])
    assert refused is not None
    assert "needs about 9,000, and no more than 6,000 pass at once" in refused.error.message
    assert dict(render(refused.error)[1])["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("nanos", "told"),
    [(1, "0.000000001"), (1_500_000, "0.0015"), (20_000_000, "0.02"), (1 << 50, "1,125,899.906842624")],
)
def test_no_cost_is_told_as_another(nanos: int, told: str) -> None:
    assert money(nanos) == told


def test_of_a_rate_of_requests_its_own_burst_is_told() -> None:
    quota = replace(REQUESTS, burst=5)
    refused = refusal_of("acme", [quota], takes([quota], ONE, ONE), [Allowance(0, 9, 500_000)])
    assert refused is not None
    assert "may have 60 requests a minute" in refused.error.message
    assert refused.error.message.endswith("; no more than 5 pass at once")


def test_money_is_told_as_money() -> None:
    wanted = takes([COST], Amounts(1, 0, 10), Amounts(1, 0, 10))
    refused = refusal_of("acme", [COST], wanted, [Allowance(0, DAY_US // 2, DAY_US // 2)])
    assert refused is not None
    assert isinstance(refused.error, BudgetSpent)
    assert "a cost of 2.50 a day" in refused.error.message
    assert "; this request may need 0.00000001, 0.00 are left; it begins anew in 12 hours" in refused.error.message
