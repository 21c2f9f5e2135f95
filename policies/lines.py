"""Line: those of one class that wait, and how fast they get on; Lines: all of them, in the order of classes."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import inf

from policies.request import InferenceRequest
from policies.shares import FairOrder, Place
from policies.smoothing import Smoothing
from policies.tickets import Refusal, ServiceClass, Ticket
from policies.waits import Drain, Errors, Ratio, Recent

PATIENCE_S = 2.0  # a queue that has not been empty for so long is no burst


class Line:
    """Those of one class. While a burst is held, nothing is learned: who is held waits for no room."""

    def __init__(self, rules: ServiceClass, smoothing: Smoothing) -> None:
        self.rules = rules
        self.order: FairOrder[Ticket] = FairOrder()
        self.drain = Drain()
        self.pool = Drain()
        """Of all classes, while somebody waits here."""
        self.pace = Drain()
        """Of the order's time."""
        self.ratio = Ratio()
        self.errors = Errors()
        """Of predicted waits, over those that waited and were served."""
        self.served = Recent()
        self.crowded_since = self.joined_at = 0.0
        self.least_bound_s = min(rules.max_queue_wait_s, rules.crowded_wait_s)
        self._smoothing = smoothing

    def join(self, ticket: Ticket, now: float, *, is_back: bool = False) -> None:
        """Let one wait here, and predict for how long; before all others, if it is back from a try that failed."""
        self.note(now)
        if not self.order:
            self.crowded_since = now
        self.joined_at = now
        request = ticket.request
        ticket.place = self.order.add(ticket, request.tenant, request.weight, ticket.work, is_back=is_back)
        self.predict(ticket, self._ahead(ticket, ticket.place), now)

    def _ahead(self, ticket: Ticket, place: Place) -> float:
        """Give the work ahead of one; if it has to go where others ahead have to, all that is served meanwhile."""
        ahead, holder = self.order.ahead(place), ticket.barred.holder
        if holder is None:
            return ahead
        before = takewhile(lambda each: each is not ticket, self.order)
        bound = sum(each.work for each in before if each.barred.holder is holder)
        return max(ahead, bound * len(ticket.standing.own.endpoints))

    def predict(self, ticket: Ticket, ahead: float, now: float) -> None:
        """Predict the wait of one who waits: until what is ahead is done, and until its tenant is even with others.

        The latter for no longer than one may wait here: by then it has gone, or was told to.
        """
        assert ticket.place is not None
        lead = self.order.lead(ticket.place)
        even_s = min(self.pace.seconds(lead), self._floor_s(lead * self.order.weight), self.least_bound_s)
        left_s, waited_s = max(self.seconds(ahead), even_s), now - ticket.arrived_at
        ticket.reckoned_wait_s = waited_s + left_s if self.drain.is_known or self._has_share else None
        ticket.predicted_wait_s = waited_s + self.ratio.corrected(now, left_s)

    def seconds(self, work: float) -> float:
        """Say how long so much work takes that is ahead: at the pace of late, and no slower than by the floor.

        A class that had more than its floor gets nothing at first when others come, and then its floor: what it got
        meanwhile says nothing of what it will get.
        """
        if self._has_share and not self.drain.is_known:
            return self._floor_s(work)
        return min(self.drain.seconds(work), self._floor_s(work))

    def _floor_s(self, work: float) -> float:
        return self.pool.seconds(work / self.rules.floor) if self._has_share else inf

    @property
    def _has_share(self) -> bool:
        """Whether it is known what the floor comes to."""
        return self.rules.floor > 0 and self.pool.is_known

    def why_not(self, ticket: Ticket) -> Refusal | None:
        """Say why one may not wait for as long as is predicted."""
        if ticket.arrived_at + ticket.predicted_wait_s > ticket.request.deadline:
            return Refusal.DEADLINE
        return Refusal.WAIT if ticket.predicted_wait_s > self.rules.max_queue_wait_s else None

    def serve(self, ticket: Ticket, now: float) -> None:
        """Take out one who is served now, and learn from it."""
        assert ticket.place is not None
        self.note(now)
        went = self.order.serve(ticket.place)
        ticket.place = None
        ticket.waited_s = now - ticket.arrived_at
        self.errors.note(ticket.predicted_wait_s, ticket.waited_s)
        if not self._smoothing.is_on:
            self.drain.note(now, True, ticket.work)
            self.pace.note(now, True, went)
            if ticket.reckoned_wait_s is not None:
                self.ratio.note(now, ticket.reckoned_wait_s, ticket.waited_s)

    def note(self, now: float, work: float = 0.0) -> None:
        """Note that time has passed, and work of whatever class that is let in now."""
        is_waiting = bool(self.order) and not self._smoothing.is_on
        self.drain.note(now, is_waiting)
        self.pool.note(now, is_waiting, work if is_waiting else 0.0)
        self.pace.note(now, is_waiting)

    def bound_s(self, now: float) -> float:
        """Say how long one may wait here now."""
        is_crowd = bool(self.order) and now - self.crowded_since > PATIENCE_S
        return self.least_bound_s if is_crowd else self.rules.max_queue_wait_s


class Lines:
    """The lines of one pool, in the order of their classes."""

    def __init__(self, classes: Sequence[ServiceClass], smoothing: Smoothing) -> None:
        self.named = {rules.name: Line(rules, smoothing) for rules in classes}
        self._first = next(iter(self.named.values()))

    def __iter__(self) -> Iterator[Line]:
        return iter(self.named.values())

    def of(self, request: InferenceRequest) -> Line:
        """Give the line of a request's class; the first for one that is not known."""
        return self.named.get(request.service_class, self._first)

    def let_in(self, line: Line, work: float, now: float) -> None:
        """Note that work of a class is let in."""
        line.served.add(now, work)
        for each in self:
            each.note(now, work)

    def is_below_floor(self, line: Line, now: float) -> bool:
        """Whether a class has had less of the work served lately than its floor."""
        floor = line.rules.floor
        return floor > 0 and line.served.at(now) <= floor * sum(each.served.at(now) for each in self)

    def limit(self, line: Line, now: float) -> float:
        """Say how full an endpoint may be for a class: it is not held back below its floor."""
        return 1.0 if self.is_below_floor(line, now) else line.rules.ceiling
