"""Sketch: quantiles to within one percent. N = 20,000 lognormal values, seed 1."""

from math import ceil
from random import Random

import pytest

from gateway.profile.sketch import Sketch

VALUES = [Random(f"sketch {at}").lognormvariate(3, 2) for at in range(20_000)]


def sketched(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.99, 0.999])
def test_a_quantile_is_within_one_percent(share: float) -> None:
    exact = sorted(VALUES)[ceil(share * len(VALUES)) - 1]
    assert sketched(VALUES).quantile(share) == pytest.approx(exact, rel=0.0101)


def test_mean_count_and_maximum_are_exact() -> None:
    sketch = sketched(VALUES)
    assert (sketch.count, sketch.most) == (len(VALUES), max(VALUES))
    assert sketch.mean == pytest.approx(sum(VALUES) / len(VALUES))


def test_nothing_is_a_value_too() -> None:
    sketch = sketched([0.0, 0.0, 0.0, 5.0])
    assert (sketch.quantile(0.5), sketch.quantile(1.0), sketch.zeros) == (0.0, 5.0, 3.0)


def test_of_no_values_everything_is_nothing() -> None:
    assert (Sketch().mean, Sketch().quantile(0.5), Sketch().above(1.0)) == (0.0, 0.0, (0.0, 0.0))


def test_a_weight_is_so_many_values() -> None:
    one, other = Sketch(), sketched([3.0] * 7 + [9.0])
    one.add(3.0, 7)
    one.add(9.0)
    assert list(one.buckets()) == list(other.buckets())
    assert (one.mean, one.quantile(0.9)) == (other.mean, other.quantile(0.9))


def test_what_lies_above_is_told_as_a_share_of_values_and_of_their_sum() -> None:
    count, total = sketched([1.0] * 90 + [100.0] * 10).above(10.0)
    assert count == pytest.approx(0.1)
    assert total == pytest.approx(1000 / 1090, rel=0.01)


def test_it_stays_small_whatever_comes() -> None:
    chance = Random(1)
    sketch = sketched([10 ** chance.uniform(-6, 9.3) for _ in range(50_000)])
    assert len(list(sketch.buckets())) < 1800
