"""Which pool a request belongs to, and which of its endpoints may take it."""

import pytest

from policies import books
from policies.endpoint import EngineReport, Pool
from policies.health import State
from policies.pools import (
    Serving,
    Standing,
    TooLong,
    candidates,
    earliest_s,
    is_busy,
    lent,
    may_take,
    serving,
    standing_of,
)
from policies.request import InferenceRequest
from tests.policies.fleets import REQUEST, endpoint, request

STARTING, READY, SUSPECT, EJECTED, DRAINING = State
NOW = 100.0


def test_only_the_ready_are_candidates_where_there_are_any() -> None:
    fleet = [endpoint(state.value, state=state) for state in State]
    assert candidates(Pool("p", fleet), REQUEST, (), NOW) == [fleet[1]]


def test_suspects_are_candidates_where_nobody_is_ready() -> None:
    fleet = [endpoint(state.value, state=state) for state in State if state is not READY]
    assert candidates(Pool("p", fleet), REQUEST, (), NOW) == [fleet[1]]


@pytest.mark.parametrize("state", [STARTING, EJECTED, DRAINING])
def test_a_pool_of_endpoints_that_cannot_serve_has_no_candidate(state: State) -> None:
    assert candidates(Pool("p", [endpoint(state=state)]), REQUEST, (), NOW) == []


def test_endpoints_of_other_models_are_no_candidates() -> None:
    fleet = [endpoint("a", model="x"), endpoint("b", model="m")]
    assert candidates(Pool("p", fleet), REQUEST, (), NOW) == [fleet[1]]


def test_what_was_tried_is_not_tried_again() -> None:
    ready, other, suspect = fleet = [endpoint("a"), endpoint("b"), endpoint("c", state=SUSPECT)]
    pool = Pool("p", fleet)
    assert candidates(pool, REQUEST, {ready}, NOW) == [other]
    assert candidates(pool, REQUEST, {ready, other}, NOW) == [suspect]
    assert candidates(pool, REQUEST, {ready, other, suspect}, NOW) == []


def test_a_cooling_endpoint_is_no_candidate_until_its_time() -> None:
    at = endpoint(cool_until=NOW + 3)
    pool = Pool("p", [at])
    assert candidates(pool, REQUEST, (), NOW + 2.9) == []
    assert candidates(pool, REQUEST, (), NOW + 3) == [at]


def test_the_shortest_wait_for_a_cooling_endpoint_is_told() -> None:
    fleet = [endpoint("a", cool_until=NOW + 9), endpoint("b", cool_until=NOW + 4), endpoint("c", cool_until=NOW - 1)]
    assert earliest_s(Pool("p", fleet), "m", NOW) == 4.0


def test_nothing_is_told_where_nobody_asked_to_be_left_alone() -> None:
    assert earliest_s(Pool("p", [endpoint(state=EJECTED)]), "m", NOW) is None
    assert earliest_s(Pool("p", [endpoint(model="x", cool_until=NOW + 1)]), "m", NOW) is None


@pytest.mark.parametrize("state", [STARTING, EJECTED, DRAINING])
def test_the_wait_of_an_endpoint_that_will_not_be_asked_then_is_not_told(state: State) -> None:
    assert earliest_s(Pool("p", [endpoint(state=state, cool_until=NOW + 2)]), "m", NOW) is None


# Length.


def sized(name: str, most: int | None, uncached: int | None = None) -> Pool:
    """Give a pool of one endpoint that takes so many tokens, and so many of prefill."""
    return Pool(name, [endpoint(name)], max_context_tokens=most, max_uncached_tokens=uncached)


def asking(prompt: int, allowed: int) -> InferenceRequest:
    return InferenceRequest("r", "m", prompt_tokens=prompt, allowed_tokens=allowed)


def standing(
    pools: list[Pool], request: InferenceRequest, cached: dict[str, int] | None = None, least: int | None = None
) -> Standing | TooLong:
    """Find where a request belongs, when pools hold so much of its prompt."""
    held = cached or {}
    certain = request.prompt_tokens if least is None else least
    return standing_of(serving(pools, "m"), request, lambda pool: held.get(pool.name, 0), certain)


