"""Where usage is kept: what every such place can do, and the one that forgets it all at the end of the process.

A batch is a part of what a gateway has counted since it last saved, of one day. It is added as a whole or not at all,
and once, however often that is tried: its number is higher than that of every batch before, and a place that cannot
tell by itself whether a batch has come keeps the number of the last beside the sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.accounts import Sums, add


class StoreError(Exception):
    """The place cannot be read or written; the message is one line."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sums to be added to a day's."""

    number: int
    day: str
    sums: Sums


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a day."""

    sums: Sums
    number: int = 0
    """Of the last of this gateway's batches in there; 0 where a batch whose adding failed cannot be."""


class Store(Protocol):
    """A place where usage is kept."""

    every_s: float
    """How often to save."""

    async def open(self) -> None:
        """Begin.

        Raises:
            StoreError: this place is of no use.
        """

    async def add(self, batch: Batch) -> None:
        """Add a batch, if it has not been.

        Raises:
            StoreError: it could not be, or nobody knows whether it was: ask again.
        """

    async def read(self, day: str) -> Kept:
        """Give what is kept of a day.

        Raises:
            StoreError: it cannot be read.
        """

    async def tend(self) -> None:
        """Save what is kept here beside usage.

        Raises:
            StoreError: it could not be.
        """

    async def close(self, unsaved: Sequence[Batch] = ()) -> bool:
        """End.

        Args:
            unsaved: What could not be added.

        Returns:
            Whether nothing is lost.
        """


class Memory:
    """Usage that lasts as long as the process."""

    every_s = 10.0

    def __init__(self, days: int) -> None:
        self._most = days
        self._days: dict[str, Sums] = {}

    async def open(self) -> None:
        """Begin with nothing."""

    async def add(self, batch: Batch) -> None:
        """Add it; forget the oldest of too many days."""
        add(self._days.setdefault(batch.day, {}), batch.sums)
        while len(self._days) > self._most:
            del self._days[min(self._days)]

    async def read(self, day: str) -> Kept:
        """Give a day."""
        return Kept({who: dict(counts) for who, counts in self._days.get(day, {}).items()})

    async def tend(self) -> None:
        """There is nothing else."""

    async def close(self, unsaved: Sequence[Batch] = ()) -> bool:
        """End."""
        return not unsaved
