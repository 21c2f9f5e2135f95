"""RoundRobin, Random, LeastRequests, PowerOfTwo: even where all is equal, and never first in the list by habit."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import books
from policies.catalog import POLICIES
from policies.endpoint import Charge, Endpoint
from policies.index import PrefixIndex
from policies.policy import Choice, Policy, Reason
from policies.spread import LeastRequests, PowerOfTwo, RandomChoice, RoundRobin
from tests.policies.fleets import REQUEST, endpoints

SEED = 20_240_607
SPREAD = ("round_robin", "random", "least_requests", "power_of_two")
LOADED = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def loaded(counts: list[int]) -> list[Endpoint]:
    """Give endpoints with so many requests in flight."""
    fleet = endpoints(len(counts))
    for endpoint, count in zip(fleet, counts, strict=True):
        for _ in range(count):
            books.dispatch(endpoint, REQUEST, 0.0)
    return fleet


def sequential(policy: Policy, fleet: list[Endpoint], requests: int) -> list[int]:
    """Choose for requests that each end before the next one comes; give how often each endpoint was chosen."""
    asked = (REQUEST._replace(id=f"r{at}") for at in range(requests))
    chosen = Counter(policy.choose(request, fleet, 0.0).endpoint.name for request in asked)
    return [chosen[endpoint.name] for endpoint in fleet]


def concurrent(policy: Policy, fleet: list[Endpoint], requests: int) -> list[int]:
    """Choose and charge for requests that all stay; give what each endpoint has in flight."""
    for _ in range(requests):
        books.dispatch(policy.choose(REQUEST, fleet, 0.0).endpoint, REQUEST, 0.0)
    return [endpoint.outstanding.requests for endpoint in fleet]


@pytest.mark.parametrize("name", POLICIES)
@given(counts=LOADED, seed=st.integers(0, 1000), requests=st.integers(1, 5))
def test_chooses_one_of_the_endpoints_it_was_given(name: str, counts: list[int], seed: int, requests: int) -> None:
    policy = POLICIES[name](Random(seed), PrefixIndex())
    fleet = loaded(counts)
    for _ in range(requests):
        assert policy.choose(REQUEST, fleet, 0.0).endpoint in fleet


@pytest.mark.parametrize("name", POLICIES)
@given(counts=LOADED, seed=st.integers(0, 1000))
def test_choosing_charges_nothing(name: str, counts: list[int], seed: int) -> None:
    fleet = loaded(counts)
    POLICIES[name](Random(seed), PrefixIndex()).choose(REQUEST, fleet, 0.0)
    assert [endpoint.outstanding.requests for endpoint in fleet] == counts


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_makes_the_same_choices(name: str) -> None:
    fleet = endpoints(7)
    one, other = (POLICIES[name](Random(SEED), PrefixIndex()) for _ in range(2))
    for _ in range(100):
        assert one.choose(REQUEST, fleet, 0.0) == other.choose(REQUEST, fleet, 0.0)


@pytest.mark.parametrize("name", POLICIES)
def test_r1_an_idle_fleet_is_used_evenly(name: str) -> None:
    """N = 4 endpoints, R = 80 requests one at a time, fixed seed: each gets 10 to 30."""
    counts = sequential(POLICIES[name](Random(SEED), PrefixIndex()), endpoints(4), 80)
    assert all(10 <= count <= 30 for count in counts), counts


@pytest.mark.parametrize("name", SPREAD)
def test_the_first_choice_of_many_gateways_falls_everywhere(name: str) -> None:
    """N = 4 endpoints, R = 4,000 gateways that start (seeds 0 to 3,999): each endpoint first for 1,000 +- 15 %."""
    fleet = endpoints(4)
    first = Counter(
        POLICIES[name](Random(seed), PrefixIndex()).choose(REQUEST, fleet, 0.0).endpoint.name for seed in range(4000)
    )
    assert all(850 <= first[endpoint.name] <= 1150 for endpoint in fleet), first


# RoundRobin.


def test_round_robin_takes_turns() -> None:
    policy = RoundRobin(Random(SEED))
    fleet = endpoints(5)
    names = [policy.choose(REQUEST, fleet, 0.0).endpoint.name for _ in range(10)]
    assert sorted(names[:5]) == ["e0", "e1", "e2", "e3", "e4"]
    assert names[5:] == names[:5]


def test_round_robin_keeps_its_place_when_endpoints_leave() -> None:
    """N = 5 endpoints of which one leaves half way, R = 2 x 400: the four that stay are chosen evenly then."""
    policy = RoundRobin(Random(SEED))
    fleet = endpoints(5)
    assert sequential(policy, fleet, 400) == [80] * 5
    assert sequential(policy, fleet[1:], 400) == [100] * 4


def test_round_robin_says_that_it_was_somebodys_turn() -> None:
    assert RoundRobin(Random(SEED)).choose(REQUEST, endpoints(2), 0.0).reason is Reason.TURN


# Random.


def test_random_draws_each_endpoint_alike() -> None:
    """N = 8 endpoints, R = 80,000 draws, fixed seed: each 10,000 +- 3 % (three standard deviations are 2.8 %)."""
    counts = sequential(RandomChoice(Random(SEED)), endpoints(8), 80_000)
    assert all(9_700 <= count <= 10_300 for count in counts), counts


def test_random_says_that_it_was_chance() -> None:
    assert RandomChoice(Random(SEED)).choose(REQUEST, endpoints(2), 0.0).reason is Reason.CHANCE


# LeastRequests.


@given(counts=LOADED, seed=st.integers(0, 1000))
def test_least_requests_chooses_no_endpoint_with_more_than_the_least(counts: list[int], seed: int) -> None:
    fleet = loaded(counts)
    choice = LeastRequests(Random(seed)).choose(REQUEST, fleet, 0.0)
    assert choice.endpoint.outstanding.requests == min(counts)


@given(st.integers(1, 12), st.integers(0, 100), st.integers(0, 1000))
def test_least_requests_leaves_no_gap_over_one(count: int, requests: int, seed: int) -> None:
    spread = concurrent(LeastRequests(Random(seed)), endpoints(count), requests)
    assert max(spread) - min(spread) <= 1


def test_r2_twenty_slow_requests_on_one_endpoint_keep_new_ones_away() -> None:
    """N = 4 endpoints, 20 requests pinned on the first, R = 100 new ones at most 8 at a time: it gets under 10."""
    policy = LeastRequests(Random(SEED))
    fleet = loaded([20, 0, 0, 0])
    running: list[Charge] = []
    chosen: Counter[str] = Counter()
    for _ in range(100):
        endpoint = policy.choose(REQUEST, fleet, 0.0).endpoint
        chosen[endpoint.name] += 1
        running.append(books.dispatch(endpoint, REQUEST, 0.0))
        if len(running) == 8:
            books.finish(running.pop(0), 0.0)
    assert chosen["e0"] < 10


@pytest.mark.parametrize("name", ["least_requests", "power_of_two"])
def test_r15_three_hundred_endpoints_with_ten_requests_never_hold_more_than_two(name: str) -> None:
    """N = 300 endpoints, R = 5,000, always 10 in flight, ended in random order, fixed seed: at most 2 on one."""
    chance = Random(SEED)
    policy = POLICIES[name](Random(SEED), PrefixIndex())
    fleet = endpoints(300)
    running: list[Charge] = []
    most = 0
    for _ in range(5_000):
        endpoint = policy.choose(REQUEST, fleet, 0.0).endpoint
        running.append(books.dispatch(endpoint, REQUEST, 0.0))
        most = max(most, endpoint.outstanding.requests)
        if len(running) == 10:
            books.finish(running.pop(chance.randrange(10)), 0.0)
    assert most <= (1 if name == "least_requests" else 2)


@pytest.mark.parametrize("busy", [[0], [0, 1], [0, 1, 2, 3], [2, 5]])
def test_least_requests_does_not_favour_who_stands_behind_a_busy_endpoint(busy: list[int]) -> None:
    """N = 8 endpoints, some held by one long request each, R = 800 one at a time: the idle ones share evenly."""
    counts = [int(at in busy) for at in range(8)]
    chosen = sequential(LeastRequests(Random(SEED)), loaded(counts), 800)
    idle = [chosen[at] for at in range(8) if at not in busy]
    assert max(idle) - min(idle) <= 1, chosen


def test_least_requests_gives_equally_loaded_endpoints_turns() -> None:
    """N = 4 endpoints with 3 requests each, R = 80 one at a time: 20 each."""
    assert sequential(LeastRequests(Random(SEED)), loaded([3] * 4), 80) == [20] * 4


# PowerOfTwo.


def test_power_of_two_is_far_more_even_than_chance() -> None:
    """N = 100 endpoints, R = 1,000 requests that stay, fixed seed.

    The busiest of two choices is at most 3 over the mean of 10 (Mitzenmacher: ln ln n / ln 2 is 2.2, plus a constant),
    while chance alone is at least 6 over.
    """
    two = concurrent(PowerOfTwo(Random(SEED)), endpoints(100), 1000)
    one = concurrent(RandomChoice(Random(SEED)), endpoints(100), 1000)
    assert max(two) <= 13
    assert max(one) >= 16


def test_power_of_two_draws_two_different_endpoints() -> None:
    """N = 2 endpoints, one loaded, R = 1,000: the other is always chosen, since both are always looked at."""
    assert sequential(PowerOfTwo(Random(SEED)), loaded([1, 0]), 1000) == [0, 1000]


def test_power_of_two_draws_every_pair_alike() -> None:
    """N = 4 endpoints loaded 0, 1, 2, 3, R = 60,000, fixed seed.

    Of the 6 pairs 3 fall to the idle one, 2 to the next, 1 to the third and none to the last: each within 3 %.
    """
    chosen = sequential(PowerOfTwo(Random(SEED)), loaded([0, 1, 2, 3]), 60_000)
    assert chosen == pytest.approx([30_000, 20_000, 10_000, 0], rel=0.03)


def test_power_of_two_says_when_there_was_nothing_to_draw() -> None:
    fleet = endpoints(1)
    assert PowerOfTwo(Random(SEED)).choose(REQUEST, fleet, 0.0) == Choice(fleet[0], Reason.ONLY)
