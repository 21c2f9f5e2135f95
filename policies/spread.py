"""Policies that know nothing of prefixes: baselines, and the right answer where no request resembles another.

Ties never fall to the first of the list: an idle fleet would otherwise send everything to one engine. RoundRobin and
LeastRequests remember where they stopped, Random and PowerOfTwo draw from the seeded generator they were given.
"""

from collections.abc import Sequence
from random import Random

from policies.endpoint import Endpoint
from policies.policy import Choice, Reason
from policies.request import InferenceRequest


class RoundRobin:
    """Take turns."""

    def __init__(self, chance: Random) -> None:
        self._next = chance.randrange(1 << 16)  # several gateways must not march in step

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the next in line; endpoints that come and go shift the line, they do not restart it."""
        self._next += 1
        return Choice(endpoints[self._next % len(endpoints)], Reason.TURN)


class RandomChoice:
    """Draw lots."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose any, each as likely as the other."""
        return Choice(endpoints[int(self._chance.random() * len(endpoints))], Reason.CHANCE)


class LeastRequests:
    """Send to the endpoint with the fewest requests of this gateway in flight; ties take turns."""

    def __init__(self, chance: Random) -> None:
        self._start = chance.randrange(1 << 16)

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the least loaded, the first such behind the one that was chosen last."""
        count = len(endpoints)
        start = self._start % count
        best, least = start, endpoints[start].outstanding.requests
        for step in range(start + 1, start + count):
            if not least:
                break
            place = step % count
            requests = endpoints[place].outstanding.requests
            if requests < least:
                best, least = place, requests
        self._start = best + 1
        return Choice(endpoints[best], Reason.LEAST_LOADED)


class PowerOfTwo:
    """Draw two, take the less loaded (Mitzenmacher 2001): nearly as even as looking at all, and hard to herd."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the less loaded of two different ones; of two equals, the first drawn."""
        count = len(endpoints)
        if count == 1:
            return Choice(endpoints[0], Reason.ONLY)
        first = int(self._chance.random() * count)
        second = (first + 1 + int(self._chance.random() * (count - 1))) % count
        one, other = endpoints[first], endpoints[second]
        fewer = other if other.outstanding.requests < one.outstanding.requests else one
        return Choice(fewer, Reason.LEAST_LOADED)
