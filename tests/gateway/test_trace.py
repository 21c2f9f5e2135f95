"""A Trace becomes the record of its request: times in seconds, zero and unknown told apart."""

import time
from dataclasses import replace

import pytest

from gateway.trace import Trace, kvlane_lines
from gateway.usage import Usage
from policies.endpoint import Endpoint
from policies.policy import Choice, Reason
from policies.record import Outcome

CHOICE = Choice(Endpoint("e", "http://e"), Reason.LEAST_LOADED)
STREAM = Trace(
    id="r",
    route="/v1/chat/completions",
    arrived_at=100.0,
    tenant="t",
    model="m",
    is_stream=True,
    pool="p",
    choice=CHOICE,
    tries=2,
    dispatched_at=100.25,
    first_token_at=101.0,
    last_byte_at=103.0,
    prompt_tokens=40,
    usage=Usage(50, 11, 0),
    status=200,
    outcome=Outcome.OK,
)


def test_a_stream_is_measured_from_its_arrival() -> None:
    record = STREAM.finish(103.5)
    assert (record.queue_s, record.ttft_s, record.e2e_s) == (0.25, 1.0, 3.5)
    assert record.tpot_s == pytest.approx(0.2)  # ten tokens after the first, in two seconds
    assert (record.pool, record.endpoint, record.reason, record.tries) == ("p", "e", "least_loaded", 2)


def test_arrival_is_told_in_unix_time() -> None:
    before = time.time()
    record = STREAM.finish(103.5)
    assert before - 3.5 <= record.arrived_at <= time.time() - 3.5


def test_the_engines_count_goes_before_our_estimate() -> None:
    record = STREAM.finish(104.0)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (50, 11, 0)


def test_without_usage_the_estimate_stands_and_the_rest_is_unknown() -> None:
    record = replace(STREAM, usage=None).finish(104.0)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (40, None, None)
    assert record.tpot_s is None


def test_zero_cached_tokens_are_data_and_none_is_silence() -> None:
    assert replace(STREAM, usage=Usage(50, 11, 0)).finish(104.0).cached_tokens == 0
    assert replace(STREAM, usage=Usage(50, 11, None)).finish(104.0).cached_tokens is None


@pytest.mark.parametrize("output_tokens", [0, 1])
def test_a_single_token_has_no_time_between_tokens(output_tokens: int) -> None:
    record = replace(STREAM, usage=Usage(50, output_tokens, None)).finish(104.0)
    assert (record.ttft_s, record.tpot_s) == (1.0, None)


def test_only_streams_have_a_first_token() -> None:
    record = replace(STREAM, is_stream=False).finish(104.0)
    assert (record.ttft_s, record.tpot_s) == (None, None)


def test_a_request_that_was_never_sent_has_waited_all_its_life() -> None:
    record = Trace("r", "other", 100.0).finish(100.5)
    assert (record.queue_s, record.e2e_s, record.tries) == (0.5, 0.5, 0)
    assert (record.pool, record.endpoint, record.reason) == (None, None, None)


def test_a_request_that_ends_without_a_word_has_lost_its_client() -> None:
    assert Trace("r", "other", 100.0).finish(100.5).outcome is Outcome.DISCONNECTED


@pytest.mark.parametrize(
    ("predicted", "own", "told"),
    [
        (640, None, "prefix, 640"),
        (640, 640, "prefix, 640"),
        (640, 6400, "prefix, 640"),
        (640, 128, "prefix, 128"),
        (640, 0, "least_work, 0"),
        (0, 640, "least_work, 0"),
    ],
)
def test_a_tenant_is_told_of_no_more_than_it_has_sent_itself(predicted: int, own: int | None, told: str) -> None:
    reason = Reason.PREFIX if predicted else Reason.LEAST_WORK
    trace = replace(STREAM, choice=CHOICE._replace(reason=reason, cached_tokens=predicted))
    lines = dict(line.split(": ") for line in kvlane_lines(trace, own).decode().splitlines())
    assert f"{lines['x-kvlane-reason']}, {lines['x-kvlane-cached-tokens']}" == told
    assert trace.choice is not None
    assert trace.choice.cached_tokens == predicted  # for the operator's log and metrics


def test_where_nobody_looked_at_prefixes_nothing_is_told_of_them() -> None:
    assert b"cached" not in kvlane_lines(STREAM, 100)
    assert b"x-kvlane-reason: least_loaded" in kvlane_lines(STREAM, 0)
