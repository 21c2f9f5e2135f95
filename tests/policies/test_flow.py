"""Flow: room is what one more would do to the others, and not how many there are."""

import pytest

from policies import books
from policies.endpoint import Charge, Endpoint
from policies.flow import MAX_BACKLOG_S, TIGHT, Flow, Promised
from tests.policies.fleets import endpoints, request


def busy(
    count: int, units: int = 40, *, shared: bool = False, is_decoding: bool = True
) -> tuple[Endpoint, list[Charge]]:
    """Give an endpoint with so many requests of so many units each."""
    (only,) = endpoints(1)
    charges = []
    for at in range(count):
        cached = units * 64 if shared and at else 0
        charges.append(books.dispatch(only, request(str(at), (0 if shared else at, units)), 0.0, cached))
        if is_decoding:
            books.first_token(charges[-1], 0.0, is_seen=False)
    only.outstanding.prefill_share = 0.0
    return only, charges


def test_an_idle_endpoint_has_room_for_anything() -> None:
    (only,) = endpoints(1)
    huge = request("r", (1, 8000))
    assert Flow().load(only, 0.0) == 0.0
    assert Flow().fits(only, huge, huge.prompt_tokens)


def test_the_load_is_the_pace_over_what_the_objective_leaves() -> None:
    only, _ = busy(50)
    step_s = only.work.step_s(50, only.outstanding.context_tokens)
    assert Flow(tpot_slo_s=0.05).load(only, 0.0) == pytest.approx(step_s / (TIGHT * 0.05))
    assert Flow(tpot_slo_s=0.1).load(only, 0.0) == pytest.approx(step_s / (TIGHT * 0.1))


def test_prefills_and_slower_streams_than_predicted_leave_less_room() -> None:
    only, _ = busy(50)
    calm = Flow().load(only, 0.0)
    only.outstanding.prefill_share, only.outstanding.shared_at = 0.5, 0.0
    assert Flow().load(only, 0.0) == pytest.approx(2 * calm)
    assert calm < Flow().load(only, 10.0) < 2 * calm
    only.outstanding.prefill_share = 7.0
    assert Flow().load(only, 0.0) == pytest.approx(10 * calm)
    only.outstanding.prefill_share, only.outstanding.slip = 0.0, 1.5
    assert Flow().load(only, 0.0) == pytest.approx(1.5 * calm)


def test_prefills_that_are_not_done_fill_an_endpoint() -> None:
    only, _ = busy(2, units=200, is_decoding=False)
    assert only.outstanding.prefill_s > MAX_BACKLOG_S
    assert Flow().load(only, 0.0) > 1


def test_what_is_promised_counts_as_if_it_were_there() -> None:
    only, charges = busy(50)
    whole = Flow().load(only, 0.0)
    books.finish(charges.pop(), 0.0)
    promised = Promised(1, charges[0].request.prompt_tokens + 50, 0)
    assert Flow().load(only, 0.0, promised) == pytest.approx(whole, rel=0.01)
    assert Flow().load(only, 0.0, Promised(1, 0, 100_000)) > 1


def test_places_are_counted_where_the_configuration_names_them() -> None:
    only, _ = busy(3, units=1)
    assert Flow(max_inflight=3, is_measured=False).load(only, 0.0) == 1.0
    assert Flow(max_inflight=4, is_measured=False).load(only, 0.0) == 0.75
    assert Flow(is_measured=False).load(only, 0.0) == 0.0
    assert Flow(max_inflight=3).load(only, 0.0) == 1.0


def test_memory_is_what_is_pinned_and_never_what_may_come() -> None:
    only, _ = busy(9, units=625)  # 40,000 tokens each, of 400,000
    asked = request("r", (77, 625))
    assert not Flow().fits(only, asked, asked.prompt_tokens)
    assert Flow().fits(only, asked, 64)
    assert Flow().fits(only, asked._replace(allowed_tokens=100_000), 64)
    assert not Flow().fits(only, asked, 64, Promised(1, 40_000, 40_000))
    assert Flow(max_inflight=99, is_measured=False).fits(only, asked, asked.prompt_tokens)
    only.report.kv_capacity_tokens = None
    assert Flow().fits(only, asked, asked.prompt_tokens)


def test_prompts_that_share_their_beginning_count_it_once() -> None:
    only, _ = busy(9, units=625, shared=True)
    asked = request("r", (77, 625))
    assert Flow().fits(only, asked, asked.prompt_tokens)
