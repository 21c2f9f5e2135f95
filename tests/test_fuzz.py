"""P10: whatever a client sends, the gateway gives no 5xx of its own, and every refusal has the one shape.

The engine answers everything with the same 200, so that a status of 500 or more can only be the gateway's. `serving`
makes sure that nothing was logged as an error and nothing is left of any request.

Examples are the same in every run (derandomize): a test that fails is one that somebody broke.
"""

import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.app import Gateway
from tests.wire.client import CHAT, Answer, RawClient, chat, request
from tests.wire.engine import EVENTS_HEAD, Call, ScriptedEngine, chunk, says, whole
from tests.wire.house import serving
from tests.wire.sse import DONE, ROLE, STREAM, USAGE, token

ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/audio/transcriptions",
    "/v1/audio/speech",
    "/tokenize",
    "/v1/rerank",
    "/v1/score",
)
FUZZ = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway in front of an engine that finds everything good."""
    answer = whole(200, b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}')
    listen = {"max_body_bytes": 200_000, "body_timeout_s": 0.2, "keepalive_s": 1}
    async with ScriptedEngine(says(answer)) as engine, serving(engine.url, listen=listen) as gateway:
        yield gateway


def check(answer: Answer, *, method: str = "POST") -> None:
    """Make sure of the rule."""
    assert answer.is_whole
    assert answer.status in (100, 200) or 400 <= answer.status < 500, answer
    if answer.status >= 400 and method != "HEAD":
        assert answer.error
        assert len(answer.body) < 5000


async def send(gateway: Gateway, target: str, body: bytes, headers: list[tuple[str, str]] | None = None) -> Answer:
    async with RawClient.to(gateway.url) as client:
        client.ask(target, body, headers or [])
        answer = await client.answer()
        check(answer)
        return answer


# Bodies.


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([2**63, 2**64, -(2**64), 10**400, 1e308, -0.0, "\ud800", "\x00", "data: [DONE]\n\n", "x" * 300])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "input",
        "system",
        "instructions",
        "tools",
        "query",
        "documents",
        "text_1",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "best_of",
        "previous_response_id",
        "priority",
        "data_parallel_rank",
        "service_tier",
        "prompt_cache_key",
        "cache_salt",
        "usage",
        "error",
        "",
    ]
)


def written(value: object) -> bytes:
    """Write JSON as lax programs do: NaN, lone surrogates and huge numbers included."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


@FUZZ
@given(route=st.sampled_from(ROUTES), body=st.binary(max_size=300))
async def test_any_bytes_are_answered_in_shape(gateway: Gateway, route: str, body: bytes) -> None:
    await send(gateway, route, body)


@FUZZ
@given(route=st.sampled_from(ROUTES), value=VALUES)
async def test_any_json_is_answered_in_shape(gateway: Gateway, route: str, value: object) -> None:
    await send(gateway, route, written(value))


@FUZZ
@given(route=st.sampled_from(ROUTES), fields=st.dictionaries(FIELDS, VALUES, max_size=6))
async def test_any_fields_of_a_good_body_are_answered_in_shape(
    gateway: Gateway, route: str, fields: dict[str, Any]
) -> None:
    await send(gateway, route, written({"model": "sim", **fields}))


@FUZZ
@given(edits=st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=3)), min_size=1, max_size=4))
async def test_a_good_body_with_bytes_overwritten_is_answered_in_shape(
    gateway: Gateway, edits: list[tuple[int, bytes]]
) -> None:
    body = bytearray(chat(stream=True, stream_options={"a": 1}, priority=3, tools=[{"type": "function"}]))
    for at, data in edits:
        body[at % len(body) : at % len(body) + len(data)] = data
    await send(gateway, CHAT, bytes(body))


@FUZZ
@given(
    boundary=st.sampled_from(["b", '"b"', '"b', "b;c", "", " ", "é", "b" * 300, '"b\\"c"']),
    body=st.lists(
        st.sampled_from(
            [
                b"--b\r\n",
                b"--b--\r\n",
                b"--b",
                b"\r\n\r\n",
                b"\r\n",
                b'Content-Disposition: form-data; name="model"',
                b"content-disposition: form-data; name=model; filename=x",
                b"Content-Type: text/plain",
                b"sim",
                b"\xff\x00",
                b"=" * 5000,
            ]
        ),
        max_size=12,
    ).map(b"".join),
)
async def test_any_form_is_answered_in_shape(gateway: Gateway, boundary: str, body: bytes) -> None:
    content_type = f"multipart/form-data; boundary={boundary}"
    await send(gateway, "/v1/audio/transcriptions", body, [("Content-Type", content_type)])


