"""What a pool needs, and an advice that does not flutter."""

import pytest

from policies.endpoint import Endpoint
from policies.flow import MAX_BACKLOG_S, ROOM, TIGHT, Flow
from policies.scaling import FEW, LEAST_SLACK, MEMORY_S, SMOOTH_S, Advice, Aims, Attainment, backlog_s, busy, needed
from tests.policies.fleets import CAPACITY_TOKENS, endpoints

FLOW = Flow(tpot_slo_s=0.05)
AIMS = Aims(calm_s=60.0)


def loaded(requests: float, context_tokens: float, prefill_share: float = 0.0, slip: float = 1.0) -> Endpoint:
    """Give an endpoint with so much to do on average, at time 0."""
    (endpoint,) = endpoints(1)
    books = endpoint.outstanding
    for name, value in {"requests": requests, "context_tokens": context_tokens}.items():
        setattr(books, name, value)
    books.prefill_share, books.slip = prefill_share, slip
    return endpoint


def full_share(requests: int, context_tokens: int, slip: float) -> float:
    """Give the share of prefill with which such an endpoint is just full."""
    step_s = loaded(1, 1).work.step_s(requests, context_tokens)
    return 1 - slip * step_s / (TIGHT * FLOW.tpot_slo_s)


# What is needed.


