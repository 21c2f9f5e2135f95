"""Errors: one shape, the right words, and never a word before it is due. What engines say no with passes through."""

import orjson
import pytest

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.wire.client import CHAT, RawClient, call, chat, get, request
from tests.wire.engine import ScriptedEngine, says, whole
from tests.wire.house import asked, metric, serving, tenant

INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"nope", "invalid_json", None),
        (b'{"model":"sim",}', "invalid_json", None),
        (b'{"model":"sim"', "invalid_json", None),
        (b'{"model":"sim"} {}', "invalid_json", None),
        (b'{"model":"sim","x":NaN}', "invalid_json", None),
        (b'{"model":"\xff"}', "invalid_json", None),
        (b'{"model":"\xed\xa0\x80"}', "invalid_json", None),
        (b'{"model":"s\x00im"}', "invalid_json", None),
        (chat().decode().encode("utf-16"), "invalid_json", None),
        (b"[" * 100_000, "invalid_json", None),
        (b'{"model":' + b"[" * 2000 + b"]" * 2000 + b"}", None, None),
        (b"[]", "invalid_body", None),
        (b'"sim"', "invalid_body", None),
        (b"null", "invalid_body", None),
        (b"{}", "missing_field", "model"),
        (b'{"model":null}', "missing_field", "model"),
        (b'{"model":""}', "invalid_field", "model"),
        (b'{"model":7}', "invalid_field", "model"),
        (b'{"model":["sim"]}', "invalid_field", "model"),
        (orjson.dumps({"model": "m" * 100_000}), "invalid_field", "model"),
    ],
)
async def test_a_body_that_cannot_be_read_is_the_clients_mistake(
    gateway: Gateway, engine: SimulatedEngine, body: bytes, code: str | None, param: str | None
) -> None:
    """S4: 400, never 500."""
    answer = await call(gateway.url, CHAT, body)
    assert answer.refusal[:2] == (400, INVALID)
    if code is not None:
        assert (answer.error["code"], answer.error["param"]) == (code, param)
    assert len(answer.body) < 5000
    assert asked(engine) == []


async def test_a_post_without_a_body_is_the_clients_mistake(client: RawClient) -> None:
    client.send(f"POST {CHAT} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert (await client.answer()).refusal == (400, INVALID, "invalid_json")


async def test_a_missing_or_wrong_key_is_401_before_the_body_is_read(engine: SimulatedEngine) -> None:
    async with serving(engine.url, tenants=[tenant("a")]) as gateway:
        for headers in (
            [],
            [("Authorization", "Bearer nope")],
            [("Authorization", "Basic YTpi")],
            [("X-Api-Key", "n")],
        ):
            async with RawClient.to(gateway.url) as client:
                client.send(request(CHAT, b"", [*headers, ("Content-Length", "1000"), ("Expect", "100-continue")]))
                answer = await client.answer()
                assert answer.refusal == (401, "authentication_error", "invalid_api_key")
        assert (await get(gateway.url, "/v1/models")).status == 401
        assert asked(engine) == []
        for header in (
            ("Authorization", "Bearer a's key"),
            ("authorization", "bearer a's key"),
            ("X-Api-Key", "a's key"),
        ):
            assert (await call(gateway.url, CHAT, chat(), [header])).status == 200


async def test_a_key_is_never_told_in_an_error(engine: SimulatedEngine) -> None:
    async with serving(engine.url, tenants=[tenant("a", models=["other"])]) as gateway:
        for key in ("sk-very-secret", "a's key"):
            answer = await call(gateway.url, CHAT, chat(), [("Authorization", f"Bearer {key}")])
            assert answer.status in (401, 403)
            assert key.encode() not in answer.body


async def test_a_model_that_is_not_the_tenants_is_403(engine: SimulatedEngine) -> None:
    async with serving(engine.url, tenants=[tenant("a", models=["other"])]) as gateway:
        answer = await call(gateway.url, CHAT, chat(), [("Authorization", "Bearer a's key")])
        assert answer.refusal == (403, "permission_error", "model_not_allowed")
        listed = await get(gateway.url, "/v1/models", [("Authorization", "Bearer a's key")])
        assert listed.json["data"] == []
        assert asked(engine) == []


async def test_an_unknown_model_is_404(gateway: Gateway, engine: SimulatedEngine) -> None:
    answer = await call(gateway.url, CHAT, chat(model="nope"))
    assert answer.refusal == (404, INVALID, "model_not_found")
    assert answer.error["param"] == "model"
    assert asked(engine) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", CHAT),
        ("PUT", CHAT),
        ("DELETE", "/v1/completions"),
        ("OPTIONS", CHAT),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/sim"),
        ("POST", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses"),
    ],
)
async def test_a_known_path_with_another_method_is_405_and_says_which_it_takes(
    gateway: Gateway, engine: SimulatedEngine, method: str, path: str
) -> None:
    """RFC 9110, 15.5.6: a 405 must have Allow."""
    answer = await call(gateway.url, path, method=method)
    assert answer.refusal == (405, INVALID, "method_not_allowed")
    assert answer.head["allow"]
    assert method not in answer.head["allow"]
    assert asked(engine) == []


