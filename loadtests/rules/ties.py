"""The least of several, ties at random."""

from collections.abc import Sequence
from random import Random


def least(costs: Sequence[float], chance: Random) -> int:
    """Give the place of the least cost; of equal ones any."""
    best = min(costs)
    places = [place for place, cost in enumerate(costs) if cost == best]
    return places[0] if len(places) == 1 else chance.choice(places)
