"""Replica: one gateway of a simulation: its policy, books and index, and of other gateways nothing but what they tell.

The decision is the one that serves: the policies of `policies/`, charged by `policies/books.py`, over the same index.
What is the simulation's own is only where requests and engine reports come from.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from xxhash import xxh3_64_intdigest

from loadtests.engine import EngineModel
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.rules.catalog import policy_named
from loadtests.rules.oracle import Oracle
from loadtests.scenario import RingKey
from loadtests.workloads import Job
from policies import books
from policies.endpoint import Charge, Endpoint
from policies.index import PrefixIndex
from policies.learned import OutputHabits
from policies.request import UNIT_TOKENS, BlockHash, InferenceRequest
from policies.work import PROFILES, WorkModel

MODEL = "sim"
UNIT_BLOCKS = UNIT_TOKENS // BLOCK_TOKENS
MAX_OPENINGS = 100_000  # whose repetition is remembered


@dataclass(eq=False, slots=True)
class Placement:
    """Where a request went, and who charged it."""

    place: int
    """Of the engine in the fleet."""
    request: InferenceRequest
    charges: "dict[Replica, Charge]" = field(default_factory=dict)


class Replica:
    """One gateway.

    Args:
        policy: By its name in `--policy`.
        chance: Its own.
        profile: What its work models begin with.
    """

    def __init__(
        self, policy: str, engines: Sequence[EngineModel], chance: Random, *, profile: str, ring_key: RingKey
    ) -> None:
        self._engines = engines
        self._ring_key = ring_key
        self.index = PrefixIndex()
        self._policy = policy_named(policy, chance, self.index, engines, profile)
        self._habits = OutputHabits()
        self._openings: OrderedDict[int, None] = OrderedDict()
        self.endpoints = [
            Endpoint(f"e{place}", f"sim://e{place}", frozenset((MODEL,)), work=WorkModel(PROFILES[profile]))
            for place in range(len(engines))
        ]
        self._places = {endpoint: place for place, endpoint in enumerate(self.endpoints)}
        for endpoint, engine in zip(self.endpoints, engines, strict=True):
            endpoint.report.kv_capacity_tokens = engine.kv.capacity * BLOCK_TOKENS
            endpoint.report.block_tokens = BLOCK_TOKENS
            endpoint.health.answered()

    def place(self, id: int, job: Job, now: float) -> Placement:
        """Choose an endpoint and charge it."""
        request = self._request(id, job)
        if isinstance(self._policy, Oracle):
            self._policy.job = job
        choice = self._policy.choose(request, self.endpoints, now)
        placement = Placement(self._places[choice.endpoint], request)
        cached = choice.cached_tokens
        if cached is None:
            cached = self.index.matched_on(choice.endpoint, request.prefix) * request.unit_tokens
        self._charge(placement, cached, now)
        return placement

    def first_token(self, placement: Placement, now: float) -> None:
        """Move what was charged to decoding."""
        books.first_token(placement.charges[self], now)

    def finish(self, placement: Placement, output_tokens: int | None, now: float) -> None:
        """Give back what was charged; None where the engine refused, or another gateway tells."""
        books.finish(placement.charges.pop(self), now, output_tokens)
        if output_tokens is not None:
            self._habits.learn(placement.request.tenant, MODEL, output_tokens)

    def hear_dispatch(self, placement: Placement, cached_tokens: int, now: float) -> None:
        """Charge what another gateway has sent."""
        self._charge(placement, cached_tokens, now)

    def scrape(self, now: float) -> None:
        """Read what the engines say of themselves."""
        for endpoint, engine in zip(self.endpoints, self._engines, strict=True):
            report = endpoint.report
            report.running, report.waiting, report.kv_usage = engine.running, engine.waiting, engine.kv_usage
            report.at = now

    def _charge(self, placement: Placement, cached_tokens: int, now: float) -> None:
        endpoint = self.endpoints[placement.place]
        placement.charges[self] = books.dispatch(endpoint, placement.request, now, cached_tokens)
        self.index.learn(endpoint, placement.request.prefix, now)

    def _request(self, id: int, job: Job) -> InferenceRequest:
        """Say what a gateway knows of a request: not how long the answer will be."""
        units = job.prompt_tokens // UNIT_TOKENS
        prefix = job.blocks[UNIT_BLOCKS - 1 : units * UNIT_BLOCKS : UNIT_BLOCKS]
        allowed = self._habits.allowed_tokens(job.tenant, MODEL, job.prompt_tokens)
        return InferenceRequest(
            id=str(id),
            model=MODEL,
            tenant=job.tenant,
            prompt_tokens=job.prompt_tokens,
            output_tokens=self._habits.expected_tokens(job.tenant, MODEL, 1 << 20),
            prefix=tuple(map(BlockHash, prefix)),
            ring_key=self._key(job),
            allowed_tokens=allowed,
        )

    def _key(self, job: Job) -> BlockHash | None:
        """Give what the request goes by on the ring: system prompt, or system prompt and first user turn."""
        opening = job.beginning(job.opening_tokens)
        is_opening = self._ring_key is RingKey.OPENING
        if self._ring_key is RingKey.LONGEST:
            is_opening = opening in self._openings
            self._openings[opening] = None
            self._openings.move_to_end(opening)
            if len(self._openings) > MAX_OPENINGS:
                self._openings.popitem(last=False)
        if self._ring_key is RingKey.NATURAL:
            is_opening = job.talk is not None
        tokens = job.opening_tokens if is_opening else job.system_tokens
        if tokens < BLOCK_TOKENS:
            return None
        return BlockHash(xxh3_64_intdigest(job.beginning(tokens).to_bytes(8, "little")))
