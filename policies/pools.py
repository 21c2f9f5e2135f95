"""Which pool a request belongs to, and which endpoints may take it.

A pool serves a model when one of its endpoints does. Those that do stand in a row, the least limit first:

    hard   a pool takes prompts plus allowed output up to its limit, as the engines count
    soft   it may leave prompts with more than `max_uncached_tokens` of prefill to the longer ones behind it

The first pool that takes a request by both is its own: long prefills go to a pool of their own, and nothing short waits
behind them; a long prompt that is cached is no long prefill. Longer pools lend an endpoint that is idle while all of
the own pool have prefills to do. Where nobody in the own pool can take a request, the others stand in for it. Pools
that are for other classes of service are never a request's own, but lend and stand in like longer ones, if they lend.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from policies.endpoint import Endpoint, Pool
from policies.request import InferenceRequest

FULL = 0.98  # of the KV cache held by live requests: what is sent there preempts others
FRESH_S = 5.0  # an older report of a full cache is no reason to keep away
LEND_FROM_S = 0.1  # of prefill at every endpoint of the own pool: less is over before the detour pays


class Serving(NamedTuple):
    """A pool that serves a model, and what it takes."""

    limit_tokens: float
    """Prompt plus output."""
    pool: Pool
    cuts_output: bool = False
    """Whether its engines end an answer at the limit instead of refusing the request: only the prompt must fit."""


class Standing(NamedTuple):
    """The pools that may take a request."""

    own: Pool
    longer: tuple[Pool, ...] = ()
    """They lend what is idle, and stand in; those of other classes come last."""
    shorter: tuple[Pool, ...] = ()
    """Too small for such a prefill, if anything better is there: they only stand in."""

    def has_anybody(self, request: InferenceRequest, tried: Container[Endpoint], now: float) -> bool:
        """Whether an endpoint may take a request now, with room for it or without."""
        return any(candidates(pool, request, tried, now) for pool in (self.own, *self.longer, *self.shorter))


class TooLong(NamedTuple):
    """No pool takes a request of this length."""

    needed_tokens: int
    """Prompt plus allowed output, at the least."""
    most_tokens: int
    """What the largest pool takes."""
    pool: Pool
    """The largest pool."""


def is_able(endpoint: Endpoint, request: InferenceRequest) -> bool:
    """Whether an engine serves the model of a request, and can do what else it needs."""
    return request.model in endpoint.models and (not request.needs or request.needs in endpoint.can)


def serving(pools: Iterable[Pool], model: str) -> list[Serving]:
    """Give the pools that serve a model, the least limit first; of equal ones, the first in the configuration."""
    found = []
    for pool in pools:
        endpoints = [endpoint for endpoint in pool.endpoints if model in endpoint.models]
        if endpoints:
            cuts_output = pool.max_context_tokens is None and all(endpoint.cuts_output for endpoint in endpoints)
            found.append(Serving(_limit_of(pool, endpoints), pool, cuts_output))
    return sorted(found, key=lambda each: (each.limit_tokens, _uncached_limit(each.pool)))


def standing_of(
    row: Sequence[Serving], request: InferenceRequest, cached_in: Callable[[Pool], int], least_prompt_tokens: int
) -> Standing | TooLong:
    """Find the pool that a request belongs to.

    Args:
        row: What `serving` says of its model; not empty.
        cached_in: Prompt tokens that an endpoint of a pool probably holds.
        least_prompt_tokens: What the prompt has for certain: fewer than `prompt_tokens` where those are estimated. Only
            for them a request is refused.
    """
    strangers: tuple[Pool, ...] = ()
    if any(each.pool.classes for each in row):
        mine = [each for each in row if not each.pool.classes or request.service_class in each.pool.classes]
        if mine:
            strangers = tuple(
                each.pool
                for each in row
                if each not in mine and each.pool.lends and _fits(each, request, request.prompt_tokens)
            )
            row = mine
    fitting = [each.pool for each in row if _fits(each, request, request.prompt_tokens)]
    if not fitting:
        largest = row[-1]
        if not _fits(largest, request, least_prompt_tokens):
            allowed = min(1, request.allowed_tokens) if largest.cuts_output else request.allowed_tokens
            return TooLong(least_prompt_tokens + allowed, int(largest.limit_tokens), largest.pool)
        fitting = [largest.pool]
    at = len(fitting) - 1
    for place, pool in enumerate(fitting[:-1]):
        most = pool.max_uncached_tokens
        if most is None or request.prompt_tokens - cached_in(pool) <= most:
            at = place
            break
    return Standing(fitting[at], tuple(fitting[at + 1 :]) + strangers, tuple(fitting[:at]))


def _fits(serving: Serving, request: InferenceRequest, prompt_tokens: int) -> bool:
    allowed = min(1, request.allowed_tokens) if serving.cuts_output else request.allowed_tokens
    return prompt_tokens + allowed <= serving.limit_tokens


def _limit_of(pool: Pool, endpoints: list[Endpoint]) -> float:
    """Give the prompt plus output that a pool takes: its own limit, and no more than its largest engine."""
    largest = max(float("inf") if each.max_context_tokens is None else each.max_context_tokens for each in endpoints)
    return largest if pool.max_context_tokens is None else min(largest, pool.max_context_tokens)


def _uncached_limit(pool: Pool) -> float:
    return float("inf") if pool.max_uncached_tokens is None else pool.max_uncached_tokens


def candidates(pool: Pool, request: InferenceRequest, tried: Container[Endpoint], now: float) -> list[Endpoint]:
    """Give the endpoints of a pool that may be sent a request now.

    Those that are ready, without those whose context is too short or whose KV cache is full unless all are; where there
    are none, those that are suspected: one lost packet must not empty a pool. A suspect that was tried already is not
    tried again.

    A full cache is no reason against a prompt that its live requests hold. Elsewhere that takes more memory: with 150
    customers on eight caches (b2b), one who moved for a moment filled the next cache by it, that one the next, and
    within six seconds all were full of second copies and requests waited for 100 s.
    """
    model, needs, endpoints = request.model, request.needs, pool.endpoints
    if needs:
        endpoints = [endpoint for endpoint in endpoints if needs in endpoint.can]
    ready = [
        endpoint
        for endpoint in endpoints
        if endpoint.health.is_ready(now) and model in endpoint.models and endpoint not in tried
    ]
    if ready:
        needed = request.prompt_tokens + request.allowed_tokens
        roomy = [endpoint for endpoint in ready if has_context(endpoint, needed)] or ready
        return [each for each in roomy if not is_full(each, now) or _is_pinned(each, request)] or roomy
    return [
        endpoint
        for endpoint in endpoints
        if endpoint.health.is_last_resort(now) and model in endpoint.models and endpoint not in tried
    ]


def may_take(endpoint: Endpoint, request: InferenceRequest) -> bool:
    """Whether an endpoint is able to serve a request and has context for it; its health aside."""
    return is_able(endpoint, request) and has_context(endpoint, request.prompt_tokens + request.allowed_tokens)


def lent(pool: Pool, request: InferenceRequest, tried: Container[Endpoint], now: float) -> list[Endpoint]:
    """Give the endpoints that another pool can lend: ready, with nothing to do."""
    if not pool.lends:
        return []
    return [
        endpoint
        for endpoint in candidates(pool, request, tried, now)
        if not endpoint.outstanding.requests and endpoint.health.is_ready(now)
    ]


def is_busy(endpoints: Iterable[Endpoint]) -> bool:
    """Whether all of them have prefills to do that are worth a detour."""
    return all(endpoint.outstanding.prefill_s > LEND_FROM_S for endpoint in endpoints)


def has_context(endpoint: Endpoint, needed_tokens: int) -> bool:
    """Whether an engine takes a request of this length, as far as is known."""
    most = endpoint.max_context_tokens
    return most is None or needed_tokens <= most or endpoint.cuts_output


def is_full(endpoint: Endpoint, now: float) -> bool:
    """Whether the engine said a moment ago that live requests fill its KV cache."""
    usage = endpoint.report.kv_usage
    return usage is not None and usage >= FULL and now - endpoint.report.at < FRESH_S


def _is_pinned(endpoint: Endpoint, request: InferenceRequest) -> bool:
    """Whether requests in flight there hold half of a prompt, and so keep it in the cache."""
    prefix = request.prefix
    return bool(prefix) and prefix[len(prefix) // 2] in endpoint.outstanding.pinned


def earliest_s(pool: Pool, model: str, now: float) -> float | None:
    """Give the seconds until an endpoint that asked to be left alone may be asked again; None if none did."""
    waits = [
        endpoint.health.cool_until - now
        for endpoint in pool.endpoints
        if model in endpoint.models and endpoint.health.is_cooling(now)
    ]
    return min(waits, default=None)
