"""FairOrder: who of those that wait is next, so that tenants get equal shares of work by weight.

Fair queueing (Demers, Keshav, Shenker 1989) by start tags. A request is tagged when it begins to wait; the least tag
is next:

    tag     the later of the order's time and the tenant's own
    then    the tenant's own time goes on by work / weight
    time    goes on by work / weights of all tenants known, whenever somebody is served, whoever that is: so each of
            them should have had so much

A tenant that comes for the first time, or again after a while, starts at the order's time: ahead of all who have had
more than it since, and with nothing saved up. One who asks for much has its requests far behind, where they are the
first to be turned away: what a tenant is charged for requests that were not served it gets back.

Bounded: a tenant is known while it waits or is ahead of the order's time, and all are forgotten when nobody waits.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
SPARE = 64  # times of tenants that are stale
EVER = 1 << 62  # numbers before all others


class Place(NamedTuple):
    """Where somebody waits; ordered by tag, then by arrival."""

    tag: float
    number: int
    tenant: str
    work: float
    cost: float
    """Work over the tenant's weight."""


@dataclass(slots=True)
class _Account:
    """What is known of a tenant."""

    time: float
    weight: float
    waiting: int = 0


class FairOrder(Generic[T]):
    """Those who wait, in the order in which they should be served."""

    def __init__(self) -> None:
        self._order: list[Place] = []
        self._at: dict[int, T] = {}
        self._accounts: dict[str, _Account] = {}
        self._ahead: list[tuple[float, str]] = []  # heap of tenants' times, some stale
        self._numbers, self._early = count(), count(-EVER)
        self._cost = self._time = 0.0
        self.weight = 0.0
        """Of all tenants known."""
        self.work = 0.0
        """Of all who wait."""

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        return f"<FairOrder {len(self._order)} of {len(self._accounts)} tenants>"

    def __iter__(self) -> Iterator[T]:
        return (self._at[place.number] for place in self._order)

    def debt(self, place: Place) -> float:
        """Say how much more than others a tenant has had whose first waits there, in mean requests.

        Half a request more where others of it wait too: when all are even, whoever asks for less goes first.
        """
        even = (place.tag - self._time) * len(self._order) / self._cost
        return even + (0.5 if self._accounts[place.tenant].waiting > 1 else 0.0)

    def last(self) -> tuple[T, float]:
        """Give the one to be served last, and the work ahead of it; there must be one."""
        place = self._order[-1]
        return self._at[place.number], self.work - place.work

    def add(self, who: T, tenant: str, weight: float, work: float, *, is_back: bool = False) -> Place:
        """Let somebody wait.

        Args:
            is_back: It was next once, and gave its place back: it is next again, behind those that came back before.
                It was charged then.
        """
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(self._time, weight)
            self.weight += weight
        cost = work / weight
        if is_back:
            first = min(self._time, self._order[0].tag) if self._order else self._time
            place = Place(first, next(self._early), tenant, work, cost)
        else:
            place = Place(max(self._time, account.time), next(self._numbers), tenant, work, cost)
            account.time = place.tag + cost
        account.waiting += 1
        insort(self._order, place)
        self._at[place.number] = who
        self.work += work
        self._cost += cost
        return place

    def ahead(self, place: Place) -> float:
        """Give the work that is to be served before somebody who waits."""
        at = bisect_left(self._order, place)
        if 2 * at < len(self._order):
            return sum(each.work for each in islice(self._order, at))
        return self.work - sum(each.work for each in islice(self._order, at, None))

    def lead(self, place: Place) -> float:
        """Say how far the order's time has to go to a tag; 0 where it is past it."""
        return max(0.0, place.tag - self._time)

    def serve(self, place: Place) -> float:
        """Take out one who is served now, its tenant has had it; say how far the order's time went on."""
        went = place.work / self.weight
        self._time += went
        self._remove(place)
        return went

    def drop(self, place: Place) -> None:
        """Take out one who will not be served."""
        self._accounts[place.tenant].time -= place.cost
        self._remove(place)

    def _remove(self, place: Place) -> None:
        del self._order[bisect_left(self._order, place)]
        del self._at[place.number]
        account = self._accounts[place.tenant]
        account.waiting -= 1
        if not self._order:
            self._accounts.clear()
            self._ahead.clear()
            self.work = self._cost = self._time = self.weight = 0.0
            return
        self.work -= place.work
        self._cost -= place.cost
        if not account.waiting:
            heappush(self._ahead, (account.time, place.tenant))
            if len(self._ahead) > 2 * len(self._accounts) + SPARE:
                self._ahead = [(each.time, name) for name, each in self._accounts.items() if not each.waiting]
                heapify(self._ahead)
        while self._ahead and self._ahead[0][0] <= self._time:
            _, tenant = heappop(self._ahead)
            known = self._accounts.get(tenant)
            if known is not None and not known.waiting and known.time <= self._time:
                del self._accounts[tenant]
                self.weight -= known.weight
