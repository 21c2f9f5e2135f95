"""How many engines a pool should have: what its work needs, and an advice that does not flutter.

What is in flight and what waits is brought to one unit, engines' worth, which can be added up over endpoints, and over
gateways that each see a part of the traffic.

busy     What the requests at an endpoint would fill of an engine that just keeps to its objective, at the pace at which
         they come. By the rule of admission (`flow.py`) an engine takes t per token, and is full at L:

             t = slip * (d0 + k) / (1 - s)

         with d0 what a step costs with nobody in it, k what its decodes and their context add, s its share of time in
         prefills. Were x engines' traffic brought together on one that is full by it, s would grow by x, and k by
         x * L / t, since requests stay longer where tokens take longer (Little's law). Solved for x,

             busy = 1 / x = (slip * k * L / t + L * s) / (L - slip * d0)

         is linear in what comes, where "how full" is not: an engine with one request is a fifth full, and five of
         those need no engine each. Memory and places may be scarcer: of a share f in use, by the same reasoning,

             busy = (f * d0 + k) / (d0 + k)

         and where an engine is beyond what it can do, what is there counts as it is.
backlog  Engine seconds not begun: who waits in the gateway would wait so long, and is drained by as many engines as
         are busy for it; and prefills that wait at endpoints beyond what admission lets wait there.
needed   busy / utilization + backlog / drain_s: room for what is to come, and the queue gone within drain_s. Averaged
         over SMOOTH_S: one long prompt is no trend.

The advice is a whole number, right within TOLERANCE: it stays at what there is while that is. It asks for one more
where requests miss their objective though the pool has work; at most doubles what there is, since a model may be wrong
and the next look is soon; and goes down only to the most it was in the last `calm_s` (as Kubernetes' autoscaler does):
engines take minutes to come back, and are idle cheaply. Where no engine serves it says what there is: that is an
outage, and no sign that nobody comes. It begins with what there is, so that a gateway that restarts takes none away.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil, exp

from policies.endpoint import Endpoint
from policies.flow import MAX_BACKLOG_S, ROOM, TIGHT, Flow

SMOOTH_S = 15.0
TOLERANCE = 0.1  # as in Kubernetes; `utilization` leaves more room than that
LEAST_SLACK = 0.1  # of L: where even an empty engine is too slow, what it needs is not infinite
MEMORY_S = 60.0  # of who met an objective
FEW = 50  # requests: fewer tell no share, and the first ones find caches cold
IDLE = 0.5  # needed over present; below, misses are not for want of engines


@dataclass(frozen=True, slots=True)
class Aims:
    """What a pool should come to."""

    ttft_slo_s: float = 2.0
    tpot_slo_s: float = 0.05
    attainment: float = 0.95
    """Share of requests that should meet each of these."""
    utilization: float = 0.8
    """How busy engines should be."""
    drain_s: float = 10.0
    """Within so long the backlog should be done."""
    calm_s: float = 300.0
    """For so long less must have been needed before it is asked for."""
    min_replicas: int = 1
    max_replicas: int | None = None


class Attainment:
    """How many met an objective: in all, and as a share of late."""

    __slots__ = ("_all", "_at", "_met", "_seen", "met", "missed")

    def __init__(self) -> None:
        self.met = self.missed = 0
        """Since the start; whoever sees a request end adds to them."""
        self._met = self._all = self._at = 0.0
        self._seen = (0, 0)

    def look(self, now: float) -> None:
        """Take in what came since the last time."""
        kept = exp((self._at - now) / MEMORY_S)
        met, missed = self._seen
        self._met = self._met * kept + self.met - met
        self._all = self._all * kept + self.met - met + self.missed - missed
        self._seen, self._at = (self.met, self.missed), now

    @property
    def share(self) -> float | None:
        """Those that met it, over about the last minute; None where there are too few to tell."""
        return self._met / self._all if self._all >= FEW else None


def busy(endpoint: Endpoint, flow: Flow, now: float) -> float:
    """Give what the requests at an endpoint fill of an engine that keeps to its objective; above 1 it cannot."""
    books, work = endpoint.outstanding, endpoint.work
    most_s, slip, share = TIGHT * flow.tpot_slo_s, books.slip, books.share_of_prefill(now)
    strain_s = work.d1 * books.requests + work.d2 * books.context_tokens
    token_s = slip * (work.d0 + strain_s) / (1 - share)
    slack_s = max(most_s - slip * work.d0, LEAST_SLACK * most_s)
    found = (slip * strain_s * max(1.0, most_s / token_s) + most_s * share) / slack_s
    capacity = endpoint.report.kv_capacity_tokens
    memory = (books.pinned_tokens + books.streamed_tokens) / (ROOM * capacity) if capacity else 0.0
    places = books.requests / flow.max_inflight if flow.max_inflight else 0.0
    scarce = max(memory, places)
    return max(found, scarce, (scarce * work.d0 + strain_s) / (work.d0 + strain_s))


def backlog_s(endpoints_busy: float, wait_s: float, endpoints: list[Endpoint]) -> float:
    """Give the engine seconds of work that is not begun.

    Args:
        endpoints_busy: Engines' worth of work in flight: they drain the queue.
        wait_s: What one more would wait in the queue.
        endpoints: Of the pool.
    """
    beyond = (max(0.0, each.outstanding.prefill_s - MAX_BACKLOG_S) for each in endpoints)
    return endpoints_busy * wait_s + sum(beyond)


def needed(endpoints_busy: float, work_s: float, aims: Aims) -> float:
    """Give the engines' worth that work in flight and a backlog need."""
    return endpoints_busy / aims.utilization + work_s / aims.drain_s


class Advice:
    """What one pool needs, and what to ask for."""

    def __init__(self, aims: Aims) -> None:
        self._aims = aims
        self._asked: deque[tuple[float, int]] = deque()
        """When how many were wanted, of the last `calm_s`; each more than those after it."""
        self._at: float | None = None
        self.needed = 0.0
        """Engines' worth, averaged."""
        self.replicas = 0
        """To ask for."""

    def __repr__(self) -> str:
        return f"<Advice {self.replicas}: {self.needed:.2f} needed>"

    def look(self, now: float, wanted: float, present: int, *, serves: bool, is_missed: bool) -> None:
        """Take in how the pool stands; about once a second.

        Args:
            wanted: Engines' worth, now.
            present: Engines that there are, well or not.
            serves: Whether any of them serves.
            is_missed: Whether too many requests miss an objective.
        """
        if self._at is None:
            self.needed = wanted
            self._ask(now, present)
        else:
            self.needed += (wanted - self.needed) * (1 - exp((self._at - now) / SMOOTH_S))
        self._at = now
        self._ask(now, self._count(present, is_missed=is_missed) if serves else present)
        while self._asked[0][0] <= now - self._aims.calm_s:
            self._asked.popleft()
        self.replicas = self._bounded(self._asked[0][1])

    def _count(self, present: int, *, is_missed: bool) -> int:
        """Give the whole number that is right now."""
        is_right = abs(self.needed - present) <= TOLERANCE * present
        count = present if is_right else ceil(self.needed / (1 + TOLERANCE))
        if is_missed and self.needed > IDLE * present:
            count = max(count, present + 1)
        return min(count, 2 * present)

    def _ask(self, now: float, count: int) -> None:
        while self._asked and self._asked[-1][1] <= count:
            self._asked.pop()
        self._asked.append((now, count))

    def _bounded(self, count: int) -> int:
        most = self._aims.max_replicas
        return max(self._aims.min_replicas, count if most is None else min(count, most))
