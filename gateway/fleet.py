"""The endpoints, and the one step in which a request is given to one of them.

Choosing and charging are one step without an await in between, so that two requests never see the same books: `lease`
does both where nobody waits; else the door of the pool chooses (`queue_for`), and `lease_at` charges in the same call.
What is known of a model over all its engines (which pools serve it, what its prefixes are rooted in, how long a unit
is) is reckoned once and again after any of them has changed.

A lease writes the books and tells health what requests met; `gateway/probe.py` tells what polls found, and hands over
through `hear` what an engine says of its load.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.config import EndpointConfig
from gateway.errors import ContextLengthExceeded, GatewayError, ModelNotAllowed, ModelNotFound, Overloaded
from gateway.lease import Lease
from gateway.members import FleetPool, Member
from policies.admission import AdmissionQueue
from policies.endpoint import Endpoint, EngineReport, Pool
from policies.explained import Candidate, explain
from policies.flow import Flow
from policies.health import State
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.placing import place
from policies.policy import Choice, Policy, Reason
from policies.pools import Serving, Standing, TooLong, earliest_s, is_able, serving, standing_of
from policies.prefix import root_of
from policies.request import BlockHash, InferenceRequest, unit_for
from policies.tickets import ServiceClass
from policies.work import PROFILES, Make, WorkModel

UNKNOWN_WAIT_S = 1.0  # about one health interval: when something may be up again


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model over all its engines."""

    name: str
    base: str
    """The first, by the alphabet, of the names under which its engines serve the same weights: one cache for all."""
    adapter: str
    """Its own name where it is an adapter; empty else."""
    unit_tokens: int
    root: BlockHash
    """Of its prefixes, where the client sets no cache salt."""
    row: tuple[Serving, ...]
    """The pools that serve it."""

    def root_with(self, salt: object) -> BlockHash:
        """Give what its prefixes are rooted in: engines keep what has different salts apart."""
        return root_of(self.base, self.adapter, salt) if salt and isinstance(salt, str) else self.root

    @property
    def most_tokens(self) -> float:
        """Prompt plus output that its largest pool takes."""
        return self.row[-1].limit_tokens


