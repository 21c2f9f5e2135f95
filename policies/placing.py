"""place: the endpoint for a request, among the pools that it belongs to; what gateway and simulation share."""

from collections.abc import Container, Mapping

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
) -> Choice | None:
    """Choose an endpoint; None where nobody can take the request now.

    The own pool's policy chooses, unless all of that pool have prefills to do and a longer one has an idle endpoint to
    lend. Where nobody in the own pool can take it, the other pools are asked, the longer ones first.
    """
    endpoints = candidates(standing.own, request, tried, now)
    if standing.longer and is_busy(endpoints):
        for pool in standing.longer:
            idle = lent(pool, request, tried, now)
            if idle:
                choice = policies[pool].choose(request, idle, now)
                return choice._replace(reason=Reason.LENT) if endpoints else choice
    if endpoints:
        return policies[standing.own].choose(request, endpoints, now)
    for pool in (*standing.longer, *reversed(standing.shorter)):
        endpoints = candidates(pool, request, tried, now)
        if endpoints:
            return policies[pool].choose(request, endpoints, now)
    return None
