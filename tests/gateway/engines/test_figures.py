"""A value is what it should be, or None."""

import math

import pytest
from hypothesis import given

from gateway.engines import figures
from tests.gateway.engines.garbage import ANYTHING, UNTIMED


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (0, 0.0),
        (3, 3.0),
        ("131072", 131072.0),
        ("64.0", 64.0),
        ("None", None),
        ("", None),
        (True, None),
        (None, None),
        (-1, None),
        (-0.5, None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        ([1], None),
    ],
)
def test_an_amount_is_a_finite_number_from_zero(value: object, amount: float | None) -> None:
    assert figures.amount(value) == amount


def test_a_sum_with_something_untold_is_untold() -> None:
    assert figures.total((1, "2", 3.5)) == 6.5
    assert figures.total((1, None)) is figures.total(()) is None
    assert figures.mean((0.5, 1.5)) == 0.75
    assert figures.mean((0.5, math.nan)) is figures.mean(()) is None
    assert figures.product(2, None) is figures.product(None, 2) is None
    assert figures.quotient(1, 0) is figures.quotient(None, 1) is figures.quotient(1, None) is None
    assert (figures.product(2, "3"), figures.quotient(1, 4)) == (6.0, 0.25)


@pytest.mark.parametrize("said", [1e308, 10**30, "99999999999999999999", figures.MOST + 1])
def test_a_count_that_nothing_has_was_not_told(said: object) -> None:
    """Nor could any page of ours tell it: JSON's integers end somewhere."""
    assert figures.whole(said) is None
    assert figures.whole(figures.MOST) == figures.MOST


@UNTIMED
@given(ANYTHING)
def test_every_reader_takes_anything(value: object) -> None:
    assert figures.whole(value) is None or figures.amount(value) is not None
    shared = figures.share(value)
    assert shared is None or 0 <= shared <= 1
    assert figures.text(value) in (value, None)
    assert list(figures.fields(value)) == (list(value) if isinstance(value, dict) else [])
    assert list(figures.entries(value)) == (value if isinstance(value, list) else [])
