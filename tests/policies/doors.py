"""A pool, its queue and its engines, for the tests of admission: what a gateway does with tickets, at once or late."""

from dataclasses import dataclass, field

from policies import books
from policies.admission import AdmissionQueue
from policies.endpoint import Charge, Endpoint, Pool
from policies.flow import Flow
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.pools import Standing
from policies.request import InferenceRequest
from policies.tickets import CLASSES, ServiceClass, State, Ticket
from tests.policies.fleets import endpoints, request

ONE = (ServiceClass("interactive", max_queued=100, max_queue_wait_s=1e3),)


def places(count: int) -> Flow:
    """Give rooms that only count."""
    return Flow(max_inflight=count, is_measured=False)


@dataclass
class Door:
    """A queue before engines; what is granted is charged at once unless `is_late`."""

    queue: AdmissionQueue
    pool: Pool
    index: PrefixIndex
    is_late: bool = False
    charges: dict[Ticket, Charge] = field(default_factory=dict)
    asked: int = 0

    @classmethod
    def of(
        cls,
        flow: Flow,
        *,
        engines: int = 1,
        classes: tuple[ServiceClass, ...] = CLASSES,
        is_late: bool = False,
        smoothing_s: float = 0.0,
    ) -> "Door":
        pool, index = Pool("p", endpoints(engines)), PrefixIndex()
        queue = AdmissionQueue(pool, {pool: LeastWork(index)}, index, classes, flow, smoothing_s)
        return cls(queue, pool, index, is_late)

    @property
    def standing(self) -> Standing:
        return Standing(self.pool)

    def offer(self, asked: InferenceRequest, now: float, holder: Endpoint | None = None) -> Ticket:
        ticket, changed = self.queue.offer(asked, self.standing, now, holder)
        self.send([*changed, ticket], now)
        return ticket

    def ask(self, tenant: str, now: float, name: str = "r", holder: Endpoint | None = None, **fields: object) -> Ticket:
        """Offer a small request of a tenant, whose prompt is its own."""
        self.asked += 1
        return self.offer(request(name, (self.asked, 2))._replace(tenant=tenant, **fields), now, holder)  # type: ignore[arg-type]

    def send(self, tickets: list[Ticket], now: float) -> None:
        """Charge what was granted."""
        for ticket in tickets:
            if ticket.state is State.GRANTED and not self.is_late:
                self.start(ticket, now)

    def start(self, ticket: Ticket, now: float) -> None:
        assert ticket.choice is not None
        chosen = ticket.choice.endpoint
        self.charges[ticket] = books.dispatch(chosen, ticket.request, now, ticket.choice.cached_tokens or 0)
        self.index.learn(chosen, ticket.request.prefix, now)
        self.queue.started(ticket, chosen)

    def first_token(self, ticket: Ticket, now: float) -> None:
        books.first_token(self.charges[ticket], now)
        self.send(self.queue.first_token(ticket, now), now)

    def fail(self, ticket: Ticket, now: float) -> None:
        """Let its try fail, and it come back."""
        books.finish(self.charges.pop(ticket), now)
        self.send([*self.queue.again(ticket, now), ticket], now)

    def end(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Let it end, or its client go; give who got its place."""
        charge = self.charges.pop(ticket, None)
        if charge is not None:
            books.finish(charge, now)
        changed = self.queue.leave(ticket, now)
        self.send(changed, now)
        return changed
