"""place: the endpoint for a request, among the pools that it belongs to; what gateway and simulation share."""

from collections.abc import Callable, Container, Mapping

from policies.endpoint import Endpoint, Pool
from policies.policy import Choice, Policy, Reason
from policies.pools import Standing, candidates, is_busy, lent
from policies.request import InferenceRequest


def place(
    standing: Standing,
    policies: Mapping[Pool, Policy],
    request: InferenceRequest,
    tried: Container[Endpoint],
    now: float,
    has_room: Callable[[Endpoint], bool] | None = None,
) -> Choice | None:
    """Choose an endpoint; None where nobody can take the request now.

    Args:
        has_room: Whether an endpoint has room for it; None takes all for roomy. Who lends is idle, and so not asked.

    The own pool's policy chooses, unless all of that pool have prefills to do and a longer one has an idle endpoint to
    lend. Where nobody in the own pool can take it, the other pools are asked, the longer ones first.
    """
    able = candidates(standing.own, request, tried, now)
    endpoints = _roomy(able, has_room)
    if standing.longer and is_busy(endpoints):
        for pool in standing.longer:
            idle = lent(pool, request, tried, now)
            if idle:
                choice = policies[pool].choose(request, idle, now)
                return choice._replace(reason=Reason.LENT) if able else choice
    if endpoints:
        return policies[standing.own].choose(request, endpoints, now)
    if able:
        return None
    for pool in (*standing.longer, *reversed(standing.shorter)):
        endpoints = _roomy(candidates(pool, request, tried, now), has_room)
        if endpoints:
            return policies[pool].choose(request, endpoints, now)
    return None


def _roomy(endpoints: list[Endpoint], has_room: Callable[[Endpoint], bool] | None) -> list[Endpoint]:
    return endpoints if has_room is None else [endpoint for endpoint in endpoints if has_room(endpoint)]