@pytest.mark.parametrize("slip", [1.0, 1.5])
@pytest.mark.parametrize(("requests", "context_each"), [(8, 1000), (40, 1000), (16, 250), (64, 500)])
@pytest.mark.parametrize("parts", [1, 4, 16])
def test_what_fills_one_engine_is_one_engines_worth_however_it_is_spread(
    requests: int, context_each: int, slip: float, parts: int
) -> None:
    """The same traffic on more engines: there are fewer requests at a time, since their tokens come faster."""
    work = loaded(1, 1).work
    share = full_share(requests, requests * context_each, slip)
    assert 0 < share < 0.9
    full = loaded(requests, requests * context_each, share, slip)
    assert FLOW.load(full, 0.0) == pytest.approx(1.0)
    per_s = requests / (TIGHT * FLOW.tpot_slo_s) / parts
    left = 1 - share / parts - per_s * slip * (work.d1 + work.d2 * context_each)
    at_a_time = per_s * slip * work.d0 / left
    part = loaded(at_a_time, at_a_time * context_each, share / parts, slip)
    token_s = slip * work.step_s(at_a_time, part.outstanding.context_tokens) / (1 - share / parts)
    assert at_a_time / token_s == pytest.approx(per_s)
    assert parts * busy(part, FLOW, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("parts", [1, 4, 16])
def test_places_are_shared_out_alike(parts: int) -> None:
    flow = Flow(max_inflight=16)
    work = loaded(1, 1).work
    per_s = 16 / work.step_s(16, 1600) / parts
    at_a_time = per_s * work.d0 / (1 - per_s * (work.d1 + work.d2 * 100))
    assert parts * busy(loaded(at_a_time, at_a_time * 100), flow, 0.0) == pytest.approx(1.0)


def test_what_is_beyond_an_engine_counts_as_it_is() -> None:
    assert busy(loaded(32, 0), Flow(max_inflight=16), 0.0) == 2.0
    once, twice = loaded(500, 500_000), loaded(1000, 1_000_000)
    assert FLOW.load(once, 0.0) > 1
    assert busy(twice, FLOW, 0.0) == pytest.approx(2 * busy(once, FLOW, 0.0))


def test_an_idle_engine_is_not_busy() -> None:
    assert busy(loaded(0, 0), FLOW, 0.0) == 0.0


def test_memory_counts_where_it_is_scarcer() -> None:
    endpoint = loaded(1, 1)
    endpoint.outstanding.pinned_tokens = int(CAPACITY_TOKENS * ROOM)
    assert busy(endpoint, FLOW, 0.0) == pytest.approx(1.0)
    endpoint.report.kv_capacity_tokens = None
    assert busy(endpoint, FLOW, 0.0) < 0.1


def test_an_objective_that_no_engine_can_keep_needs_no_infinite_number() -> None:
    endpoint = loaded(4, 4000)
    strain_s = endpoint.work.step_s(4, 4000) - endpoint.work.d0
    most_s = TIGHT * 0.001
    assert busy(endpoint, Flow(tpot_slo_s=0.001), 0.0) == pytest.approx(strain_s / (LEAST_SLACK * most_s))


def test_a_queue_counts_for_what_it_takes_to_drain_it() -> None:
    fleet = endpoints(2)
    fleet[0].outstanding.prefill_s = MAX_BACKLOG_S + 3.0
    fleet[1].outstanding.prefill_s = MAX_BACKLOG_S / 2
    assert backlog_s(2.0, 5.0, fleet) == pytest.approx(13.0)
    assert needed(2.0, 13.0, Aims(utilization=0.8, drain_s=10.0)) == pytest.approx(2.5 + 1.3)


# Who met the objective.


def test_few_requests_tell_no_share() -> None:
    attainment = Attainment()
    assert attainment.share is None
    attainment.met = FEW - 1
    attainment.look(0.0)
    assert attainment.share is None
    attainment.met = FEW
    attainment.look(0.0)
    assert attainment.share == 1.0


def test_what_was_long_ago_is_forgotten() -> None:
    attainment = Attainment()
    attainment.missed = 1000
    attainment.look(0.0)
    assert attainment.share == 0.0
    attainment.met = 1000
    attainment.look(10 * MEMORY_S)
    assert attainment.share == pytest.approx(1.0, abs=1e-3)
    assert (attainment.met, attainment.missed) == (1000, 1000)


# The advice.


def advised(
    wanted: float,
    present: int,
    aims: Aims = AIMS,
    *,
    looks: int = 120,
    advice: Advice | None = None,
    start: float = 0.0,
    serves: bool = True,
    is_missed: bool = False,
) -> Advice:
    """Let a pool stand so for so many seconds."""
    advice = Advice(aims) if advice is None else advice
    for at in range(looks):
        advice.look(start + at, wanted, present, serves=serves, is_missed=is_missed)
    return advice


def test_it_begins_with_what_there_is() -> None:
    assert repr(advised(0.3, 5, looks=1)) == "<Advice 5: 0.30 needed>"
    assert advised(0.3, 5, looks=60).replicas == 5
    assert advised(0.3, 5, looks=61).replicas == 1


def test_what_is_needed_is_rounded_up_and_at_most_doubles() -> None:
    assert advised(3.2, 3).replicas == 3  # within TOLERANCE
    assert advised(3.4, 3).replicas == 4
    assert advised(50.0, 3).replicas == 6


def test_it_stays_within_its_bounds() -> None:
    assert advised(50.0, 8, Aims(max_replicas=10)).replicas == 10
    assert advised(0.0, 4, Aims(calm_s=60.0, min_replicas=2)).replicas == 2


def test_a_spike_is_no_trend() -> None:
    advice = advised(1.0, 1)
    advice.look(120.0, 5.0, 1, serves=True, is_missed=False)
    assert advice.needed == pytest.approx(1.0 + 4.0 / SMOOTH_S, rel=0.05)


def test_it_goes_down_only_to_the_most_of_late() -> None:
    advice = advised(8.0, 8)
    assert advised(2.0, 8, looks=59, advice=advice, start=120.0).replicas == 8
    assert advised(2.0, 8, looks=80, advice=advice, start=179.0).replicas < 8
    assert advised(2.0, 8, looks=120, advice=advice, start=259.0).replicas == 2


def test_it_does_not_flutter_where_load_goes_up_and_down() -> None:
    advice = Advice(AIMS)
    seen = set()
    for at in range(1200):
        advice.look(float(at), 6.0 if at // 20 % 2 else 2.0, 6, serves=True, is_missed=False)
        if at > 120:
            seen.add(advice.replicas)
    assert seen == {5}


def test_missed_objectives_ask_for_one_more_where_the_pool_has_work() -> None:
    assert advised(3.0, 4, is_missed=True).replicas == 5
    assert advised(1.0, 4, is_missed=True).replicas == 1
    assert advised(1.0, 4).replicas == 1


def test_an_outage_is_no_sign_that_nobody_comes() -> None:
    assert advised(0.0, 4, serves=False).replicas == 4
    assert advised(0.0, 0, serves=False).replicas == 1


def test_equal_numbers_are_kept_once() -> None:
    advice = advised(8.0, 8, looks=10_000)
    assert advice.replicas == 8
    assert len(advice._asked) == 1
