"""ConsistentHash and BoundedLoad: a request goes to the home of its like, whatever anybody holds.

The key is the request's `ring_key`, else its first unit, else its id: requests that share nothing are spread.
"""

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from policies.endpoint import Endpoint
from policies.policy import Choice, Reason
from policies.request import InferenceRequest
from policies.ring import Ring

BOUND = 1.25  # of the mean load; the value of the paper's authors' service, of KubeAI and of SMG


def ring_key_of(request: InferenceRequest) -> int:
    """Give what the ring goes by."""
    if request.ring_key is not None:
        return request.ring_key
    return request.prefix[0] if request.prefix else xxh3_64_intdigest(request.id.encode())


class ConsistentHash:
    """Always the first home on the ring, however busy."""

    def __init__(self) -> None:
        self._ring = Ring()

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the home of the request's key."""
        by_name = {endpoint.name: endpoint for endpoint in endpoints}
        return Choice(by_name[next(self._ring.homes(ring_key_of(request), by_name))], Reason.HOME)


class BoundedLoad:
    """The first home with room: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016).

    Room is at most 1.25 times the mean of requests in flight, this one counted; so there is always an endpoint with
    room, and a hot key spills to the same next homes in every gateway.
    """

    def __init__(self) -> None:
        self._ring = Ring()

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the first home on the ring that is within the bound."""
        by_name = {endpoint.name: endpoint for endpoint in endpoints}
        total = sum(endpoint.outstanding.requests for endpoint in endpoints)
        bound = BOUND * (total + 1) / len(endpoints)
        homes = self._ring.homes(ring_key_of(request), by_name)
        # Somebody is at or below the mean, so the search ends.
        turn, name = next(each for each in enumerate(homes) if by_name[each[1]].outstanding.requests <= bound)
        return Choice(by_name[name], Reason.SPILL if turn else Reason.HOME)