NASTY = {
    "deep list": b'{"model":"sim","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep object": b'{"model":"sim","messages":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    "deep messages": b'{"model":"sim","messages":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "long number": b'{"model":"sim","max_tokens":' + b"9" * 5000 + b"}",
    "long key": b'{"model":"sim","' + b"k" * 100_000 + b'":1}',
    "many keys": b'{"model":"sim"' + b"".join(b',"k%d":%d' % (at, at) for at in range(10_000)) + b"}",
    "same key": b'{"model":"sim"' + b',"priority":1' * 10_000 + b"}",
    "many escapes": b'{"model":"sim","priority":"' + b"\\\\" * 50_000 + b'"}',
    "only quotes": b'{"model":"sim","priority":"' + b'\\"' * 50_000 + b'"}',
    "many brackets in a string": b'{"priority":[' + b'"]}",' * 20_000 + b'1],"model":"sim"}',
    "null model in a list": b'{"model":[null]}',
    "bom": b"\xef\xbb\xbf" + chat(),
    "utf-16": chat().decode().encode("utf-16"),
    "utf-32": chat().decode().encode("utf-32"),
    "overlong utf-8": b'{"model":"\xc0\xafsim"}',
    "lone surrogate": b'{"model":"sim","messages":[{"role":"user","content":"\\ud83d"}],"priority":1}',
    "surrogate in a key": b'{"\\udc00":1,"model":"sim","priority":1}',
    "nul in a key": b'{"\\u0000":1,"model":"sim","priority":1}',
    "comments": b'{"model":"sim"/* fish */}',
    "single quotes": b"{'model':'sim'}",
    "infinity": b'{"model":"sim","temperature":Infinity}',
    "negative sizes": b'{"model":"sim","max_tokens":-5,"n":-3,"best_of":-1}',
    "huge sizes": b'{"model":"sim","max_tokens":9223372036854775807,"n":9223372036854775807}',
    "mixed ids": b'{"model":"sim","prompt":[1,"a",null,[2],{"b":3}]}',
    "negative ids": b'{"model":"sim","prompt":[-1,99999999999]}',
    "stream of ones": b'{"model":"sim","stream":1,"stream_options":[]}',
    "only dropped fields": b'{"priority":1,"data_parallel_rank":2,"model":"sim"}',
    "options twice": b'{"model":"sim","stream":true,"stream_options":{"a":1},"stream_options":null}',
    "empty options": b'{"model":"sim","stream":true,"stream_options":{ } }',
    "model of quotes": b'{"model":"\\"\\r\\nx: y"}',
}


@pytest.mark.parametrize("nasty", NASTY)
async def test_a_nasty_body_is_answered_in_shape(gateway: Gateway, nasty: str) -> None:
    for route in ROUTES:
        await send(gateway, route, NASTY[nasty])


# Heads.


TOKENS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_!#$%&'*+.^`|~", min_size=1, max_size=20)
NAMES = TOKENS | st.sampled_from(
    [
        "Authorization",
        "X-Api-Key",
        "X-Request-Id",
        "Connection",
        "Expect",
        "Upgrade",
        "Content-Type",
        "Content-Encoding",
        "X-Stainless-Read-Timeout",
        "Traceparent",
        "Host",
        "Accept-Encoding",
        "Cookie",
        "Range",
        "TE",
    ]
)
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="\x7f"), max_size=40)


@FUZZ
@given(headers=st.lists(st.tuples(NAMES, WORDS), max_size=8))
async def test_any_headers_are_answered_in_shape(gateway: Gateway, headers: list[tuple[str, str]]) -> None:
    await send(gateway, CHAT, chat(), [pair for pair in headers if pair[0].lower() not in FRAMING])


FRAMING = ("content-length", "transfer-encoding")


