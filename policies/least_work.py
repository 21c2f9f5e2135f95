"""LeastWork: the endpoint where this request is served soonest, counting what it does to the others there.

All in seconds. u prompt tokens are not cached on the endpoint, m are; D sequences decode there:

    own    p1*u + p2*u*(m + u/2)
    wait   prefill outstanding there, less what its head has done + steps to get through the token budget
           + half a step + for memory or a place, if the KV cache or the batch is full
    cost   wait + (1 + MU)*own             a prefill second also delays all who queue behind it
           + KAPPA*D*own^2/(own + TAU)     very long prefills hurt the decodes beside them
           + output*strain                 decodes and context there slow each of its tokens down
           + ETA*max(0, wait + own - 0.8 of the TTFT objective)

Near the least cost (0.1*p1*prompt + 2 ms) the longest match wins, then the first home on the ring, so that gateways
that do not talk to each other agree.

So a hot prompt is computed once more when the endpoints that hold it each have more decodes than the idlest by

    bound = (1 + MU)*own / (output*(d1 + d2*context of one))

(4k tokens, answers of 400, bench-8b: 12), and has at most ceil(load / bound) homes. Once it is held there nothing draws
it to any other, so the homes are the same when the load comes again.

Where a cache has ROOM left, more is at stake than this request: what is cached now may all stay, if prompts are spread
evenly over the caches and none is kept twice. Then two more rules hold; when all caches are full they change nothing.

    cold   a prompt of which nobody holds half goes where the least was planted, unless that costs over SLACK times its
           own prefill more than the least. (By load alone 150 customers of 12k tokens get 15 to 25 places on each of
           eight caches that hold 20; whoever gets 21 makes its requests wait 40 s when all of them call at once.)
    known  once the caches were CROWDED, pinned by requests in flight to so much in the mean, prompts stay for KEPT_S
           with those who hold HOLDER of them: a second copy is taken from the room of the first ones.

Whoever holds the most is reckoned first. An endpoint that must compute so much anew that this alone, with the least
wait and strain of all, costs more is never looked at: where a prompt is known, that is nearly all of them."""

from collections.abc import Sequence

from policies.affinity import ring_key_of
from policies.books import MIN_CACHED_LEFT
from policies.endpoint import UNKNOWN_CAPACITY, Endpoint, Outlook
from policies.index import DEFAULT_CAPACITY_TOKENS, PrefixIndex
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
ROOM = 0.95  # a cache that holds more of its capacity is full
COLD = 0.5  # of the prompt
NOTABLE = 0.01  # of a cache: smaller prompts take no room worth spreading
SLACK = 9.0  # 1 + MU: what computing it once more would cost; with 3 one seed in six of b2b fails at 40/s
CROWDED = 0.6
KEPT_S = 300.0  # with 60 three seeds in six fail: a lull does not mean that the crowd is gone for good
HOLDER = 0.8
LOOK_S = 0.1  # room and crowds change slowly, and all endpoints are asked for them

Row = tuple[float, int, Endpoint]
"""Cost, units held, and whose they are."""


