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

Nobody is looked at closely who cannot win. Whoever holds the most is reckoned first: an endpoint that must compute so
much anew that this alone, with the least wait and strain of all, costs more is out; where a prompt is known, that is
nearly all of them. Else a floor is added up for each (`_floors`), and those whose floor is near the least cost are
reckoned in full. A new prompt's home is sought among the least planted, and all are reckoned only if these may cost too
much. None of it changes the choice (tests/policies/test_shortcuts.py)."""

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from policies.affinity import ring_key_of
from policies.books import MIN_CACHED_LEFT
from policies.endpoint import UNKNOWN_CAPACITY, Endpoint, Outlook
from policies.index import DEFAULT_CAPACITY_TOKENS, PrefixIndex
from policies.policy import Choice, Reason
from policies.request import InferenceRequest
from policies.ring import Ring

# Chosen by simulation over seven workloads.
MU = 8.0  # 16 hits .613 and not .595 on conv at 62/s, but a burst of one long prompt spreads over two endpoints of four
KAPPA = 4.0
TAU_S = 10.0
ETA = 50.0
TTFT_SLO_S = 2.0
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


class Extremes(NamedTuple):
    """What no endpoint is below, or above: what cannot win by these figures is never looked at."""

    p1: float
    p2: float
    step_s: float
    steps_s: float
    most_p1: float
    most_budget: int


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
        wait_s = _wait_s(request, chosen, _uncached(request, units), now)
        return Choice(chosen, reason, cached_tokens, wait_s)

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
        if sum([outlook[2] for outlook in outlooks]) > CROWDED * len(endpoints):
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
                output = request.output_tokens
                beside_s = min([output * outlook[4] + outlook[5] for outlook in outlooks])
                least_p1 = min([outlook[0] for outlook in outlooks])
                left_s = _limit_s(cost, request, holder) - beside_s
                least_units = (request.prompt_tokens - left_s / ((1 + MU) * least_p1)) / request.unit_tokens
                if least_units > 0:
                    return self._holders(request, endpoints, matched, least_units, now)
        extremes = _extremes(outlooks)
        floors = self._floors(request, outlooks, extremes, matched, now)
        return self._within(_near_s(request, extremes), floors, endpoints, outlooks, request, matched, now)

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

    def _floors(
        self,
        request: InferenceRequest,
        outlooks: Sequence[Outlook],
        extremes: Extremes,
        matched: dict[Endpoint, int],
        now: float,
    ) -> list[float]:
        """Give what each costs at least, in half the time: as if all held the longest match.

        Cost rises with own, and faster and faster: so the terms of own and lateness are taken as straight lines that
        touch or stay below them, the same for all, and what is left per endpoint are products.
        """
        prompt, output = request.prompt_tokens, request.output_tokens
        uncached = _uncached(request, next(reversed(matched.values()), 0))
        own = _own_s(extremes.p1, extremes.p2, prompt, uncached)
        anew, beside = (1 + MU) * uncached, KAPPA * own * own / (own + TAU_S)
        more_s = max(0.0, uncached / extremes.most_budget - 1) * extremes.step_s
        of_wait = 1 + ETA if own + more_s + extremes.steps_s > self._late_s else 1.0  # all are late
        sure = (1 + MU) * own - anew * extremes.p1 + of_wait * more_s + (of_wait - 1) * (own - self._late_s)
        return [
            sure
            + anew * p1
            + beside * decoding
            + output * strain
            + of_wait * (steps + (left if (left := done_at - now) > queue else queue))
            for p1, _, _, _, strain, steps, decoding, _, _, queue, done_at, _ in outlooks
        ]

    def _within(
        self,
        margin_s: float,
        floors: Sequence[float],
        endpoints: Sequence[Endpoint],
        outlooks: Sequence[Outlook],
        request: InferenceRequest,
        matched: dict[Endpoint, int],
        now: float,
    ) -> list[Row]:
        """Give those whose cost is within a margin of the least, and maybe some beyond it.

        Those whose floor is low enough are reckoned as `_cost_s` does, in one go, but for waits for memory or a place:
        they are added where one is still near without them.
        """
        prompt, output, late_s, unit = request.prompt_tokens, request.output_tokens, self._late_s, request.unit_tokens
        held, anew = matched.get, _least_uncached(request)
        lowest = endpoints[floors.index(min(floors))]
        limit = self._cost_s(request, lowest, held(lowest, 0), now)[0] + margin_s
        near = [
            (max(prompt - unit * held(endpoint, 0), anew), endpoint, outlook)
            for floor, endpoint, outlook in zip(floors, endpoints, outlooks, strict=True)
            if floor <= limit
        ]
        behind, kappa, tau_s, eta = 1 + MU, KAPPA, TAU_S, ETA  # locals are read faster
        costs = [
            (
                wait := step * (0.5 + (steps if (steps := (pending + u) / budget) > 1.0 else 1.0))
                + (left if (left := done_at - now) > queue else queue)
            )
            + (own := u * (p1 + p2 * (prompt - u / 2))) * (behind + kappa * decoding * own / (own + tau_s))
            + output * strain
            + (eta * late if (late := wait + own - late_s) > 0.0 else 0.0)
            for u, _, (p1, p2, _, step, strain, _, decoding, pending, budget, queue, done_at, _) in near
        ]
        rows = []
        for cost, (uncached, endpoint, outlook) in zip(costs, near, strict=True):
            if cost <= limit:
                units = held(endpoint, 0)
                if uncached + output > outlook[-1]:
                    cost, _ = self._cost_s(request, endpoint, units, now)
                limit = min(limit, cost + margin_s)
                rows.append((cost, units, endpoint))
        return rows

    def _nearest(self, rows: Sequence[Row], request: InferenceRequest) -> tuple[int, Endpoint]:
        """Of those near the least cost take the longest match, then the first home on the ring."""
        if len(rows) == 1:
            return rows[0][1:]
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
        extremes = _extremes(outlooks)
        near_s = _near_s(request, extremes)
        floors = self._floors(request, outlooks, extremes, matched, now)
        planted = self._index.planted(endpoints)
        least = min(planted)
        is_least = [units == least for units in planted]
        rows = self._within(
            near_s,
            list(compress(floors, is_least)),
            list(compress(endpoints, is_least)),
            list(compress(outlooks, is_least)),
            request,
            matched,
            now,
        )
        if min(rows, key=_cost)[0] + near_s > min(floors) + slack_s:  # else all that count are within the slack
            rows = self._within(slack_s, floors, endpoints, outlooks, request, matched, now)
            limit = min(rows, key=_cost)[0] + slack_s
            units_of = dict(zip(endpoints, planted, strict=True))
            rows = [row for row in rows if row[0] <= limit]
            least = min([units_of[endpoint] for _, _, endpoint in rows])
            rows = [row for row in rows if units_of[row[2]] == least]
        return self._nearest(rows, request)

    def _cost_s(self, request: InferenceRequest, endpoint: Endpoint, units: int, now: float) -> tuple[float, float]:
        """Reckon the cost of an endpoint that holds so many units, and the wait in it."""
        p1, p2, _, _, strain_s, _, decoding, *_ = endpoint.outlook or endpoint.reckon()
        uncached = _uncached(request, units)
        own = _own_s(p1, p2, request.prompt_tokens, uncached)
        wait = _wait_s(request, endpoint, uncached, now)
        cost = wait + (1 + MU) * own + KAPPA * decoding * own * own / (own + TAU_S) + request.output_tokens * strain_s
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


def _uncached(request: InferenceRequest, units: int) -> int:
    """Count the prompt tokens that are computed where so many units are held."""
    prompt = request.prompt_tokens
    if not units:
        return prompt
    uncached = prompt - units * request.unit_tokens
    return uncached if uncached > MIN_CACHED_LEFT else min(MIN_CACHED_LEFT, prompt)


def _own_s(p1: float, p2: float, prompt: int, uncached: int) -> float:
    """Give the seconds that a prompt's own prefill takes."""
    return p1 * uncached + p2 * uncached * (prompt - uncached / 2)


