"""History: what the last minutes were like, read from what metrics keep."""

from dataclasses import replace
from math import isnan, nan

import pytest

from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.history import BASE_EVERY_S, BASES, EVERY_S, KEPT, SPAN, History, quantiles, since
from gateway.instruments import MAX_SERIES
from gateway.metrics import Metrics
from policies.flow import Flow
from policies.record import Outcome, RequestRecord
from tests.policies.test_accounts import SERVED

REFUSED = replace(SERVED, outcome=Outcome.REFUSED, status=429, code="rate_limit_exceeded", tries=0)


class Told:
    """A history with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.metrics = Metrics()
        clock = lambda: self.now  # noqa: E731
        fleet = Fleet(clock)
        gate = Gate(fleet, self.metrics, clock, classes=(), flow=Flow(), smoothing_s=0, is_open=True)
        self.history = History(self.metrics, fleet, gate, clock, lambda: self.now + 1e9)

    def ended(self, record: RequestRecord, times: int = 1) -> None:
        for _ in range(times):
            self.metrics.observe(record)

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / EVERY_S)):
            self.now += EVERY_S
            self.history.read()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([10, 0, 0, 0], (0.5, 0.9)),
        ([0, 10, 0, 0], (1.5, 1.9)),
        ([5, 5, 0, 0], (1.0, 1.8)),
        ([0, 0, 0, 1], (4.0, 4.0)),  # beyond the highest bound nobody knows more
    ],
)
def test_percentiles_lie_inside_the_bucket_that_holds_them(counts: list[int], expected: tuple[float, float]) -> None:
    assert quantiles((1.0, 2.0, 4.0), counts, (0.5, 0.9)) == pytest.approx(expected)


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_nothing_counted_has_no_percentiles(counts: list[int]) -> None:
    assert all(isnan(value) for value in quantiles((1.0,), counts, (0.5, 0.9)))


def test_all_is_new_where_nothing_was_before() -> None:
    assert since([], [1, 2]) == [1, 2]
    assert since([1, 1], [1, 3]) == [0, 2]


def test_a_point_is_about_the_last_half_minute() -> None:
    told = Told()
    told.pass_s(SPAN * EVERY_S)
    told.ended(replace(SERVED, ttft_s=0.3), 30)
    told.ended(REFUSED, 15)
    told.pass_s(EVERY_S)
    point = told.history.points[-1]
    assert (point.served_per_s, point.refused_per_s, point.failed_per_s) == (1.0, 0.5, 0.0)
    assert 0.2 < point.ttft_s[0] <= 0.35
    assert point.at == told.now + 1e9
    told.pass_s(SPAN * EVERY_S)
    point = told.history.points[-1]
    assert point.served_per_s == 0
    assert isnan(point.ttft_s[0])
    assert isnan(point.hit_ratio)


def test_cache_hits_are_the_share_that_engines_report() -> None:
    told = Told()
    told.ended(replace(SERVED, prompt_tokens=1000, cached_tokens=None))
    told.pass_s(EVERY_S)
    assert isnan(told.history.points[-1].hit_ratio)
    told.ended(replace(SERVED, prompt_tokens=1000, cached_tokens=500))
    told.pass_s(EVERY_S)
    assert told.history.points[-1].hit_ratio == 0.25


def test_of_waits_those_that_had_to_wait_are_told() -> None:
    told = Told()
    told.metrics.queue_wait.distribution(("interactive",)).observe(1.5)
    told.metrics.queue_wait.distribution(("batch",)).observe(1.5)
    told.pass_s(EVERY_S)
    assert 1 < told.history.points[-1].wait_s[0] <= 2


def test_ten_minutes_are_kept_and_no_more() -> None:
    told = Told()
    told.pass_s(3600)
    assert len(told.history.points) == KEPT
    assert told.history.points[-1].at - told.history.points[0].at == 600
    assert BASES * BASE_EVERY_S <= told.history.window_s < (BASES + 1) * BASE_EVERY_S


def test_tables_count_the_window_alone() -> None:
    told = Told()
    told.ended(replace(SERVED, tenant="old"), 5)
    told.pass_s(1200)
    told.ended(replace(SERVED, tenant="new"), 2)
    told.pass_s(120)
    assert told.history.added_by(told.metrics.requests, "tenant") == {"new": 2}
    told.ended(replace(SERVED, tenant="old"))
    assert told.history.added_by(told.metrics.requests, "tenant") == {"old": 1, "new": 2}


def test_what_is_kept_is_bounded_by_the_series_that_there_are() -> None:
    told = Told()
    for at in range(MAX_SERIES + 500):
        told.ended(replace(SERVED, tenant=f"t{at}"))
    told.pass_s(60)
    assert len(told.history.added_by(told.metrics.requests, "tenant")) <= MAX_SERIES + 1


def test_a_clock_that_stands_still_divides_by_nothing() -> None:
    told = Told()
    told.history.read()
    assert told.history.points[-1].served_per_s == 0
    assert str(told.history.points[-1].hit_ratio) == str(nan)