@pytest.mark.parametrize(
    ("prompt", "allowed", "names"),
    [
        (100, 100, "short other long open"),
        (8000, 192, "short other long open"),
        (8000, 193, "long open"),
        (0, 32_768, "long open"),
        (32_768, 1, "open"),
    ],
)
def test_r24_length_counts_prompt_and_allowed_output(prompt: int, allowed: int, names: str) -> None:
    pools = [sized("open", None), sized("long", 32_768), sized("short", 8192), sized("other", 8192)]
    found = standing(pools, asking(prompt, allowed))
    assert isinstance(found, Standing)
    assert [pool.name for pool in (found.own, *found.longer)] == names.split()
    assert found.shorter == ()


def test_r24_what_fits_nowhere_is_told_both_numbers() -> None:
    short, long = sized("short", 8192), sized("long", 32_768)
    assert standing([long, short], asking(40_000, 312)) == TooLong(40_312, 32_768, long)


def test_an_estimate_refuses_nothing_that_may_fit() -> None:
    short, long = sized("short", 8192), sized("long", 32_768)
    assert standing([short, long], asking(40_000, 312), least=32_456) == Standing(long)
    assert standing([short, long], asking(40_000, 312), least=32_457) == TooLong(32_769, 32_768, long)


def test_a_model_that_no_pool_serves_has_no_row() -> None:
    assert serving([sized("p", None)], "x") == []


def test_a_pool_without_a_limit_takes_what_its_largest_engine_takes() -> None:
    small, large, other, silent = (endpoint(name) for name in "abcd")
    small.max_context_tokens, large.max_context_tokens = 4096, 16_384
    other.models, other.max_context_tokens = frozenset(("x",)), 99_999
    pool = Pool("p", [small, large, other])
    assert serving([pool], "m") == [Serving(16_384, pool)]
    pool.max_context_tokens = 20_000
    assert serving([pool], "m") == [Serving(16_384, pool)]
    pool.max_context_tokens = 8192
    assert serving([pool], "m") == [Serving(8192, pool)]
    pool.max_context_tokens = None
    pool.endpoints.append(silent)
    assert serving([pool], "m") == [Serving(float("inf"), pool)]


def test_where_engines_cut_answers_only_the_prompt_must_fit() -> None:
    pool = sized("p", None)
    pool.endpoints[0].max_context_tokens, pool.endpoints[0].cuts_output = 4096, True
    assert standing([pool], asking(4095, 99_999)) == Standing(pool)
    assert standing([pool], asking(4096, 99_999)) == TooLong(4097, 4096, pool)
    pool.max_context_tokens = 4096
    assert standing([pool], asking(4095, 99_999)) == TooLong(104_094, 4096, pool)


def test_long_prefills_are_left_to_the_longer_pool_and_cached_prompts_are_none() -> None:
    normal, long = sized("normal", 131_072, 8192), sized("long", 131_072)
    assert standing([long, normal], asking(8192, 10)) == Standing(normal, (long,))
    assert standing([long, normal], asking(100_000, 10)) == Standing(long, (), (normal,))
    assert standing([long, normal], asking(100_000, 10), {"normal": 95_000}) == Standing(normal, (long,))
    assert standing([normal], asking(100_000, 10)) == Standing(normal)


def test_endpoints_of_too_short_a_context_are_no_candidates_where_others_are() -> None:
    short, long = endpoint("a"), endpoint("b")
    short.max_context_tokens, long.max_context_tokens = 4096, 8192
    pool = Pool("p", [short, long])
    assert candidates(pool, asking(4000, 97), (), NOW) == [long]
    assert candidates(pool, asking(4000, 96), (), NOW) == [short, long]
    assert candidates(pool, asking(9000, 96), (), NOW) == [short, long]
    short.cuts_output = True
    assert candidates(pool, asking(4000, 97), (), NOW) == [short, long]


