"""HitForecast: an operator hears of a cache that is not what it should be, and of nothing else."""

import pytest

from policies.forecast import HitForecast


def told(forecast: HitForecast, predicted: int, reported: int | None, *, since: float, for_s: int) -> float:
    """Note an answer of 1,000 prompt tokens each second; give the time after the last."""
    for at in range(for_s):
        forecast.note(1000, predicted, reported, 64, since + at)
    return since + for_s


def test_agreement_within_a_unit_is_no_error() -> None:
    forecast = HitForecast()
    now = told(forecast, 640, 700, since=100, for_s=60)
    assert (forecast.error_ratio, forecast.is_off(now)) == (0.0, False)
    assert forecast.hit_ratio == pytest.approx(0.7)
    assert repr(forecast).startswith("<HitForecast ")


@pytest.mark.parametrize(("predicted", "reported"), [(900, 0), (0, 900), (900, 500)])
def test_r22_a_lasting_difference_is_known_within_a_minute_and_forgotten_when_it_ends(
    predicted: int, reported: int
) -> None:
    forecast = HitForecast()
    now = told(forecast, predicted, reported, since=100, for_s=12)
    assert not forecast.is_off(now)
    now = told(forecast, predicted, reported, since=now, for_s=48)
    assert forecast.is_off(now)
    now = told(forecast, 900, 900, since=now, for_s=60)
    assert not forecast.is_off(now)


def test_a_few_surprises_prove_nothing() -> None:
    forecast = HitForecast()
    now = told(forecast, 900, 0, since=100, for_s=8)
    assert not forecast.is_off(now + 60)


def test_a_tenth_that_was_evicted_is_ordinary() -> None:
    forecast = HitForecast()
    now = 100.0
    for at in range(200):
        forecast.note(1000, 900, 0 if at % 10 == 0 else 900, 64, now)
        now += 0.5
    assert not forecast.is_off(now)


def test_counters_speak_where_answers_do_not() -> None:
    forecast = HitForecast()
    assert (forecast.hit_ratio, forecast.error_ratio) == (None, None)
    forecast.note_counters(5000.0, 9000.0, 100.0)
    assert (forecast.hit_ratio, forecast.error_ratio) == (None, None)
    for at in range(1, 40):
        forecast.note(1000, 900, None, 64, 100.0 + at)
        forecast.note_counters(5000.0 + 100 * at, 9000.0 + 1000 * at, 100.0 + at)
    assert forecast.hit_ratio == pytest.approx(0.1)
    assert forecast.error_ratio == pytest.approx(0.8)
    assert forecast.is_off(140.0)


def test_counters_that_fall_are_of_a_new_run_and_silence_is_no_counter() -> None:
    forecast = HitForecast()
    for hits, queries in ((500.0, 900.0), (0.0, 0.0), (None, None), (80.0, 100.0)):
        forecast.note_counters(hits, queries, 1.0)
    assert forecast.hit_ratio == pytest.approx(0.8)
    assert forecast.error_ratio is None


def test_what_answers_tell_goes_before_counters() -> None:
    forecast = HitForecast()
    forecast.note_counters(0.0, 0.0, 1.0)
    forecast.note_counters(0.0, 5000.0, 1.0)
    forecast.note(1000, 500, 500, 64, 1.0)
    assert forecast.hit_ratio == 0.5
