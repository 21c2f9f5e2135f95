"""The endpoints, and the one step in which a request is given to one of them.

`lease` chooses and charges without an await in between: two requests never see the same books. A Lease is a context
manager; leaving it, in whatever way, gives back exactly what was charged, exactly once. It belongs to the Endpoint it
was taken on: when an engine restarts, its Endpoint is replaced by a new one with clean books, and old leases end on the
old one.

Fleet writes the books and tells health what requests met; `gateway/probe.py` writes what polls found. Nobody else does.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from gateway.config import EndpointConfig, Kind
from gateway.errors import GatewayError, ModelNotFound, Overloaded
from policies import books
from policies.endpoint import Endpoint, Pool
from policies.index import PrefixIndex
from policies.policy import Choice, Policy, Reason
from policies.pools import candidates, earliest_s, is_served_by
from policies.request import InferenceRequest

UNKNOWN_WAIT_S = 1.0  # about one health interval: when something may be up again


class InFlight(Protocol):
    """An answer that an engine is working on."""

    def give_up_if_silent(self, for_s: float) -> None:
        """Wait no longer, where nothing has come from the engine for so long."""


@dataclass(eq=False, slots=True)
class Member:
    """An engine of the fleet: its configuration, what it turned out to be, and its present Endpoint."""

    config: EndpointConfig
    pool: "FleetPool"
    endpoint: Endpoint
    kind: Kind | None = None
    """None until it has been asked."""
    leases_total: int = 0
    trouble: str = ""
    """What keeps it from being ready, in words; empty where nothing does."""
    in_flight: set["InFlight"] = field(default_factory=set)
    """Answers that are waited for or relayed."""
    path_prefix: str = ""
    """Of the endpoint's URL, before every path."""
    header_lines: str = ""
    """What every request to this engine carries: host, and its key if it has one."""

    def __post_init__(self) -> None:
        host, _, prefix = self.config.url.partition("://")[2].partition("/")
        self.path_prefix = f"/{prefix}" if prefix else ""
        self.header_lines = f"host: {host}\r\n"
        if self.config.api_key:
            self.header_lines += f"authorization: Bearer {self.config.api_key}\r\n"


@dataclass(eq=False, slots=True)
class FleetPool:
    """A pool, the policy that spreads requests over it, and what its endpoints probably hold."""

    pool: Pool
    policy: Policy
    index: PrefixIndex
    members: list[Member] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The pool's name in headers and metrics."""
        return self.pool.name


class Lease:
    """One request's charge on one endpoint."""

    __slots__ = ("_charge", "_clock", "_is_open", "choice", "member", "output_tokens")

    def __init__(self, member: Member, choice: Choice, request: InferenceRequest, clock: Callable[[], float]) -> None:
        now = clock()
        index = member.pool.index
        self.member = member
        self.output_tokens: int | None = None
        """What the engine says it produced, once it has."""
        if choice.cached_tokens is None and request.prefix:
            held = index.matched_on(choice.endpoint, request.prefix) * request.unit_tokens
            choice = choice._replace(cached_tokens=held)
        self.choice = choice
        self._clock = clock
        self._is_open = True
        self._charge = books.dispatch(choice.endpoint, request, now, choice.cached_tokens or 0)
        index.learn(choice.endpoint, request.prefix, now)
        member.leases_total += 1

    @property
    def endpoint(self) -> Endpoint:
        """The incarnation that was charged."""
        return self.choice.endpoint

    def first_token(self) -> None:
        """Note that the prefill is done."""
        if self._is_open and not self._charge.is_decoding:
            books.first_token(self._charge, self._clock())

    def served(self) -> None:
        """Note that the engine answered: it lives, whatever it said."""
        self.endpoint.health.served()

    def failed(self) -> None:
        """Note that the engine could not be reached or broke off."""
        self.endpoint.health.failed()

    def not_now(self, retry_after_s: float) -> None:
        """Note that the engine asked to be left alone."""
        self.endpoint.health.not_now(self._clock(), retry_after_s)

    def drain(self) -> None:
        """Note that the engine is shutting down."""
        self.endpoint.health.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._is_open
        self._is_open = False
        books.finish(self._charge, self._clock(), self.output_tokens)