def test_a_class_has_its_pools_and_others_lend_to_it() -> None:
    shared, batch, private = sized("shared", None), sized("batch", None), sized("private", None)
    batch.classes = private.classes = frozenset(("batch",))
    private.lends = False
    fast = asking(100, 10)._replace(service_class="interactive")
    assert standing([batch, shared, private], fast) == Standing(shared, (batch,))
    slow = fast._replace(service_class="batch")
    assert standing([batch, shared, private], slow) == Standing(batch, (shared, private))
    assert standing([batch, private], fast) == Standing(batch, (private,))  # nobody is for it: all are


def test_a_pool_that_does_not_lend_lends_nothing() -> None:
    pool = Pool("p", [endpoint("a")], lends=False)
    assert lent(pool, REQUEST, (), NOW) == []


def test_only_the_idle_and_ready_are_lent() -> None:
    busy, idle, suspect = endpoint("a"), endpoint("b"), endpoint("c", state=SUSPECT)
    busy.outstanding.requests = 1
    assert lent(Pool("p", [busy, idle, suspect]), REQUEST, (), NOW) == [idle]
    assert lent(Pool("p", [suspect]), REQUEST, (), NOW) == []


def test_a_pool_is_busy_when_every_endpoint_has_prefills_to_do() -> None:
    fleet = [endpoint("a"), endpoint("b")]
    fleet[0].outstanding.prefill_s = 2.0
    assert not is_busy(fleet)
    fleet[1].outstanding.prefill_s = 0.2
    assert is_busy(fleet)


# Full caches.


def test_r16_an_endpoint_whose_cache_is_full_gets_nothing_new_unless_all_are() -> None:
    full, other = endpoint("a"), endpoint("b")
    full.report = EngineReport(kv_usage=0.99, at=NOW - 1)
    pool = Pool("p", [full, other])
    assert candidates(pool, REQUEST, (), NOW) == [other]
    other.report = EngineReport(kv_usage=1.0, at=NOW - 1)
    assert candidates(pool, REQUEST, (), NOW) == [full, other]
    assert candidates(pool, REQUEST, {other}, NOW) == [full]


@pytest.mark.parametrize(
    ("seed", "shared", "is_taken"), [(1, 10, True), (1, 6, True), (1, 5, False), (2, 10, False), (1, 0, False)]
)
def test_a_full_cache_takes_prompts_of_which_its_live_requests_hold_half(
    seed: int, shared: int, is_taken: bool
) -> None:
    """To move them would fill the next cache with second copies, and so on."""
    full, other = endpoint("a"), endpoint("b")
    full.report = EngineReport(kv_usage=0.99, at=NOW)
    pool = Pool("p", [full, other])
    charge = books.dispatch(full, request("live", (1, 10)), NOW)
    asked = request("r", (seed, shared), (3, 10 - shared)) if shared else request("short")
    assert candidates(pool, asked, (), NOW) == ([full, other] if is_taken else [other])
    books.finish(charge, NOW)
    assert candidates(pool, asked, (), NOW) == [other]


def test_an_old_report_of_a_full_cache_keeps_nobody_away() -> None:
    at, other = endpoint("a"), endpoint("b")
    at.report = EngineReport(kv_usage=0.99, at=NOW - 5)
    other.report = EngineReport(kv_usage=0.97, at=NOW)
    assert candidates(Pool("p", [at, other]), REQUEST, (), NOW) == [at, other]


def test_who_needs_what_not_all_can_goes_only_to_those_that_can() -> None:
    """Whatever their health, and neither for want of room nor as a last resort to others."""
    plain, able, suspect = endpoint("plain"), endpoint("able"), endpoint("suspect", state=SUSPECT)
    able.can = suspect.can = frozenset(("keep apart",))
    needy = REQUEST._replace(needs="keep apart")
    assert candidates(Pool("p", [plain, able, suspect]), needy, (), NOW) == [able]
    assert candidates(Pool("p", [plain, suspect]), needy, (), NOW) == [suspect]
    assert candidates(Pool("p", [plain]), needy, (), NOW) == []
    assert candidates(Pool("p", [plain, able]), REQUEST, (), NOW) == [plain, able]
    assert [may_take(each, needy) for each in (plain, able)] == [False, True]
