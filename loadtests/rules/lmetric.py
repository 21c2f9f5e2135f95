"""LMetric: new prefill tokens times batch size."""

from collections.abc import Sequence
from random import Random

from loadtests.rules.ties import least
from policies.endpoint import Endpoint
from policies.index import PrefixIndex
from policies.policy import Choice, Reason
from policies.request import InferenceRequest


class PrefillTimesBatch:
    """Take the least product: it needs neither weights nor a model of the engine."""

    def __init__(self, chance: Random, index: PrefixIndex) -> None:
        self._chance, self._index = chance, index

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the least product."""
        matched = self._index.matched(request.prefix)
        tokens = [matched.get(endpoint, 0) * request.unit_tokens for endpoint in endpoints]
        costs = [
            (endpoint.outstanding.prefill_tokens + request.prompt_tokens - held) * (endpoint.outstanding.requests + 1)
            for held, endpoint in zip(tokens, endpoints, strict=True)
        ]
        place = least(costs, self._chance)
        return Choice(endpoints[place], Reason.LEAST_LOADED, tokens[place])
