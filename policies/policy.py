"""The one seam of routing: a Policy looks at a request and the endpoints that may take it, and chooses one.

A policy is synchronous and draws on its arguments and its own seeded state alone. It never charges: `gateway/fleet.py`
and the simulator choose and charge in one step, without an await in between, so that two requests never see the same
books.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from policies.endpoint import Endpoint
from policies.request import InferenceRequest


class Reason(Enum):
    """Why this endpoint: a metric label, a response header and a span attribute."""

    ONLY = "only"
    """There was nobody else to choose."""
    TURN = "turn"
    """Its turn in a rotation."""
    CHANCE = "chance"
    LEAST_LOADED = "least_loaded"
    HOME = "home"
    """The home of the request's like on the ring."""
    SPILL = "spill"
    """Homes before it on the ring have their share already."""
    LEAST_WORK = "least_work"
    """Soonest served there, at the least cost to others; it holds nothing of the prompt."""
    PREFIX = "prefix"
    """As before, and it holds the beginning of the prompt."""
    LENT = "lent"
    """Its own pool is busy, and this one of a longer pool was idle."""
    ROOM = "room"
    """It waited, and this endpoint had room for it first."""
    HOLDS = "holds"
    """It holds the state that the request names (a stored response)."""

    def __init__(self, label: str) -> None:
        self.label = label
        """Its value, without the detour that enums make before Python 3.12."""


class Choice(NamedTuple):
    """An endpoint, what is expected of it, and why it was chosen."""

    endpoint: Endpoint
    reason: Reason
    cached_tokens: int | None = None
    """Prompt tokens expected to be in its KV cache already; None when the policy does not look at prefixes."""
    wait_s: float = 0.0
    """Predicted wait before it starts on this request."""


class Policy(Protocol):
    """Chooses an endpoint."""

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose one of `endpoints`, which is not empty and holds only those that may take the request."""
        ...
