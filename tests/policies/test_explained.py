"""explain: how endpoints stood for a choice, the cheapest first, and why some could not be chosen."""

import pytest

from policies.endpoint import Endpoint, EngineReport, Pool
from policies.explained import MOST, Candidate, explain
from policies.health import Health, State
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.pools import Standing
from policies.request import BlockHash, InferenceRequest

NOW = 10.0
PREFIX = tuple(BlockHash(at) for at in range(1, 11))


def request(**fields: object) -> InferenceRequest:
    return InferenceRequest(id="r", model="m", prompt_tokens=640, prefix=PREFIX, unit_tokens=64)._replace(**fields)  # type: ignore[arg-type]


def endpoint(name: str, **fields: object) -> Endpoint:
    return Endpoint(name, f"http://{name}", frozenset("m"), health=Health(State.READY), **fields)  # type: ignore[arg-type]


def ask(
    standing: Standing, index: PrefixIndex | None = None, tried: tuple[Endpoint, ...] = ()
) -> tuple[Candidate, ...]:
    yardstick = LeastWork(index or PrefixIndex())
    pools = (standing.own, *standing.longer, *standing.shorter)
    return explain(standing, dict.fromkeys(pools, yardstick), request(), tried, NOW)


def told(candidates: tuple[Candidate, ...]) -> list[str]:
    return [f"{each.endpoint.name} {each.cached_tokens} {each.reason}" for each in candidates]


def test_the_cheapest_is_first_and_what_is_cached_makes_it_cheap() -> None:
    index, one, two = PrefixIndex(), endpoint("one"), endpoint("two")
    index.learn(two, PREFIX[:5], NOW)
    found = ask(Standing(Pool("p", [one, two])), index)
    assert told(found) == ["two 320 able", "one 0 able"]
    assert found[0].cost_s < found[1].cost_s
    assert found[0].wait_s >= 0


def test_nobody_is_told_to_hold_the_last_token() -> None:
    index, one = PrefixIndex(), endpoint("one")
    index.learn(one, PREFIX, NOW)
    (found,) = ask(Standing(Pool("p", [one])), index)
    assert 0 < found.cached_tokens < 640


@pytest.mark.parametrize("state", [State.STARTING, State.EJECTED, State.DRAINING, State.SUSPECT])
def test_who_is_not_well_is_told_by_its_state(state: State) -> None:
    one, ill = endpoint("one"), endpoint("ill")
    ill.health.state = state
    assert told(ask(Standing(Pool("p", [ill, one])))) == ["one 0 able", f"ill 0 {state.value}"]


def test_who_could_not_be_chosen_is_told_with_the_reason() -> None:
    one, tried, busy, full, small = (endpoint(name) for name in ("one", "tried", "busy", "full", "small"))
    busy.health.cool_until = NOW + 1
    full.report = EngineReport(kv_usage=0.99, at=NOW)
    small.max_context_tokens = 100
    other = Endpoint("other", "http://other", frozenset("x"), health=Health(State.READY))
    found = ask(Standing(Pool("p", [one, tried, busy, full, small, other])), tried=(tried,))
    assert told(found)[:1] == ["one 0 able"]
    assert sorted(told(found)[1:]) == ["busy 0 busy", "full 0 full", "small 0 context", "tried 0 tried"]


def test_other_pools_come_after_the_own() -> None:
    own, longer, shorter = (Pool(name, [endpoint(name)]) for name in ("own", "longer", "shorter"))
    assert told(ask(Standing(own, (longer,), (shorter,)))) == ["own 0 able", "longer 0 able", "shorter 0 able"]


def test_no_more_are_told_than_one_reads() -> None:
    own = Pool("own", [endpoint(f"e{at}") for at in range(20)])
    assert len(ask(Standing(own, (Pool("longer", [endpoint("l")]),)))) == MOST


def test_explaining_changes_nothing() -> None:
    index, one, two = PrefixIndex(), endpoint("one"), endpoint("two")
    policy = LeastWork(index)
    before = repr((index, one.outstanding, two.outstanding, vars(policy)))
    policy.reckoned(request(), [one, two], NOW)
    assert repr((index, one.outstanding, two.outstanding, vars(policy))) == before
