"""Which pool a request belongs to, and which of its endpoints may take it.

A pool serves a model when one of its endpoints does. The first such pool takes the request. (Length and class come into
it where pools have limits.)
"""

from collections.abc import Container

from policies.endpoint import Endpoint, Pool


def is_served_by(pool: Pool, model: str) -> bool:
    """Whether an endpoint of the pool serves the model, dead or alive."""
    return any(model in endpoint.models for endpoint in pool.endpoints)


def candidates(pool: Pool, model: str, tried: Container[Endpoint], now: float) -> list[Endpoint]:
    """Give the endpoints of a pool that may be sent a request for the model now.

    Those that are ready; where there are none, those that are suspected: one lost packet must not empty a pool. A
    suspect that was tried already is not tried again.
    """
    ready = [
        endpoint
        for endpoint in pool.endpoints
        if endpoint.health.is_ready(now) and model in endpoint.models and endpoint not in tried
    ]
    return ready or [
        endpoint
        for endpoint in pool.endpoints
        if endpoint.health.is_last_resort(now) and model in endpoint.models and endpoint not in tried
    ]


def earliest_s(pool: Pool, model: str, now: float) -> float | None:
    """Give the seconds until an endpoint that asked to be left alone may be asked again; None if none did."""
    waits = [
        endpoint.health.cool_until - now
        for endpoint in pool.endpoints
        if model in endpoint.models and endpoint.health.is_cooling(now)
    ]
    return min(waits, default=None)
