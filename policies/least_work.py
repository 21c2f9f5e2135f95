"""LeastWork: the endpoint where this request is served soonest, counting what it does to the others there.

All in seconds. u prompt tokens are not cached on the endpoint, m are; D sequences decode there:

    own    p1*u + p2*u*(m + u/2)
    wait   prefill outstanding there, less what its head has done + steps to get through the token budget
           + half a step + for memory or a place, if the KV cache or the batch is full
    cost   wait + (1 + MU)*own             a prefill second also delays all who queue behind it
           + KAPPA*D*own^2/(own + TAU)     very long prefills hurt the decodes beside them
           + output*strain                 decodes and context there slow each of its tokens down
           + ETA*max(0, wait + own - 0.8 of the TTFT objective)
           + 1 s if it would pin more than .95 of the KV cache

Near the least cost (0.1*p1*prompt + 2 ms) the longest match wins, then the first home on the ring, so that gateways
that do not talk to each other agree. When the endpoints' KV caches are pinned to over .6 in the mean, only endpoints
that hold .8 of the prompt are candidates, if there are any: placing known prefixes anew then makes every cache
thrash.

Most endpoints are told from the best by a sum of four products (the part of the cost that is never too much); the
rest is reckoned for the few that remain."""

from collections.abc import Sequence

from policies.affinity import ring_key_of
from policies.books import MIN_CACHED_LEFT, unpinned_tokens
from policies.endpoint import UNKNOWN_CAPACITY, Endpoint
from policies.index import PrefixIndex
from policies.policy import Choice, Reason
from policies.request import InferenceRequest
from policies.ring import Ring

# Chosen by simulation over seven workloads.
MU = 8.0
KAPPA = 4.0
TAU_S = 10.0
ETA = 50.0
TTFT_SLO_S = 2.0
MAX_HEAD_DONE = 0.8  # of the head's prefill: it is not done before its first token is seen
NEAR_S = 0.002
NEAR_SHARE = 0.1
MAX_PINNED = 0.95  # .85 to .95 alike; at .98 single endpoints collapse
OVER_PINNED_S = 1.0
CROWDED = 0.6
HOLDER = 0.8


class LeastWork:
    """The recommended policy."""

    def __init__(self, index: PrefixIndex, ttft_slo_s: float = TTFT_SLO_S) -> None:
        self._index = index
        self._late_s = 0.8 * ttft_slo_s
        self._ring = Ring()

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the endpoint of the least cost."""
        matched = self._index.matched(request.prefix)
        prompt, output, unit = request.prompt_tokens, request.output_tokens, request.unit_tokens
        least = min(MIN_CACHED_LEFT, prompt)
        if matched and sum(endpoint.outlook.fill for endpoint in endpoints) > CROWDED * len(endpoints):
            enough = HOLDER * prompt
            endpoints = [each for each in endpoints if matched.get(each, 0) * unit >= enough] or endpoints
        best = limit = float("inf")
        near: list[tuple[float, float, int, Endpoint]] = []
        held = matched.get
        cold_shape = prompt * prompt / 2
        for endpoint in endpoints:
            p1, p2, start_s, strain_s, decoding, fill = endpoint.outlook
            units = held(endpoint, 0)
            if units:
                uncached = prompt - units * unit
                if uncached < least:
                    uncached = least
                own = p1 * uncached + p2 * uncached * (prompt - uncached / 2)
            else:
                uncached = prompt
                own = p1 * prompt + p2 * cold_shape
            cost = start_s + (1 + MU) * own + output * strain_s + KAPPA * decoding * own * own / (own + TAU_S)
            if cost > limit:
                continue
            wait = self._wait_s(endpoint, uncached, output, now)
            cost += wait - start_s
            if wait + own > self._late_s:
                cost += ETA * (wait + own - self._late_s)
            if fill and _is_overfull(endpoint, request):
                cost += OVER_PINNED_S
            if cost < best:
                best = cost
                limit = cost + NEAR_SHARE * p1 * prompt + NEAR_S
            if cost <= limit:
                near.append((cost, wait, units, endpoint))
        longest = max(units for cost, _, units, _ in near if cost <= limit)
        tied = {
            endpoint.name: (wait, endpoint)
            for cost, wait, units, endpoint in near
            if cost <= limit and units == longest
        }
        name = next(self._ring.homes(ring_key_of(request), tied)) if len(tied) > 1 else next(iter(tied))
        wait, chosen = tied[name]
        reason = Reason.PREFIX if longest else Reason.LEAST_WORK
        return Choice(chosen, reason, min(longest * unit, prompt - least), wait)

    def _wait_s(self, endpoint: Endpoint, uncached: int, output: int, now: float) -> float:
        """Predict the wait until the prefill of a request starts, steps beside it included."""
        books, outlook = endpoint.outstanding, endpoint.outlook
        step = outlook.start_s / 1.5
        wait = step / 2
        if books.prefilling:
            head = next(iter(books.prefilling))
            wait += max(0.0, books.prefill_s - min(now - books.head_since, MAX_HEAD_DONE * head.prefill_s))
        wait += step * max(1.0, (books.prefill_tokens + uncached) / endpoint.work.profile.budget_tokens)
        over = books.growth_tokens + uncached + output - (endpoint.report.kv_capacity_tokens or UNKNOWN_CAPACITY)
        crowd = books.requests - endpoint.work.profile.max_num_seqs
        if books.requests and (over > 0 or crowd >= 0):
            leaving = max(over * books.requests / max(1, books.context_tokens), crowd + 1)
            wait += leaving * output * step / books.requests
        return wait


def _is_overfull(endpoint: Endpoint, request: InferenceRequest) -> bool:
    """Whether the request would pin more of an endpoint's KV cache than is safe."""
    capacity = endpoint.report.kv_capacity_tokens or UNKNOWN_CAPACITY
    pinned = endpoint.outstanding.pinned_tokens
    return (
        pinned + request.prompt_tokens > MAX_PINNED * capacity
        and pinned + unpinned_tokens(endpoint, request) > MAX_PINNED * capacity
    )
