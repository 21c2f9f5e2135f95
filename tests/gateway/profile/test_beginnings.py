"""Beginnings: what a cache without end would find, exactly or by a sample, and what many prompts begin with."""

from random import Random

import pytest

from gateway.profile.beginnings import Beginning, Beginnings
from policies.fingerprint import DEPTHS

UNIT = 64
CHANCE_BITS = 48


def marks(chance: Random, count: int) -> list[int]:
    return [chance.getrandbits(CHANCE_BITS) for _ in range(count)]


def test_a_new_prompt_finds_nothing_and_the_same_again_all_of_its_units() -> None:
    beginnings, prompt = Beginnings(), marks(Random(1), 40)
    assert beginnings.note(prompt, UNIT, 0.0, "a") == 0
    assert beginnings.note(prompt, UNIT, 5.0, "a") == DEPTHS[39] * UNIT
    assert beginnings.reused_after_s.quantile(0.5) == pytest.approx(5.0, rel=0.01)
    assert beginnings.sharing == 1


def test_what_goes_another_way_is_found_up_to_there() -> None:
    beginnings, chance = Beginnings(), Random(1)
    head = marks(chance, 10)
    beginnings.note(head + marks(chance, 10), UNIT, 0.0, "a")
    assert beginnings.note(head + marks(chance, 10), UNIT, 1.0, "a") == 10 * UNIT


def test_a_prompt_without_a_full_unit_shares_nothing() -> None:
    beginnings = Beginnings()
    assert beginnings.note([], UNIT, 0.0, "a") == 0
    assert (beginnings.prompts, beginnings.sharing, beginnings.top(5)) == (1, 0.0, [])


def test_beginnings_are_where_prompts_go_different_ways() -> None:
    beginnings, chance = Beginnings(), Random(1)
    common, one, other = marks(chance, 5), marks(chance, 10), marks(chance, 20)
    for _ in range(30):
        beginnings.note(common + one + marks(chance, 8), UNIT, 0.0, "a")
    for at in range(20):
        beginnings.note(common + other + marks(chance, 8), UNIT, 0.0, "b" if at % 2 else "c")
    assert beginnings.top(10) == [Beginning(25 * 64, 20, None), Beginning(15 * 64, 30, "a")]


def test_turns_of_a_conversation_are_no_beginning_of_many() -> None:
    beginnings, chance = Beginnings(), Random(1)
    talk = marks(chance, 40)
    for turns in range(1, 41):
        beginnings.note(talk[:turns], UNIT, float(turns), "a")
    assert beginnings.top(10) == []


def test_prompts_that_come_again_and_again_are_one() -> None:
    beginnings, prompt = Beginnings(), marks(Random(1), 20)
    for _ in range(10):
        beginnings.note(prompt, UNIT, 0.0, "a")
    assert beginnings.top(10) == [Beginning(20 * 64, 10, "a")]


def workload(seed: int) -> list[list[int]]:
    """4,000 prompts: a system prompt of all, one of 20 of some, talks of five turns, and tails of their own."""
    chance = Random(seed)
    common, systems = marks(chance, 6), [marks(chance, 12) for _ in range(20)]
    prompts = []
    for _ in range(800):
        talk = common + systems[int(chance.paretovariate(1)) % 20] + marks(chance, 10)
        for _ in range(5):
            prompts.append(talk)
            talk = talk + marks(chance, 3)
    order = Random(seed + 1)
    return sorted(prompts, key=lambda _: order.random())


@pytest.mark.parametrize("most", [1000, 2000, 8000])
def test_a_sample_finds_what_all_marks_find(most: int) -> None:
    """N = 4,000 prompts with 18,000 marks, seeds 0-4: the mean of the hit rates is within 2 points of the exact one."""
    off = []
    for seed in range(5):
        exact, sampled = Beginnings(), Beginnings(most)
        found = [(exact.note(each, UNIT, 0.0, "a"), sampled.note(each, UNIT, 0.0, "a")) for each in workload(seed)]
        tokens = sum(DEPTHS[len(each) - 1] * UNIT for each in workload(seed))
        assert not exact.is_sampled
        assert sampled.is_sampled
        assert len(sampled) <= most
        off.append((sum(mine for _, mine in found) - sum(true for true, _ in found)) / tokens)
    assert sum(off) / len(off) == pytest.approx(0, abs=0.02)


def test_what_is_shared_widely_stays_exact_in_a_sample() -> None:
    beginnings, chance = Beginnings(500), Random(1)
    common = marks(chance, 6)
    for _ in range(2000):
        beginnings.note(common + marks(chance, 10), UNIT, 0.0, "a")
    assert beginnings.is_sampled
    assert beginnings.top(1) == [Beginning(6 * 64, 2000, "a")]


def test_even_what_comes_again_is_forgotten_where_there_is_too_much_of_it() -> None:
    beginnings, chance = Beginnings(200), Random(1)
    for _ in range(100):
        prompt = marks(chance, 10)
        for _ in range(3):
            beginnings.note(prompt, UNIT, 0.0, "a")
    assert len(beginnings) <= 200
