"""Endpoints that stand in the configuration."""

from collections.abc import AsyncIterator

from gateway.config import EndpointConfig


class StaticDiscovery:
    """Tells its list once."""

    def __init__(self, endpoints: tuple[EndpointConfig, ...]) -> None:
        self._endpoints = endpoints

    async def watch(self) -> AsyncIterator[tuple[EndpointConfig, ...]]:
        """Yield the list and end."""
        yield self._endpoints
