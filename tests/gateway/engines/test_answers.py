"""Every bad answer that engines are known to give, and garbage."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.answers import EngineError, Verdict, read_error, read_stream_error
from gateway.errors import MAX_MESSAGE_CHARS
from tests.gateway.engines.bad_answers import (
    BROKEN,
    BUSY,
    CAPTURED,
    CLIENT,
    INVALID,
    JSON,
    OVER_LENGTH,
    PASSED,
    PUT_IN_SHAPE,
    STREAMED,
    TGI_LENGTHS,
    TOO_LONG,
    VLLM_OLD_LENGTH,
    flat,
    nested,
    shaped,
)
from tests.gateway.engines.garbage import ANYTHING, UNTIMED
from tests.gateway.engines.pages import answer


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_errors_pass_byte_for_byte(name: str) -> None:
    page = answer(name)
    status, verdict = CAPTURED[name]
    assert read_error(page.status, page.headers, page.body) == EngineError(
        status, verdict, page.body, None, page.headers["content-type"]
    )


@pytest.mark.parametrize(("status", "body", "verdict"), PASSED)
def test_an_error_object_passes_byte_for_byte(status: int, body: bytes, verdict: Verdict) -> None:
    assert read_error(status, JSON, body) == EngineError(status, verdict, body)
    assert read_error(status, {"content-type": "text/html"}, body) == EngineError(status, verdict, body)


@pytest.mark.parametrize(("status", "body", "verdict", "shown"), PUT_IN_SHAPE)
def test_other_bodies_are_put_in_shape_once(status: int, body: bytes, verdict: Verdict, shown: bytes) -> None:
    error = read_error(status, {"content-type": "text/plain"}, body)
    assert error == EngineError(status, verdict, shown)
    assert read_error(status, JSON, error.body).body == shown


@pytest.mark.parametrize("name", ["vllm_unknownpath.txt", "vllm_405.txt"])
def test_captured_details_are_put_in_shape(name: str) -> None:
    page = answer(name)
    error = read_error(page.status, page.headers, page.body)
    assert (error.status, error.verdict) == (page.status, CLIENT)
    assert orjson.loads(error.body)["error"]["message"] == orjson.loads(page.body)["detail"]


@pytest.mark.parametrize("status", [401, 403, 407])
@pytest.mark.parametrize("body", [b'{"error":"Unauthorized"}', nested("bad key sk-1", "AuthenticationError", 401)])
def test_refused_credentials_are_the_gateways_own_fault(status: int, body: bytes) -> None:
    message = f"the engine refused the gateway's own credentials with status {status}"
    shown = EngineError(502, BROKEN, shaped(message, "server_error", "upstream_error"))
    assert read_error(status, JSON | {"retry-after": "9"}, body) == shown
    assert read_stream_error({"error": {"message": "bad key", "code": status}}) == shown


@pytest.mark.parametrize("status", [0, 101, 204, 302, 399, 600, 999])
def test_a_status_that_is_no_error_becomes_one(status: int) -> None:
    error = read_error(status, {}, b"moved")
    message = f"the engine answered with status {status}, which the gateway cannot pass on"
    assert error == EngineError(502, BROKEN, shaped(message, "server_error", "upstream_error"))


def test_what_broke_off_is_shown_as_far_as_it_came() -> None:
    body = nested(VLLM_OLD_LENGTH, "BadRequestError", 400)
    cut = read_error(400, JSON, body[:100], truncated=True)
    words = body[:100].decode() + " (the engine's answer broke off here)"
    assert cut == EngineError(400, OVER_LENGTH, shaped(words, INVALID, TOO_LONG))
    assert read_error(400, JSON, body, truncated=True).body == body


def test_a_message_is_no_mirror_of_a_body() -> None:
    for body in (b"x" * 100_000, orjson.dumps({"detail": "é" * 100_000})):
        assert len(orjson.loads(read_error(400, {}, body).body)["error"]["message"]) == MAX_MESSAGE_CHARS
    named = flat("The model `" + "model " * 100_000 + "` does not exist.", "NotFoundError", 404, "x" * 100_000)
    assert len(read_error(404, {}, named).body) < 3 * MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("headers", "retry_after_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "7", "retry-after-ms": "soon"}, 7.0),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Sun, 29 Nov 2026 15:34:20 GMT", "date": "Sun, 29 Nov 2026 15:33:50 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 15:34:20 -0000", "date": "Sun, 29 Nov 2026 15:33:50 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 15:33:20 GMT", "date": "Sun, 29 Nov 2026 15:33:50 GMT"}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2026 15:34:20 GMT"}, None),
        ({"retry-after": "Sun, 99 Nov 2026 15:34:20 GMT", "date": "Sun, 29 Nov 2026 15:33:50 GMT"}, None),
    ],
)
def test_reads_how_long_to_stay_away(headers: dict[str, str], retry_after_s: float | None) -> None:
    assert read_error(503, headers, b"busy").retry_after_s == retry_after_s


@pytest.mark.parametrize(("payload", "status", "verdict"), STREAMED)
def test_an_error_in_a_stream_gets_its_true_status(payload: dict[str, object], status: int, verdict: Verdict) -> None:
    assert read_stream_error(payload) == EngineError(status, verdict, orjson.dumps(payload))
    beside = {"id": "chatcmpl-1", **payload}
    assert read_stream_error(beside) == EngineError(status, verdict, orjson.dumps(beside))


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (
            {"error": "Model is overloaded", "error_type": "overloaded"},
            EngineError(429, BUSY, shaped("Model is overloaded", "rate_limit_error", "server_overloaded")),
        ),
        (
            {"error": TGI_LENGTHS[0], "error_type": "validation"},
            EngineError(422, OVER_LENGTH, shaped(TGI_LENGTHS[0], INVALID, TOO_LONG)),
        ),
        (
            {"error": "oom", "error_type": "generation"},
            EngineError(424, BROKEN, shaped("oom", "server_error", "upstream_error")),
        ),
        (
            {"object": "error", "message": "full", "type": "503", "code": 503},
            EngineError(503, BUSY, shaped("full", "service_unavailable_error", "server_overloaded")),
        ),
        (
            {"error": None},
            EngineError(500, BROKEN, shaped("the engine failed with status 500", "server_error", "upstream_error")),
        ),
        (
            {"error": {"message": "\ud800", "big": 2**70, "code": 400}},
            EngineError(400, CLIENT, shaped("?", INVALID, None)),
        ),
    ],
)
def test_other_errors_in_a_stream_are_put_in_shape(payload: dict[str, object], error: EngineError) -> None:
    assert read_stream_error(payload) == error


SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "error": ANYTHING
        | st.fixed_dictionaries({}, optional={"message": ANYTHING, "code": ANYTHING, "type": ANYTHING}),
        "message": ANYTHING,
        "detail": ANYTHING | st.lists(st.fixed_dictionaries({}, optional={"loc": ANYTHING, "msg": ANYTHING})),
        "code": ANYTHING | st.integers(390, 610),
        "param": ANYTHING,
        "type": ANYTHING,
        "error_type": ANYTHING,
    },
)


def holds(error: EngineError) -> bool:
    """Whether a client can read what it is shown."""
    assert 400 <= error.status <= 599
    return isinstance(orjson.loads(error.body)["error"], dict)


def spelled(value: object) -> bytes:
    """Spell a value as JSON, if JSON can."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return repr(value).encode(errors="replace")


@UNTIMED
@given(
    st.integers(-1, 700),
    st.dictionaries(
        st.sampled_from(["content-type", "retry-after", "retry-after-ms", "date"]),
        st.text() | st.from_regex(r"\A\w{3}, \d+ \w{3} \d+ \d+:\d+:\d+ [-+\w]+\Z"),
    ),
    st.binary() | SHAPES.map(spelled),
    st.booleans(),
)
def test_no_answer_makes_it_raise(status: int, headers: dict[str, str], body: bytes, truncated: bool) -> None:
    error = read_error(status, headers, body, truncated)
    assert holds(error)
    assert error.retry_after_s is None or error.retry_after_s >= 0
    assert "json" in error.content_type.lower()


@UNTIMED
@given(SHAPES)
def test_no_event_makes_it_raise(payload: dict[str, object]) -> None:
    assert holds(read_stream_error(payload))


def test_an_event_nested_too_deep_makes_it_not_raise() -> None:
    deep: object = "x"
    for _ in range(2000):
        deep = [deep]
    assert holds(read_stream_error({"error": {"message": "no", "deep": deep}}))


def test_values_are_values() -> None:
    error = read_error(503, {}, b"busy")
    assert replace(error) == error