async def test_a_length_over_the_limit_is_413_before_the_body_is_read(engine: SimulatedEngine) -> None:
    async with serving(engine.url, listen={"max_body_bytes": 1000}) as gateway:
        for length in ("1001", "99999999999", str(2**63 - 1)):
            async with RawClient.to(gateway.url) as client:
                client.send(request(CHAT, b"", [("Content-Length", length), ("Expect", "100-continue")]))
                answer = await client.answer()
                assert answer.refusal == (413, INVALID, "request_too_large")
                assert "1000" in (answer.error["message"] or "")
                assert answer.head["connection"] == "close"
        assert asked(engine) == []


async def test_a_body_at_the_limit_passes_and_a_byte_more_does_not(engine: SimulatedEngine) -> None:
    body = chat()
    async with serving(engine.url, listen={"max_body_bytes": len(body)}) as gateway:
        assert (await call(gateway.url, CHAT, body)).status == 200
        assert (await call(gateway.url, CHAT, body + b" ")).refusal == (413, INVALID, "request_too_large")
        assert len(asked(engine)) == 1


async def test_a_chunked_body_over_the_limit_is_413(engine: SimulatedEngine) -> None:
    async with serving(engine.url, listen={"max_body_bytes": 1000}) as gateway, RawClient.to(gateway.url) as client:
        client.send(request(CHAT, b"", [("Transfer-Encoding", "chunked")]) + b"3e9\r\n" + b" " * 1001)
        answer = await client.answer()
        assert answer.refusal == (413, INVALID, "request_too_large")
        assert answer.head["connection"] == "close"
        assert asked(engine) == []


async def test_a_client_that_does_not_send_its_body_gets_408(engine: SimulatedEngine) -> None:
    async with serving(engine.url, listen={"body_timeout_s": 0.05}) as gateway, RawClient.to(gateway.url) as client:
        client.send(request(CHAT, b'{"mod', [("Content-Length", "100")]))
        answer = await client.answer()
        assert answer.refusal == (408, INVALID, "request_timeout")
        assert answer.head["connection"] == "close"
        assert asked(engine) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nName : value\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nNa me: value\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nX: a\rb\r\n\r\n",
        b"GET /v1/mod els HTTP/1.1\r\n\r\n",
        b"GET \x00 HTTP/1.1\r\n\r\n",
        b"G\xc3\x89T / HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n",
    ],
    ids=lambda raw: repr(raw[:70]),
)
async def test_a_malformed_head_is_refused_in_json_and_the_connection_ends(client: RawClient, raw: bytes) -> None:
    client.send(raw)
    answer = await client.answer()
    assert answer.status in (400, 413, 414, 431)
    assert answer.error["type"] == INVALID
    assert await client.rest() == b""


async def test_a_refusal_of_a_malformed_head_has_a_request_id_too(client: RawClient) -> None:
    client.send(b"GET /v1/models HTTP/1.1\r\nno colon\r\n\r\n")
    assert (await client.answer()).head["x-request-id"]


@pytest.mark.parametrize(
    "chunks", [b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n", b"2\r\n{}abc\r\n0\r\n\r\n", b"\r\n", b"2 x\r\n{}\r\n"]
)
async def test_a_body_in_broken_chunks_is_the_clients_mistake(
    client: RawClient, engine: SimulatedEngine, chunks: bytes
) -> None:
    client.send(request(CHAT, b"", [("Transfer-Encoding", "chunked")]) + chunks)
    answer = await client.answer()
    assert answer.refusal[:2] == (400, INVALID)
    assert asked(engine) == []


# What engines say.


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, ()),
        (429, ("retry-after-ms: 1500", "retry-after: 2")),
        (503, ("retry-after: 3",)),
        (422, ("x-should-retry: false",)),
    ],
)
async def test_an_engines_refusal_reaches_the_client_byte_for_byte(
    is_stream: bool, status: int, headers: tuple[str, ...]
) -> None:
    """S11."""
    body = b'{ "error": {"code": %d,"message":"no \\u2013 \xe2\x80\x93","type":"T","param":null, "x":1.50} }\n' % status
    async with ScriptedEngine(says(whole(status, body, *headers))) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat(stream=is_stream))
        assert answer.status == status
        assert answer.body == body
        for line in headers:
            name, value = line.split(": ")
            assert answer.head[name] == value
        assert len(engine.calls) == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_over_long_prompt_is_refused_in_the_engines_words(gateway: Gateway, is_stream: bool) -> None:
    """S11."""
    answer = await call(gateway.url, CHAT, chat("x " * 40_000, stream=is_stream))
    assert answer.status == 400
    assert "maximum context length is 32768 tokens" in answer.json["error"]["message"]


