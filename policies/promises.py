"""Promises: what endpoints were promised by grants, until the books hold the charge.

Between a grant and its charge a client may go, and another tick may pass: what is promised counts as if it were there.
"""

from collections.abc import Iterable

from policies.endpoint import Endpoint
from policies.flow import NOTHING, Promised
from policies.tickets import Ticket


class Promises:
    """Grants by endpoint."""

    def __init__(self) -> None:
        self._tickets: dict[Endpoint, dict[Ticket, None]] = {}
        self._sums: dict[Endpoint, Promised] = {}

    def at(self, endpoint: Endpoint) -> Promised:
        """Give what an endpoint was promised; added up when somebody asks, which few grants live to see."""
        tickets = self._tickets.get(endpoint)
        if tickets is None:
            return NOTHING
        total = self._sums.get(endpoint)
        if total is None:
            total = self._sums[endpoint] = _sum_of(tickets)
        return total

    def outside(self, own: list[Endpoint]) -> list[Endpoint]:
        """Give the endpoints that were promised something and belong to others."""
        return [endpoint for endpoint in self._tickets if endpoint not in own]

    def add(self, ticket: Ticket) -> None:
        """Note a grant."""
        assert ticket.endpoint is not None
        self._tickets.setdefault(ticket.endpoint, {})[ticket] = None
        self._sums.pop(ticket.endpoint, None)

    def drop(self, ticket: Ticket) -> None:
        """Note that a grant is kept, or void; once, or again."""
        assert ticket.endpoint is not None
        tickets = self._tickets.get(ticket.endpoint)
        if tickets is not None and ticket in tickets:
            del tickets[ticket]
            self._sums.pop(ticket.endpoint, None)
            if not tickets:
                del self._tickets[ticket.endpoint]


def _sum_of(tickets: Iterable[Ticket]) -> Promised:
    total = Promised()
    for ticket in tickets:
        assert ticket.choice is not None
        total.requests += 1
        total.prompt_tokens += ticket.request.prompt_tokens
        total.uncached_tokens += ticket.request.prompt_tokens - (ticket.choice.cached_tokens or 0)
    return total
