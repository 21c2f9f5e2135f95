"""explain: how the endpoints stood for a request when one of them was chosen, for whoever asks why.

Nothing here chooses or changes anything, and nobody pays for it but the requests that are looked at. The yardstick is
the same for all policies: the wait, the cached tokens and the cost in seconds that `least_work` reckons. So it shows
what another rule gave away, as well.
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple, Protocol

from policies.endpoint import Endpoint, Pool
from policies.pools import Standing, candidates, is_able, is_full
from policies.request import InferenceRequest

MOST = 8  # candidates that are told of

ABLE = "able"
TRIED = "tried"
BUSY = "busy"
FULL = "full"
CONTEXT = "context"


class Candidate(NamedTuple):
    """An endpoint that was looked at."""

    endpoint: Endpoint
    wait_s: float
    """Predicted, before it would start on the request."""
    cached_tokens: int
    """Of the prompt, expected there."""
    cost_s: float
    """What the choice goes by: seconds, those of others it would delay included."""
    reason: str = ABLE
    """`able` to take it; or why not: tried already, busy (it asked to be left alone), a state of health, its cache full
    of live requests, its context too short."""


class Yardstick(Protocol):
    """Reckons what requests cost at endpoints."""

    def reckoned(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float
    ) -> list[tuple[float, float, int]]:
        """Give cost, wait and cached tokens of each; nothing changes by it."""
        ...


def explain(
    standing: Standing,
    yardsticks: Mapping[Pool, Yardstick],
    request: InferenceRequest,
    tried: Container[Endpoint],
    now: float,
) -> tuple[Candidate, ...]:
    """Give the first MOST endpoints that might have been chosen: of the own pool first, and there the cheapest first.

    Those that could not take the request come last, from the own pool alone.
    """
    found: list[Candidate] = []
    for pool in (standing.own, *standing.longer, *reversed(standing.shorter)):
        if len(found) >= MOST:
            break
        able = candidates(pool, request, tried, now)
        found += _reckoned(yardsticks[pool], request, able, now)
    taken = {each.endpoint for each in found}
    unable = [each for each in standing.own.endpoints if each not in taken and is_able(each, request)]
    if len(found) < MOST and unable:
        rows = _reckoned(yardsticks[standing.own], request, unable[:MOST], now)
        found += [row._replace(reason=_why_not(row.endpoint, tried, now)) for row in rows]
    return tuple(found[:MOST])


def _reckoned(
    yardstick: Yardstick, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float
) -> list[Candidate]:
    rows = zip(endpoints, yardstick.reckoned(request, endpoints, now), strict=True)
    found = [Candidate(endpoint, wait_s, cached, cost_s) for endpoint, (cost_s, wait_s, cached) in rows]
    return sorted(found, key=lambda each: each.cost_s)


def _why_not(endpoint: Endpoint, tried: Container[Endpoint], now: float) -> str:
    if endpoint in tried:
        return TRIED
    if endpoint.health.is_cooling(now):
        return BUSY
    if not endpoint.health.is_ready(now):
        return endpoint.health.state.value
    return FULL if is_full(endpoint, now) else CONTEXT
