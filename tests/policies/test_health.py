"""The state machine of an endpoint, as a table of events."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint import Endpoint, Pool
from policies.health import EJECT_AFTER, MAX_COOL_S, SUSPECT_AFTER, Health, State
from policies.pools import candidates
from tests.policies.fleets import REQUEST, endpoints

STARTING, READY, SUSPECT, EJECTED, DRAINING = State
EVENTS: dict[str, Callable[[Health], None]] = {
    "answered": Health.answered,
    "unanswered": Health.unanswered,
    "served": Health.served,
    "failed": Health.failed,
    "not_now": lambda health: health.not_now(0.0, 5.0),
    "drain": Health.drain,
}

ONE_EVENT = [
    # from       event        to
    (STARTING, "answered", READY),
    (STARTING, "unanswered", STARTING),
    (STARTING, "served", STARTING),
    (STARTING, "failed", STARTING),
    (STARTING, "not_now", STARTING),
    (STARTING, "drain", DRAINING),
    (READY, "answered", READY),
    (READY, "unanswered", SUSPECT),
    (READY, "served", READY),
    (READY, "failed", READY),  # one in a hundred fails at random in healthy fleets
    (READY, "not_now", READY),  # busy is not ill
    (READY, "drain", DRAINING),
    (SUSPECT, "answered", READY),
    (SUSPECT, "unanswered", SUSPECT),
    (SUSPECT, "served", READY),
    (SUSPECT, "failed", SUSPECT),
    (SUSPECT, "not_now", SUSPECT),
    (SUSPECT, "drain", DRAINING),
    (EJECTED, "answered", READY),
    (EJECTED, "unanswered", EJECTED),
    (EJECTED, "served", EJECTED),  # a request that was sent before says nothing of now
    (EJECTED, "failed", EJECTED),
    (EJECTED, "not_now", EJECTED),
    (EJECTED, "drain", DRAINING),
    (DRAINING, "answered", DRAINING),  # for good
    (DRAINING, "unanswered", DRAINING),
    (DRAINING, "served", DRAINING),
    (DRAINING, "failed", DRAINING),
    (DRAINING, "not_now", DRAINING),
    (DRAINING, "drain", DRAINING),
]

LIVES = [
    # what happens to a new endpoint, and where it stands then
    ("answered failed", READY),
    ("answered failed failed", SUSPECT),
    ("answered failed served failed", READY),  # in a row is what counts
    ("answered failed failed served", READY),
    ("answered failed answered failed", READY),  # a good health check forgives
    ("answered unanswered", SUSPECT),
    ("answered unanswered unanswered", SUSPECT),
    ("answered unanswered unanswered unanswered", EJECTED),
    ("answered unanswered unanswered answered unanswered", SUSPECT),  # in a row is what counts
    ("answered unanswered served", SUSPECT),  # the health page is still down
    ("answered unanswered unanswered unanswered served", EJECTED),
    ("answered unanswered unanswered unanswered answered", READY),
    ("unanswered unanswered unanswered unanswered", STARTING),  # it was never up
    ("unanswered unanswered unanswered unanswered answered", READY),
    ("unanswered unanswered answered unanswered", SUSPECT),
    ("failed failed failed failed failed answered failed", READY),
    ("answered failed failed failed failed failed failed", SUSPECT),  # requests alone never eject: health checks do
    ("answered failed failed unanswered unanswered unanswered", EJECTED),
    ("answered drain answered", DRAINING),
    ("answered failed failed drain served", DRAINING),
]


@pytest.mark.parametrize(("before", "event", "after"), ONE_EVENT)
def test_one_event(before: State, event: str, after: State) -> None:
    health = Health(before)
    EVENTS[event](health)
    assert health.state is after


def test_the_table_has_every_event_in_every_state() -> None:
    assert {(before, event) for before, event, _ in ONE_EVENT} == {
        (state, event) for state in State for event in EVENTS
    }


@pytest.mark.parametrize(("events", "state"), LIVES)
def test_a_life(events: str, state: State) -> None:
    health = Health()
    for event in events.split():
        EVENTS[event](health)
    assert health.state is state


def test_the_numbers_are_those_of_the_table() -> None:
    assert (SUSPECT_AFTER, EJECT_AFTER) == (2, 3)


# Cooling: not ill, but not now.


@dataclass(frozen=True)
class Cooling:
    """What holds before and after the time that an engine asked for."""

    state: State
    is_cooling: bool
    is_ready_after: bool
    is_last_resort_after: bool


@pytest.mark.parametrize(
    "case",
    [
        Cooling(STARTING, is_cooling=False, is_ready_after=False, is_last_resort_after=False),
        Cooling(READY, is_cooling=True, is_ready_after=True, is_last_resort_after=False),
        Cooling(SUSPECT, is_cooling=True, is_ready_after=False, is_last_resort_after=True),
        Cooling(EJECTED, is_cooling=False, is_ready_after=False, is_last_resort_after=False),
        Cooling(DRAINING, is_cooling=False, is_ready_after=False, is_last_resort_after=False),
    ],
    ids=lambda case: case.state.value,
)
def test_an_engine_that_asks_to_be_left_alone_is(case: Cooling) -> None:
    health = Health(case.state)
    health.not_now(100.0, 5.0)
    assert health.is_cooling(104.999) is case.is_cooling
    assert not health.is_ready(104.999)
    assert not health.is_last_resort(104.999)
    assert not health.is_cooling(105.0)
    assert health.is_ready(105.0) is case.is_ready_after
    assert health.is_last_resort(105.0) is case.is_last_resort_after


def test_the_longer_of_two_waits_holds() -> None:
    health = Health(READY)
    health.not_now(100.0, 20.0)
    health.not_now(101.0, 1.0)
    assert not health.is_ready(119.0)
    assert health.is_ready(120.0)


def test_no_engine_is_left_alone_for_more_than_a_minute() -> None:
    health = Health(READY)
    health.not_now(100.0, 86_400.0)
    assert health.is_ready(100.0 + MAX_COOL_S)


# Whatever happens.


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(EVENTS)), st.floats(0, 3)), max_size=60),
    st.sets(st.integers(0, 3)),
)
def test_nobody_who_is_starting_ejected_draining_or_cooling_is_a_candidate(
    events: list[tuple[int, str, float]], tried_at: set[int]
) -> None:
    fleet = endpoints(4)
    for endpoint in fleet:
        endpoint.health = Health()
    tried: set[Endpoint] = {fleet[at] for at in tried_at}
    pool = Pool("p", fleet)
    now = 0.0
    for at, event, step_s in events:
        now += step_s
        if event == "not_now":
            fleet[at].health.not_now(now, 2.0)
        else:
            EVENTS[event](fleet[at].health)
        chosen = candidates(pool, REQUEST, tried, now)
        states = {endpoint.health.state for endpoint in chosen}
        assert states in (set(), {READY}, {SUSPECT})
        assert not tried.intersection(chosen)
        assert not any(endpoint.health.is_cooling(now) for endpoint in chosen)


@given(st.lists(st.sampled_from(sorted(set(EVENTS) - {"drain"})), max_size=60))
def test_no_life_short_of_draining_is_beyond_recovery(events: list[str]) -> None:
    health = Health()
    for event in events:
        EVENTS[event](health)
    health.answered()
    assert health == Health(READY, cool_until=health.cool_until)
    assert health.is_ready(5.0)


@given(st.lists(st.sampled_from(["answered", "served", "not_now", "failed"]), max_size=60))
def test_requests_alone_never_eject_an_endpoint(events: list[str]) -> None:
    health = Health(READY)
    for event in events:
        EVENTS[event](health)
        assert health.state in (READY, SUSPECT)
