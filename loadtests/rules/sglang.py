"""SGLang's cache-aware router (sgl-router, `cache_aware`), with the thresholds it ships with.

Of several that hold the same, its tree names always the same one: drawing lots among them would spread hot prefixes
better than it does (154 against 136 requests/s on tenants).
"""

from collections.abc import Sequence
from random import Random

from loadtests.rules.ties import least
from policies.endpoint import Endpoint
from policies.index import PrefixIndex
from policies.policy import Choice, Reason
from policies.request import InferenceRequest

CACHE_THRESHOLD = 0.3
BALANCE_ABSOLUTE = 64
BALANCE_RELATIVE = 1.5


class CacheAware:
    """Go where the prompt matches best, unless the loads are out of balance by both measures."""

    def __init__(self, chance: Random, index: PrefixIndex) -> None:
        self._chance, self._index = chance, index

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose by match or by load."""
        matched = self._index.matched(request.prefix)
        units = [matched.get(endpoint, 0) for endpoint in endpoints]
        loads = [endpoint.outstanding.requests for endpoint in endpoints]
        most, fewest = max(loads), min(loads)
        is_balanced = most - fewest <= BALANCE_ABSOLUTE or most <= BALANCE_RELATIVE * fewest
        if is_balanced and max(units) * request.unit_tokens > CACHE_THRESHOLD * request.prompt_tokens:
            place, reason = units.index(max(units)), Reason.HOLDS
        else:
            place, reason = least(loads, self._chance), Reason.LEAST_LOADED
        return Choice(endpoints[place], reason, units[place] * request.unit_tokens)