class LeastWork:
    """The recommended policy."""

    def __init__(self, index: PrefixIndex, ttft_slo_s: float = TTFT_SLO_S) -> None:
        self._index = index
        self._late_s = 0.8 * ttft_slo_s
        self._ring = Ring()
        self._look_at = self._kept_until = float("-inf")
        self._has_room = True
        self.home_holds = 0.0
        """Share of a prompt that its first home on the ring is taken to hold: .95 while other gateways serve the same
        endpoints and do not tell what they send. Then prompts meet where all gateways look for them."""

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Choose the endpoint of the least cost."""
        outlooks = [endpoint.outlook or endpoint.reckon() for endpoint in endpoints]
        if now >= self._look_at:
            self._look(endpoints, outlooks, now)
        matched = self._index.matched(request.prefix)
        if self.home_holds:
            matched = self._with_home(request, endpoints, matched)
        most = next(reversed(matched.values())) if matched else 0
        prompt = request.prompt_tokens
        is_cold = most * request.unit_tokens < COLD * prompt
        if self._has_room and is_cold and prompt > NOTABLE * _capacity_tokens(endpoints[0]):
            units, chosen = self._plant(request, endpoints, outlooks, matched, now)
        else:
            units, chosen = self._nearest(self._rows(request, endpoints, outlooks, matched, now), request)
        reason = Reason.PREFIX if units else Reason.LEAST_WORK
        cached_tokens = min(units * request.unit_tokens, request.prompt_tokens - _least_uncached(request))
        return Choice(chosen, reason, cached_tokens, self._cost_s(request, chosen, units, now)[1])

    def reckoned(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint], now: float
    ) -> list[tuple[float, float, int]]:
        """Give cost, wait and cached tokens of each, for `explained.py`; nothing changes by it."""
        matched = self._index.matched(request.prefix)
        most = request.prompt_tokens - _least_uncached(request)
        rows = []
        for endpoint in endpoints:
            units = matched.get(endpoint, 0)
            cost, wait = self._cost_s(request, endpoint, units, now)
            rows.append((cost, wait, min(units * request.unit_tokens, most)))
        return rows

    def _with_home(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint], matched: dict[Endpoint, int]
    ) -> dict[Endpoint, int]:
        """Let the first home hold so much, if it does not hold more."""
        by_name = {endpoint.name: endpoint for endpoint in endpoints}
        home = by_name[next(self._ring.homes(ring_key_of(request), by_name))]
        units = int(self.home_holds * len(request.prefix))
        if units <= matched.get(home, 0):
            return matched
        return dict(sorted({**matched, home: units}.items(), key=_units))

    def _look(self, endpoints: Sequence[Endpoint], outlooks: Sequence[Outlook], now: float) -> None:
        """Look at all caches at once."""
        self._look_at = now + LOOK_S
        self._has_room = any(self._index.fill(endpoint) < ROOM for endpoint in endpoints)
        if sum([fill for _, _, fill, *_ in outlooks]) > CROWDED * len(endpoints):
            self._kept_until = now + KEPT_S

    def _rows(
        self,
        request: InferenceRequest,
        endpoints: Sequence[Endpoint],
        outlooks: Sequence[Outlook],
        matched: dict[Endpoint, int],
        now: float,
    ) -> list[Row]:
        """Reckon who can be the choice, at least."""
        if self._has_room and now < self._kept_until:
            rows = self._holders(request, endpoints, matched, HOLDER * request.prompt_tokens / request.unit_tokens, now)
            if rows:
                return rows
        if matched:
            holder = next(reversed(matched))
            if holder in endpoints:
                cost, _ = self._cost_s(request, holder, matched[holder], now)
                p1s, _, _, steps_s, strains_s, *_ = zip(*outlooks, strict=True)
                left_s = _limit_s(cost, request, holder) - 1.5 * min(steps_s) - request.output_tokens * min(strains_s)
                least_units = (request.prompt_tokens - left_s / ((1 + MU) * min(p1s))) / request.unit_tokens
                if least_units > 0:
                    return self._holders(request, endpoints, matched, least_units, now)
        return self._all(request, endpoints, outlooks, matched, now)

    def _holders(
        self,
        request: InferenceRequest,
        endpoints: Sequence[Endpoint],
        matched: dict[Endpoint, int],
        least_units: float,
        now: float,
    ) -> list[Row]:
        """Reckon those that hold so much."""
        rows = []
        for endpoint, units in reversed(matched.items()):
            if units < least_units:
                break
            if endpoint in endpoints:
                rows.append((self._cost_s(request, endpoint, units, now)[0], units, endpoint))
        return rows

    def _all(
        self,
        request: InferenceRequest,
        endpoints: Sequence[Endpoint],
        outlooks: Sequence[Outlook],
        matched: dict[Endpoint, int],
        now: float,
    ) -> list[Row]:
        """Reckon all."""
        costs, limit = self._costs(request, endpoints, outlooks, matched, now)
        held = matched.get
        return [
            (cost, held(endpoint, 0), endpoint)
            for cost, endpoint in zip(costs, endpoints, strict=True)
            if cost <= limit
        ]

    def _costs(
        self,
        request: InferenceRequest,
        endpoints: Sequence[Endpoint],
        outlooks: Sequence[Outlook],
        matched: dict[Endpoint, int],
        now: float,
        slack_s: float = 0.0,
    ) -> tuple[list[float], float]:
        """Give the cost of each, and up to what they are near the least or within `slack_s` of it.

        One beyond that may cost more than is given. It is `_cost_s` for all in one go: queues come in where they may
        matter.
        """
        prompt, output, late_s = request.prompt_tokens, request.output_tokens, self._late_s
        unit, held, anew = request.unit_tokens, matched.get, _least_uncached(request)
        if matched:
            uncached = [prompt - unit * held(endpoint, 0) for endpoint in endpoints]
            if min(uncached) < anew:
                uncached = [max(tokens, anew) for tokens in uncached]
        else:
            uncached = [prompt] * len(endpoints)
        behind, kappa, tau_s, eta = 1 + MU, KAPPA, TAU_S, ETA  # locals are read faster
        costs = [
            (wait := step * (0.5 + (u / budget if u > budget else 1.0)))
            + (own := u * (p1 + p2 * (prompt - u / 2))) * (behind + kappa * decoding * own / (own + tau_s))
            + output * strain
            + (eta * late if (late := wait + own - late_s) > 0.0 else 0.0)
            for u, (p1, p2, _, step, strain, decoding, budget, _) in zip(uncached, outlooks, strict=True)
        ]
        rough = [place for place, (u, of) in enumerate(zip(uncached, outlooks, strict=True)) if u + output > of[7]]
        is_rough = set(rough)
        calm = [cost for place, cost in enumerate(costs) if place not in is_rough] if rough else costs
        best = min(calm, default=float("inf"))
        margin = slack_s + NEAR_SHARE * max([of[0] for of in outlooks]) * prompt + NEAR_S
        for place in rough:
            if costs[place] <= best + margin:
                endpoint = endpoints[place]
                costs[place] = self._cost_s(request, endpoint, held(endpoint, 0), now)[0]
                best = min(best, costs[place])
        return costs, best + margin

    def _nearest(self, rows: Sequence[Row], request: InferenceRequest) -> tuple[int, Endpoint]:
        """Of those near the least cost take the longest match, then the first home on the ring."""
        best, _, cheapest = min(rows, key=_cost)
        limit = _limit_s(best, request, cheapest)
        near = [row for row in rows if row[0] <= limit]
        longest = max([units for _, units, _ in near])
        tied = {endpoint.name: endpoint for _, units, endpoint in near if units == longest}
        name = next(self._ring.homes(ring_key_of(request), tied)) if len(tied) > 1 else next(iter(tied))
        return longest, tied[name]

    def _plant(
        self,
        request: InferenceRequest,
        endpoints: Sequence[Endpoint],
        outlooks: Sequence[Outlook],
        matched: dict[Endpoint, int],
        now: float,
    ) -> tuple[int, Endpoint]:
        """Give a prompt that is new to all a home where the least was planted."""
        slack_s = SLACK * endpoints[0].work.p1 * request.prompt_tokens
        costs, _ = self._costs(request, endpoints, outlooks, matched, now, slack_s)
        limit, held = min(costs) + slack_s, matched.get
        planted = self._index.planted(endpoints)
        least = min([units for units, cost in zip(planted, costs, strict=True) if cost <= limit])
        rows = [
            (cost, held(endpoint, 0), endpoint)
            for units, cost, endpoint in zip(planted, costs, endpoints, strict=True)
            if units == least and cost <= limit
        ]
        return self._nearest(rows, request)

    def _cost_s(self, request: InferenceRequest, endpoint: Endpoint, units: int, now: float) -> tuple[float, float]:
        """Reckon the cost of an endpoint that holds so many units, and the wait in it."""
        p1, p2, _, step, strain_s, decoding, budget, calm = endpoint.outlook or endpoint.reckon()
        prompt, output = request.prompt_tokens, request.output_tokens
        uncached = prompt
        if units:
            uncached = max(prompt - units * request.unit_tokens, _least_uncached(request))
        own = p1 * uncached + p2 * uncached * (prompt - uncached / 2)
        if uncached + output > calm:
            wait = _wait_s(endpoint, uncached, output, now)
        else:
            wait = step * (0.5 + (uncached / budget if uncached > budget else 1.0))
        cost = wait + (1 + MU) * own + KAPPA * decoding * own * own / (own + TAU_S) + output * strain_s
        if wait + own > self._late_s:
            cost += ETA * (wait + own - self._late_s)
        return cost, wait


def _cost(row: Row) -> float:
    return row[0]


def _units(item: tuple[Endpoint, int]) -> int:
    return item[1]


def _capacity_tokens(endpoint: Endpoint) -> int:
    return endpoint.report.kv_capacity_tokens or DEFAULT_CAPACITY_TOKENS


def _least_uncached(request: InferenceRequest) -> int:
    return min(MIN_CACHED_LEFT, request.prompt_tokens)


def _limit_s(cost: float, request: InferenceRequest, endpoint: Endpoint) -> float:
    """Give the cost up to which others are as good as the one of the least cost."""
    return cost + NEAR_SHARE * endpoint.work.p1 * request.prompt_tokens + NEAR_S


def _wait_s(endpoint: Endpoint, uncached: int, output: int, now: float) -> float:
    """Predict the wait until the prefill of a request starts, steps beside it included."""
    books = endpoint.outstanding
    step = (endpoint.outlook or endpoint.reckon())[3]
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
