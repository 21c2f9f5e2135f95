"""Oracle: least work, told the truth. What better information could be worth, at most.

It sees each engine's queue, batch, memory and cache as they are at the moment, and how long the answer will be. The
rule is ours; books of its own are filled in from the engines before each choice, in place of the gateway's.
"""

from collections.abc import Sequence

from loadtests.engine import EngineModel
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.sequence import Generation
from loadtests.workloads import Job
from policies.endpoint import Charge, Endpoint
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.policy import Choice
from policies.request import BlockHash, InferenceRequest
from policies.work import PROFILES, WorkModel


class _TrueCaches(PrefixIndex):
    """What the engines hold of the prompt that is about to be placed."""

    def __init__(self) -> None:
        super().__init__()
        self.units: dict[Endpoint, int] = {}

    def matched(self, prefix: Sequence[BlockHash]) -> dict[Endpoint, int]:
        """Give what was found."""
        return self.units


class Oracle:
    """Chooses by the truth; `job` must be the request's before each choice."""

    job: Job

    def __init__(self, engines: Sequence[EngineModel], profile: str) -> None:
        self._engines = engines
        self._caches = _TrueCaches()
        self._rule = LeastWork(self._caches)
        self._mirrors = [
            Endpoint(f"e{place}", f"sim://e{place}", work=WorkModel(PROFILES[profile])) for place in range(len(engines))
        ]

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose as least work does, knowing all."""
        job = self.job
        generation = Generation(request.id, job.prompt_tokens, job.output_tokens, job.output_tokens, job.blocks)
        found: dict[Endpoint, int] = {}
        for mirror, engine in zip(self._mirrors, self._engines, strict=True):
            engine.catch_up(now)
            cached = engine.cached_tokens(generation)
            if cached >= request.unit_tokens:
                found[mirror] = cached // request.unit_tokens
            self._look(mirror, engine, now)
        self._caches.units = dict(sorted(found.items(), key=lambda item: item[1]))
        choice = self._rule.choose(request._replace(output_tokens=job.output_tokens), self._mirrors, now)
        return choice._replace(endpoint=endpoints[self._mirrors.index(choice.endpoint)])

    def _look(self, mirror: Endpoint, engine: EngineModel, now: float) -> None:
        """Fill in the books of one endpoint."""
        backlog = engine.backlog()
        seen = mirror.outstanding
        seen.requests = engine.running + engine.waiting
        seen.decoding = engine.decoding
        seen.prefill_tokens = sum(left for left, _, _ in backlog)
        seen.prefill_s = sum(mirror.work.prefill_s(left, done) for left, done, _ in backlog)
        seen.context_tokens = engine.context_tokens + sum(left + done for left, done, _ in backlog)
        to_come = sum(output for _, _, output in backlog)
        seen.pinned_tokens = (engine.kv.private + engine.kv.held) * BLOCK_TOKENS
        seen.growth_tokens = seen.pinned_tokens + seen.prefill_tokens + to_come // 2
        seen.head_since = now  # what the head has done is taken off already
        seen.prefilling.clear()
        if backlog:
            request = InferenceRequest("", "")
            seen.prefilling[Charge(mirror, request, 0, backlog[0][0], seen.prefill_s, now, False)] = None
        mirror.report.kv_capacity_tokens = engine.kv.capacity * BLOCK_TOKENS
        mirror.outlook = None