class Fleet:
    """All pools and their engines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.pools: list[FleetPool] = []
        self._members: dict[Endpoint, Member] = {}

    # Who is there.

    def add_pool(self, name: str, policy: Policy, index: PrefixIndex | None = None) -> FleetPool:
        """Open a pool; its policy may ask `index`, which is told where requests went."""
        pool = FleetPool(Pool(name), policy, PrefixIndex() if index is None else index)
        self.pools.append(pool)
        return pool

    def add(self, pool: FleetPool, config: EndpointConfig) -> Member:
        """Let an engine join; it gets requests once a health check has found it well."""
        endpoint = Endpoint(
            config.label, config.url, frozenset(config.models), max_context_tokens=config.max_context_tokens
        )
        member = Member(config, pool, endpoint, config.known_kind)
        pool.members.append(member)
        pool.pool.endpoints.append(endpoint)
        self._members[endpoint] = member
        return member

    def remove(self, member: Member) -> None:
        """Let an engine go; what runs there ends there."""
        member.endpoint.health.drain()
        member.pool.members.remove(member)
        member.pool.pool.endpoints.remove(member.endpoint)
        member.pool.index.forget(member.endpoint)
        del self._members[member.endpoint]

    def renew(self, member: Member) -> None:
        """Put a new Endpoint in the place of one whose engine has restarted: clean books, nothing known, starting."""
        old = member.endpoint
        new = Endpoint(old.name, old.url, old.models, old.max_context_tokens)
        endpoints = member.pool.pool.endpoints
        endpoints[endpoints.index(old)] = new
        member.pool.index.forget(old)
        del self._members[old]
        self._members[new] = member
        member.endpoint = new

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

    def pool_for(self, model: str) -> FleetPool:
        """Find the pool that serves a model.

        Raises:
            ModelNotFound: no engine serves it, and all have told what they serve.
            Overloaded: it is not known yet: an engine has never answered.
        """
        for pool in self.pools:
            if is_served_by(pool.pool, model):
                return pool
        if any(not member.endpoint.models for member in self.members()):
            raise Overloaded(
                f"no engine that is up serves the model {model!r}, and some have not answered yet",
                retry_after_s=UNKNOWN_WAIT_S,
            )
        raise ModelNotFound(f"the model {model!r} does not exist here", param="model")

    def lease(self, request: InferenceRequest, pool: FleetPool, tried: Container[Endpoint] = ()) -> Lease:
        """Choose an endpoint and charge it.

        Raises:
            Overloaded: no endpoint may take the request now.
        """
        now = self._clock()
        endpoints = candidates(pool.pool, request.model, tried, now)
        if not endpoints:
            raise self._nobody(pool, request.model, now)
        choice = pool.policy.choose(request, endpoints, now)
        return Lease(self._members[choice.endpoint], choice, request, self._clock)

    def lease_on(self, member: Member, request: InferenceRequest) -> Lease:
        """Charge a given endpoint: it holds what the request needs.

        Raises:
            Overloaded: it is not up.
        """
        now = self._clock()
        health = member.endpoint.health
        if not (health.is_ready(now) or health.is_last_resort(now)):
            raise Overloaded(
                f"the endpoint {member.endpoint.name} that holds this is {health.state.value}",
                retry_after_s=max(UNKNOWN_WAIT_S, health.cool_until - now),
            )
        return Lease(member, Choice(member.endpoint, Reason.HOLDS), request, self._clock)

    def _nobody(self, pool: FleetPool, model: str, now: float) -> GatewayError:
        states: dict[str, int] = {}
        for endpoint in pool.pool.endpoints:
            if model in endpoint.models:
                state = "busy" if endpoint.health.is_cooling(now) else endpoint.health.state.value
                states[state] = states.get(state, 0) + 1
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        wait_s = earliest_s(pool.pool, model, now)
        return Overloaded(
            f"no endpoint of pool {pool.name} can take the model {model!r} now: {told}",
            retry_after_s=UNKNOWN_WAIT_S if wait_s is None else wait_s,
        )
