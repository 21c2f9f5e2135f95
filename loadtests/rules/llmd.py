"""llm-d's scheduler with its prefix, queue and memory scorers weighted 3, 2, 2."""

from collections.abc import Sequence
from random import Random

from loadtests.rules.ties import least
from policies.endpoint import Endpoint
from policies.index import PrefixIndex
from policies.policy import Choice, Reason
from policies.request import InferenceRequest

PREFIX_WEIGHT = 3.0
QUEUE_WEIGHT = 2.0
MEMORY_WEIGHT = 2.0


class WeightedScores:
    """Take the highest sum of scores; queue and memory are as old as the last poll."""

    def __init__(self, chance: Random, index: PrefixIndex) -> None:
        self._chance, self._index = chance, index

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the highest score."""
        matched = self._index.matched(request.prefix)
        tokens = [matched.get(endpoint, 0) * request.unit_tokens for endpoint in endpoints]
        queues = [endpoint.report.waiting or 0 for endpoint in endpoints]
        longest, shortest = max(queues), min(queues)
        scores = [
            PREFIX_WEIGHT * held / max(1, request.prompt_tokens)
            + QUEUE_WEIGHT * ((longest - queue) / (longest - shortest) if longest > shortest else 1.0)
            + MEMORY_WEIGHT * (1.0 - (endpoint.report.kv_usage or 0.0))
            for held, queue, endpoint in zip(tokens, queues, endpoints, strict=True)
        ]
        place = least([-score for score in scores], self._chance)
        return Choice(endpoints[place], Reason.HOLDS if tokens[place] else Reason.LEAST_LOADED, tokens[place])