def _extremes(outlooks: Sequence[Outlook]) -> Extremes:
    p1s, p2s, _, steps_s, _, least_steps_s, _, _, budgets, *_ = zip(*outlooks, strict=True)
    return Extremes(min(p1s), min(p2s), min(steps_s), min(least_steps_s), max(p1s), max(budgets))


def _limit_s(cost: float, request: InferenceRequest, endpoint: Endpoint) -> float:
    """Give the cost up to which others are as good as the one of the least cost."""
    return cost + NEAR_SHARE * endpoint.work.p1 * request.prompt_tokens + NEAR_S


def _near_s(request: InferenceRequest, extremes: Extremes) -> float:
    """Give how far that limit is from the least cost at most, whosever it is."""
    return NEAR_SHARE * extremes.most_p1 * request.prompt_tokens + NEAR_S


def _wait_s(request: InferenceRequest, endpoint: Endpoint, uncached: int, now: float) -> float:
    """Predict the wait until the prefill of a request starts, steps beside it included."""
    outlook = endpoint.outlook or endpoint.reckon()
    _, _, _, step, _, _, _, pending, budget, queue_s, done_at, room = outlook
    wait = step * (0.5 + max(1.0, (pending + uncached) / budget)) + max(queue_s, done_at - now)
    books, output = endpoint.outstanding, request.output_tokens
    if uncached + output > room and books.requests:
        over = books.growth_tokens + uncached + output - (endpoint.report.kv_capacity_tokens or UNKNOWN_CAPACITY)
        crowd = books.requests - endpoint.work.profile.max_num_seqs
        leaving = max(over * books.requests / max(1, books.context_tokens), crowd + 1)
        wait += leaving * output * step / books.requests
    return wait
