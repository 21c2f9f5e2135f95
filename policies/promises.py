"""Promises: what endpoints were promised by grants, until the books hold the charge.

Between a grant and its charge a client may go, and another tick may pass: what is promised counts as if it were there.
"""

from policies.endpoint import Endpoint
from policies.flow import NOTHING, Promised
from policies.tickets import Ticket


class Promises:
    """Grants by endpoint."""

    def __init__(self) -> None:
        self._tickets: dict[Endpoint, dict[Ticket, None]] = {}
        self._sums: dict[Endpoint, Promised] = {}

    def at(self, endpoint: Endpoint) -> Promised:
        """Give what an endpoint was promised."""
        return self._sums.get(endpoint, NOTHING)

    def outside(self, own: list[Endpoint]) -> list[Endpoint]:
        """Give the endpoints that were promised something and belong to others."""
        return [endpoint for endpoint in self._tickets if endpoint not in own]

    def add(self, ticket: Ticket) -> None:
        """Note a grant."""
        assert ticket.endpoint is not None
        self._tickets.setdefault(ticket.endpoint, {})[ticket] = None
        self._add_up(ticket.endpoint)

    def drop(self, ticket: Ticket) -> None:
        """Note that a grant is kept, or void; once, or again."""
        assert ticket.endpoint is not None
        tickets = self._tickets.get(ticket.endpoint, {})
        if ticket in tickets:
            del tickets[ticket]
            self._add_up(ticket.endpoint)

    def _add_up(self, endpoint: Endpoint) -> None:
        tickets = self._tickets[endpoint]
        if not tickets:
            del self._tickets[endpoint]
            del self._sums[endpoint]
            return
        total = Promised()
        for ticket in tickets:
            assert ticket.choice is not None
            total.requests += 1
            total.prompt_tokens += ticket.request.prompt_tokens
            total.uncached_tokens += ticket.request.prompt_tokens - (ticket.choice.cached_tokens or 0)
        self._sums[endpoint] = total
