"""What routing may know of an engine, and the named sets in which engines serve.

An Endpoint is one incarnation of an engine: one that restarts, or leaves and comes back, is a new Endpoint with clean
books, and leases on the old one end on the old one. `eq=False`: identity is what counts.

Who writes: `gateway/fleet.py` the books (`outstanding`), `gateway/probe.py` health and the engine's own figures.
Policies only read.
"""

from dataclasses import dataclass, field

from policies.health import Health


@dataclass(slots=True)
class EngineReport:
    """What an engine last said of itself. None means it did not say: missing is not zero."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache held by live requests, 0 to 1."""
    kv_capacity_tokens: int | None = None
    block_tokens: int | None = None
    is_asleep: bool | None = None
    """Whether its weights are put away: it answers health checks and serves nothing."""
    prefix_hit_tokens: float | None = None
    prefix_query_tokens: float | None = None
    at: float = float("-inf")
    """Monotonic seconds of the report."""


@dataclass(slots=True)
class Outstanding:
    """What this gateway has sent to an endpoint and not yet got back. Exact under every way out; never negative."""

    requests: int = 0
    prefill_tokens: int = 0
    """Prompt tokens of requests that have not shown a first token."""
    decoding: int = 0
    """Requests past their first token."""


@dataclass(eq=False, slots=True)
class Endpoint:
    """One engine, in one incarnation."""

    name: str
    url: str
    models: frozenset[str] = frozenset()
    """Model names it serves, as clients call them. Empty until it has told, when the configuration names none."""
    max_context_tokens: int | None = None
    """Prompt plus output it takes; None when neither engine nor configuration says."""
    health: Health = field(default_factory=Health)
    outstanding: Outstanding = field(default_factory=Outstanding)
    report: EngineReport = field(default_factory=EngineReport)

    def __repr__(self) -> str:
        return f"<Endpoint {self.name} {self.health.state.value} {self.outstanding.requests} in flight>"


@dataclass(eq=False, slots=True)
class Pool:
    """A named set of endpoints that one policy spreads requests over."""

    name: str
    endpoints: list[Endpoint] = field(default_factory=list)
    max_context_tokens: int | None = None
