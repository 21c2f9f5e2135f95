"""LeastWork: the formula, and what it does in the cases that routing is judged by."""

from collections import Counter
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import books
from policies.endpoint import Charge, Endpoint
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.policy import Choice, Reason
from policies.request import UNIT_TOKENS, InferenceRequest
from policies.work import PROFILES, WorkModel
from tests.policies.fleets import REQUEST, endpoints, request

STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 300), st.integers(0, 5), st.booleans()), max_size=25
)


class Scene:
    """A fleet with its index and a LeastWork."""

    def __init__(self, count: int, kv_tokens: int = 400_000) -> None:
        self.fleet = endpoints(count, kv_tokens)
        self.index = PrefixIndex()
        self.policy = LeastWork(self.index)

    def choose(self, asked: InferenceRequest, now: float = 0.0) -> Choice:
        return self.policy.choose(asked, self.fleet, now)

    def put(self, endpoint: Endpoint, asked: InferenceRequest, now: float = 0.0) -> Charge:
        """Send a request to a given endpoint."""
        held = self.index.matched_on(endpoint, asked.prefix) * UNIT_TOKENS
        charge = books.dispatch(endpoint, asked, now, held)
        self.index.learn(endpoint, asked.prefix, now)
        return charge

    def send(self, asked: InferenceRequest, now: float = 0.0) -> Charge:
        """Send a request to the endpoint of choice."""
        return self.put(self.choose(asked, now).endpoint, asked, now)

    def cost(self, endpoint: Endpoint, asked: InferenceRequest, now: float) -> float:
        """Reckon the cost of an endpoint as the rule is written, in one piece."""
        work, at = endpoint.work, endpoint.outstanding
        capacity = endpoint.report.kv_capacity_tokens or float("inf")
        output, prompt = asked.output_tokens, asked.prompt_tokens
        u = max(prompt - self.index.matched_on(endpoint, asked.prefix) * UNIT_TOKENS, min(16, prompt))
        own = work.prefill_s(u, prompt - u)
        step = work.step_s(at.decoding, at.context_tokens)
        wait: float = step * max(1.0, (at.prefill_tokens + u) / work.profile.budget_tokens) + step / 2
        if at.prefilling:
            done = min(now - at.head_since, 0.8 * next(iter(at.prefilling)).prefill_s)
            wait += max(0, at.prefill_s - done)
        over: float = at.growth_tokens + u + output - capacity
        n = at.requests
        if n and (over > 0 or n >= work.profile.max_num_seqs):
            wait += max(over * n / max(1, at.context_tokens), n - work.profile.max_num_seqs + 1) * output * step / n
        cost: float = wait + 9 * own + 4 * at.decoding * own**2 / (own + 10)
        cost += output * (work.d1 * at.decoding + work.d2 * at.context_tokens) + 50 * max(0, wait + own - 1.6)
        return cost


