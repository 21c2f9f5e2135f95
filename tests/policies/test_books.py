"""The books are exact under every order of events, and so never negative."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import books
from policies.endpoint import Charge, Endpoint, EngineReport, Outstanding
from policies.request import UNIT_TOKENS, BlockHash
from tests.policies.fleets import REQUEST, endpoint, endpoints, request

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["dispatch", "first_token", "finish"]),
        st.integers(0, 1 << 30),
        st.integers(0, 6),  # units that all share
        st.integers(0, 3),  # units of one of a few tails
        st.integers(0, 63),  # tokens behind the last unit
    ),
    max_size=100,
)


def expected(charges: list[Charge], at: Endpoint) -> Outstanding:
    """Count afresh what an endpoint has outstanding."""
    here = [charge for charge in charges if charge.endpoint is at]
    waiting = [charge for charge in here if not charge.is_decoding]
    halves = sum(charge.request.output_tokens // 2 for charge in here if charge.is_decoding)
    pinned: Counter[BlockHash] = Counter()
    for charge in here:
        pinned.update(charge.request.prefix)
    tails = sum(charge.request.prompt_tokens - len(charge.request.prefix) * UNIT_TOKENS for charge in here)
    return Outstanding(
        requests=len(here),
        prefill_tokens=sum(charge.uncached_tokens for charge in waiting),
        decoding=len(here) - len(waiting),
        prefill_s=at.outstanding.prefill_s,  # drifts by a rounding: see `drift`
        context_tokens=sum(charge.request.prompt_tokens for charge in here) + halves,
        growth_tokens=sum(charge.uncached_tokens + charge.request.output_tokens // 2 for charge in here),
        pinned_tokens=len(pinned) * UNIT_TOKENS + tails,
        pinned=dict(pinned),
        prefilling=dict.fromkeys(waiting),
    )


def drift(books: Outstanding) -> float:
    """Give the seconds by which the sum of prefills is off."""
    return abs(books.prefill_s - sum(charge.prefill_s for charge in books.prefilling))


@given(OPERATIONS)
def test_the_books_say_what_a_fresh_count_says(operations: list[tuple[str, int, int, int, int]]) -> None:
    fleet = endpoints(3)
    charges: list[Charge] = []
    for now, (operation, pick, shared, own, tail) in enumerate(operations):
        if operation == "dispatch":
            asked = request("r", (1, shared), (pick % 4 + 2, own), tail=tail, output=pick % 400)
            cached = min(pick % 5 * UNIT_TOKENS, asked.prompt_tokens)
            charges.append(books.dispatch(fleet[pick % 3], asked, float(now), cached))
        elif charges and operation == "first_token":
            charge = charges[pick % len(charges)]
            if not charge.is_decoding:
                books.first_token(charge, float(now))
        elif charges:
            books.finish(charges.pop(pick % len(charges)), float(now), pick % 30 or None)
        assert [at.outstanding for at in fleet] == [expected(charges, at) for at in fleet]
        assert all(drift(at.outstanding) < 1e-9 for at in fleet)
    for charge in charges:
        books.finish(charge, 1e3)
    assert [at.outstanding for at in fleet] == [Outstanding()] * 3


def test_giving_back_twice_is_a_fault_of_ours() -> None:
    at = endpoint()
    charge = books.dispatch(at, REQUEST, 0.0)
    books.first_token(charge, 1.0)
    books.finish(charge, 2.0)
    with pytest.raises(AssertionError):
        books.finish(charge, 3.0)


def test_a_second_first_token_is_a_fault_of_ours() -> None:
    charge = books.dispatch(endpoint(), REQUEST, 0.0)
    books.first_token(charge, 1.0)
    with pytest.raises(AssertionError):
        books.first_token(charge, 2.0)


def test_an_endpoint_says_what_it_has_in_flight() -> None:
    at = endpoint("e7")
    books.dispatch(at, REQUEST, 0.0)
    books.dispatch(at, REQUEST, 0.0)
    assert repr(at) == "<Endpoint e7 ready 2 in flight>"


def test_two_endpoints_of_the_same_name_are_two() -> None:
    assert endpoint("e") != endpoint("e")
    assert len({endpoint("e"), endpoint("e")}) == 2


# Prefill.


@pytest.mark.parametrize(("cached", "uncached"), [(0, 100), (64, 36), (84, 16), (100, 16), (4096, 16)])
def test_at_least_one_block_is_computed_anew(cached: int, uncached: int) -> None:
    charge = books.dispatch(endpoint(), REQUEST, 0.0, cached)
    assert (charge.uncached_tokens, charge.cached_tokens) == (uncached, 100 - uncached)


def test_a_prompt_shorter_than_a_block_is_computed_whole() -> None:
    assert books.dispatch(endpoint(), REQUEST._replace(prompt_tokens=3), 0.0, 64).uncached_tokens == 3


def test_the_head_has_its_turn_since_the_one_before_it_was_done() -> None:
    at = endpoint()
    first, second, third = (books.dispatch(at, REQUEST, float(now)) for now in (1, 2, 3))
    assert at.outstanding.head_since == 1.0
    books.first_token(second, 4.0)
    assert at.outstanding.head_since == 1.0
    books.first_token(first, 5.0)
    assert (at.outstanding.head_since, list(at.outstanding.prefilling)) == (5.0, [third])
    books.finish(third, 6.0)
    books.dispatch(at, REQUEST, 7.0)
    assert at.outstanding.head_since == 7.0


# Pinned KV.


def test_what_two_requests_share_is_pinned_once() -> None:
    at = endpoints(1)[0]
    one, other = request("a", (1, 10), (2, 5)), request("b", (1, 10), (3, 7))
    first = books.dispatch(at, one, 0.0)
    second = books.dispatch(at, other, 0.0)
    assert at.outstanding.pinned_tokens == one.prompt_tokens + 7 * UNIT_TOKENS + 20
    books.finish(first, 1.0)
    assert at.outstanding.pinned_tokens == other.prompt_tokens
    books.finish(second, 1.0)
    assert at.outstanding == Outstanding()


def test_decodes_pin_what_they_have_streamed() -> None:
    """Two streams, one half as long under way; steps are counted by the work model, at each change."""
    at = endpoints(1)[0]
    first, second = (books.dispatch(at, REQUEST, 0.0) for _ in range(2))
    books.first_token(first, 0.0)
    step_s = at.work.step_s(1, at.outstanding.context_tokens)
    books.first_token(second, 10 * step_s)
    step_s, began_s = at.work.step_s(2, at.outstanding.context_tokens), 10 * step_s
    third = books.dispatch(at, REQUEST, began_s + 10 * step_s)
    assert at.outstanding.streamed_tokens == pytest.approx(20 + 10)
    books.finish(first, began_s + 10 * step_s)
    assert at.outstanding.streamed_tokens == pytest.approx(10)
    books.finish(second, began_s + 10 * step_s)
    books.finish(third, 1e6)
    assert at.outstanding.streamed_tokens == 0


def test_the_outlook_says_how_full_an_endpoint_of_known_capacity_is() -> None:
    known, unknown = endpoints(1, 1_000)[0], endpoints(1, None)[0]
    for at in (known, unknown):
        books.dispatch(at, REQUEST, 0.0)
    assert (known.reckon()[2], unknown.reckon()[2]) == (0.1, 0.0)
    known.report = EngineReport(kv_capacity_tokens=2_000)
    known.outlook = None
    assert known.reckon()[2] == 0.05


# What the work model learns.


def served(at: Endpoint, *, prompt: int, ttft_s: float, tpot_s: float, output: int, beside: int = 0) -> None:
    """Serve one request alone, or with others that came just before it."""
    others = [books.dispatch(at, REQUEST, 0.0) for _ in range(beside)]
    charge = books.dispatch(at, REQUEST._replace(prompt_tokens=prompt), 0.0)
    books.first_token(charge, ttft_s)
    books.finish(charge, ttft_s + tpot_s * (output - 1), output)
    for other in others:
        books.finish(other, 100.0)


def test_an_engine_half_as_fast_as_its_profile_is_found_out() -> None:
    at = endpoint()
    truth = at.work.prefill_s(4096, 0) + 1.5 * at.work.step_s(0, 0)
    step = at.work.step_s(1, 4096 + 25)
    for _ in range(200):
        served(at, prompt=4096, ttft_s=2 * truth, tpot_s=2 * step, output=100)
    assert repr(at.work) == "<WorkModel prefill x2.00 decode x2.00>"


@pytest.mark.parametrize(
    "case",
    [
        {"prompt": 4096, "beside": 1, "output": 8},  # its time to first token is not its own, its stream is short
        {"prompt": 100, "beside": 0, "output": 8},  # a prompt of one step
    ],
)
def test_what_is_no_measurement_teaches_nothing(case: dict[str, int]) -> None:
    at = endpoint()
    served(at, ttft_s=9.0, tpot_s=9.0, **case)
    assert repr(at.work) == "<WorkModel prefill x1.00 decode x1.00>"


def test_a_stream_is_not_blamed_for_the_prefills_beside_it() -> None:
    at = endpoint()
    stream = books.dispatch(at, REQUEST, 0.0)
    books.first_token(stream, 0.0)
    step = at.work.step_s(1, 125)
    long = books.dispatch(at, REQUEST._replace(prompt_tokens=8192), 0.0)
    books.first_token(long, long.prefill_s + 1.5 * at.reckon()[3])
    books.finish(long, 1.0)
    books.finish(stream, long.prefill_s + step * 999, 1000)
    assert at.work.d0 == pytest.approx(0.007)


def test_observations_in_turn_move_the_model_in_turn() -> None:
    at = endpoint()
    slow = []
    for _ in range(3):
        served(at, prompt=4096, ttft_s=10.0, tpot_s=0.007, output=8)
        slow.append(at.work.p1)
    assert all(before < after for before, after in pairwise(slow))


def test_a_first_token_that_nobody_saw_teaches_nothing() -> None:
    at = endpoint()
    before = repr(at.work)
    charge = books.dispatch(at, request("r", (1, 40), output=100), 0.0)
    books.first_token(charge, 9.0, is_seen=False)
    assert at.outstanding.decoding == 1
    books.finish(charge, 99.0, 100)
    assert repr(at.work) == before
    assert at.outstanding == Outstanding()


def test_units_whose_hashes_repeat_are_given_back_whole() -> None:
    """Hashes have no key: a client can make token ids whose units all have the same one."""
    at = endpoint()
    forged = request("r")._replace(prefix=(BlockHash(7), BlockHash(7), BlockHash(8), BlockHash(7)), prompt_tokens=256)
    crossed = request("s")._replace(prefix=(BlockHash(8), BlockHash(9)), prompt_tokens=128)
    charges = [books.dispatch(at, each, 0.0) for each in (forged, crossed, forged)]
    assert at.outstanding.pinned == {7: 6, 8: 3, 9: 1}
    for charge in charges:
        books.finish(charge, 1.0)
    assert at.outstanding == Outstanding()


def test_the_share_of_time_in_prefills_is_that_of_the_last_seconds() -> None:
    (only,) = endpoints(1)
    for at in range(400):
        charge = books.dispatch(only, request(str(at), (at, 40)), at / 4)
        books.first_token(charge, at / 4, is_seen=False)
        books.finish(charge, at / 4)
    each_s = only.work.prefill_s(40 * UNIT_TOKENS + 20, 0)
    assert only.outstanding.share_of_prefill(100.0) == pytest.approx(4 * each_s, rel=0.05)
    assert only.outstanding.share_of_prefill(110.0) == pytest.approx(4 * each_s / 2.718, rel=0.05)


def test_prefills_that_nobody_saw_the_end_of_take_no_share() -> None:
    (only,) = endpoints(1)
    books.finish(books.dispatch(only, request("r", (1, 40)), 0.0), 1.0)
    assert only.outstanding.share_of_prefill(1.0) == 0.0


def test_streams_that_are_slower_than_predicted_are_noticed() -> None:
    """R = 200 streams at twice the seconds per token; steps and prefills explain one of the two."""
    (only,) = endpoints(1)
    for at in range(200):
        charge = books.dispatch(only, request(str(at), (at, 4)), 0.0)
        books.first_token(charge, 0.0, is_seen=True)
        only.outstanding.prefill_share, only.outstanding.shared_at = 0.5, 0.0
        step_s = only.work.step_s(1, only.outstanding.context_tokens)
        only.outstanding.shared_at = took = 99 * 4 * step_s
        charge.prefilled_s -= took * 0.75  # what held it up was prefills, so that the step itself is as predicted
        books.finish(charge, took, 100)
    assert only.outstanding.slip == pytest.approx(2.0, rel=0.05)
