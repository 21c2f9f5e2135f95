"""AIBrix's `prefix-cache` routing: the best match that is not busier than the rest."""

from collections.abc import Sequence
from random import Random
from statistics import fmean, pstdev

from loadtests.rules.ties import least
from policies.endpoint import Endpoint
from policies.index import PrefixIndex
from policies.policy import Choice, Reason
from policies.request import InferenceRequest

IMBALANCE = 8  # requests between the busiest and the idlest
DEVIATIONS = 1


class PrefixThenLoad:
    """Go down the matches to the first endpoint within one standard deviation of the mean load."""

    def __init__(self, chance: Random, index: PrefixIndex) -> None:
        self._chance, self._index = chance, index

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the best match among those that are not too busy; of equal matches the least loaded."""
        matched = self._index.matched(request.prefix)
        units = [matched.get(endpoint, 0) for endpoint in endpoints]
        loads = [endpoint.outstanding.requests for endpoint in endpoints]
        if max(loads) - min(loads) > IMBALANCE:
            place, reason = least(loads, self._chance), Reason.LEAST_LOADED
        else:
            bound = fmean(loads) + DEVIATIONS * pstdev(loads)
            fitting = [place for place, load in enumerate(loads) if load <= bound]
            best = max(units[place] for place in fitting)
            fitting = [place for place in fitting if units[place] == best]
            place = fitting[least([loads[place] for place in fitting], self._chance)]
            reason = Reason.HOLDS if best else Reason.LEAST_LOADED
        return Choice(endpoints[place], reason, units[place] * request.unit_tokens)