@given(STEPS, st.integers(1, 4), st.integers(0, 120), st.sampled_from([20_000, 60_000, 400_000]))
def test_the_choice_is_near_the_least_cost_by_the_formula(
    steps: list[tuple[int, int, int, int, bool]], seed: int, units: int, kv_tokens: int
) -> None:
    scene = Scene(4, kv_tokens)
    scene.fleet[3].work = WorkModel(PROFILES["llama-8b-l40s"])
    scene.fleet[3].outlook = None
    for turn, (pick, head, size, tail, has_token) in enumerate(steps):
        charge = scene.put(scene.fleet[pick], request(f"r{turn}", (head, size), (9 + tail, tail)), float(turn))
        if has_token:
            books.first_token(charge, turn + 0.5)
    asked, now = request("asked", (seed, units)), float(len(steps))
    costs = {endpoint: scene.cost(endpoint, asked, now) for endpoint in scene.fleet}
    choice = scene.choose(asked, now)
    held = {endpoint: scene.index.matched_on(endpoint, asked.prefix) for endpoint in scene.fleet}
    among = scene.fleet
    if any(scene.index.fill(endpoint) < 0.95 for endpoint in among):
        is_cold = max(held.values()) * UNIT_TOKENS < 0.5 * asked.prompt_tokens
        if is_cold and asked.prompt_tokens > 0.01 * kv_tokens:
            most = min(costs.values()) + 9 * scene.fleet[0].work.p1 * asked.prompt_tokens
            least = min(scene.index.planted([each]) for each in among if costs[each] <= most)
            among = [each for each in among if costs[each] <= most and scene.index.planted([each]) == least]
        elif sum(endpoint.reckon()[2] for endpoint in among) > 0.6 * 4:
            among = [each for each in among if held[each] * UNIT_TOKENS >= 0.8 * asked.prompt_tokens] or among
    best = min(among, key=lambda endpoint: costs[endpoint])
    limit = costs[best] + 0.1 * best.work.p1 * asked.prompt_tokens + 0.002 + 1e-9
    assert choice.endpoint in among
    assert costs[choice.endpoint] <= limit
    assert held[choice.endpoint] == max(held[each] for each in among if costs[each] <= limit - 2e-9)
    assert choice.cached_tokens == min(
        held[choice.endpoint] * UNIT_TOKENS, asked.prompt_tokens - min(16, asked.prompt_tokens)
    )


def test_an_unknown_prompt_goes_to_the_first_home_and_says_so() -> None:
    scene = Scene(4)
    choice = scene.choose(request("r", (1, 8)))
    assert (choice.reason, choice.cached_tokens) == (Reason.LEAST_WORK, 0)
    assert choice.endpoint.name == Scene(4).choose(request("other", (1, 8))).endpoint.name


def test_a_known_prompt_goes_where_it_is_held_and_says_so() -> None:
    scene = Scene(4)
    books.finish(scene.put(scene.fleet[2], request("a", (1, 20))), 1.0)
    choice = scene.choose(request("b", (1, 20), (2, 1)), 2.0)
    assert (choice.endpoint, choice.reason, choice.cached_tokens) == (scene.fleet[2], Reason.PREFIX, 20 * UNIT_TOKENS)


def test_a_holder_that_may_not_take_it_is_not_chosen() -> None:
    scene = Scene(4)
    for at, units in ((1, 20), (2, 12)):
        books.finish(scene.put(scene.fleet[at], request("a", (1, units))), 1.0)
    del scene.fleet[1]
    choice = scene.choose(request("b", (1, 20)), 2.0)
    assert (choice.endpoint.name, choice.cached_tokens) == ("e2", 12 * UNIT_TOKENS)


def test_a_holder_among_the_nearly_as_good_may_not_take_it_either() -> None:
    scene = Scene(4)
    for at in (1, 2, 3):
        books.finish(scene.put(scene.fleet[at], request("a", (1, 20))), 1.0)
    gone = scene.fleet.pop(1)
    assert scene.choose(request("b", (1, 20)), 2.0).endpoint.name in ("e2", "e3")
    scene.fleet.insert(0, gone)
    scene.fleet.pop()
    assert scene.choose(request("b", (1, 20)), 2.0).endpoint.name in ("e1", "e2")


def test_who_holds_the_head_alone_is_no_match_for_who_holds_most() -> None:
    scene = Scene(4)
    for at, units in ((1, 2), (3, 250)):
        books.finish(scene.put(scene.fleet[at], request("a", (1, units))), 1.0)
    assert scene.choose(request("b", (1, 256)), 2.0).endpoint is scene.fleet[3]


def test_a_busy_holder_rules_nobody_out() -> None:
    scene = Scene(4)
    for at in range(10):
        scene.put(scene.fleet[1], request(f"r{at}", (1, 10), (at + 2, 100)))
    choice = scene.choose(request("b", (1, 12)), 0.1)
    assert (choice.reason, choice.endpoint is scene.fleet[1]) == (Reason.LEAST_WORK, False)


