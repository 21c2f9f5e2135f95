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

Whoever holds the most is reckoned first. An endpoint that must compute so much anew that this alone, with the least
wait and strain of all, costs more is never looked at: where a prompt is known, that is nearly all of them."""

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
        candidates = self._candidates(request, endpoints, matched, now) if matched else endpoints
        best = limit = float("inf")
        near: list[tuple[float, float, int, Endpoint]] = []
        for endpoint in candidates:
            units = matched.get(endpoint, 0)
            cost, wait = self._cost_s(request, endpoint, units, now)
            if cost <= limit:
                near.append((cost, wait, units, endpoint))
                if cost < best:
                    best, limit = cost, _limit_s(cost, request, endpoint)
        near = [each for each in near if each[0] <= limit]
        longest = max(each[2] for each in near)
        tied = {endpoint.name: (wait, endpoint) for _, wait, units, endpoint in near if units == longest}
        name = next(self._ring.homes(ring_key_of(request), tied)) if len(tied) > 1 else next(iter(tied))
        wait, chosen = tied[name]
        reason = Reason.PREFIX if longest else Reason.LEAST_WORK
        cached_tokens = min(longest * request.unit_tokens, request.prompt_tokens - _least_uncached(request))
        return Choice(chosen, reason, cached_tokens, wait)

    def _candidates(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint], matched: dict[Endpoint, int], now: float
    ) -> Sequence[Endpoint]:
        """Leave out who cannot be the choice, by the longest match or since the caches are crowded."""
        p1s, _, fills, starts_s, strains_s, *_ = zip(*[endpoint.outlook for endpoint in endpoints], strict=True)
        if sum(fills) > CROWDED * len(endpoints):
            enough = HOLDER * request.prompt_tokens / request.unit_tokens
            holders = [endpoint for endpoint in endpoints if matched.get(endpoint, 0) >= enough]
            if holders:
                return holders
        holder = next(reversed(matched))
        if holder not in endpoints:
            return endpoints
        cost, _ = self._cost_s(request, holder, matched[holder], now)
        left_s = _limit_s(cost, request, holder) - min(starts_s) - request.output_tokens * min(strains_s)
        least_units = (request.prompt_tokens - left_s / ((1 + MU) * min(p1s))) / request.unit_tokens
        if least_units <= 0:
            return endpoints
        left = []
        for endpoint, units in reversed(matched.items()):
            if units < least_units:
                break
            if endpoint in endpoints:
                left.append(endpoint)
        return left

    def _cost_s(self, request: InferenceRequest, endpoint: Endpoint, units: int, now: float) -> tuple[float, float]:
        """Reckon the cost of an endpoint that holds so many units, and the wait in it."""
        p1, p2, _, wait, strain_s, decoding, calm, free = endpoint.outlook
        prompt, output = request.prompt_tokens, request.output_tokens
        uncached = prompt
        if units:
            uncached = max(prompt - units * request.unit_tokens, _least_uncached(request))
        own = p1 * uncached + p2 * uncached * (prompt - uncached / 2)
        if uncached + output > calm:
            wait = _wait_s(endpoint, uncached, output, now)
        cost = wait + (1 + MU) * own + KAPPA * decoding * own * own / (own + TAU_S) + output * strain_s
        if wait + own > self._late_s:
            cost += ETA * (wait + own - self._late_s)
        if prompt > free and unpinned_tokens(endpoint, request) > free:
            cost += OVER_PINNED_S
        return cost, wait


def _least_uncached(request: InferenceRequest) -> int:
    return min(MIN_CACHED_LEFT, request.prompt_tokens)


def _limit_s(cost: float, request: InferenceRequest, endpoint: Endpoint) -> float:
    """Give the cost up to which others are as good as the one of the least cost."""
    return cost + NEAR_SHARE * endpoint.work.p1 * request.prompt_tokens + NEAR_S


def _wait_s(endpoint: Endpoint, uncached: int, output: int, now: float) -> float:
    """Predict the wait until the prefill of a request starts, steps beside it included."""
    books = endpoint.outstanding
    step = endpoint.outlook[3] / 1.5
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
