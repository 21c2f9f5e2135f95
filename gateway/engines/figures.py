"""Figures out of pages that nobody vouches for: a value is what it should be, or None.

Missing is not zero. A figure that is absent, no number, NaN, infinite or negative (SGLang says -1 for "not
applicable") was not told, and of several series that belong together one untold makes the sum untold: half a
sum would look like an engine at half its load.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

MOST = 1 << 50  # of a count: nothing on a machine is so many, and it is well within what JSON and floats hold


def amount(value: object) -> float | None:
    """Take a finite number of at least zero; metric labels hold theirs as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def whole(value: object) -> int | None:
    """Take a count, up to MOST."""
    number = amount(value)
    return None if number is None or number > MOST else int(number)


def share(value: object) -> float | None:
    """Take a share of 1; engines that count a block twice say a little more."""
    number = amount(value)
    return None if number is None else min(number, 1.0)


def text(value: object) -> str | None:
    """Take a text that says something."""
    return value if isinstance(value, str) and value else None


def fields(value: object) -> Mapping[str, object]:
    """Take a JSON object; anything else has no fields."""
    return value if isinstance(value, dict) else {}


def entries(value: object) -> Sequence[object]:
    """Take a JSON array; anything else has no entries."""
    return value if isinstance(value, list) else ()


def total(values: Iterable[object]) -> float | None:
    """Add up; None where there is nothing to add or one of them was not told."""
    amounts = [amount(value) for value in values]
    told = [number for number in amounts if number is not None]
    return math.fsum(told) if told and len(told) == len(amounts) else None


def mean(values: Iterable[object]) -> float | None:
    """Average shares of equal parts; None as for `total`.

    The ranks of a data-parallel engine have caches of equal size, and the engine spreads requests over them
    itself. The mean keeps share times summed capacity equal to the tokens held; the maximum would shut out
    the whole engine for one full rank.
    """
    shares = [share(value) for value in values]
    whole_share = total(shares)
    return None if whole_share is None else whole_share / len(shares)


def product(left: object, right: object) -> float | None:
    """Multiply; None where one of the two was not told."""
    one, other = amount(left), amount(right)
    return None if one is None or other is None else one * other


def quotient(part: object, whole_of_it: object) -> float | None:
    """Divide; None where one of the two was not told, or nothing can be divided by the whole."""
    one, other = amount(part), amount(whole_of_it)
    return None if one is None or not other else one / other
