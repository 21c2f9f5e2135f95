"""Which pool a request belongs to, and which of its endpoints may take it."""

import pytest

from policies.endpoint import Pool
from policies.health import State
from policies.pools import candidates, earliest_s, is_served_by
from tests.policies.fleets import endpoint

STARTING, READY, SUSPECT, EJECTED, DRAINING = State
NOW = 100.0


def test_a_pool_serves_a_model_when_one_of_its_endpoints_does_dead_or_alive() -> None:
    small = Pool("small", [endpoint("a", model="x"), endpoint("b", model="y", state=EJECTED)])
    assert is_served_by(small, "x")
    assert is_served_by(small, "y")
    assert not is_served_by(small, "z")


def test_only_the_ready_are_candidates_where_there_are_any() -> None:
    fleet = [endpoint(state.value, state=state) for state in State]
    assert candidates(Pool("p", fleet), "m", (), NOW) == [fleet[1]]


def test_suspects_are_candidates_where_nobody_is_ready() -> None:
    fleet = [endpoint(state.value, state=state) for state in State if state is not READY]
    assert candidates(Pool("p", fleet), "m", (), NOW) == [fleet[1]]


@pytest.mark.parametrize("state", [STARTING, EJECTED, DRAINING])
def test_a_pool_of_endpoints_that_cannot_serve_has_no_candidate(state: State) -> None:
    assert candidates(Pool("p", [endpoint(state=state)]), "m", (), NOW) == []


def test_endpoints_of_other_models_are_no_candidates() -> None:
    fleet = [endpoint("a", model="x"), endpoint("b", model="m")]
    assert candidates(Pool("p", fleet), "m", (), NOW) == [fleet[1]]


def test_what_was_tried_is_not_tried_again() -> None:
    ready, other, suspect = fleet = [endpoint("a"), endpoint("b"), endpoint("c", state=SUSPECT)]
    pool = Pool("p", fleet)
    assert candidates(pool, "m", {ready}, NOW) == [other]
    assert candidates(pool, "m", {ready, other}, NOW) == [suspect]
    assert candidates(pool, "m", {ready, other, suspect}, NOW) == []


def test_a_cooling_endpoint_is_no_candidate_until_its_time() -> None:
    at = endpoint(cool_until=NOW + 3)
    pool = Pool("p", [at])
    assert candidates(pool, "m", (), NOW + 2.9) == []
    assert candidates(pool, "m", (), NOW + 3) == [at]


def test_the_shortest_wait_for_a_cooling_endpoint_is_told() -> None:
    fleet = [endpoint("a", cool_until=NOW + 9), endpoint("b", cool_until=NOW + 4), endpoint("c", cool_until=NOW - 1)]
    assert earliest_s(Pool("p", fleet), "m", NOW) == 4.0


def test_nothing_is_told_where_nobody_asked_to_be_left_alone() -> None:
    assert earliest_s(Pool("p", [endpoint(state=EJECTED)]), "m", NOW) is None
    assert earliest_s(Pool("p", [endpoint(model="x", cool_until=NOW + 1)]), "m", NOW) is None


@pytest.mark.parametrize("state", [STARTING, EJECTED, DRAINING])
def test_the_wait_of_an_endpoint_that_will_not_be_asked_then_is_not_told(state: State) -> None:
    assert earliest_s(Pool("p", [endpoint(state=state, cool_until=NOW + 2)]), "m", NOW) is None
