"""Member: an engine of the fleet; FleetPool: those that one policy spreads requests over."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Protocol

from gateway.config import EndpointConfig, Kind
from gateway.engines.adapter import ServedModel
from policies.endpoint import Endpoint, Pool
from policies.forecast import HitForecast
from policies.health import State
from policies.index import PrefixIndex
from policies.policy import Policy
from policies.request import InferenceRequest

LATELY = 64  # requests: a sample, to tell what prompts share; looking at them takes half a millisecond


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
    entered: Counter[State] = field(default_factory=Counter)
    """How often it came into each state, as health checks saw it."""
    restarts: int = 0
    trouble: str = ""
    """What keeps it from being ready, in words; empty where nothing does."""
    listed: tuple[ServedModel, ...] = ()
    """The models that it says it has."""
    forecast: HitForecast = field(default_factory=HitForecast)
    in_flight: set[InFlight] = field(default_factory=set)
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

    def names_of(self, model: str) -> tuple[frozenset[str], bool]:
        """Give all names here of the weights that a model runs on, and whether it is an adapter of them."""
        by_id = {served.id: served for served in self.listed}
        served = by_id.get(model)
        is_adapter = served is not None and served.parent is not None and served.parent != model
        if served is not None and is_adapter:
            model, served = served.parent or model, by_id.get(served.parent or model)
        if served is None or served.root is None:
            return frozenset((model,)), is_adapter
        same = {each.id for each in self.listed if each.root == served.root and each.parent is None}
        return frozenset(same | {model}), is_adapter


@dataclass(eq=False, slots=True)
class FleetPool:
    """A pool, the policy that spreads requests over it, and what its endpoints probably hold."""

    pool: Pool
    policy: Policy
    index: PrefixIndex
    members: list[Member] = field(default_factory=list)
    lately: deque[InferenceRequest] = field(default_factory=lambda: deque(maxlen=LATELY))
    """The last that were sent there; who looks at them takes them."""

    @property
    def name(self) -> str:
        """The pool's name in headers and metrics."""
        return self.pool.name
