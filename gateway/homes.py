"""Which endpoint holds which stored response: `previous_response_id` and `/v1/responses/{id}` must go there.

Bounded, the least recently used forgotten first; an engine forgets its responses too. An id belongs to the tenant who
made it: to everybody else it does not exist.
"""

from collections import OrderedDict
from typing import NamedTuple

from policies.endpoint import Endpoint

MAX_HOMES = 100_000  # some 20 MB


class Debt(NamedTuple):
    """What is not charged of a response that its engine has made, or makes, behind our back."""

    model: str
    charged_tokens: int
    """Of its output."""
    advance_tokens: int = 0
    """Of its output, by limits alone: a guess."""
    day: int = 0
    """On which that was, since 1970 (UTC)."""


class Homes:
    """Response id -> endpoint, owner, and what it owes."""

    def __init__(self, most: int = MAX_HOMES) -> None:
        self._most = most
        self._homes: OrderedDict[str, tuple[Endpoint, str, Debt | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def learn(self, response_id: str, endpoint: Endpoint, tenant: str, debt: Debt | None = None) -> None:
        """Note where a response was made, and for whom; what belongs to somebody else already stays with him.

        Some engines let their clients choose the id.
        """
        known = self._homes.get(response_id)
        if known is not None and known[1] != tenant:
            return
        self._homes[response_id] = (endpoint, tenant, debt)
        self._homes.move_to_end(response_id)
        if len(self._homes) > self._most:
            self._homes.popitem(last=False)

    def take_debt(self, response_id: str, tenant: str) -> Debt | None:
        """Give what a response of this tenant owes; once."""
        home = self._homes.get(response_id)
        if home is None or home[1] != tenant:
            return None
        self._homes[response_id] = (*home[:2], None)
        return home[2]

    def find(self, response_id: str, tenant: str) -> Endpoint | None:
        """Give the endpoint that holds a response of this tenant."""
        home = self._homes.get(response_id)
        if home is None or home[1] != tenant:
            return None
        self._homes.move_to_end(response_id)
        return home[0]
