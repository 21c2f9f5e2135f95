"""The retry budget: an outage must not double the load, and quiet times are not left without a second chance."""

from hypothesis import given
from hypothesis import strategies as st

from policies.retries import SLICES, RetryBudget

SHARE, WINDOW_S, FLOOR = 0.2, 10.0, 10

ARRIVALS = st.lists(
    st.one_of(
        st.floats(0, 0.01),  # a burst
        st.floats(0, 2),  # steady
        st.floats(5, 30),  # a pause
    ),
    max_size=400,
)


@given(ARRIVALS, st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.integers(0, 20), st.integers(1, 5))
def test_an_outage_never_doubles_the_load(steps_s: list[float], share: float, floor: int, wanted: int) -> None:
    """Every request fails and asks for `wanted` retries: those allowed stay below share and floor in every window."""
    budget = RetryBudget(share, WINDOW_S, floor)
    now = 0.0
    arrivals: list[float] = []
    retries: list[float] = []
    for step_s in steps_s:
        now += step_s
        arrivals.append(now)
        budget.note_request(now)
        for _ in range(wanted):
            if budget.try_spend(now):
                retries.append(now)
                seen = sum(at > now - WINDOW_S for at in arrivals)
                # A slice of the window at a time is forgotten, so that a retry counts for nine to ten tenths of it.
                spent = sum(at > now - WINDOW_S * (1 - 1 / SLICES) for at in retries)
                assert spent <= floor + share * seen
    windows = now // (WINDOW_S * (1 - 1 / SLICES)) + 1
    assert len(retries) <= share * 1.2 * len(arrivals) + floor * windows


@given(st.integers(0, 1000))
def test_a_burst_at_one_instant_gets_its_share_and_the_floor(requests: int) -> None:
    budget = RetryBudget(SHARE, WINDOW_S, FLOOR)
    for _ in range(requests):
        budget.note_request(7.0)
    allowed = sum(budget.try_spend(7.0) for _ in range(2 * requests + 100))
    assert allowed == FLOOR + requests // 5


@given(ARRIVALS)
def test_a_rare_failure_is_always_retried(steps_s: list[float]) -> None:
    """One request in ten fails once: well within the share."""
    budget = RetryBudget(SHARE, WINDOW_S, FLOOR)
    now = 0.0
    for at, step_s in enumerate(steps_s):
        now += step_s
        budget.note_request(now)
        if at % 10 == 9:
            assert budget.try_spend(now)


def test_the_floor_comes_back_when_the_window_has_passed() -> None:
    budget = RetryBudget(0.0, WINDOW_S, 2)
    assert [budget.try_spend(0.0) for _ in range(3)] == [True, True, False]
    assert not budget.try_spend(9.9)
    assert [budget.try_spend(10.0) for _ in range(3)] == [True, True, False]


def test_old_requests_earn_no_retries() -> None:
    budget = RetryBudget(SHARE, WINDOW_S, 0)
    for _ in range(100):
        budget.note_request(0.0)
    assert budget.try_spend(9.0)
    assert not budget.try_spend(10.0)


def test_without_share_and_floor_nothing_is_retried() -> None:
    budget = RetryBudget(0.0, WINDOW_S, 0)
    budget.note_request(0.0)
    assert not budget.try_spend(0.0)