class Fleet:
    """All pools and their engines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.pools: list[FleetPool] = []
        self._indexes: dict[Pool, PrefixIndex] = {}
        self._policies: dict[Pool, Policy] = {}
        self._yardsticks: dict[Pool, LeastWork] = {}
        self._members: dict[Endpoint, Member] = {}
        self._facts: dict[str, ModelFacts] = {}
        self._makes: defaultdict[tuple[str, str], Make] = defaultdict(Make)
        """By pool and profile: engines that are thought to be alike learn from each other."""

    # Who is there.

    def add_pool(
        self,
        name: str,
        policy: Policy,
        index: PrefixIndex | None = None,
        *,
        max_context_tokens: int | None = None,
        max_uncached_tokens: int | None = None,
        classes: Iterable[str] = (),
        lends: bool = True,
    ) -> FleetPool:
        """Open a pool; its policy may ask `index`, which is told where requests went."""
        pool = Pool(
            name,
            max_context_tokens=max_context_tokens,
            max_uncached_tokens=max_uncached_tokens,
            classes=frozenset(classes),
            lends=lends,
        )
        opened = FleetPool(pool, policy, PrefixIndex() if index is None else index)
        self.pools.append(opened)
        self._indexes[pool] = opened.index
        self._policies[pool] = policy
        self._yardsticks[pool] = LeastWork(opened.index)
        return opened

    def add(self, pool: FleetPool, config: EndpointConfig) -> Member:
        """Let an engine join; it gets requests once a health check has found it well."""
        endpoint = Endpoint(
            config.label,
            config.url,
            frozenset(config.models),
            max_context_tokens=config.max_context_tokens,
            work=WorkModel(PROFILES[config.profile], self._makes[pool.name, config.profile]),
        )
        member = Member(config, pool, endpoint, config.known_kind)
        pool.members.append(member)
        pool.pool.endpoints.append(endpoint)
        self._members[endpoint] = member
        self.changed()
        return member

    def remove(self, member: Member) -> None:
        """Let an engine go; what runs there ends there."""
        member.endpoint.health.drain()
        member.pool.members.remove(member)
        member.pool.pool.endpoints.remove(member.endpoint)
        member.pool.index.forget(member.endpoint)
        del self._members[member.endpoint]
        self.changed()

    def renew(self, member: Member) -> None:
        """Put a new Endpoint in the place of one whose engine has restarted: clean books, nothing known, starting."""
        old = member.endpoint
        new = Endpoint(
            old.name,
            old.url,
            old.models,
            old.max_context_tokens,
            unit_tokens=old.unit_tokens,
            cuts_output=old.cuts_output,
            can=old.can,
            work=old.work,  # the same hardware
        )
        endpoints = member.pool.pool.endpoints
        endpoints[endpoints.index(old)] = new
        member.pool.index.forget(old)
        del self._members[old]
        self._members[new] = member
        member.endpoint = new

    def hear(self, member: Member, report: EngineReport) -> None:
        """Take what an engine says of itself; what it leaves out of its size is as it was."""
        old = member.endpoint.report
        if report.kv_capacity_tokens is None:
            report.kv_capacity_tokens = old.kv_capacity_tokens
        if report.block_tokens is None:
            report.block_tokens = old.block_tokens
        member.endpoint.report = report
        member.endpoint.forget_outlook()
        if report.at > old.at > float("-inf"):
            member.endpoint.work.relax(report.at - old.at)
        member.forecast.note_counters(report.prefix_hit_tokens, report.prefix_query_tokens, report.at)
        if report.block_tokens != old.block_tokens:
            self.changed()

    def changed(self) -> None:
        """Forget what was reckoned of models: an engine came, went, or serves otherwise than before."""
        self._facts.clear()
        for member in self.members():
            endpoint = member.endpoint
            unit = max((self.facts(model).unit_tokens for model in endpoint.models), default=endpoint.unit_tokens)
            if unit != endpoint.unit_tokens:
                endpoint.unit_tokens = unit
                member.pool.index.forget(endpoint)  # it was told in other units

    def members(self) -> Iterator[Member]:
        """Walk over all engines."""
        for pool in self.pools:
            yield from pool.members

    def member_of(self, endpoint: Endpoint) -> Member | None:
        """Find the engine of an incarnation; None if that has ended."""
        return self._members.get(endpoint)

    def models(self) -> dict[str, int | None]:
        """Give every known model with the largest context that an endpoint offers for it."""
        known: dict[str, int | None] = {}
        for member in self.members():
            limit = member.endpoint.max_context_tokens
            for model in sorted(member.endpoint.models):
                known[model] = max(filter(None, (known.get(model), limit)), default=None)
        return known

    def is_serving(self) -> bool:
        """Whether at least one endpoint may be given a request."""
        now = self._clock()
        return any(
            member.endpoint.health.is_ready(now) or member.endpoint.health.is_last_resort(now)
            for member in self.members()
        )

    # Who gets it.

    def facts(self, model: str) -> ModelFacts:
        """Say what is known of a model.

        Raises:
            ModelNotFound: no engine serves it, and all have told what they serve.
            Overloaded: it is not known yet: an engine has never answered.
        """
        facts = self._facts.get(model)
        if facts is None:
            facts = self._facts[model] = self._reckoned(model)
        return facts

    def root_at(self, member: Member, adapter: str, salt: str) -> BlockHash | None:
        """Give what prefixes are rooted in at an engine, for an adapter or none; None where that is not known."""
        endpoint = member.endpoint
        adapters = {served.id for served in member.listed if served.parent is not None}
        named = adapter if adapter in endpoint.models else min(endpoint.models - adapters, default=None)
        if named is None or (adapter and named != adapter):
            return None
        return self.facts(named).root_with(salt)

    def standing(self, request: InferenceRequest, least_prompt_tokens: int, param: str | None = None) -> Standing:
        """Find the pools that a request belongs to.

        Args:
            least_prompt_tokens: What its prompt has for certain.
            param: The member of the body that holds the prompt.

        Raises:
            ContextLengthExceeded: it fits into none.
            ModelNotAllowed: it needs what no engine of its model can do.
            Overloaded: it is not known yet whether one can.
        """
        found = standing_of(
            self._able_row(request), request, lambda pool: self._cached_in(pool, request), least_prompt_tokens
        )
        if isinstance(found, TooLong):
            about = "" if least_prompt_tokens == request.prompt_tokens else "at least "
            raise ContextLengthExceeded(
                f"this model's maximum context length is {found.most_tokens} tokens (pool {found.pool.name}); this "
                f"request needs {about}{found.needed_tokens}: {about}{least_prompt_tokens} of prompt and "
                f"{found.needed_tokens - least_prompt_tokens} of output",
                param=param,
            )
        return found

    def lease(self, request: InferenceRequest, standing: Standing, tried: Container[Endpoint] = ()) -> Lease:
        """Choose an endpoint and charge it.

        Raises:
            Overloaded: no endpoint may take the request now.
        """
        now = self._clock()
        choice = place(standing, self._policies, request, tried, now)
        if choice is None:
            raise self.nobody(standing, request.model, now)
        return Lease(self._members[choice.endpoint], choice, request, self._clock)

    def lease_at(self, choice: Choice, request: InferenceRequest) -> Lease:
        """Charge what the door of a pool has chosen."""
        return Lease(self._members[choice.endpoint], choice, request, self._clock)

    def explain(self, request: InferenceRequest, standing: Standing, tried: Container[Endpoint]) -> Sequence[Candidate]:
        """Say how the endpoints stand for a request that one is about to be chosen for."""
        return explain(standing, self._yardsticks, request, tried, self._clock())

    def queue_for(self, pool: Pool, classes: Sequence[ServiceClass], flow: Flow, smoothing_s: float) -> AdmissionQueue:
        """Make the door of a pool."""
        return AdmissionQueue(pool, self._policies, self._indexes[pool], classes, flow, smoothing_s)

    def may_recover(self, model: str, standing: Standing, barred: Container[Endpoint]) -> bool:
        """Whether an endpoint lives that serves a model, though it may have asked to be left alone for a while."""
        return any(
            model in endpoint.models
            and endpoint.health.state in (State.READY, State.SUSPECT)
            and endpoint not in barred
            for pool in (standing.own, *standing.longer, *standing.shorter)
            for endpoint in pool.endpoints
        )

    def lease_on(self, member: Member, request: InferenceRequest) -> Lease:
        """Charge a given endpoint: it holds what the request needs.

        Raises:
            Overloaded, ModelNotAllowed: as `standing_on`.
        """
        self.standing_on(member, request)
        return Lease(member, Choice(member.endpoint, Reason.HOLDS), request, self._clock)

    def standing_on(self, member: Member, request: InferenceRequest) -> Standing:
        """Give the pool of a given endpoint, which holds what the request needs.

        Raises:
            Overloaded: it is not up.
            ModelNotAllowed: it cannot do what the request needs.
        """
        if request.needs and request.needs not in member.endpoint.can:
            raise _unable(request, [member])
        now = self._clock()
        health = member.endpoint.health
        if not (health.is_ready(now) or health.is_last_resort(now)):
            raise Overloaded(
                f"the endpoint {member.endpoint.name} that holds this is {health.state.value}",
                retry_after_s=max(UNKNOWN_WAIT_S, health.cool_until - now),
            )
        return Standing(member.pool.pool)

    def nobody(self, standing: Standing, model: str, now: float) -> GatewayError:
        """Say that no endpoint may take a request now, and when one may."""
        pools = (standing.own, *standing.longer, *standing.shorter)
        states: dict[str, int] = {}
        for endpoint in (endpoint for pool in pools for endpoint in pool.endpoints):
            if model in endpoint.models:
                state = "busy" if endpoint.health.is_cooling(now) else endpoint.health.state.value
                states[state] = states.get(state, 0) + 1
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        waits = [wait_s for pool in pools if (wait_s := earliest_s(pool, model, now)) is not None]
        return Overloaded(
            f"no endpoint of pool {standing.own.name} can take the model {model!r} now: {told}",
            retry_after_s=min(waits, default=UNKNOWN_WAIT_S),
        )

    # Inside.

    def _reckoned(self, model: str) -> ModelFacts:
        """Bring together what the engines of a model say."""
        members = [member for member in self.members() if model in member.endpoint.models]
        if not members:
            if any(not member.endpoint.models for member in self.members()):
                raise Overloaded(
                    f"no engine that is up serves the model {model!r}, and some have not answered yet",
                    retry_after_s=UNKNOWN_WAIT_S,
                )
            raise ModelNotFound(f"the model {model!r} does not exist here", param="model")
        named = [member.names_of(model) for member in members]
        adapter = model if any(is_adapter for _, is_adapter in named) else ""
        base = min(name for names, _ in named for name in names)
        blocks = {member.endpoint.report.block_tokens for member in members}
        return ModelFacts(
            model,
            base,
            adapter,
            unit_for(block for block in blocks if block),
            root_of(base, adapter),
            tuple(serving((pool.pool for pool in self.pools), model)),
        )

    def _able_row(self, request: InferenceRequest) -> Sequence[Serving]:
        """Give the pools that serve a request's model and can do what else it needs."""
        row = self.facts(request.model).row
        if not request.needs:
            return row
        able = [each for each in row if any(is_able(endpoint, request) for endpoint in each.pool.endpoints)]
        if not able:
            raise _unable(request, [member for member in self.members() if request.model in member.endpoint.models])
        return able

    def _cached_in(self, pool: Pool, request: InferenceRequest) -> int:
        """Count the prompt tokens that the endpoint with the longest match holds."""
        matched = self._indexes[pool].matched(request.prefix)
        return next(reversed(matched.values()), 0) * request.unit_tokens


def _unable(request: InferenceRequest, members: Iterable[Member]) -> GatewayError:
    """Say that none of these engines can do what a request needs, or that it is not known yet."""
    if any(member.kind is None or member.endpoint.health.state is State.STARTING for member in members):
        return Overloaded("no engine that can keep caches apart has answered yet", retry_after_s=UNKNOWN_WAIT_S)
    return ModelNotAllowed(
        f"this key's caches are kept apart from those of others, and no engine of the model {request.model!r} can do "
        f"that for {request.needs}",
        param="model",
    )
