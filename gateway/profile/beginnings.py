"""Beginnings: what prompts share, and what a cache that never forgets would find of them.

Every mark of a fingerprint stands for the prompt up to its depth. A cache without end finds what lies between a mark
and the one before exactly when the mark was there before, so each mark is counted for itself. That allows for a sample
in bounded memory (as SHARDS does it, Waldspurger et al., FAST 2015): once there are too many, of the marks that came
only once half are forgotten, chosen by their own bits, and each that is left counts twice; of new marks only those of
the same half are taken. Where that is not enough it goes on to those that came twice, four times, and so on. What is
shared widely has come often long before and stays, exact: without that one system prompt more or less in the sample
would decide everything.

A beginning is a mark from which prompts go different ways: more than half of those that come so far do not go on
together. System prompts are such places, and whole prompts that come again and again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.profile.sketch import Sketch
from policies.fingerprint import DEPTHS

MOST_MARKS = 250_000  # kept, some 70 MB
LEAST_USES = 8  # of a beginning
LEAST_SHARE = 1e-3  # of all requests
_ALL = 1 << 48


class _Mark:
    __slots__ = ("at", "before", "depth", "tenant", "unit_tokens", "uses", "weight")

    def __init__(self, before: int, depth: int, unit_tokens: int, weight: int, at: float, tenant: str) -> None:
        self.before = before
        """The mark before it; -1: none."""
        self.depth = depth
        self.unit_tokens = unit_tokens
        self.weight = weight
        """How many marks it stands for."""
        self.at = at
        self.tenant: str | None = tenant
        """None: several."""
        self.uses = 1


class Beginning(NamedTuple):
    """What many prompts begin with."""

    tokens: int
    uses: int
    tenant: str | None
    """None: several."""

    @property
    def saved_tokens(self) -> int:
        """What need not be computed where it is kept."""
        return self.tokens * (self.uses - 1)


class Beginnings:
    """All marks of a log.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int = MOST_MARKS) -> None:
        self._most = most
        self._marks: dict[int, _Mark] = {}
        self._below = _ALL
        self._weight = 1
        self.prompts = 0
        """That have a fingerprint."""
        self.sharing = 0.0
        """Of those, how many share at least their first unit with one before (an estimate, where there are many)."""
        self.reused_after_s = Sketch()
        """When what is used again was last used, by tokens."""

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def is_sampled(self) -> bool:
        """Whether some were forgotten, so that what is told is an estimate."""
        return self._weight > 1

    def note(self, marks: Sequence[int], unit_tokens: int, at: float, tenant: str) -> float:
        """Note a prompt; give how many of its tokens a cache without end would have had."""
        known, below = self._marks, self._below
        found = 0
        alike, last_at = 0, at  # tokens in a row that were last used at one time
        before, depth_before = -1, 0
        self.prompts += 1
        for mark, depth in zip(marks, DEPTHS, strict=False):
            kept = known.get(mark)
            if kept is not None:
                tokens = (depth - depth_before) * unit_tokens * kept.weight
                found += tokens
                if kept.at != last_at:
                    self._note_reuse(at - last_at, alike)
                    alike, last_at = 0, kept.at
                alike += tokens
                if before < 0:
                    self.sharing += kept.weight
                kept.uses += 1
                kept.at = at
                if kept.tenant != tenant:
                    kept.tenant = None
            elif mark < below:
                known[mark] = _Mark(before, depth, unit_tokens, self._weight, at, tenant)
            before, depth_before = mark, depth
        self._note_reuse(at - last_at, alike)
        if len(known) > self._most:
            self._forget()
        return found

    def top(self, count: int) -> list[Beginning]:
        """Give the beginnings that save most, the first before the others."""
        least = max(LEAST_USES, LEAST_SHARE * self.prompts)
        widest: dict[int, int] = {}
        for kept in self._marks.values():
            widest[kept.before] = max(widest.get(kept.before, 0), kept.uses)
        found = [
            Beginning(kept.depth * kept.unit_tokens, kept.uses, kept.tenant)
            for mark, kept in self._marks.items()
            if kept.uses >= least and 2 * widest.get(mark, 0) < kept.uses
        ]
        return sorted(found, key=lambda each: each.saved_tokens, reverse=True)[:count]

    def _note_reuse(self, after_s: float, tokens: int) -> None:
        if tokens:
            self.reused_after_s.add(max(0.0, after_s), tokens)

    def _forget(self) -> None:
        """Make room: halve the sample of what came once; while that is not enough, of what came a few times more."""
        enough = self._most * 3 // 4
        while len(self._marks) > enough:
            self._below //= 2
            self._weight *= 2
            most_uses, at_all = 1, max(kept.uses for kept in self._marks.values())
            while len(self._marks) > enough and most_uses < 2 * at_all:
                self._thin(most_uses)
                most_uses *= 2

    def _thin(self, most_uses: int) -> None:
        """Of the marks that came no more than so many times, keep those of the sample."""
        rare = [mark for mark, kept in self._marks.items() if kept.uses <= most_uses]
        for mark in rare:
            if mark < self._below:
                self._marks[mark].weight = self._weight
            else:
                del self._marks[mark]
