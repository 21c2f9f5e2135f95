"""Sketch: a distribution of which only counts by size are kept: quantiles to within one percent, in bounded memory.

Bucket k holds what lies in (GAMMA**(k-1), GAMMA**k], so that its middle is within one percent of all of it (DDSketch,
Masson et al., VLDB 2019). Between a microsecond and two billion there are 1,800 of them. Mean and maximum are exact.
"""

from collections.abc import Iterator
from math import ceil, log

GAMMA = 1.02
LEAST = 1e-6  # less is nothing
_PER_E = 1 / log(GAMMA)


class Sketch:
    """Values of 0 and more."""

    __slots__ = ("_buckets", "_zeros", "count", "most", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, float] = {}
        self._zeros = 0.0
        self.count = 0.0
        self.total = 0.0
        self.most = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a value, as if it came `weight` times."""
        self.count += weight
        self.total += value * weight
        self.most = max(self.most, value)
        if value < LEAST:
            self._zeros += weight
        else:
            key = ceil(log(value) * _PER_E)
            self._buckets[key] = self._buckets.get(key, 0.0) + weight

    @property
    def mean(self) -> float:
        """Give the mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Give the least value that `share` of them do not exceed; 0 of nothing."""
        rank = share * self.count
        passed = self._zeros
        if passed >= rank:
            return 0.0
        for value, weight in self.buckets():
            passed += weight
            if passed >= rank:
                return value
        return self.most

    def above(self, value: float) -> tuple[float, float]:
        """Give which share of the values is greater, and which share of their sum those make."""
        greater = [(each, weight) for each, weight in self.buckets() if each > value]
        count = sum(weight for _, weight in greater)
        total = sum(each * weight for each, weight in greater)
        return count / max(self.count, LEAST), total / max(self.total, LEAST)

    def buckets(self) -> Iterator[tuple[float, float]]:
        """Give values and how often each came, the least first; not the zeros."""
        for key in sorted(self._buckets):
            yield min(self.most, 2 * GAMMA**key / (GAMMA + 1)), self._buckets[key]

    @property
    def zeros(self) -> float:
        """How many were nothing."""
        return self._zeros
