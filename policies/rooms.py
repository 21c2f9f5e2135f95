"""Rooms: how full endpoints are for the door of a pool, counting what it has promised and no books hold yet."""

from policies.endpoint import Endpoint, Pool
from policies.flow import Flow
from policies.index import PrefixIndex
from policies.pools import is_able, may_take
from policies.promises import Promises
from policies.request import InferenceRequest
from policies.tickets import State, Ticket


class Rooms:
    """The room of one pool's endpoints, and of those that lend to it."""

    def __init__(self, pool: Pool, index: PrefixIndex, flow: Flow) -> None:
        self._pool, self._index, self._flow = pool, index, flow
        self.promises = Promises()
        self._kept: tuple[Endpoint, Ticket] | None = None

    def load(self, endpoint: Endpoint, now: float) -> float:
        """Say how full an endpoint is: below 1 it has room for another."""
        return self._flow.load(endpoint, now, self.promises.at(endpoint))

    def fits(self, endpoint: Endpoint, request: InferenceRequest) -> bool:
        """Whether an endpoint has memory for a request; what it holds of it is looked up only where that matters."""
        prompt = request.prompt_tokens
        return self.fits_uncached(endpoint, request, prompt) or self.fits_uncached(
            endpoint, request, prompt - self.held(endpoint, request)
        )

    def fits_uncached(self, endpoint: Endpoint, request: InferenceRequest, tokens: int) -> bool:
        """Whether it has memory for one of whose prompt so many tokens are not there."""
        return self._flow.fits(endpoint, request, tokens, self.promises.at(endpoint))

    def held(self, endpoint: Endpoint, request: InferenceRequest) -> int:
        """Count the prompt tokens that an endpoint probably holds."""
        return self._index.matched_on(endpoint, request.prefix) * request.unit_tokens

    def may_take(self, endpoint: Endpoint, ticket: Ticket) -> bool:
        """Whether a ticket may go to an endpoint; its context must do, unless none in the pool would."""
        request = ticket.request
        if endpoint in ticket.barred:
            return False
        return may_take(endpoint, request) or (
            is_able(endpoint, request) and not any(may_take(each, request) for each in self._pool.endpoints)
        )

    def reserved(self, longest: Ticket, overdue_s: float, now: float) -> tuple[Endpoint, Ticket] | None:
        """Give the endpoint that is kept for one who has waited too long, and whom it is kept for.

        One that needs much memory would never find it where small ones come all the time: so what is freed is kept
        together for it, at the endpoint that has the most, until it is served or gone.

        Args:
            longest: Whose time is up next, of those that wait; it has waited too long after so many seconds.
        """
        kept, endpoints = self._kept, self._pool.endpoints
        if kept and kept[1].state is State.WAITING and kept[0].health.is_ready(now) and kept[0] in endpoints:
            return kept
        self._kept = None
        if now - longest.arrived_at > overdue_s:
            able = [each for each in endpoints if each.health.is_ready(now) and self.may_take(each, longest)]
            if able and not any(self.fits(each, longest.request) for each in able):
                self._kept = min(able, key=lambda each: each.outstanding.pinned_tokens), longest
        return self._kept
