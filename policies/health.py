"""The state machine of an endpoint: may it be given new requests?

    starting --answered--> ready <--answered-- ejected
                           |   ^                  ^
                 failures  v   | answered         | probe failures
                         suspect -----------------+
    any --drain--> draining (for good: a drained engine that comes back is a new Endpoint)

Who moves it: `gateway/probe.py` tells of health checks, `gateway/lease.py` of what requests met. Two kinds of bad news
are kept apart: *failures* (refused, reset, 5xx) say that the engine may be broken; *not now* (429, 503 with a
Retry-After) says that it is well but busy, and only sets a time before which nothing new is sent.

A suspect still serves when nobody is ready: one lost packet must not empty a pool. What never happens: an endpoint that
is starting, ejected or draining gets a request; a client's mistake (4xx) counts as a failure.
"""

from dataclasses import dataclass
from enum import Enum

SUSPECT_AFTER = 2  # failed requests in a row: one in a hundred fails at random in healthy fleets, two in a row in none
EJECT_AFTER = 3  # failed probes in a row
MAX_COOL_S = 60.0  # an engine that asks for more is asked again after this


class State(Enum):
    """Where an endpoint stands."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    DRAINING = "draining"


_READY, _SUSPECT = State.READY, State.SUSPECT  # before Python 3.12, to ask the class takes 0.2 us


@dataclass(slots=True)
class Health:
    """What is known of one endpoint's fitness."""

    state: State = State.STARTING
    cool_until: float = float("-inf")
    """Monotonic seconds before which the engine asked to be left alone."""
    failed_requests: int = 0
    """In a row, since the last success."""
    failed_probes: int = 0

    def is_ready(self, now: float) -> bool:
        """Whether it may be given a request."""
        return self.state is _READY and now >= self.cool_until

    def is_cooling(self, now: float) -> bool:
        """Whether it asked to be left alone and is otherwise well."""
        return self.state in (_READY, _SUSPECT) and now < self.cool_until

    def is_last_resort(self, now: float) -> bool:
        """Whether it may be given a request when nobody is ready."""
        return self.state is _SUSPECT and now >= self.cool_until

    def answered(self) -> None:
        """Note that it passed a health check."""
        self.failed_probes = self.failed_requests = 0
        if self.state is not State.DRAINING:
            self.state = _READY

    def unanswered(self) -> None:
        """Note that it failed a health check: refused, timed out, or said it is not well."""
        self.failed_probes += 1
        if self.state is _READY:
            self.state = _SUSPECT
        if self.state is _SUSPECT and self.failed_probes >= EJECT_AFTER:
            self.state = State.EJECTED

    def served(self) -> None:
        """Note that a request was answered, whatever the status: it lives."""
        self.failed_requests = 0
        if self.state is _SUSPECT and not self.failed_probes:
            self.state = _READY

    def failed(self) -> None:
        """Note that a request could not be sent or was broken off by the engine."""
        self.failed_requests += 1
        if self.state is _READY and self.failed_requests >= SUSPECT_AFTER:
            self.state = _SUSPECT

    def not_now(self, now: float, retry_after_s: float) -> None:
        """Note that it is busy and asked to be left alone for `retry_after_s`."""
        self.cool_until = max(self.cool_until, now + min(retry_after_s, MAX_COOL_S))

    def drain(self) -> None:
        """Give it nothing new, for good."""
        self.state = State.DRAINING
