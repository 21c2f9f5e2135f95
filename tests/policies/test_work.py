"""WorkModel: tokens to seconds, and factors that follow what is observed without running away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.work import MAX_FACTOR, PROFILES, Make, WorkModel


def test_a_prefill_takes_what_the_profile_says() -> None:
    work = WorkModel(PROFILES["bench-8b"])
    assert work.prefill_s(1000, 3000) == pytest.approx((0.033 * 1000 + 1.3e-6 * 1000 * 3500) / 1e3)


def test_a_step_takes_what_the_profile_says() -> None:
    work = WorkModel(PROFILES["qwen-32b-2xh100"])
    assert work.step_s(40, 80_000) == pytest.approx((13.69 + 0.0259 * 40 + 4.229e-5 * 80_000) / 1e3)


@given(st.lists(st.tuples(st.floats(-1, 100), st.floats(-1, 100)), max_size=50))
def test_no_observation_makes_a_model_run_away(observed: list[tuple[float, float]]) -> None:
    work, plain = WorkModel(), WorkModel()
    for predicted_s, observed_s in observed:
        work.observe_prefill(predicted_s, observed_s)
        work.observe_decode(predicted_s, observed_s)
    for ratio in (work.p1 / plain.p1, work.p2 / plain.p2, work.d0 / plain.d0, work.d2 / plain.d2):
        assert 0.999 / MAX_FACTOR <= ratio <= MAX_FACTOR * 1.001


def test_one_odd_measurement_counts_for_little() -> None:
    work = WorkModel()
    work.observe_prefill(0.1, 60.0)
    assert repr(work) == "<WorkModel prefill x1.07 decode x1.00>"


@pytest.mark.parametrize("truth", [0.25, 0.5, 2.0, 4.0])
def test_a_wrong_profile_is_put_right(truth: float) -> None:
    """R = 150 observations of prompts of 1,000 tokens: within 5 %."""
    work, plain = WorkModel(), WorkModel()
    for _ in range(150):
        work.observe_prefill(work.prefill_s(1000, 0), truth * plain.prefill_s(1000, 0))
    assert work.prefill_s(1000, 0) == pytest.approx(truth * plain.prefill_s(1000, 0), rel=0.05)


def test_engines_of_one_make_learn_from_each_other() -> None:
    """The first to be found 2.5 times as fast as its profile is not for ever the only one that looks fast."""
    make, told = Make(), []
    one, other = WorkModel(make=make), WorkModel(make=make)
    other.listener = lambda: told.append(other.p1)
    plain = WorkModel().p1
    for _ in range(200):
        one.observe_prefill(one.p1, 0.4 * plain)
        one.relax(1.0)
    assert one.p1 == pytest.approx(0.4 * plain, rel=0.05)
    assert other.p1 == pytest.approx(0.4 * plain, rel=0.2)
    assert 20 < len(told) < 60


def test_unlike_engines_of_one_make_are_told_apart_under_traffic() -> None:
    make = Make()
    fast, slow = WorkModel(make=make), WorkModel(make=make)
    plain = WorkModel().p1
    for _ in range(300):
        for _ in range(3):
            fast.observe_prefill(fast.p1, plain)
            slow.observe_prefill(slow.p1, 4 * plain)
        fast.relax(1.0)
        slow.relax(1.0)
    assert slow.p1 / fast.p1 == pytest.approx(4, rel=0.3)


def test_what_an_engine_has_of_its_own_fades_when_nobody_looks() -> None:
    make = Make()
    one, other = WorkModel(make=make), WorkModel(make=make)
    for _ in range(300):
        one.observe_decode(one.d0, 5 * WorkModel().d0)
        other.observe_decode(other.d0, WorkModel().d0)
    assert one.d0 > 2 * other.d0
    one.relax(600.0)
    assert one.d0 < 2.5 * WorkModel().d0
