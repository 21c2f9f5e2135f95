"""LeastWork looks at few endpoints closely. Here all are, by the rule as it is written: it must choose the same."""

from random import Random

import pytest

from policies import books
from policies.endpoint import Charge, Endpoint
from policies.request import UNIT_TOKENS, InferenceRequest
from policies.ring import Ring
from policies.work import PROFILES, WorkModel
from tests.policies.fleets import request
from tests.policies.test_least_work import Scene

MAKES = ("bench-8b", "llama-8b-l40s", "llama-8b-h100")


class Plain:
    """The whole rule: every cost, then every comparison."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.ring = Ring()
        self.kept_until = float("-inf")

    def choose(self, asked: InferenceRequest, now: float) -> Endpoint:
        fleet, index, prompt = self.scene.fleet, self.scene.index, asked.prompt_tokens
        costs = {each: self.scene.cost(each, asked, now) for each in fleet}
        held = {each: index.matched_on(each, asked.prefix) for each in fleet}
        has_room = any(index.fill(each) < 0.95 for each in fleet)
        if sum(each.reckon()[2] for each in fleet) > 0.6 * len(fleet):
            self.kept_until = now + 300
        among = fleet
        if has_room and max(held.values()) * UNIT_TOKENS < prompt / 2 and prompt > 0.01 * self.capacity(fleet[0]):
            most = min(costs.values()) + 9 * fleet[0].work.p1 * prompt
            among = [each for each in fleet if costs[each] <= most]
            least = min(index.planted(among))
            among = [each for each in among if index.planted([each]) == [least]]
        elif has_room and now < self.kept_until:
            among = [each for each in fleet if held[each] and held[each] * UNIT_TOKENS >= 0.8 * prompt] or fleet
        best = min(among, key=costs.__getitem__)
        near = [each for each in among if costs[each] <= costs[best] + 0.1 * best.work.p1 * prompt + 0.002]
        longest = max(held[each] for each in near)
        tied = {each.name: each for each in near if held[each] == longest}
        return tied[next(self.ring.homes(asked.ring_key or 0, tied))]

    def capacity(self, endpoint: Endpoint) -> int:
        return endpoint.report.kv_capacity_tokens or 400_000


def fleet_of(chance: Random, kv_tokens: int) -> Scene:
    """Give a fleet of one make or several, of which engines were found slower and faster than they should be."""
    scene = Scene(chance.randint(1, 12), kv_tokens)
    makes = chance.choice([MAKES[:1], MAKES])
    for endpoint in scene.fleet:
        endpoint.work = WorkModel(PROFILES[chance.choice(makes)])
        endpoint.work.listener = endpoint.forget_outlook
        for _ in range(chance.choice([0, 0, 20])):
            endpoint.work.observe_prefill(1.0, chance.uniform(0.7, 1.4))
            endpoint.work.observe_decode(1.0, chance.uniform(0.7, 1.4))
        endpoint.forget_outlook()
    return scene


def prompt_of(chance: Random, turn: int) -> InferenceRequest:
    """Give a prompt that is short, long or very long, and known, half known or new."""
    units = chance.choice([1, 12, 40, 130, 500])
    tail = chance.randint(0, units)
    parts = ((chance.randint(0, 3), units - tail), (1000 + turn, tail))
    return request(f"r{turn}", *parts, tail=chance.randint(0, 60), output=chance.choice([0, 20, 200, 1500]))


@pytest.mark.parametrize("kv_tokens", [20_000, 90_000, 400_000])
@pytest.mark.parametrize("seed", range(8))
def test_short_cuts_choose_whom_reckoning_all_would_choose(seed: int, kv_tokens: int) -> None:
    """R = 150 requests on 1 to 12 endpoints, fixed seeds; by turns idle, busy, full, crowded and out of memory."""
    chance = Random(seed * 1000 + kv_tokens)
    scene = fleet_of(chance, kv_tokens)
    plain = Plain(scene)
    running: list[Charge] = []
    now = 0.0
    for turn in range(150):
        now += chance.choice([0.11, 0.2, 1.0])
        asked = prompt_of(chance, turn)
        expected = plain.choose(asked, now)
        choice = scene.choose(asked, now)
        assert choice.endpoint is expected, (turn, scene.index, scene.fleet)
        many = chance.choice([1, 1, 1, 300 if turn % 50 == 49 else 1])  # so many that there is no place left
        to = choice.endpoint if chance.random() < 0.7 else chance.choice(scene.fleet)
        running += [scene.put(to, asked, now) for _ in range(many)]
        for charge in chance.sample(running, min(len(running), chance.randint(0, 2))):
            if not charge.is_decoding:
                books.first_token(charge, now + 0.05)
        while len(running) > 10 * len(scene.fleet) or (running and chance.random() < 0.3):
            books.finish(running.pop(chance.randrange(len(running))), now + 0.1, 100)
