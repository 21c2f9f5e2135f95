"""Ticket: one request at the door; ServiceClass: how those of its kind are treated there.

A ticket is moved by `admission.AdmissionQueue` alone.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from policies.endpoint import Endpoint
from policies.policy import Choice
from policies.pools import Standing
from policies.request import InferenceRequest
from policies.shares import Place

OUTPUT_WEIGHT = 2.0  # of an output token, beside a prompt token that is not cached


class State(Enum):
    """Of a ticket."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    LEFT = "left"


WAITING, GRANTED, REFUSED, LEFT = State
# each by its own name: before Python 3.12, to ask the class takes 0.2 us


class Refusal(Enum):
    """Why not: a metric label, and what the client is told."""

    FULL = "queue_full"
    """As many wait as may."""
    WAIT = "queue_wait"
    """It would wait longer than its class may."""
    DEADLINE = "deadline"
    """It would miss its own deadline."""
    SHED = "shed"
    """It waited, and had to make room for tenants that have had less."""
    NOBODY = "nobody"
    """No endpoint is there that could ever have room for it."""
    EXPIRED = "expired"
    """Its deadline, or the time its class may wait, passed while it waited."""


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """How requests of a class are treated."""

    name: str
    max_queued: int = 1024
    max_queue_wait_s: float = 2.0
    crowded_wait_s: float = float("inf")
    """The most that a newcomer may wait once the queue has not been empty for some time."""
    ceiling: float = 1.0
    """How full an endpoint may be to take another of this class."""
    floor: float = 0.0
    """Share of the work served that it gets while it waits, whatever else does."""


@dataclass(frozen=True, slots=True)
class Barred:
    """Endpoints where a request may not go: all but the one that holds what it needs, and those where it failed."""

    tried: tuple[Endpoint, ...] = ()
    holder: Endpoint | None = None

    def __contains__(self, endpoint: object) -> bool:
        return endpoint in self.tried or (self.holder is not None and endpoint is not self.holder)

    def with_tried(self, *endpoints: Endpoint) -> "Barred":
        """Bar some more."""
        return replace(self, tried=(*self.tried, *endpoints)) if endpoints else self


NOWHERE = Barred()


@dataclass(eq=False, slots=True)
class Ticket:
    """One request at the door."""

    request: InferenceRequest
    standing: Standing
    arrived_at: float
    deadline: float
    """When it is refused, if it still waits."""
    barred: Barred = NOWHERE
    state: State = WAITING
    work: float = 0.0
    """Prompt tokens that are cached nowhere, and OUTPUT_WEIGHT times the expected output."""
    predicted_wait_s: float = 0.0
    """As predicted when it came, or when it was refused."""
    reckoned_wait_s: float | None = None
    """The same before it was put right by how waits turned out; None where no pace was known to reckon by."""
    waited_s: float = 0.0
    """All in all, where it came back after a try that failed."""
    choice: Choice | None = None
    """Where it has its place, once granted."""
    refusal: Refusal | None = None
    endpoint: Endpoint | None = field(default=None, init=False)
    """Where it runs, or was promised to."""
    place: Place | None = field(default=None, init=False)

    def __repr__(self) -> str:
        at = f" {self.endpoint.name}" if self.endpoint else ""
        why = f" {self.refusal.value}" if self.refusal else ""
        return f"<Ticket {self.request.id} {self.state.value}{at}{why}>"

    def weigh(self, cached_tokens: int) -> None:
        """Note its work, of whose prompt so much is cached."""
        request = self.request
        self.work = max(1.0, request.prompt_tokens - cached_tokens + OUTPUT_WEIGHT * request.output_tokens)

    def come_back(self, failed_at: Endpoint, rules: ServiceClass, now: float) -> None:
        """Wait again, elsewhere: as if it had never gone, with what is left of the time that it may wait."""
        self.state, self.choice, self.endpoint = WAITING, None, None
        self.barred = self.barred.with_tried(failed_at)
        self.arrived_at = now - self.waited_s
        self.deadline = min(self.request.deadline, self.arrived_at + rules.max_queue_wait_s)

    def refuse(self, why: Refusal) -> None:
        """Note that it is told no."""
        self.state, self.refusal = REFUSED, why


CLASSES = (
    ServiceClass("interactive", crowded_wait_s=0.5),
    ServiceClass("batch", max_queue_wait_s=60.0, ceiling=0.9, floor=0.1),
)


class Offered(NamedTuple):
    """What became of an offer, and of others by it."""

    ticket: Ticket
    changed: list[Ticket]
    """Others whose state changed."""
