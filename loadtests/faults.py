"""Fault, Faults: what may go wrong with a simulated engine, on demand.

A fault lasts for the next `times` requests it hits, or until cleared. Some belong to single requests (`draw`
hands them out), some to the engine as a whole (`has` and `of` ask for them). Several can hold at once: gzip
and CRLF, say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """What goes wrong. The first group hits single requests, the second the engine."""

    RESET = "reset"
    """RST once the request is read, before any byte of the answer."""
    RESET_AFTER = "reset_after"
    """RST after `after` events of the stream (0: after its head)."""
    CLOSE_AFTER = "close_after"
    """FIN after `after` events, the chunked body left open."""
    TRUNCATE = "truncate"
    """A clean end after `after` events, without [DONE]."""
    HANG = "hang"
    """Not a byte, not even the head."""
    HANG_AFTER = "hang_after"
    """Silence after `after` events (0: the head alone)."""
    STATUS = "status"
    """`status` at once, with `body`, or what vLLM or SGLang would say; retry_after_s, retry_after_ms as
    headers."""
    ERROR_FIRST = "error_first"
    """A 200 stream whose first event is an error, then [DONE]: SGLang's full queue. Not streamed: that
    status."""
    ERROR_DONE = "error_done"
    """After `after` events an error event, then [DONE]: vLLM's dead core. Not streamed: 500."""
    ABORT = "abort"
    """After `after` tokens a clean end with finish_reason "abort"."""
    GZIP = "gzip"
    DRIBBLE = "dribble"
    """TCP segments of one byte."""
    CRLF = "crlf"
    """SSE lines end in CRLF."""
    USAGE_TWICE = "usage_twice"
    """Usage in the last two chunks of a stream, if asked for."""
    NO_USAGE = "no_usage"
    HUGE_ERROR = "huge_error"
    """`status` with a body of `size` bytes, streamed."""
    HUGE_ANSWER = "huge_answer"
    """A stream of `size` bytes of content, as fast as the client reads."""

    REFUSE = "refuse"
    """No listener: connections are refused, open ones are reset."""
    RESET_ON_ACCEPT = "reset_on_accept"
    """RST as soon as a connection is made."""
    SLOW = "slow"
    """Every iteration takes `factor` times as long."""
    STALL = "stall"
    """No iteration ends; health and metrics answer."""
    BLACK_HOLE = "black_hole"
    """Connections are taken, nothing is ever answered, health included."""
    FROZEN_METRICS = "frozen_metrics"
    """The page stays as it was when the fault came."""
    UNHEALTHY = "unhealthy"
    """/health says 503, all else works."""
    NOT_READY = "not_ready"
    """/health and every engine call say 503, for `seconds` or until cleared."""
    STALE_REUSE = "stale_reuse"
    """Connections idle for `seconds` (1) look alive and are reset when used again."""


ENGINE_WIDE = frozenset(list(Kind)[list(Kind).index(Kind.REFUSE) :])


@dataclass(slots=True)
class Fault:
    """One fault, with what its kind needs."""

    kind: Kind
    times: int | None = None
    """Requests (or connections) it still hits; None: until cleared."""
    probability: float = 1.0
    after: int = 0
    status: int = 503
    retry_after_s: float | None = None
    retry_after_ms: float | None = None
    body: str | None = None
    factor: float = 1.0
    seconds: float | None = None
    size: int = 100_000_000
    paths: tuple[str, ...] = ()
    """Paths it hits; none named: every POST of an engine's own API."""

    def __post_init__(self) -> None:
        self.kind = Kind(self.kind)
        self.paths = tuple(self.paths)


@dataclass(slots=True)
class Faults:
    """The faults in force."""

    chance: Random
    active: list[Fault] = field(default_factory=list)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.active)

    def add(self, fault: Fault) -> None:
        """Let a fault hold from now on."""
        self.active.append(fault)

    def clear(self, kind: Kind | None = None) -> None:
        """End all faults, or those of one kind."""
        self.active = [fault for fault in self.active if kind is not None and fault.kind is not kind]

    def of(self, kind: Kind) -> Fault | None:
        """Give the fault of a kind that holds now."""
        return next((fault for fault in self.active if fault.kind is kind), None)

    def strikes(self, kind: Kind) -> bool:
        """Say whether an engine-wide fault hits this once, and count it."""
        fault = self.of(kind)
        return fault is not None and self._hits(fault)

    def draw(self, method: str, path: str) -> dict[Kind, Fault]:
        """Give the faults that hit this request, and count them."""
        hit: dict[Kind, Fault] = {}
        for fault in list(self.active):
            if fault.kind in ENGINE_WIDE or fault.kind in hit:
                continue
            if (path in fault.paths if fault.paths else method == "POST") and self._hits(fault):
                hit[fault.kind] = fault
        return hit

    def _hits(self, fault: Fault) -> bool:
        if fault.probability < 1.0 and self.chance.random() >= fault.probability:
            return False
        if fault.times is not None:
            fault.times -= 1
            if fault.times <= 0:
                self.active.remove(fault)
        return True
