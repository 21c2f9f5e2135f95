"""Generations: a bounded memory that keeps what is in use.

The young generation takes what is put in and what is asked for; when it is full it becomes the old one, and what nobody
asked for since the last time is forgotten. At most twice `most` are held.
"""

from typing import Generic, TypeVar

V = TypeVar("V")


class Generations(Generic[V]):
    """Values by number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._young: dict[int, V] = {}
        self._old: dict[int, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: int) -> V | None:
        """Give a value, and keep it for longer."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: int, value: V) -> None:
        """Put a value in."""
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = value
