"""TrueIndex: what the caches of the engines hold, as KV events would tell it.

Engines tell of a block when it is computed and when it is evicted, some milliseconds later; here it is known at once.
What was sent lately and is not computed yet is expected, as the index of the gateway does between dispatch and event.
"""

from collections.abc import Sequence

from loadtests.engine import EngineModel
from loadtests.sequence import Generation
from loadtests.workloads import Job
from policies.endpoint import Endpoint
from policies.index import PrefixIndex
from policies.request import BlockHash


class TrueIndex(PrefixIndex):
    """An index that looks into the engines; `look` must name the request before it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self._engines: dict[Endpoint, EngineModel] = {}
        self._held: dict[Endpoint, int] = {}

    def watch(self, endpoint: Endpoint, engine: EngineModel) -> None:
        """Believe an engine in place of what it was sent."""
        self.follow(endpoint)
        self._engines[endpoint] = engine

    def look(self, job: Job) -> None:
        """Find out who holds how much of a prompt."""
        generation = Generation("", job.prompt_tokens, job.output_tokens, job.output_tokens, job.blocks)
        self._held = {
            endpoint: engine.cached_tokens(generation) // endpoint.unit_tokens
            for endpoint, engine in self._engines.items()
        }

    def matched(self, prefix: Sequence[BlockHash]) -> dict[Endpoint, int]:
        """Give what the engines hold, or what is expected if that is more."""
        found = super().matched(prefix)
        for endpoint, units in self._held.items():
            if units > found.get(endpoint, 0):
                found[endpoint] = units
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def matched_on(self, endpoint: Endpoint, prefix: Sequence[BlockHash]) -> int:
        """Give it for one."""
        return max(super().matched_on(endpoint, prefix), self._held.get(endpoint, 0))

    def fill(self, endpoint: Endpoint) -> float:
        """Give the share of the cache that is in use."""
        kv = self._engines[endpoint].kv
        return (kv.private + kv.held + kv.idle) / kv.capacity