def test_one_block_of_a_prompt_that_is_held_whole_is_computed_anew() -> None:
    scene = Scene(4)
    books.finish(scene.put(scene.fleet[2], request("a", (1, 20), tail=0)), 1.0)
    choice = scene.choose(request("b", (1, 20), tail=0), 2.0)
    assert (choice.endpoint, choice.cached_tokens) == (scene.fleet[2], 20 * UNIT_TOKENS - 16)


def test_a_prompt_of_nothing_is_routed_too() -> None:
    assert Scene(2).choose(REQUEST._replace(prompt_tokens=0)).cached_tokens == 0


def test_r2_twenty_slow_requests_on_one_endpoint_keep_new_ones_away() -> None:
    scene = Scene(4)
    for at in range(20):
        books.first_token(scene.put(scene.fleet[0], request(f"slow{at}", (50 + at, 8), output=2000)), 0.0)
    chosen: Counter[str] = Counter()
    for at in range(100):
        charge = scene.send(request(f"r{at}", (100 + at, 8)), float(at))
        chosen[charge.endpoint.name] += 1
        books.finish(charge, at + 0.5)
    assert chosen["e0"] < 10


def test_r9_a_hot_key_spills_when_waiting_costs_more_than_recomputing() -> None:
    """N = 4 endpoints, R = 100 at once with one prefix of 4k tokens, all decoding long: homes come one at a time."""
    scene = Scene(4)
    chosen = []
    for at in range(100):
        charge = scene.send(request(f"r{at}", (1, 64), output=400), at * 0.01)
        books.first_token(charge, at * 0.01)
        chosen.append(charge.endpoint.name)
    homes = list(dict.fromkeys(chosen))
    assert 1 < len(homes) <= 4
    for place, name in enumerate(homes):  # no ping-pong: a home joins after many have gone to those before it
        assert chosen.index(name) >= 5 * place


def test_r9_a_hot_key_has_no_more_homes_than_its_load_over_the_bound_and_keeps_them() -> None:
    """N = 64 endpoints, R = 3 waves of 100 at once with one prefix of 4k tokens; the bound is that of the docstring."""
    scene = Scene(64)
    asked = request("r", (1, 64), output=400)
    work = scene.fleet[0].work
    own_s = work.prefill_s(asked.prompt_tokens, 0) - work.prefill_s(20, asked.prompt_tokens - 20)
    bound = 9 * own_s / (400 * (work.d1 + work.d2 * (asked.prompt_tokens + 200)))
    assert 10 < bound < 15
    homes: list[set[str]] = []
    for wave in range(3):
        charges = []
        for at in range(100):
            now = 100.0 * wave + 0.01 * at
            charges.append(scene.send(asked, now))
            books.first_token(charges[-1], now)
        homes.append({charge.endpoint.name for charge in charges})
        for charge in charges:
            books.finish(charge, 100.0 * wave + 50)
    assert 4 <= len(homes[0]) <= ceil(100 / bound)
    assert homes[1] <= homes[0]
    assert homes[2] <= homes[0]


def test_r10_few_requests_are_no_imbalance() -> None:
    scene = Scene(4)
    homes = [scene.send(request(f"r{at}", (at, 30))).endpoint for at in range(1, 5)]
    assert scene.choose(request("again", (1, 30)), 0.3).endpoint is homes[0]


def test_r18_requests_that_share_their_head_stay_together() -> None:
    scene = Scene(8)
    first = scene.send(request("a", (1, 90), (2, 10)))
    books.finish(first, 1.0)
    second = scene.send(request("b", (1, 90), (3, 10)), 2.0)
    books.finish(second, 3.0)
    assert second.endpoint is first.endpoint
    assert scene.choose(request("c", (1, 90), (3, 10), (4, 5)), 4.0).endpoint is first.endpoint


