"""Drain, Recent, Errors: the pace of a queue, what fades, and how right predictions were."""

import pytest

from policies.waits import KEPT_ERRORS, MAX_RATIO, MEMORY_S, Drain, Errors, Ratio, Recent


def test_the_pace_is_work_over_the_time_in_which_anybody_waited() -> None:
    drain = Drain()
    assert drain.seconds(100.0) == 0.0  # not known: no reason to turn anybody away
    for at in range(1, 11):
        drain.note(at / 10, True, 50.0)
    assert drain.seconds(500.0) == pytest.approx(1.0, rel=0.01)
    drain.note(100.0, False)
    assert drain.seconds(500.0) == pytest.approx(1.0, rel=0.01)


def test_the_pace_of_long_ago_is_forgotten() -> None:
    drain = Drain()
    for at in range(1, 201):
        drain.note(at / 10, True, 50.0)
    for at in range(201, 801):
        drain.note(at / 10, True, 10.0)
    assert drain.seconds(100.0) == pytest.approx(1.0, rel=0.05)


def test_a_sum_fades() -> None:
    recent = Recent()
    recent.add(0.0, 10.0)
    recent.add(MEMORY_S, 1.0)
    assert recent.at(MEMORY_S) == pytest.approx(1 + 10 / 2.71828, rel=1e-4)


def test_waits_are_put_right_by_the_last_ones() -> None:
    ratio = Ratio()
    assert ratio.at(0.0) == 1.0
    for at in range(100):
        ratio.note(at / 10, 2.0, 1.0)
    assert ratio.at(10.0) == pytest.approx(0.5)
    for at in range(1000):
        ratio.note(10 + at / 10, 1.0, 9.0)
    assert ratio.at(110.0) == MAX_RATIO
    ratio = Ratio()
    ratio.note(0.0, 1.0, 0.0)
    assert ratio.at(0.0) == 1 / MAX_RATIO


def test_a_wait_is_put_right_the_less_the_longer_it_is() -> None:
    ratio = Ratio()
    assert ratio.corrected(0.0, 8.0) == 8.0
    ratio.note(0.0, 1.0, 4.0)
    assert ratio.corrected(0.0, 0.1) == pytest.approx(0.4, rel=0.02)
    assert ratio.corrected(0.0, MEMORY_S) == pytest.approx(2 * MEMORY_S)
    assert ratio.corrected(0.0, 9 * MEMORY_S) == pytest.approx(9 * MEMORY_S * 4**0.1)


def test_errors_are_told_by_quantile_of_the_last() -> None:
    errors = Errors()
    assert repr(errors) == "<Errors 0: p50 0.000 s, p90 0.000 s>"
    for at in range(100):
        errors.note(0.01 * at, 0.0)
    assert repr(errors) == "<Errors 100: p50 0.500 s, p90 0.900 s>"
    for _ in range(KEPT_ERRORS):
        errors.note(1.0, 3.0)
    assert (errors.count, errors.quantile(0.0), errors.quantile(1.0)) == (100 + KEPT_ERRORS, 2.0, 2.0)
