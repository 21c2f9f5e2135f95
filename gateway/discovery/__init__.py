"""Who is there: sources of endpoints.

A source yields, whenever something has changed, the whole list of endpoints that a pool should have; the application
lets those that are new join and those that are gone leave.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from gateway.config import EndpointConfig


class Discovery(Protocol):
    """A source of endpoints for one pool."""

    def watch(self) -> AsyncIterator[tuple[EndpointConfig, ...]]:
        """Yield the full list now and after every change; ends when nothing will change any more."""
        ...
