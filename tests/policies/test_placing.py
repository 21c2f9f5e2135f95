"""Place: the own pool first, what a longer one lends when that is busy, the others where it is down."""

from random import Random

import pytest

from policies.endpoint import Endpoint, Pool
from policies.health import State
from policies.placing import place
from policies.policy import Choice, Policy, Reason
from policies.pools import Standing
from policies.spread import LeastRequests
from tests.policies.fleets import REQUEST, endpoint

NOW = 100.0


class Town:
    """Three pools of one endpoint each: own, longer, shorter."""

    def __init__(self) -> None:
        self.own, self.longer, self.shorter = (Pool(name, [endpoint(name)]) for name in ("own", "longer", "shorter"))
        self.standing = Standing(self.own, (self.longer,), (self.shorter,))
        self.policies: dict[Pool, Policy] = {
            pool: LeastRequests(Random(1)) for pool in (self.own, self.longer, self.shorter)
        }

    def place(self, *tried: str) -> Choice | None:
        endpoints = [each for pool in self.policies for each in pool.endpoints if each.name in tried]
        return place(self.standing, self.policies, REQUEST, endpoints, NOW)

    def down(self, *pools: Pool) -> None:
        for pool in pools:
            pool.endpoints[0].health.state = State.EJECTED


@pytest.fixture
def town() -> Town:
    return Town()


def told(choice: Choice | None) -> tuple[str, Reason] | None:
    return None if choice is None else (choice.endpoint.name, choice.reason)


def test_the_own_pool_serves(town: Town) -> None:
    assert told(town.place()) == ("own", Reason.LEAST_LOADED)


def test_an_idle_endpoint_of_a_longer_pool_is_lent_when_the_own_is_busy(town: Town) -> None:
    town.own.endpoints[0].outstanding.prefill_s = 1.0
    assert told(town.place()) == ("longer", Reason.LENT)
    town.longer.endpoints[0].outstanding.requests = 1
    assert told(town.place()) == ("own", Reason.LEAST_LOADED)


def test_shorter_pools_lend_nothing(town: Town) -> None:
    town.own.endpoints[0].outstanding.prefill_s = 1.0
    town.down(town.longer)
    assert told(town.place()) == ("own", Reason.LEAST_LOADED)


def test_others_stand_in_where_the_own_is_down_the_longer_first(town: Town) -> None:
    town.down(town.own)
    assert told(town.place()) == ("longer", Reason.LEAST_LOADED)
    town.longer.endpoints[0].outstanding.requests = 1
    assert told(town.place()) == ("longer", Reason.LEAST_LOADED)
    assert told(town.place("longer")) == ("shorter", Reason.LEAST_LOADED)
    assert town.place("longer", "shorter") is None


def test_only_who_has_room_is_chosen_and_lenders_are_asked_when_nobody_has() -> None:
    town = Town()

    def placed(*roomy: Pool) -> tuple[str, Reason] | None:
        def has_room(each: Endpoint) -> bool:
            return any(each in pool.endpoints for pool in roomy)

        return told(place(town.standing, town.policies, REQUEST, (), NOW, has_room))

    assert placed(town.own) == ("own", Reason.LEAST_LOADED)
    assert placed() == placed(town.shorter) == ("longer", Reason.LENT)
    town.down(town.longer)
    assert placed(town.shorter) is None  # its own pool is only full
    town.down(town.own)
    assert placed() is None
    assert placed(town.shorter) == ("shorter", Reason.LEAST_LOADED)