PATHS = st.lists(
    st.sampled_from(
        ["v1", "chat", "completions", "models", "responses", "sleep", "..", ".", "", "%2e%2e", "%00", "a b"]
    )
    | st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), max_size=8),
    max_size=6,
).map(lambda parts: "/" + "/".join(parts))
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "get", "LOCK", "M-SEARCH"])


@FUZZ
@given(method=METHODS, path=PATHS)
async def test_any_path_is_answered_in_shape(gateway: Gateway, method: str, path: str) -> None:
    async with RawClient.to(gateway.url) as client:
        client.ask(path, b"", method=method)
        check(await client.answer(method=method), method=method)


LINES = st.sampled_from(
    [
        b"POST /v1/chat/completions HTTP/1.1",
        b"GET /v1/models HTTP/1.1",
        b"GET /v1/models HTTP/1.0",
        b"Host: a",
        b"Content-Length: 0",
        b"Content-Length: 2",
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Connection: close",
        b"Connection: keep-alive, upgrade",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b" folded",
        b": nameless",
        b"{}",
        b"0",
        b"2",
        b"ffffffffffffffffff",
        b"",
    ]
) | st.binary(max_size=20)


@FUZZ
@given(lines=st.lists(LINES, max_size=10))
async def test_any_head_ends_in_answers_in_shape(gateway: Gateway, lines: list[bytes]) -> None:
    """Whatever was read of it, the connection ends: by refusal, by the last request, or since nothing more came."""
    last = request("/healthz", headers=[("Connection", "close")], method="GET")
    async with RawClient.to(gateway.url) as client:
        client.send(b"\r\n".join(lines) + b"\r\n\r\n" + last)
        raw = await client.rest()
    for answer in re.findall(rb"HTTP/1\.[01] (\d)\d\d [^\r]*\r\n.*?\r\n\r\n(.*?)(?=HTTP/1\.[01] \d|$)", raw, re.DOTALL):
        assert answer[0] in (b"1", b"2", b"4")
        if answer[0] == b"4":
            assert set(orjson.loads(answer[1])["error"]) == {"message", "type", "param", "code"}


# What engines stream.


class Stage:
    """An engine that streams what it is given, chunk by chunk."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def __call__(self, call: Call) -> None:
        """Play."""
        call.write(EVENTS_HEAD)
        for piece in self.pieces:
            call.write(chunk(piece))
            await call.flush()
        call.write(b"0\r\n\r\n")


@pytest.fixture
async def stage() -> AsyncIterator[tuple[Stage, str]]:
    """An engine to put streams on, and the address of the gateway in front of it."""
    stage = Stage()
    async with ScriptedEngine(stage) as engine, serving(engine.url) as gateway:
        yield stage, gateway.url


@FUZZ
@given(
    cuts=st.lists(st.integers(0, 2000), max_size=30),
    newline=st.sampled_from([b"\n", b"\r\n"]),
    events=st.lists(
        st.sampled_from(
            [
                token("\u6771\u4eac \U0001f9ed"),
                token("data: [DONE]\n\n"),
                token("", finish_reason="stop"),
                ROLE,
                b": comment\n\n",
                b"event: x\nid: 1\ndata: {}\ndata: more\n\n",
                b"data:\n\n",
                b"data: not json \xff\n\n",
                USAGE,
            ]
        ),
        max_size=8,
    ),
)
async def test_any_stream_in_any_pieces_passes_as_it_came_but_for_usage(
    stage: tuple[Stage, str], cuts: list[int], newline: bytes, events: list[bytes]
) -> None:
    """S4, S9."""
    play, url = stage
    sent = (ROLE + b"".join(events) + USAGE + DONE).replace(b"\n", newline)
    passed = (ROLE + b"".join(event for event in events if event != USAGE) + DONE).replace(b"\n", newline)
    places = sorted({0, len(sent), *(cut % len(sent) for cut in cuts)})
    play.pieces = [sent[start:end] for start, end in itertools.pairwise(places)]
    async with RawClient.to(url) as client:
        client.ask(CHAT, STREAM)
        answer = await client.answer()
    assert (answer.status, answer.is_whole, answer.body) == (200, True, passed)
