"""The books are exact under every order of events, and so never negative."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import books
from policies.endpoint import Endpoint, Outstanding
from policies.request import InferenceRequest
from tests.policies.fleets import REQUEST, endpoint, endpoints

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["dispatch", "first_token", "finish"]), st.integers(0, 1 << 30), st.integers(0, 5000)),
    max_size=200,
)


@dataclass
class Running:
    """A request under way, as the test knows it."""

    request: InferenceRequest
    endpoint: Endpoint
    is_decoding: bool = False


def expected(running: list[Running], at: Endpoint) -> Outstanding:
    """Count afresh what an endpoint has outstanding."""
    here = [one for one in running if one.endpoint is at]
    return Outstanding(
        requests=len(here),
        prefill_tokens=sum(one.request.prompt_tokens for one in here if not one.is_decoding),
        decoding=sum(one.is_decoding for one in here),
    )


@given(OPERATIONS)
def test_the_books_say_what_a_fresh_count_says(operations: list[tuple[str, int, int]]) -> None:
    fleet = endpoints(3)
    running: list[Running] = []
    for operation, pick, tokens in operations:
        if operation == "dispatch":
            one = Running(REQUEST._replace(prompt_tokens=tokens), fleet[pick % 3])
            books.dispatch(one.endpoint, one.request)
            running.append(one)
        elif running and operation == "first_token":
            one = running[pick % len(running)]
            if not one.is_decoding:
                books.first_token(one.endpoint, one.request)
                one.is_decoding = True
        elif running:
            one = running.pop(pick % len(running))
            books.finish(one.endpoint, one.request, is_decoding=one.is_decoding)
        assert [at.outstanding for at in fleet] == [expected(running, at) for at in fleet]
    for one in running:
        books.finish(one.endpoint, one.request, is_decoding=one.is_decoding)
    assert [at.outstanding for at in fleet] == [Outstanding()] * 3


@pytest.mark.parametrize("is_decoding", [True, False])
def test_giving_back_what_was_never_taken_is_a_fault_of_ours(is_decoding: bool) -> None:
    with pytest.raises(AssertionError):
        books.finish(endpoint(), REQUEST, is_decoding=is_decoding)


def test_giving_back_a_decode_that_never_began_is_a_fault_of_ours() -> None:
    at = endpoint()
    books.dispatch(at, REQUEST)
    with pytest.raises(AssertionError):
        books.finish(at, REQUEST, is_decoding=True)


def test_an_endpoint_says_what_it_has_in_flight() -> None:
    at = endpoint("e7")
    books.dispatch(at, REQUEST)
    books.dispatch(at, REQUEST)
    assert repr(at) == "<Endpoint e7 ready 2 in flight>"


def test_two_endpoints_of_the_same_name_are_two() -> None:
    assert endpoint("e") != endpoint("e")
    assert len({endpoint("e"), endpoint("e")}) == 2
