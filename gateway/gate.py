"""Gate: coroutines wait at the door of their pool until the AdmissionQueue lets them in.

`enter` is one step from the offer to the charge, without an await where there is room: nobody sees the same room twice.
Where there is none the coroutine waits on a future. Whoever makes room (a first token, an end, a client that leaves) is
told in the same call who gets it, and the charge of each is made there and then, before its coroutine wakes: one whose
client goes in that very tick finds a lease in its hands, and gives it back.

    enter -> Admitted -- with --> started ... first token ... --> left: the next is let in
          -> Overloaded: the queue is full, or the wait would be too long
    again -> after a try that failed: it goes on elsewhere, or waits before all others until it may, or is told no

Who needs what one endpoint holds waits for room there, in the fair order like all others. Nobody is sent where there is
no room, retries neither: an engine that fails sends all it had to the others at once, and those would fail next.

A timer looks after what no request brings about: deadlines, an endpoint that is well again, time that passes.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Self

from gateway.errors import GatewayError, Overloaded
from gateway.fleet import Fleet
from gateway.lease import Lease
from gateway.members import Member
from gateway.metrics import Metrics
from policies.admission import AdmissionQueue
from policies.endpoint import Endpoint, Pool
from policies.flow import Flow
from policies.pools import Standing
from policies.request import InferenceRequest
from policies.tickets import GRANTED, REFUSED, Barred, Refusal, ServiceClass, Ticket

LOOK_EVERY_S = 0.05  # while anybody waits
LEAST_RETRY_S = 1.0

WORDS = {
    Refusal.FULL: "as many wait as may",
    Refusal.WAIT: "it would wait longer than requests of its class may",
    Refusal.DEADLINE: "it would not start before its own deadline",
    Refusal.SHED: "it had to make room in the queue for tenants that have had less",
    Refusal.EXPIRED: "it has waited as long as requests of its class may",
}


class Admitted:
    """One request that was let in: the lease of the try that runs, and its place until it is left."""

    __slots__ = ("_gate", "lease", "ticket")

    def __init__(self, gate: "Gate", ticket: Ticket | None, lease: Lease) -> None:
        self._gate = gate
        self.ticket = ticket
        self.lease = lease

    @property
    def predicted_wait_s(self) -> float | None:
        """What its wait was predicted to be when it came; None where nobody waits."""
        return None if self.ticket is None else self.ticket.predicted_wait_s

    @property
    def waited_s(self) -> float:
        """What its wait was; 0 where there was room when it came."""
        return 0.0 if self.ticket is None else self.ticket.waited_s

    def first_token(self) -> None:
        """Note, in the books and at the door, that the prefill is done."""
        self.lease.first_token()
        if self.ticket is not None:
            self._gate.first_token(self.ticket)

    def presume_first_token(self) -> None:
        """Note that it must be done by now, though nobody saw it."""
        self.lease.presume_first_token()
        if self.ticket is not None:
            self._gate.first_token(self.ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ticket is not None:
            self._gate.left(self.ticket)


class Gate:
    """The doors of all pools.

    Args:
        classes: The first before the second.
        flow: What room is.
        smoothing_s: For so long bursts are held together; 0 for not at all.
        is_open: Nobody waits here: engines queue for themselves.
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        classes: Sequence[ServiceClass],
        flow: Flow,
        smoothing_s: float,
        is_open: bool,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self._classes = tuple(classes)
        self._flow = flow
        self._smoothing_s = smoothing_s
        self._is_open = is_open
        self._queues: dict[Pool, AdmissionQueue] = {}
        self._waiters: dict[Ticket, asyncio.Future[Lease]] = {}
        self._timer: asyncio.Handle | None = None
        self._look_at = inf
        """When it is due: what uvloop gives for less than half a millisecond cannot say it."""

    async def enter(
        self, request: InferenceRequest, standing: Standing, holder: Member | None = None, *, is_free: bool = False
    ) -> Admitted:
        """Wait until there is room for a request, and lease it.

        Args:
            holder: The one engine that can serve it, if it is no matter of choice; `standing` is on its pool.
            is_free: It costs the engine nothing, and need not wait.

        Raises:
            Overloaded: it is told no, at once or after a while; or nobody is there who could take it.
        """
        if self._is_open or is_free:
            lease = self._fleet.lease(request, standing) if holder is None else self._fleet.lease_on(holder, request)
            return Admitted(self, None, lease)
        queue = self._queue_of(standing.own)
        ticket, changed = queue.offer(request, standing, self._clock(), holder.endpoint if holder else None)
        self._tell(queue, changed)
        return Admitted(self, ticket, await self._settled(queue, ticket))

    async def again(
        self, place: Admitted, request: InferenceRequest, standing: Standing, tried: Container[Endpoint]
    ) -> None:
        """Let a request whose try has failed go on elsewhere: once there is room, but before all that wait.

        Raises:
            Overloaded: nobody else is there, or there is no room for it in what is left of its time.
        """
        ticket = place.ticket
        if ticket is None:
            place.lease = self._fleet.lease(request, standing, tried)
            return
        queue = self._queue_of(standing.own)
        changed = queue.again(ticket, self._clock())
        self._tell(queue, changed)
        place.lease = await self._settled(queue, ticket)

    async def _settled(self, queue: AdmissionQueue, ticket: Ticket) -> Lease:
        """Give the lease of a ticket that was granted; wait for it where it was not."""
        if ticket.state is GRANTED:
            assert ticket.choice is not None
            lease = self._fleet.lease_at(ticket.choice, ticket.request)
            queue.started(ticket, lease.endpoint)
            return lease
        if ticket.refusal is Refusal.NOBODY:
            raise self._fleet.nobody(ticket.standing, ticket.request.model, self._clock())
        if ticket.state is REFUSED:
            raise self._refused(ticket)
        return await self._wait(queue, ticket)

    async def _wait(self, queue: AdmissionQueue, ticket: Ticket) -> Lease:
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        before_s = ticket.waited_s
        predicted_s = ticket.predicted_wait_s - before_s  # told anew to who is refused
        self._look_by(queue)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().give_back()  # granted in the tick in which its client went
            self._tell(queue, queue.leave(ticket, self._clock()))
            raise
        finally:
            self._waiters.pop(ticket, None)
            labels = (ticket.request.service_class,)
            self._metrics.queue_wait.distribution(labels).observe(ticket.waited_s - before_s)
            self._metrics.queue_wait_predicted.distribution(labels).observe(predicted_s)

    def first_token(self, ticket: Ticket) -> None:
        """Note, after the books, that a prefill is done."""
        queue = self._queue_of(ticket.standing.own)
        if queue.waiting:
            self._tell(queue, queue.first_token(ticket, self._clock()))

    def left(self, ticket: Ticket) -> None:
        """Note, after the books, that a request has ended."""
        queue = self._queue_of(ticket.standing.own)
        self._tell(queue, queue.leave(ticket, self._clock()))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def class_names(self) -> list[str]:
        """The classes, the first before the second."""
        return [each.name for each in self._classes]

    @property
    def queues(self) -> Mapping[Pool, AdmissionQueue]:
        """The queues of pools that were asked for."""
        return self._queues

    # Inside.

    def _queue_of(self, pool: Pool) -> AdmissionQueue:
        queue = self._queues.get(pool)
        if queue is None:
            queue = self._queues[pool] = self._fleet.queue_for(pool, self._classes, self._flow, self._smoothing_s)
        return queue

    def _tell(self, queue: AdmissionQueue, changed: Iterable[Ticket]) -> None:
        """Wake those whose state changed; who was granted is charged here."""
        for ticket in changed:
            waiter = self._waiters.get(ticket)
            if ticket.state is GRANTED:
                assert ticket.choice is not None
                if waiter is None or waiter.done():  # its client went in this tick; its own coroutine takes it out
                    continue
                lease = self._fleet.lease_at(ticket.choice, ticket.request)
                queue.started(ticket, lease.endpoint)
                waiter.set_result(lease)
            elif ticket.state is REFUSED and waiter is not None and not waiter.done():
                waiter.set_exception(self._refused(ticket))

    def _refused(self, ticket: Ticket) -> GatewayError:
        assert ticket.refusal is not None
        pool, name = ticket.standing.own.name, ticket.request.service_class
        self._metrics.admission_refusals.add((pool, name, ticket.refusal.value))
        waited = f"after {ticket.waited_s:.1f} s" if ticket.waited_s else "at once"
        return Overloaded(
            f"pool {pool} is full and this request is refused {waited}: {WORDS[ticket.refusal]}; "
            f"the predicted wait is {ticket.predicted_wait_s:.1f} s",
            retry_after_s=max(LEAST_RETRY_S, ticket.predicted_wait_s),
        )

    def _look_by(self, queue: AdmissionQueue) -> None:
        """See to it that somebody looks soon, and when the queue says so."""
        due = min(self._clock() + LOOK_EVERY_S, queue.next_look or inf)
        if due < self._look_at:
            self.close()
            self._look_at = due
            self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        """Do what time brings about."""
        self._look_at = inf
        now = self._clock()
        for pool, queue in self._queues.items():
            if queue.waiting:
                self._tell(queue, queue.pump(now))
                self._turn_away(pool, queue, now)
        for queue in self._queues.values():
            if queue.waiting:
                self._look_by(queue)

    def _turn_away(self, pool: Pool, queue: AdmissionQueue, now: float) -> None:
        """Let nobody wait where nobody is left who could serve."""
        lives: dict[tuple[str, Barred], bool] = {}
        for ticket, waiter in list(self._waiters.items()):
            if ticket.standing.own is pool and not waiter.done():
                model, barred = ticket.request.model, ticket.barred
                if (model, barred) not in lives:
                    lives[model, barred] = self._fleet.may_recover(model, ticket.standing, barred)
                if lives[model, barred]:
                    continue
                queue.leave(ticket, now)
                waiter.set_exception(self._fleet.nobody(ticket.standing, model, now))
