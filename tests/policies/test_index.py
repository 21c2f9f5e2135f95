"""PrefixIndex: finds what a plain search finds, forgets tails first and old before new, and stays bounded."""

import resource
from array import array
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint import Endpoint, EngineReport
from policies.index import MAX_JOURNAL, MAX_TOLD, SPECULATIVE_S, PrefixIndex
from policies.prefix import block_hashes, root_of
from policies.request import UNIT_TOKENS, BlockHash
from tests.policies.fleets import endpoints, prefix

PARTS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=4)
KINDS = st.sampled_from(["learn"] * 6 + ["done"] * 3 + ["forget"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 3), PARTS), max_size=60)


def held(index: PrefixIndex, fleet: list[Endpoint], asked: tuple[BlockHash, ...]) -> list[int]:
    """Give the matched units of each endpoint."""
    matched = index.matched(asked)
    assert all(matched.values())
    return [matched.get(endpoint, 0) for endpoint in fleet]


class Naive:
    """What the index should say: an LRU list of units for each endpoint, searched unit by unit."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.units: dict[Endpoint, list[BlockHash]] = {}

    def learn(self, endpoint: Endpoint, asked: tuple[BlockHash, ...]) -> None:
        kept = [unit for unit in self.units.get(endpoint, []) if unit not in asked]
        self.units[endpoint] = (kept + list(reversed(asked)))[-self.capacity :]

    def matched(self, endpoint: Endpoint, asked: tuple[BlockHash, ...]) -> int:
        return sum(1 for _ in takewhile(lambda unit: unit in self.units.get(endpoint, ()), asked))


@given(STEPS, PARTS, st.sampled_from([6, 12, 1000]))
def test_the_index_says_what_a_plain_search_says(
    steps: list[tuple[str, int, list[tuple[int, int]]]], asked: list[tuple[int, int]], capacity: int
) -> None:
    fleet = endpoints(4, capacity * UNIT_TOKENS)
    index, naive = PrefixIndex(), Naive(capacity)
    for now, (step, pick, parts) in enumerate(steps):
        if step == "learn":
            index.learn(fleet[pick], prefix(*parts), float(now))
            naive.learn(fleet[pick], prefix(*parts))
        elif step == "done":
            index.done(fleet[pick], prefix(*parts), float(now))
            if fleet[pick] in naive.units:  # nothing is done where nothing was sent
                naive.learn(fleet[pick], prefix(*parts))
        else:
            index.forget(fleet[pick])
            naive.units.pop(fleet[pick], None)
        for probe in (prefix(*parts), prefix(*asked)):
            expected = [naive.matched(endpoint, probe) for endpoint in fleet]
            assert held(index, fleet, probe) == expected
            assert [index.matched_on(endpoint, probe) for endpoint in fleet] == expected
        sizes = [len(naive.units.get(endpoint, ())) for endpoint in fleet]
        assert [index.held_tokens(endpoint) for endpoint in fleet] == [size * UNIT_TOKENS for size in sizes]
        assert len(index) == len({unit for units in naive.units.values() for unit in units})


def test_an_endpoint_that_restarted_is_forgotten_and_its_place_used_again() -> None:
    index, fleet = PrefixIndex(), endpoints(3)
    for endpoint in fleet[:2]:
        index.learn(endpoint, prefix((1, 8)), 0.0)
    index.forget(fleet[0])
    index.forget(fleet[0])
    index.learn(fleet[2], prefix((1, 5)), 1.0)
    assert held(index, fleet, prefix((1, 8))) == [0, 8, 5]
    assert repr(index) == "<PrefixIndex 8 units: e1 8, e2 5>"


def test_r18_identical_prompts_then_an_extension_find_the_same_endpoint() -> None:
    index, fleet = PrefixIndex(), endpoints(2)
    index.learn(fleet[0], prefix((1, 9), (2, 1)), 0.0)
    assert held(index, fleet, prefix((1, 9), (2, 1), (3, 4))) == [10, 0]
    assert held(index, fleet, prefix((1, 9), (4, 1))) == [9, 0]
    assert held(index, fleet, prefix((5, 1), (1, 9))) == [0, 0]


def test_the_capacity_is_the_engines_word() -> None:
    index, fleet = PrefixIndex(), endpoints(2, None)
    fleet[0].report = EngineReport(kv_capacity_tokens=10 * UNIT_TOKENS)
    for endpoint in fleet:
        index.learn(endpoint, prefix((1, 30)), 0.0)
    assert held(index, fleet, prefix((1, 30))) == [10, 30]


def test_a_hot_prefix_outlives_what_came_after_it() -> None:
    index, (at,) = PrefixIndex(), endpoints(1, 20 * UNIT_TOKENS)
    for turn in range(50):
        index.learn(at, prefix((1, 5), (turn + 2, 5)), float(turn))
    assert index.matched_on(at, prefix((1, 5), (51, 5))) == 10
    assert index.matched_on(at, prefix((1, 5), (49, 5))) == 10
    assert index.matched_on(at, prefix((1, 5), (30, 5))) == 5


def test_a_prompt_grows_old_from_its_end_on() -> None:
    index, (at,) = PrefixIndex(), endpoints(1, 20 * UNIT_TOKENS)
    for name in (1, 2):
        index.learn(at, prefix((name, 8)), 0.0)
    index.done(at, prefix((1, 8)), 1.0)
    index.learn(at, prefix((3, 8)), 2.0)
    assert [index.matched_on(at, prefix((name, 8))) for name in (1, 2, 3)] == [8, 4, 8]


def test_what_was_evicted_in_flight_was_held_all_the_same() -> None:
    index, (at,) = PrefixIndex(), endpoints(1, 20 * UNIT_TOKENS)
    index.learn(at, prefix((1, 8)), 0.0)
    index.learn(at, prefix((2, 20)), 1.0)
    assert index.matched_on(at, prefix((1, 8))) == 0
    index.done(at, prefix((1, 8)), 2.0)
    assert index.matched_on(at, prefix((1, 8))) == 8


def test_what_ends_on_an_endpoint_that_was_forgotten_leaves_no_trace() -> None:
    index, (at,) = PrefixIndex(), endpoints(1)
    index.learn(at, prefix((1, 8)), 0.0)
    index.forget(at)
    index.done(at, prefix((1, 8)), 1.0)
    assert len(index) == index.held_tokens(at) == 0


def test_the_working_set_is_what_was_named_of_late() -> None:
    index, (at, other) = PrefixIndex(), endpoints(2)
    index.learn(at, prefix((1, 5), (2, 5)), 0.0)
    index.learn(at, prefix((1, 5), (3, 7)), 100.0)
    assert index.working_set_tokens(at, 200.0) == 17 * UNIT_TOKENS
    assert index.working_set_tokens(at, 350.0) == 12 * UNIT_TOKENS
    assert index.working_set_tokens(at, 500.0) == 0
    assert index.working_set_tokens(other, 0.0) == index.held_tokens(other) == 0


def test_the_spelt_out_masks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.index.MAX_MASKS", 2)
    index, fleet = PrefixIndex(), endpoints(4)
    for at, endpoint in enumerate(fleet):
        index.learn(endpoint, prefix((1, at + 1)), 0.0)
    for _ in range(3):
        assert held(index, fleet, prefix((1, 4))) == [1, 2, 3, 4]
        assert len(index._holders_of) <= 2


# KV events.


def test_units_are_removed_one_by_one() -> None:
    index, fleet = PrefixIndex(), endpoints(2)
    chain = prefix((1, 8))
    index.stored(fleet[0], chain, 0.0)
    index.removed(fleet[0], chain[5:])
    index.removed(fleet[0], chain[5:])
    index.removed(fleet[1], chain)
    assert held(index, fleet, chain) == [5, 0]


def test_a_sibling_burst_follows_a_dispatch_before_the_first_event() -> None:
    index, (at,) = PrefixIndex(), endpoints(1)
    index.follow(at)
    index.learn(at, prefix((1, 8)), 0.0)
    assert index.matched_on(at, prefix((1, 8))) == 8


def test_an_end_is_no_news_of_an_engine_that_tells_itself() -> None:
    index, (at,) = PrefixIndex(), endpoints(1)
    index.follow(at)
    index.learn(at, prefix((1, 8)), 0.0)
    index.removed(at, prefix((1, 8))[4:])
    index.done(at, prefix((1, 8)), 1.0)
    assert index.matched_on(at, prefix((1, 8))) == 4


def test_what_no_event_confirms_is_forgotten() -> None:
    index, (at,) = PrefixIndex(), endpoints(1)
    index.follow(at)
    confirmed, vain, young = prefix((1, 8)), prefix((2, 8)), prefix((3, 8))
    index.learn(at, confirmed, 0.0)
    index.learn(at, vain, 0.0)
    index.stored(at, confirmed, 0.1)
    index.learn(at, young, SPECULATIVE_S / 2)
    index.learn(at, (), SPECULATIVE_S)
    assert [index.matched_on(at, chain) for chain in (confirmed, vain, young)] == [8, 0, 8]


def test_what_a_dispatch_fills_in_between_held_units_is_held_and_let_go() -> None:
    """An event took a unit from the middle while those behind it were only expected."""
    index, (at,) = PrefixIndex(), endpoints(1)
    chain = prefix((1, 8))
    index.follow(at)
    index.stored(at, chain[:4], 0.0)
    index.learn(at, chain, 0.0)
    index.removed(at, chain[2:4])
    index.learn(at, chain, 1.0)
    assert index.matched_on(at, chain) == 8
    index.stored(at, chain[2:4], 1.0)
    index.removed(at, chain)
    assert (index.matched(chain), len(index)) == ({}, 0)


def test_an_engine_may_hold_more_than_its_capacity_when_it_says_so() -> None:
    index, fleet = PrefixIndex(), endpoints(2, 8 * UNIT_TOKENS)
    index.follow(fleet[0])
    for endpoint in fleet:
        for turn in range(MAX_TOLD + 1):
            index.stored(endpoint, prefix((turn + 1, 8)), 0.0)
    assert [index.held_tokens(endpoint) // UNIT_TOKENS for endpoint in fleet] == [8 * MAX_TOLD, 8]


def test_an_engine_that_is_followed_no_more_holds_what_it_was_sent() -> None:
    index, (at, other) = PrefixIndex(), endpoints(2)
    index.follow(at)
    index.learn(at, prefix((1, 8)), 0.0)
    index.unfollow(at)
    index.unfollow(other)
    index.learn(at, prefix((2, 8)), 10.0)
    index.learn(at, (), 20.0)
    assert [index.matched_on(at, chain) for chain in (prefix((1, 8)), prefix((2, 8)))] == [8, 8]
    assert repr(index) == f"<PrefixIndex 16 units: {at.name} 16>"


# Memory.


def test_r21_a_long_prompt_makes_an_entry_for_each_unit_and_no_more() -> None:
    index, (at,) = PrefixIndex(), endpoints(1)
    index.learn(at, prefix((1, 2000)), 0.0)  # 128k tokens
    assert len(index) == 2000


@given(st.integers(1, 40))
def test_the_journal_of_a_hot_prompt_is_bounded(units: int) -> None:
    index, (at,) = PrefixIndex(), endpoints(1, 20 * UNIT_TOKENS)
    for turn in range(200):
        index.learn(at, prefix((1, units)), float(turn))
        index.learn(at, prefix((2, 1)), float(turn))
    (holding,) = index._holdings.values()
    assert holding.journal_units <= (MAX_JOURNAL + 2) * 20 + units
    assert index.matched_on(at, prefix((2, 1))) == 1


@pytest.mark.parametrize("count", [100_000])
def test_r21_unique_prompts_leave_no_trace(count: int) -> None:
    """N = 8 endpoints of 400k KV tokens, R = 100,000 unique prompts of 1,024 tokens (4 KB): under 50 MB.

    The index is full after the first 3,125; `python -m loadtests.bench.decision --memory` shows a million.
    """
    index, fleet = PrefixIndex(), endpoints(8)
    root = root_of("m")
    filler = bytes(4 * 1020)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(count):
        chain = block_hashes(root, array("I", [turn, turn, turn, turn]).tobytes() + filler)
        index.learn(fleet[turn % 8], chain, float(turn))
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert len(index) == 8 * 6250
    assert grown_mb < 50


def test_planted_is_what_came_with_prompts_that_were_mostly_new() -> None:
    index, at = PrefixIndex(), endpoints(1, 100 * UNIT_TOKENS)[0]
    assert (index.planted([at]), index.fill(at)) == ([0], 0.0)
    index.learn(at, prefix((1, 40)), 0.0)
    index.learn(at, prefix((1, 40), (2, 30)), 0.0)  # more than half was held
    assert index.planted([at]) == [40]
    index.learn(at, prefix((1, 10), (3, 20)), 0.0)
    assert (index.planted([at]), index.fill(at)) == ([60], 0.9)
    index.learn(at, prefix((4, 100)), 0.0)
    assert index.planted([at]) == [100]
    index.forget(at)
    assert index.planted([at]) == [0]


def test_a_cache_that_is_smaller_than_a_unit_is_full_of_one() -> None:
    """An engine may say whatever it likes; it must not be what all choices fail at."""
    index, at = PrefixIndex(), endpoints(1, UNIT_TOKENS - 1)[0]
    index.learn(at, prefix((1, 40)), 0.0)
    assert (index.fill(at), len(index)) == (1.0, 1)


def test_what_an_engine_refused_is_unlearned_but_for_what_others_have_in_flight() -> None:
    index, (at, other) = PrefixIndex(), endpoints(2)
    head, mine, theirs = prefix((1, 4)), prefix((1, 4), (2, 3)), prefix((1, 4), (3, 3))
    index.learn(at, theirs, 0.0)
    index.learn(at, mine, 0.0)
    index.unlearn(at, mine[len(head) :], set(theirs))
    assert index.matched_on(at, mine) == len(head)
    assert index.matched_on(at, theirs) == len(theirs)
    index.unlearn(at, theirs, set(head))
    assert index.matched_on(at, theirs) == len(head)
    index.unlearn(other, theirs, ())
