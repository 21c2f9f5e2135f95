"""Arrivals: counted by the second, in whatever order they are told."""

from random import Random

import pytest

from gateway.profile.arrivals import Arrivals


def noted(times: list[float], most_slots: int = 1000) -> Arrivals:
    arrivals = Arrivals(most_slots)
    for at in times:
        arrivals.note(at)
    return arrivals


def test_the_order_does_not_matter() -> None:
    times = [100.5, 90.0, 95.2, 95.9, 95.1]
    one, other = noted(times), noted(sorted(times))
    for arrivals in (one, other):
        assert (arrivals.span_s, arrivals.rate, arrivals.peak) == (10.5, 5 / 10.5, 3.0)
    assert one.burstiness == other.burstiness


def test_arrivals_that_know_nothing_of_each_other_have_burstiness_one() -> None:
    """N = 20,000 at 5/s, seed 2; the variance of the ratio over 4,000 slots is 2/4,000."""
    chance, at, times = Random(2), 0.0, []
    for _ in range(20_000):
        at += chance.expovariate(5)
        times.append(at)
    assert noted(times, 10_000).burstiness == pytest.approx(1, abs=4 * (2 / 4000) ** 0.5)


def test_a_clock_has_none_and_bursts_have_much() -> None:
    assert noted([at + 0.5 for at in range(100)]).burstiness == pytest.approx(0)
    assert noted([at // 10 * 10 + 0.5 for at in range(100)]).burstiness == pytest.approx(9, rel=0.1)


def test_too_many_slots_become_wider_ones_and_no_arrival_is_lost() -> None:
    arrivals = noted([at * 3.0 for at in range(5000)], most_slots=100)
    assert arrivals.width_s == 256
    assert arrivals.count == 5000
    assert arrivals.rate == pytest.approx(1 / 3, rel=0.001)
    assert sum(mean for _, mean, _ in arrivals.over_time(60)) > 0


def test_times_of_all_ages_do_not_take_all_memory() -> None:
    chance = Random(3)
    arrivals = noted([chance.uniform(0, 1e11) for _ in range(3000)], most_slots=50)
    assert len(arrivals.over_time(10)) <= 10


def test_one_arrival_has_a_rate() -> None:
    assert (noted([5.0]).rate, noted([5.0]).peak, noted([5.0]).burstiness) == (1.0, 1.0, 0.0)


def test_a_course_of_time_has_means_and_peaks() -> None:
    course = noted([0.0, 0.1, 0.2, 3.0, 9.9]).over_time(5)
    assert course == [(0.0, 1.5, 3.0), (2.0, 0.5, 1.0), (4.0, 0.0, 0.0), (6.0, 0.0, 0.0), (8.0, 0.5, 1.0)]
    assert noted([]).over_time(5) == []