@pytest.mark.parametrize("units", [2, 16, 64, 256])
def test_r20_identical_cold_prompts_stay_together(units: int) -> None:
    """N = 8 endpoints, R = 16 identical prompts of 128 to 16k tokens within 50 ms: 1 or 2 endpoints."""
    scene = Scene(8)
    chosen = {scene.send(request(f"r{at}", (1, units)), at * 0.003).endpoint.name for at in range(16)}
    assert len(chosen) <= 2


def test_r15_three_hundred_endpoints_with_ten_requests_never_hold_more_than_two() -> None:
    """N = 300 endpoints, R = 2,000 unique prompts, always 10 in flight, fixed seed."""
    scene, chance = Scene(300), Random(5)
    running: list[Charge] = []
    most = 0
    for at in range(2_000):
        running.append(scene.send(request(f"r{at}", (at, 2)), at * 0.01))
        most = max(most, running[-1].endpoint.outstanding.requests)
        if len(running) == 10:
            books.finish(running.pop(chance.randrange(10)), at * 0.01)
    assert most <= 2


def test_a_mixed_pool_gives_the_slower_engine_less() -> None:
    """N = 1 H100 and 1 L40S, R = 200 unique prompts of 2k tokens, all in flight: the L40S gets under a third."""
    scene = Scene(2)
    for endpoint, name in zip(scene.fleet, ("llama-8b-h100", "llama-8b-l40s"), strict=True):
        endpoint.work = WorkModel(PROFILES[name])
        endpoint.outlook = None
    chosen = Counter(scene.send(request(f"r{at}", (at, 32)), 0.0).endpoint.name for at in range(200))
    assert 0 < chosen["e1"] < 67, chosen


def fill(scene: Scene) -> None:
    """Fill every cache with what nobody asks for again."""
    for at, endpoint in enumerate(scene.fleet):
        units = (endpoint.report.kv_capacity_tokens or 0) // UNIT_TOKENS
        scene.index.learn(endpoint, request("old", (90_000 + at, units)).prefix, 0.0)


def crowd(scene: Scene, now: float) -> list[Charge]:
    """Pin seven tenths of every cache by requests that decode."""
    charges = []
    for at, endpoint in enumerate(scene.fleet):
        units = int(0.7 * (endpoint.report.kv_capacity_tokens or 0)) // UNIT_TOKENS
        charges.append(scene.put(endpoint, request("busy", (80_000 + at, units)), now))
        books.first_token(charges[-1], now)
    return charges


def burden(scene: Scene, count: int, now: float) -> None:
    """Let the first endpoint decode more than the others."""
    for at in range(count):
        books.first_token(scene.put(scene.fleet[0], request(f"x{at}", (3, 25), output=800), now), now)


def test_while_caches_have_room_cold_prompts_are_planted_evenly() -> None:
    """N = 4 endpoints, R = 30 customers; those of the first endpoint keep it busy."""
    scene = Scene(4)
    homes: Counter[str] = Counter()
    for at in range(30):
        charge = scene.send(request(f"r{at}", (at, 64)), float(at))
        homes[charge.endpoint.name] += 1
        if charge.endpoint is scene.fleet[0]:
            books.first_token(charge, at)
            books.first_token(scene.put(scene.fleet[0], request(f"x{at}", (at, 64), (500 + at, 9)), at), at)
        else:
            books.finish(charge, at + 0.5)
    assert sorted(homes.values()) == [7, 7, 8, 8]


def test_a_cold_prompt_goes_elsewhere_when_the_least_planted_is_far_too_busy() -> None:
    scene = Scene(2)
    books.finish(scene.put(scene.fleet[1], request("a", (1, 80))), 0.1)
    assert scene.choose(request("b", (2, 80)), 1.0).endpoint is scene.fleet[0]
    for at in range(90):
        scene.put(scene.fleet[0], request(f"x{at}", (3, 80), (100 + at, 20), output=800), 1.0)
    assert scene.choose(request("b", (2, 80)), 1.0).endpoint is scene.fleet[1]


