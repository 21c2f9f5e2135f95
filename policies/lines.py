"""Line: those of one class that wait, and how fast they get on; Lines: all of them, in the order of classes."""

from collections.abc import Iterator, Sequence

from policies.request import InferenceRequest
from policies.shares import FairOrder, Place
from policies.tickets import ServiceClass, Ticket
from policies.waits import Drain, Ratio, Recent

PATIENCE_S = 2.0  # a queue that has not been empty for so long is no burst


class Line:
    """Those of one class."""

    def __init__(self, rules: ServiceClass) -> None:
        self.rules = rules
        self.order: FairOrder[Ticket] = FairOrder()
        self.drain = Drain()
        self.pace = Drain()
        """Of the order's time."""
        self.ratio = Ratio()
        self.served = Recent()
        self.crowded_since = 0.0
        self.least_bound_s = min(rules.max_queue_wait_s, rules.crowded_wait_s)

    def reckon_s(self, place: Place) -> float:
        """Reckon the wait of one who waits: until what is ahead is done, and until its tenant is even with others.

        The latter for no longer than one may wait here: by then it has gone, or was told to.
        """
        even_s = min(self.pace.seconds(self.order.lead(place)), self.least_bound_s)
        return max(self.drain.seconds(self.order.ahead(place)), even_s)

    def join(self, ticket: Ticket, now: float) -> None:
        """Let one wait here, and predict for how long."""
        self.note(now)
        if not self.order:
            self.crowded_since = now
        request = ticket.request
        ticket.place = self.order.add(ticket, request.tenant, request.weight, ticket.work)
        ticket.reckoned_wait_s = self.reckon_s(ticket.place)
        ticket.predicted_wait_s = self.ratio.at(now) * ticket.reckoned_wait_s

    def note(self, now: float) -> None:
        """Note that time has passed."""
        is_waiting = bool(self.order)
        self.drain.note(now, is_waiting)
        self.pace.note(now, is_waiting)

    def bound_s(self, now: float) -> float:
        """Say how long one may wait here now."""
        is_crowd = bool(self.order) and now - self.crowded_since > PATIENCE_S
        return self.least_bound_s if is_crowd else self.rules.max_queue_wait_s


class Lines:
    """The lines of one pool, in the order of their classes."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self.named = {rules.name: Line(rules) for rules in classes}
        self._first = next(iter(self.named.values()))

    def __iter__(self) -> Iterator[Line]:
        return iter(self.named.values())

    def of(self, request: InferenceRequest) -> Line:
        """Give the line of a request's class; the first for one that is not known."""
        return self.named.get(request.service_class, self._first)

    def is_below_floor(self, line: Line, now: float) -> bool:
        """Whether a class has had less of the work served lately than its floor."""
        floor = line.rules.floor
        return floor > 0 and line.served.at(now) <= floor * sum(each.served.at(now) for each in self)

    def limit(self, line: Line, now: float) -> float:
        """Say how full an endpoint may be for a class: it is not held back below its floor."""
        return 1.0 if self.is_below_floor(line, now) else line.rules.ceiling
