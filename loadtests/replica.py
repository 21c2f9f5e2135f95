"""Replica: one gateway of a simulation: its policy, books and index, and of other gateways nothing but what they tell.

The decision is the one that serves: the policies of `policies/`, charged by `policies/books.py`, over the same index.
What is the simulation's own is only where requests and engine reports come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from loadtests.doors import Admission, classes, gate
from loadtests.engine import EngineModel
from loadtests.events import TrueIndex
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.rules.catalog import policy_named
from loadtests.rules.oracle import Oracle
from loadtests.scenario import RingKey
from loadtests.workloads import Job
from policies import books
from policies.admission import AdmissionQueue
from policies.endpoint import Charge, Endpoint, Pool
from policies.index import PrefixIndex
from policies.keys import ring_key
from policies.learned import OutputHabits
from policies.least_work import LeastWork
from policies.placing import place
from policies.policy import Choice
from policies.pools import TooLong, serving, standing_of
from policies.request import UNIT_TOKENS, BlockHash, InferenceRequest
from policies.tickets import State, Ticket
from policies.work import PROFILES, Make, WorkModel

MODEL = "sim"
UNIT_BLOCKS = UNIT_TOKENS // BLOCK_TOKENS
LONG_TOKENS = 32_768  # prompt and answer; the most of an engine that serves no longer ones
HOME_HOLDS = 0.95


@dataclass(eq=False, slots=True)
class Placement:
    """Where a request went, and who charged it."""

    place: int
    """Of the engine in the fleet."""
    request: InferenceRequest
    ticket: Ticket | None = None
    sent_by: "Replica | None" = None
    charges: "dict[Replica, Charge]" = field(default_factory=dict)


class Verdict(NamedTuple):
    """What became of a request: where it goes, or that it is refused."""

    id: int
    placement: Placement | None
    """None: refused."""
    is_too_long: bool = False
    """No engine takes a prompt of this length."""


class Replica:
    """One gateway.

    Args:
        policy: By its name in `--policy`.
        chance: Its own.
        profile: What its work models begin with.
        share: As in `Simulation`.
        work_factor: By how much its work models take prefills for longer than they are, until they have learned better.
        long_endpoints: How many of the engines, the last ones, serve what is longer than LONG_TOKENS, and only that.
        admission, limit: By which rule requests are let in, and its figure; see `doors`.
        smoothing_s: For so long the gateway's own queue holds bursts together.
    """

    def __init__(
        self,
        policy: str,
        engines: Sequence[EngineModel],
        chance: Random,
        *,
        profile: str,
        ring_key: RingKey,
        share: str = "own",
        work_factor: float = 1.0,
        long_endpoints: int = 0,
        admission: Admission = Admission.NONE,
        limit: float | None = None,
        smoothing_s: float = 0.0,
    ) -> None:
        self._engines = engines
        self._ring_key = ring_key
        self.index = TrueIndex() if share == "events" else PrefixIndex()
        self._habits = OutputHabits()
        make = Make()
        self.endpoints = [
            Endpoint(f"e{place}", f"sim://e{place}", frozenset((MODEL,)), work=_work(profile, work_factor, make))
            for place in range(len(engines))
        ]
        self._places = {endpoint: place for place, endpoint in enumerate(self.endpoints)}
        for endpoint, engine in zip(self.endpoints, engines, strict=True):
            endpoint.report.kv_capacity_tokens = engine.kv.capacity * BLOCK_TOKENS
            endpoint.report.block_tokens = BLOCK_TOKENS
            endpoint.max_context_tokens = engine.max_context_tokens
            endpoint.health.answered()
            if isinstance(self.index, TrueIndex):
                self.index.watch(endpoint, engine)
        normal = len(engines) - long_endpoints
        self._pools = [Pool("normal", self.endpoints[:normal], LONG_TOKENS if long_endpoints else None)]
        if long_endpoints:
            self._pools.append(Pool("long", self.endpoints[normal:]))
        self._row = serving(self._pools, MODEL)
        self._policies = {pool: policy_named(policy, chance, self.index, engines, profile) for pool in self._pools}
        for each in self._policies.values():
            if share == "pretended" and isinstance(each, LeastWork):
                each.home_holds = HOME_HOLDS

        self._may_pass = gate(admission, limit)
        self.queues = {
            pool: AdmissionQueue(pool, self._policies, self.index, classes(limit), smoothing_s=smoothing_s)
            for pool in self._pools
            if admission is Admission.FLOW
        }
        self._queue_of = {endpoint: queue for pool, queue in self.queues.items() for endpoint in pool.endpoints}

    def arrive(self, id: int, job: Job, now: float) -> list[Verdict]:
        """Let a request come; say who may go now, or is refused. One that is not named waits."""
        request = self._request(id, job)
        standing = standing_of(self._row, request, lambda pool: 0, request.prompt_tokens)
        if isinstance(standing, TooLong):
            return [Verdict(id, None, is_too_long=True)]
        for policy in self._policies.values():
            if isinstance(policy, Oracle):
                policy.job = job
        if isinstance(self.index, TrueIndex):
            self.index.look(job)
        if standing.own in self.queues:
            ticket, changed = self.queues[standing.own].offer(request, standing, now)
            return self._verdicts([*changed, ticket], now)
        choice = place(standing, self._policies, request, (), now)
        assert choice is not None
        if not self._may_pass(choice, standing.own.endpoints):
            return [Verdict(id, None)]
        return [Verdict(id, self._send(request, choice, now))]

    def first_token(self, placement: Placement, now: float) -> list[Verdict]:
        """Move what was charged to decoding; say who may go now."""
        books.first_token(placement.charges[self], now)
        return self._advance(placement, now)

    def finish(self, placement: Placement, output_tokens: int | None, now: float) -> list[Verdict]:
        """Give back what was charged; say who may go now.

        Args:
            output_tokens: None where the engine refused, or another gateway tells.
        """
        charge = placement.charges.pop(self)
        books.finish(charge, now, output_tokens)
        if charge.is_decoding:
            self.index.done(charge.endpoint, placement.request.prefix, now)
        if output_tokens is not None:
            self._habits.learn(placement.request.tenant, MODEL, output_tokens)
        ticket = placement.ticket
        if ticket is None or placement.sent_by is not self:
            return self._advance(placement, now)
        return self._verdicts(self.queues[ticket.standing.own].leave(ticket, now), now)

    @property
    def next_look(self) -> float | None:
        """Say when `look` has something to do; None while nobody waits."""
        return min(filter(None, (queue.next_look for queue in self.queues.values())), default=None)

    def look(self, now: float) -> list[Verdict]:
        """Do what time brings about at the doors: refuse those that have waited too long, end a burst."""
        return self._verdicts([ticket for queue in self.queues.values() for ticket in queue.pump(now)], now)

    def hear_dispatch(self, placement: Placement, cached_tokens: int, now: float) -> list[Verdict]:
        """Charge what another gateway has sent; that lets nobody go."""
        self._charge(placement, cached_tokens, now)
        return []

    def scrape(self, now: float) -> None:
        """Read what the engines say of themselves."""
        for endpoint, engine in zip(self.endpoints, self._engines, strict=True):
            report = endpoint.report
            report.running, report.waiting, report.kv_usage = engine.running, engine.waiting, engine.kv_usage
            if report.at > float("-inf"):
                endpoint.work.relax(now - report.at)
            report.at = now

    def _verdicts(self, tickets: Sequence[Ticket], now: float) -> list[Verdict]:
        """Send those that are granted on."""
        verdicts = []
        for ticket in tickets:
            id = int(ticket.request.id)
            if ticket.state is State.GRANTED:
                assert ticket.choice is not None
                placement = self._send(ticket.request, ticket.choice, now)
                placement.ticket = ticket
                self.queues[ticket.standing.own].started(ticket, ticket.choice.endpoint)
                verdicts.append(Verdict(id, placement))
            elif ticket.state is State.REFUSED:
                verdicts.append(Verdict(id, None))
        return verdicts

    def _send(self, request: InferenceRequest, choice: Choice, now: float) -> Placement:
        placement = Placement(self._places[choice.endpoint], request, sent_by=self)
        cached = choice.cached_tokens
        if cached is None:
            cached = self.index.matched_on(choice.endpoint, request.prefix) * request.unit_tokens
        self._charge(placement, cached, now)
        return placement

    def _advance(self, placement: Placement, now: float) -> list[Verdict]:
        endpoint = self.endpoints[placement.place]
        queue = self._queue_of.get(endpoint)
        return [] if queue is None else self._verdicts(queue.advance(endpoint, now), now)

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
            service_class=job.service_class,
        )

    def _key(self, job: Job) -> BlockHash | None:
        """Give what the request goes by on the ring."""
        if job.ring is not None:
            return BlockHash(job.ring)
        system, opening = _named(job, job.system_tokens), _named(job, job.opening_tokens)
        match self._ring_key:
            case RingKey.ANSWERED:
                return ring_key(system, opening, is_answered=job.prompt_tokens > job.opening_tokens)
            case RingKey.SYSTEM:
                return system
            case RingKey.OPENING:
                return opening
            case RingKey.NATURAL:
                return opening if job.talk is not None else system


def _named(job: Job, tokens: int) -> BlockHash | None:
    """Name the beginning of a prompt."""
    if tokens < BLOCK_TOKENS:
        return None
    return BlockHash(xxh3_64_intdigest(job.beginning(tokens).to_bytes(8, "little")))


def _work(profile: str, factor: float, make: Make) -> WorkModel:
    true = PROFILES[profile]
    return WorkModel(replace(true, p0=true.p0 * factor, p1=true.p1 * factor, p2=true.p2 * factor), make)
