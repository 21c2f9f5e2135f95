"""Which pool a request belongs to, and which of its endpoints may take it.

A pool serves a model when one of its endpoints does. Of the pools that do, a request belongs to the one of the least
limit that its length fits, the first such in the configuration: long prompts go to a pool of their own, and nothing
short waits behind them. Length is prompt plus allowed output, as the engines count."""

from collections.abc import Container, Iterable
from typing import NamedTuple

from policies.endpoint import Endpoint, Pool
from policies.request import InferenceRequest

FULL = 0.98  # of the KV cache held by live requests: what is sent there preempts others
FRESH_S = 5.0  # an older report of a full cache is no reason to keep away


class TooLong(NamedTuple):
    """No pool takes a request of this length."""

    needed_tokens: int
    """Prompt plus allowed output."""
    most_tokens: int
    """What the largest pool takes."""
    pool: Pool
    """The largest pool."""


def is_served_by(pool: Pool, model: str) -> bool:
    """Whether an endpoint of the pool serves the model, dead or alive."""
    return any(model in endpoint.models for endpoint in pool.endpoints)


def pool_of(pools: Iterable[Pool], request: InferenceRequest) -> Pool | TooLong | None:
    """Find the pool that a request belongs to; None when no pool serves its model."""
    needed = request.prompt_tokens + request.allowed_tokens
    serving = [(limit_of(pool, request.model), pool) for pool in pools if is_served_by(pool, request.model)]
    if not serving:
        return None
    fitting = [(limit, pool) for limit, pool in serving if limit >= needed]
    if fitting:
        return min(fitting, key=_limit)[1]
    limit, largest = max(serving, key=_limit)
    return TooLong(needed, int(limit), largest)


def limit_of(pool: Pool, model: str) -> float:
    """Give the prompt plus output that a pool takes for a model: its own limit, else that of its largest engine."""
    if pool.max_context_tokens is not None:
        return pool.max_context_tokens
    limits = [endpoint.max_context_tokens for endpoint in pool.endpoints if model in endpoint.models]
    return max((float("inf") if limit is None else limit for limit in limits), default=float("inf"))


def _limit(of: tuple[float, Pool]) -> float:
    return of[0]


def candidates(pool: Pool, model: str, tried: Container[Endpoint], now: float) -> list[Endpoint]:
    """Give the endpoints of a pool that may be sent a request for the model now.

    Those that are ready, without those whose KV cache is full unless all are; where there are none, those that are
    suspected: one lost packet must not empty a pool. A suspect that was tried already is not tried again.
    """
    ready = [
        endpoint
        for endpoint in pool.endpoints
        if endpoint.health.is_ready(now) and model in endpoint.models and endpoint not in tried
    ]
    if ready:
        return [endpoint for endpoint in ready if not is_full(endpoint, now)] or ready
    return [
        endpoint
        for endpoint in pool.endpoints
        if endpoint.health.is_last_resort(now) and model in endpoint.models and endpoint not in tried
    ]


def is_full(endpoint: Endpoint, now: float) -> bool:
    """Whether the engine said a moment ago that live requests fill its KV cache."""
    usage = endpoint.report.kv_usage
    return usage is not None and usage >= FULL and now - endpoint.report.at < FRESH_S


def earliest_s(pool: Pool, model: str, now: float) -> float | None:
    """Give the seconds until an endpoint that asked to be left alone may be asked again; None if none did."""
    waits = [
        endpoint.health.cool_until - now
        for endpoint in pool.endpoints
        if model in endpoint.models and endpoint.health.is_cooling(now)
    ]
    return min(waits, default=None)
