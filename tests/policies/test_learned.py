"""OutputHabits: what answers come to, learned from their like."""

from random import Random

import pytest

from policies.learned import OutputHabits, PromptHabits


def test_nothing_seen_means_512_at_most_and_no_more_than_fits() -> None:
    habits = OutputHabits()
    assert habits.allowed_tokens("t", "m", 100_000) == 512
    assert habits.allowed_tokens("t", "m", 300) == 300
    assert habits.expected_tokens("t", "m", 100_000) == 256
    assert habits.expected_tokens("t", "m", 64) == 64


def test_the_mean_and_the_ninetieth_percentile_are_found() -> None:
    """R = 5,000 answers, exponential of mean 200, fixed seed: mean within 35 %, percentile (460) within 25 %."""
    habits, chance = OutputHabits(), Random(7)
    for _ in range(5_000):
        habits.learn("t", "m", round(chance.expovariate(1 / 200)))
    assert habits.expected_tokens("t", "m", 10_000) == pytest.approx(200, rel=0.35)
    assert habits.allowed_tokens("t", "m", 10_000) == pytest.approx(460, rel=0.25)


def test_tenants_and_models_have_habits_of_their_own() -> None:
    habits = OutputHabits()
    for _ in range(100):
        habits.learn("t", "m", 10)
    assert habits.expected_tokens("t", "m", 1000) < 20
    assert habits.expected_tokens("t", "n", 1000) == habits.expected_tokens("u", "m", 1000) == 256


def test_the_pair_heard_of_longest_ago_is_forgotten() -> None:
    habits = OutputHabits(most=2)
    for tenant in ("a", "b", "a", "c"):
        habits.learn(tenant, "m", 1)
    assert len(habits) == 2
    assert [habits.expected_tokens(tenant, "m", 1000) < 256 for tenant in "abc"] == [True, False, True]


def test_tokens_a_byte_are_learned_by_tenant_and_model() -> None:
    habits = PromptHabits(most=2)
    assert habits.expected_tokens("t", "m", 400) == 100
    habits.learn("t", "m", 100, 50)
    assert habits.expected_tokens("t", "m", 400) == 200
    habits.learn("t", "m", 100, 5000)  # a vocabulary has a token for each byte at the worst
    assert 200 < habits.expected_tokens("t", "m", 400) < 400
    habits.learn("t", "m", 0, 10)
    assert habits.expected_tokens("other", "m", 400) == 100
    habits.learn("a", "m", 1, 1)
    habits.learn("b", "m", 1, 1)
    assert len(habits) == 2
