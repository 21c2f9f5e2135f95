"""Hops: each begins where the one before ends, whichever way a request goes."""

from random import Random

from gateway.hops import Hop, Hops
from gateway.tracecontext import Parent
from policies.endpoint import Endpoint
from policies.policy import Choice, Reason

CHOICE = Choice(Endpoint("e", "http://e"), Reason.TURN)


def hops(parent: Parent | None = None, *, is_sampled: bool = True) -> Hops:
    return Hops(parent, 7, "POST", 100.0, Random(1), is_sampled=is_sampled)


def names(of: Hops) -> list[str]:
    return [hop.value for hop, _ in of.noted]


def test_a_hop_that_runs_already_runs_on() -> None:
    one = hops()
    one.begin(Hop.SETTLE, 101.0)
    one.begin(Hop.SETTLE, 102.0)
    assert one.noted == [(Hop.AUTHENTICATE, 100.0), (Hop.SETTLE, 101.0)]


def test_who_did_not_wait_was_chosen_for_all_the_time() -> None:
    one = hops()
    one.begin(Hop.QUEUE, 101.0)
    one.admitted(has_waited=False)
    assert one.noted[1:] == [(Hop.CHOOSE, 101.0)]


def test_who_waited_was_in_the_queue_first() -> None:
    one = hops()
    one.begin(Hop.QUEUE, 101.0)
    one.admitted(has_waited=True)
    assert names(one)[1:] == ["queue", "choose"]


def test_two_tries_have_two_spans_and_one_trace() -> None:
    one = hops()
    one.attempt(CHOICE, None, 101.0)
    first = one.lines_to_engine
    one.failed("busy", 503)
    one.attempt(CHOICE, None, 102.0)
    second = one.lines_to_engine
    assert first != second
    assert first.startswith(b"traceparent: 00-%032x-" % 7)
    assert second.endswith(b"-01\r\n")
    assert [(each.failure, each.status) for each in one.attempts] == [("busy", 503), (None, None)]


def test_an_engine_is_told_our_decision_and_the_rest_of_the_clients_flags() -> None:
    assert hops(Parent(7, 8, 3, "a=b"), is_sampled=False).trace_id == 7
    one = hops(Parent(7, 8, 3, "a=b"), is_sampled=False)
    one.attempt(CHOICE, None, 101.0)
    assert one.lines_to_engine.endswith(b"-02\r\ntracestate: a=b\r\n")
