"""AdmissionQueue: who runs, who waits, and who is told no, for one pool. Pure: time comes in, tickets come out.

    offer -> GRANTED ------------------------------------> leave
          -> WAITING -> GRANTED (an endpoint has room) --> leave
                     -> LEFT    (the client is gone)
                     -> REFUSED (its deadline passed; pushed out by others)
          -> REFUSED

A request waits while no endpoint has room for it (`flow.py` says what room is), and is bound to one when there is.
A grant is a promise: it counts at its endpoint until `started` says that the books hold the charge, and is void when
the ticket leaves. So grants and departures may come in any order within a tick, and no place is lost or given twice.

bound    What one endpoint holds waits for room there. Who is back from a try that failed waits for room elsewhere,
         before all others: an endpoint that fails would else fill those that are left beyond their ceilings.
next     When a first token or an end makes room at an endpoint, it takes one of the WINDOW that are next in the fair
         order (`shares.py`): the one with the least prefill there, counting what its tenant has had more than others
         (DEBT_S) and what it has waited (ALPHA_S). Taking the very first brings prompts to where nothing of them is
         cached, and costs a quarter of the goodput.
classes  In the order of the configuration, the first before the second. A class fills endpoints to its `ceiling` only,
         so that those before it find room at once; one that waits and has had less than its `floor` of the work
         served lately goes before all others, whatever its ceiling.
wait     Seconds until it would start, reckoned by the pace at which the class was drained while somebody waited there
         (no slower than by its floor): until the work before it is done, and until its tenant has had no more than
         others, whichever is later; put right by how such reckonings turned out lately.
no       Whoever is last in the fair order of a class that is too full, until it is not: too many wait there, or the
         last would wait longer than the class may. That is the newcomer, unless its tenant has had less than others:
         then the last of whoever asked for the most has to go. Also refused: who would miss its own deadline, at once,
         and who has missed it.
burst    With a smoothing window (`smoothing.py`) the requests of a burst are held to its end, though there is room, and
         then placed in the fair order.
crowd    A burst may wait `max_queue_wait_s`. A queue that has not been empty for PATIENCE_S is no burst: waiting helps
         nobody then, and newcomers are taken for `crowded_wait_s` only (as CoDel, and Facebook's queues, do).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from policies.endpoint import Endpoint, Pool
from policies.flow import Flow
from policies.index import PrefixIndex
from policies.lines import Line, Lines
from policies.nearest import OVERDUE, nearest
from policies.placing import place
from policies.policy import Choice, Policy, Reason
from policies.pools import Standing, is_full
from policies.request import InferenceRequest
from policies.rooms import Rooms
from policies.smoothing import Smoothing
from policies.tickets import CLASSES, GRANTED, LEFT, REFUSED, WAITING, Barred, Offered, Refusal, ServiceClass, Ticket
from policies.waits import Errors

SPARE = 64  # deadlines of those that wait no more


class AdmissionQueue:
    """The door of one pool.

    Args:
        policies: Of this pool, and of those that lend to it.
        index: What this pool's endpoints hold.
        classes: The first before the second; requests of no known class belong to the first.
        smoothing_s: For so long bursts are held together; 0 for not at all.
    """

    def __init__(
        self,
        pool: Pool,
        policies: Mapping[Pool, Policy],
        index: PrefixIndex,
        classes: Sequence[ServiceClass] = CLASSES,
        flow: Flow = Flow(),  # noqa: B008  frozen
        smoothing_s: float = 0.0,
    ) -> None:
        self._pool, self._policies, self._index, self._flow = pool, policies, index, flow
        self._smoothing = Smoothing(smoothing_s)
        self._lines = Lines(classes, self._smoothing)
        self._rooms = Rooms(pool, index, flow)
        self._deadlines: list[tuple[float, int, Ticket]] = []
        self._numbers = count()
        self.running = 0
        """Tickets that are granted and have not left."""

    def __repr__(self) -> str:
        most = self._flow.max_inflight
        running = str(self.running) if most is None else f"{self.running}/{most * len(self._pool.endpoints)}"
        places = sum(line.rules.max_queued for line in self._lines)
        return f"<AdmissionQueue {running} running, {self.waiting}/{places} waiting>"

    # What is the case.

    @property
    def waiting(self) -> int:
        """Count those that wait."""
        return sum(len(line.order) for line in self._lines) if self._deadlines else 0  # each of them has one

    @property
    def next_deadline(self) -> float | None:
        """Say when `expire` has something to do, at the earliest; None while nobody waits."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].state is not WAITING:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    @property
    def next_look(self) -> float | None:
        """Say when `pump` is due, at the latest; None while nobody waits."""
        due = self.next_deadline
        return min(due, self._smoothing.until) if due is not None and self._smoothing.is_on else due

    def waiting_in(self, name: str) -> int:
        """Count those of a class that wait."""
        return len(self._lines.named[name].order)

    def errors_in(self, name: str) -> Errors:
        """Give how predicted waits of a class turned out."""
        return self._lines.named[name].errors

    def predicted_wait_s(self, name: str, now: float) -> float:
        """Predict the wait of one who would be the last of a class, from what is known now."""
        line = self._lines.named[name]
        line.note(now)
        return line.seconds(line.order.work)

    def saturation(self, now: float) -> float:
        """Say how full the emptiest endpoint that may be used is; 1 or more: all are full. 0 where there is none."""
        loads = (self._rooms.load(endpoint, now) for endpoint in self._pool.endpoints if endpoint.health.is_ready(now))
        return min(loads, default=0.0)

    # What happens.

    def offer(
        self, request: InferenceRequest, standing: Standing, now: float, holder: Endpoint | None = None
    ) -> Offered:
        """Let a request come to the door; it is told at once whether it runs, waits or is refused.

        Args:
            holder: The one endpoint that can serve it, if it is no matter of choice.
        """
        line = self._lines.of(request)
        deadline = min(request.deadline, now + line.rules.max_queue_wait_s)
        ticket = Ticket(request, standing, now, deadline, Barred(holder=holder))
        if request.deadline <= now:
            ticket.refuse(Refusal.DEADLINE)
            return Offered(ticket, [])
        changed = self.pump(now) if self._smoothing.is_over(now) else []
        choice = self._place(ticket, line, now)
        is_burst = choice is not None and self._smoothing.holds(now, len(self._pool.endpoints))
        is_held = is_burst and self._smoothing.until < ticket.deadline
        if is_held and len(line.order) >= line.rules.max_queued:  # nobody is refused for the burst's sake
            self._smoothing.cut(now)
            is_held = False
        if is_held:
            choice, self._smoothing.is_on = None, True
        elif choice is not None and self.waiting:  # those who wait go first, if they can go there
            changed += self.pump(now)
            choice = self._place(ticket, line, now)
        if choice is not None:
            ticket.weigh(choice.cached_tokens or 0)
            self._grant(ticket, line, choice, now)
        elif not standing.has_anybody(request, ticket.barred, now):  # nobody is turned away to make room for it
            ticket.refuse(Refusal.NOBODY)
        else:
            changed += self._queue_up(ticket, line, is_held, now)
        return Offered(ticket, changed)

    def started(self, ticket: Ticket, endpoint: Endpoint) -> None:
        """Note that the books hold its charge now, wherever it was sent: the promise is kept."""
        self._rooms.promises.drop(ticket)
        ticket.endpoint = endpoint

    def again(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Let one come back whose try failed, after the books. Give others whose state changed."""
        line, before = self._lines.of(ticket.request), ticket.endpoint
        assert before is not None
        self._rooms.promises.drop(ticket)
        self.running -= 1
        ticket.come_back(before, line.rules, now)
        changed: list[Ticket] = []
        if (choice := self._place(ticket, line, now)) is not None:
            self._grant(ticket, line, choice, now)
        elif not ticket.standing.has_anybody(ticket.request, ticket.barred, now):
            ticket.refuse(Refusal.NOBODY)
        else:
            changed = self._queue_up(ticket, line, False, now, is_back=True)
        return [each for each in changed + self.advance(before, now) if each is not ticket]

    def first_token(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Note, after the books, that its first token came: there may be room for another. Give who has it."""
        return [] if ticket.endpoint is None else self.advance(ticket.endpoint, now)

    def leave(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Let a ticket go, after the books: it ended, or its client is gone. Give those who got its place.

        Whatever state it is in, and however often.
        """
        state, ticket.state = ticket.state, LEFT
        if state is WAITING:
            self._take_out(ticket, self._lines.of(ticket.request), now)
        if state is REFUSED:
            ticket.state = state
        if state is not GRANTED:
            return []
        endpoint = ticket.endpoint
        assert endpoint is not None
        self._rooms.promises.drop(ticket)
        self.running -= 1
        return self.advance(endpoint, now)

    def advance(self, endpoint: Endpoint, now: float) -> list[Ticket]:
        """See who may go where an endpoint has room now. Give those whose state changed.

        An endpoint of another pool lends, or stands in: it gets who is next, if the rules of pools let it.
        """
        if not self.waiting:
            return []
        if self._smoothing.is_on and not self._smoothing.is_over(now):
            return self.expire(now)
        is_own = endpoint in self._pool.endpoints
        return self.expire(now) + (self._fill(endpoint, now) if is_own else self._lend(now))

    def pump(self, now: float) -> list[Ticket]:
        """See who may go anywhere: an endpoint came, or got well, or time has passed, or a burst is over."""
        changed, was_burst = self.expire(now), self._smoothing.is_on
        if was_burst:
            if not self._smoothing.is_over(now):
                return changed
            changed += self._lend(now)
        for endpoint in self._pool.endpoints:
            changed += self._fill(endpoint, now)
        changed += self._lend(now)
        if was_burst:
            self._smoothing.is_on = False
            for line in self._lines:
                changed += self._ask(line, now)
        return changed

    def expire(self, now: float) -> list[Ticket]:
        """Refuse those whose deadline has passed."""
        expired = []
        while (due := self.next_deadline) is not None and due <= now:
            ticket = heappop(self._deadlines)[2]
            line = self._lines.of(ticket.request)
            self._take_out(ticket, line, now, Refusal.EXPIRED)
            ticket.predicted_wait_s = line.seconds(line.order.work)  # if it came again
            expired.append(ticket)
        return expired

    # Inside.

    def _place(self, ticket: Ticket, line: Line, now: float) -> Choice | None:
        """Choose among all endpoints with room, as the policy does; a queue would be burnt on suspects."""
        request, limit = ticket.request, self._lines.limit(line, now)
        reserved = self._reserved(now) if self.waiting else None
        kept = reserved[0] if reserved is not None and reserved[1] is not ticket else None

        def has_room(endpoint: Endpoint) -> bool:
            may_have = endpoint is not kept and (endpoint.health.is_ready(now) or not self.waiting)
            return may_have and self._rooms.load(endpoint, now) < limit and self._rooms.fits(endpoint, request)

        lent = self._rooms.promises.outside(ticket.standing.own.endpoints)  # idle by the books alone
        barred = ticket.barred.with_tried(*lent)
        choice = place(ticket.standing, self._policies, request, barred, now)
        if choice is None or has_room(choice.endpoint):  # nearly always, and room costs more to reckon than to have
            return choice
        return place(ticket.standing, self._policies, request, barred, now, has_room)

    def _queue_up(
        self, ticket: Ticket, line: Line, is_held: bool, now: float, *, is_back: bool = False
    ) -> list[Ticket]:
        """Let one wait, unless it would be for too long. Give those that have to go instead."""
        held = next(reversed(self._index.matched(ticket.request.prefix).values()), 0)
        ticket.weigh(held * ticket.request.unit_tokens)
        line.join(ticket, now, is_back=is_back)
        bound_s = line.bound_s(now)
        if is_held:  # there is room
            ticket.predicted_wait_s = self._smoothing.until - now
            bound_s = inf
        elif (why := line.why_not(ticket)) is not None:
            self._take_out(ticket, line, now, why)
            return []
        heappush(self._deadlines, (ticket.deadline, next(self._numbers), ticket))
        return [each for each in self._trim(line, ticket, bound_s, now) if each is not ticket]

    def _reserved(self, now: float) -> tuple[Endpoint, Ticket] | None:
        """Give the endpoint that is kept for one who has waited too long, and whom it is kept for."""
        if self.next_deadline is None:
            return None
        ticket = self._deadlines[0][2]
        return self._rooms.reserved(ticket, OVERDUE * self._lines.of(ticket.request).rules.max_queue_wait_s, now)

    def _fill(self, endpoint: Endpoint, now: float) -> list[Ticket]:
        """Give the room of an endpoint to those who wait, one after the other."""
        granted: list[Ticket] = []
        if not endpoint.health.is_ready(now) or is_full(endpoint, now):
            return granted
        while (load := self._rooms.load(endpoint, now)) < 1:
            reserved = self._reserved(now)
            if reserved is not None and reserved[0] is endpoint:
                ticket = reserved[1]
                line = self._lines.of(ticket.request)
                if load >= self._lines.limit(line, now) or not self._rooms.fits(endpoint, ticket.request):
                    break
            elif (found := self._next(endpoint, load, now)) is not None:
                ticket, line = found
            else:
                break
            cached = min(self._rooms.held(endpoint, ticket.request), max(0, ticket.request.prompt_tokens - 1))
            self._grant(ticket, line, Choice(endpoint, Reason.ROOM, cached, endpoint.outstanding.prefill_s), now)
            granted.append(ticket)
        return granted

    def _lend(self, now: float) -> list[Ticket]:
        """Let those that are next go wherever the pools they belong to have room."""
        granted = []
        for line in self._lines:
            while (first := next((each for each in line.order if each.barred.holder is None), None)) is not None:
                if (choice := self._place(first, line, now)) is None:
                    break
                self._grant(first, line, choice, now)
                granted.append(first)
        return granted

    def _next(self, endpoint: Endpoint, load: float, now: float) -> tuple[Ticket, Line] | None:
        """Find who gets the room of an endpoint."""
        lines = [line for line in self._lines if line.order]
        for line in sorted(lines, key=lambda line: not self._lines.is_below_floor(line, now)):
            if load < self._lines.limit(line, now):
                ticket = nearest(
                    line,
                    endpoint,
                    now,
                    partial(self._rooms.held, endpoint),
                    partial(self._rooms.may_take, endpoint),
                    partial(self._rooms.fits_uncached, endpoint),
                )
                if ticket is not None:
                    return ticket, line
        return None

    def _grant(self, ticket: Ticket, line: Line, choice: Choice, now: float) -> None:
        self._lines.let_in(line, ticket.work, now)
        if ticket.place is not None:
            line.serve(ticket, now)
            self._tidy()
        if ticket.barred.holder is not None:
            choice = choice._replace(reason=Reason.HOLDS)
        ticket.state, ticket.choice, ticket.endpoint = GRANTED, choice, choice.endpoint
        self.running += 1
        self._rooms.promises.add(ticket)

    def _ask(self, line: Line, now: float) -> list[Ticket]:
        """Predict how long those of a burst will wait that found no room; refuse those for whom it is too long."""
        refused, ahead = [], 0.0
        for ticket in list(line.order) if self._smoothing.held(line.joined_at) else ():
            if self._smoothing.held(ticket.arrived_at):
                line.predict(ticket, ahead, now)
                if (why := line.why_not(ticket)) is not None:
                    self._take_out(ticket, line, now, why)
                    refused.append(ticket)
                    continue
            ahead += ticket.work
        return refused + self._trim(line, None, line.bound_s(now), now)

    def _trim(self, line: Line, newcomer: Ticket | None, bound_s: float, now: float) -> list[Ticket]:
        """Turn the last away until a class is not too full."""
        refused = []
        while line.order:
            ticket, ahead = line.order.last()
            wait_s = line.seconds(ahead)
            is_full = len(line.order) > line.rules.max_queued
            if not is_full and now - ticket.arrived_at + wait_s <= bound_s:
                break
            ticket.predicted_wait_s = wait_s
            why = Refusal.FULL if is_full else Refusal.WAIT
            is_new = ticket is newcomer or (newcomer is None and self._smoothing.held(ticket.arrived_at))
            self._take_out(ticket, line, now, why if is_new else Refusal.SHED)
            refused.append(ticket)
        return refused

    def _take_out(self, ticket: Ticket, line: Line, now: float, why: Refusal | None = None) -> None:
        """Take one who waits out of its line, unserved: it is told why, or has gone."""
        assert ticket.place is not None
        line.note(now)
        line.order.drop(ticket.place)
        ticket.place, ticket.waited_s = None, now - ticket.arrived_at
        if why is not None:
            ticket.refuse(why)
        self._tidy()

    def _tidy(self) -> None:
        """Forget the deadlines of those that wait no more, once they are most."""
        if len(self._deadlines) > 2 * self.waiting + SPARE:
            self._deadlines = [each for each in self._deadlines if each[2].state is WAITING]
            heapify(self._deadlines)
