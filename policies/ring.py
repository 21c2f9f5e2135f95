"""Ring: the stable order in which endpoints are homes of a key.

Ketama points by name (uhashring), 256 an endpoint: every gateway and every incarnation of an engine agrees, and when
an endpoint leaves, only its own keys move. An endpoint that may not take a request now keeps its points: its keys go
to the next on the ring, and come back with it.

The points of a name are made once, by a uhashring of that name alone; a ring of all names would be built anew, one
insertion a point, for each that joins (1.5 s for 300 endpoints).
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator

from uhashring import HashRing

POINTS = 256  # an endpoint's share of the ring varies by 1/16 then
MAX_NAMES = 2048  # beyond that, those that nobody asks for are taken off: names of pods come and go


class Ring:
    """Orders names for a key."""

    def __init__(self) -> None:
        self._points_of: dict[str, list[int]] = {}
        self._points: list[int] = []
        self._names: list[str] = []

    def homes(self, key: int, among: Collection[str]) -> Iterator[str]:
        """Give the names of `among` in the order of the ring from `key` on, each once.

        Args:
            key: A hash; its low 32 bits, evenly spread, are a place on the ring.
        """
        if any(name not in self._points_of for name in among):
            self._place(among)
        points, names = self._points, self._names
        start = bisect_left(points, key & 0xFFFFFFFF)
        seen: set[str] = set()
        for at in range(start - len(points), start):
            name = names[at]
            if name not in seen:
                seen.add(name)
                if name in among:
                    yield name

    def _place(self, among: Collection[str]) -> None:
        """Give every name its points."""
        old = self._points_of
        kept = old if len(old) < MAX_NAMES else {}
        self._points_of = kept | {name: old.get(name) or _points(name) for name in among}
        placed = sorted((point, name) for name, points in self._points_of.items() for point in points)
        self._points = [point for point, _ in placed]
        self._names = [name for _, name in placed]


def _points(name: str) -> list[int]:
    """Give the points of a name; ketama makes four of each virtual node."""
    return [point for point, _ in HashRing([name], vnodes=POINTS // 4, hash_fn="ketama").get_points()]