def test_a_prompt_that_takes_no_room_to_speak_of_is_not_planted() -> None:
    """62 units are less than a hundredth of the cache, 63 with a tail are more."""
    scene = Scene(2)
    fill_a_little = request("a", (1, 80))
    books.finish(scene.put(scene.fleet[1], fill_a_little), 0.1)
    busy = scene.put(scene.fleet[0], request("x", (9, 5)), 1.0)
    assert scene.choose(request("b", (2, 62)), 1.0).endpoint is scene.fleet[1]
    assert scene.choose(request("b", (2, 63)), 1.0).endpoint is scene.fleet[0]
    books.finish(busy, 1.1)


def test_cold_prompts_go_by_cost_alone_when_all_caches_are_full() -> None:
    scene = Scene(2, 40_000)
    fill(scene)
    burden(scene, 3, 1.0)
    scene.index.learn(scene.fleet[1], request("b", (7, 300)).prefix, 1.0)  # planted more lately
    assert scene.choose(request("c", (8, 30)), 2.0).endpoint is scene.fleet[1]


@pytest.mark.parametrize(("after_s", "is_kept"), [(1.0, True), (299.0, True), (301.0, False)])
def test_after_a_crowd_known_prompts_stay_with_their_holders(after_s: float, is_kept: bool) -> None:
    scene = Scene(2, 40_000)
    books.finish(scene.put(scene.fleet[0], request("known", (3, 25))), 0.0)
    charges = crowd(scene, 0.0)
    scene.choose(request("any", (4, 25)), 0.0)  # sees the crowd
    for charge in charges:
        books.finish(charge, 0.5)
    burden(scene, 60, after_s)
    assert (scene.choose(request("again", (3, 25)), after_s).endpoint is scene.fleet[0]) is is_kept


def test_full_caches_keep_nobody() -> None:
    scene = Scene(2, 40_000)
    fill(scene)
    crowd(scene, 0.0)
    books.finish(scene.put(scene.fleet[0], request("known", (3, 25))), 0.0)
    scene.index.learn(scene.fleet[0], request("old", (90_000, 625)).prefix, 0.0)
    scene.index.learn(scene.fleet[0], request("known", (3, 25)).prefix, 0.0)
    burden(scene, 60, 1.0)
    assert scene.choose(request("again", (3, 25)), 1.0).endpoint is scene.fleet[1]


def test_a_crowded_pool_without_a_holder_takes_any() -> None:
    scene = Scene(2, 40_000)
    crowd(scene, 0.0)
    scene.index.learn(scene.fleet[0], request("half", (3, 15)).prefix, 0.0)
    assert scene.choose(request("again", (3, 25)), 1.0).endpoint in scene.fleet


def test_where_gateways_do_not_tell_each_other_the_home_is_taken_to_hold_a_prompt() -> None:
    scene = Scene(4)
    asked = request("a", (1, 60))
    home = scene.choose(asked).endpoint
    scene.policy.home_holds = 0.95
    assert scene.choose(asked)[:3] == (home, Reason.PREFIX, 57 * UNIT_TOKENS)
    other = next(each for each in scene.fleet if each is not home)
    scene.index.learn(other, asked.prefix, 0.0)
    assert scene.choose(asked, 1.0).endpoint is other
    scene.index.learn(home, asked.prefix, 1.0)
    assert scene.choose(asked, 2.0).endpoint is home


def test_one_block_is_computed_anew_by_those_that_are_left_too() -> None:
    scene = Scene(3)
    for endpoint in (scene.fleet[1], scene.fleet[2]):
        scene.index.learn(endpoint, request("a", (1, 20)).prefix, 0.0)
    scene.fleet.pop()  # the first that the index names
    choice = scene.choose(request("b", (1, 20), tail=0), 2.0)
    assert (choice.endpoint.name, choice.cached_tokens) == ("e1", 20 * UNIT_TOKENS - 16)