SHAPELESS = [
    (500, "text/html", b"<html><body><h1>500 Internal Server Error</h1></body></html>"),
    (502, "text/html; charset=utf-8", b"<html>nginx</html>"),
    (503, "text/plain", b"upstream connect error or disconnect/reset before headers"),
    (404, "application/json", b'{"detail":"Not Found"}'),
    (422, "application/json", b'{"detail":[{"loc":["body","messages"],"msg":"field required","type":"missing"}]}'),
    (
        400,
        "application/json",
        b'{"object":"error","message":"too hot","type":"BadRequestError","param":null,"code":400}',
    ),
    (422, "application/json", b'{"error":"Input validation error","error_type":"validation"}'),
    (500, "application/json", b'{"error":null}'),
    (400, "application/json", b'{"error'),
    (400, "application/json", b'["error"]'),
    (400, "text/plain", b"\xff\xfe\x00"),
    (500, "text/plain", b""),
    (429, "application/json", b'"slow down"'),
]


@pytest.mark.parametrize(("status", "content_type", "body"), SHAPELESS)
async def test_an_engines_error_of_another_shape_is_put_into_ours_once(
    status: int, content_type: str, body: bytes
) -> None:
    answer_bytes = whole(status, body, content_type=content_type)
    async with ScriptedEngine(says(answer_bytes)) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        assert answer.status == status
        assert answer.error["message"]
        assert "<html" not in (answer.error["message"] or "")


async def test_an_engines_refusal_in_anthropics_shape_passes_as_it_came() -> None:
    body = b'{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: required"}}'
    async with ScriptedEngine(says(whole(400, body))) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, "/v1/messages", chat())
        assert (answer.status, answer.body) == (400, body)


async def test_an_endless_error_is_cut_and_put_into_shape(gateway: Gateway, engine: SimulatedEngine) -> None:
    """P1."""
    await engine.inject(Fault(Kind.HUGE_ERROR, status=500, size=50_000_000))
    answer = await call(gateway.url, CHAT, chat())
    assert answer.status == 500
    assert answer.error
    assert len(answer.body) < 70_000


async def test_no_answer_is_a_200_with_an_error_inside() -> None:
    """The official clients raise by status only."""
    body = b'{"error":{"message":"no room","type":"overloaded","param":null,"code":503}}'
    async with ScriptedEngine(says(whole(200, body))) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        assert answer.status == 503
        assert answer.json["error"]["message"] == "no room"


async def test_the_last_engines_own_answer_is_given_when_all_tries_are_spent() -> None:
    async with Cluster(2, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        for engine in cluster:
            await engine.inject(Fault(Kind.STATUS, status=500))
        answer = await call(gateway.url, CHAT, chat())
        assert answer.status == 500
        assert answer.json["error"]["message"] == "cannot schedule new futures after shutdown"
        assert answer.json["error"]["code"] == 500, (
            "an error object passes byte for byte, a number as its code included"
        )
        assert [len(asked(engine)) for engine in cluster] == [1, 1]


async def test_502_is_given_where_no_engine_had_an_answer() -> None:
    async with Cluster(2, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        for engine in cluster:
            await engine.inject(Fault(Kind.RESET))
        answer = await call(gateway.url, CHAT, chat())
        assert answer.refusal == (502, "server_error", "upstream_error")
        assert await metric(gateway, "kvlane_requests_total", status="502", outcome="failed") == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 99 Low\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nxxxx",
    ],
    ids=lambda raw: repr(raw[:50]),
)
async def test_an_engine_that_does_not_speak_http_is_502(garbage: bytes) -> None:
    async with ScriptedEngine(says(garbage)) as engine, serving(engine.url, timeouts={"first_byte_s": 0.5}) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        assert answer.refusal[:2] in ((502, "server_error"), (504, "server_error"))


async def test_a_wait_that_the_gateway_tells_is_capped() -> None:
    """Some clients ignore more than 60 s, and come back at once."""
    busy = whole(429, b'{"error":{"message":"m","type":"t","param":null,"code":null}}', "retry-after: 3000")
    async with ScriptedEngine(says(busy)) as engine, serving(engine.url) as gateway:
        first, second = [await call(gateway.url, CHAT, chat()) for _ in range(2)]
        assert (first.status, first.head["retry-after"], first.head["x-should-retry"]) == (429, "60", "false")
        assert second.refusal == (503, "service_unavailable_error", "server_overloaded")
        assert 1 <= int(second.head["retry-after"]) <= 60
        assert 1 <= int(second.head["retry-after-ms"]) <= 60_000
        assert len(engine.calls) == 1
