"""Which pool a request belongs to, and which of its endpoints may take it."""

import pytest

from policies.endpoint import EngineReport, Pool
from policies.health import State
from policies.pools import TooLong, candidates, earliest_s, is_served_by, limit_of, pool_of
from policies.request import InferenceRequest
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


# Length.


def sized(name: str, most: int | None) -> Pool:
    """Give a pool of one endpoint that takes so many tokens."""
    return Pool(name, [endpoint(name)], max_context_tokens=most)


def asking(prompt: int, allowed: int) -> InferenceRequest:
    return InferenceRequest("r", "m", prompt_tokens=prompt, allowed_tokens=allowed)


@pytest.mark.parametrize(
    ("prompt", "allowed", "name"),
    [(100, 100, "short"), (8000, 192, "short"), (8000, 193, "long"), (0, 32_768, "long"), (32_768, 1, "open")],
)
def test_r24_length_counts_prompt_and_allowed_output(prompt: int, allowed: int, name: str) -> None:
    pools = [sized("open", None), sized("long", 32_768), sized("short", 8192), sized("other", 8192)]
    found = pool_of(pools, asking(prompt, allowed))
    assert isinstance(found, Pool)
    assert found.name == name


def test_r24_what_fits_nowhere_is_told_both_numbers() -> None:
    short, long = sized("short", 8192), sized("long", 32_768)
    assert pool_of([long, short], asking(40_000, 312)) == TooLong(40_312, 32_768, long)


def test_a_model_that_no_pool_serves_has_no_pool() -> None:
    assert pool_of([sized("p", None)], asking(1, 1)._replace(model="x")) is None


def test_a_pool_without_a_limit_takes_what_its_largest_engine_takes() -> None:
    small, large, other, silent = (endpoint(name) for name in "abcd")
    small.max_context_tokens, large.max_context_tokens = 4096, 16_384
    other.models, other.max_context_tokens = frozenset(("x",)), 99_999
    pool = Pool("p", [small, large, other])
    assert limit_of(pool, "m") == 16_384
    pool.endpoints.append(silent)
    assert limit_of(pool, "m") == limit_of(Pool("q"), "m") == float("inf")


# Full caches.


def test_r16_an_endpoint_whose_cache_is_full_gets_nothing_new_unless_all_are() -> None:
    full, other = endpoint("a"), endpoint("b")
    full.report = EngineReport(kv_usage=0.99, at=NOW - 1)
    pool = Pool("p", [full, other])
    assert candidates(pool, "m", (), NOW) == [other]
    other.report = EngineReport(kv_usage=1.0, at=NOW - 1)
    assert candidates(pool, "m", (), NOW) == [full, other]
    assert candidates(pool, "m", {other}, NOW) == [full]


def test_an_old_report_of_a_full_cache_keeps_nobody_away() -> None:
    at, other = endpoint("a"), endpoint("b")
    at.report = EngineReport(kv_usage=0.99, at=NOW - 5)
    other.report = EngineReport(kv_usage=0.97, at=NOW)
    assert candidates(Pool("p", [at, other]), "m", (), NOW) == [at, other]
