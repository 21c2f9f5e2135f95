"""Headers: what an engine must not see of a client, what a client must not see of an engine, and what both may."""

import secrets
import zlib

import pytest

from gateway.app import Gateway
from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from tests.wire.client import CHAT, RawClient, call, chat, get
from tests.wire.engine import EVENTS_HEAD, ScriptedEngine, chunk, says, whole
from tests.wire.house import asked, serving, tenant

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OURS = ("endpoint", "pool", "reason", "queue-ms", "prompt-tokens")
GOOD = whole(200, b'{"choices":[]}')


def seen_by(engine: SimulatedEngine) -> dict[str, list[str]]:
    """Give the headers of the one request that reached an engine, names in lower case."""
    (seen,) = asked(engine)
    headers: dict[str, list[str]] = {}
    for name, value in seen.headers:
        headers.setdefault(name.lower(), []).append(value)
    return headers


# To the engine.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer sk-secret"),
        ("authorization", "Basic YTpi"),
        ("X-Api-Key", "sk-secret"),
        ("Api-Key", "sk-secret"),
        ("Cookie", "session=1"),
        ("Proxy-Authorization", "Basic YTpi"),
        ("Proxy-Connection", "keep-alive"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Trailer", "x-sum"),
        ("Accept-Encoding", "gzip, br"),
        ("Expect", "100-continue"),
        ("X-Override-Model", "x"),
        ("x-override-sampling-temperature", "0"),
        ("X-data-parallel-rank", "3"),
        ("X-DATA-PARALLEL-RANK", "3"),
        ("X-Vllm-Priority", "-9"),
        ("X-Kvlane-Endpoint", "E9"),
    ],
)
async def test_a_header_that_is_not_the_engines_business_is_dropped(
    client: RawClient, engine: SimulatedEngine, name: str, value: str
) -> None:
    client.ask(CHAT, chat(), [(name, value)])
    answer = await client.answer()
    if answer.status == 100:
        answer = await client.answer()
    assert answer.status == 200
    assert name.lower() not in seen_by(engine)


@pytest.mark.parametrize("named", ["X-Hop", "x-hop, close", "keep-alive,X-Hop ,", "close\r\nConnection: X-HOP"])
async def test_a_header_that_connection_names_is_dropped(gateway: Gateway, engine: SimulatedEngine, named: str) -> None:
    """RFC 9110, 7.6.1; Connection may stand more than once."""
    answer = await call(gateway.url, CHAT, chat(), [("X-Hop", "1"), ("X-Stays", "2"), ("Connection", named)])
    assert answer.status == 200
    headers = seen_by(engine)
    assert "x-hop" not in headers
    assert headers["x-stays"] == ["2"]


async def test_connection_cannot_take_away_what_the_gateway_says(gateway: Gateway, engine: SimulatedEngine) -> None:
    named = "Content-Length, Host, X-Request-Id, Content-Type"
    answer = await call(gateway.url, CHAT, chat(), [("Connection", named), ("x-request-id", "mine")])
    assert answer.status == 200
    headers = seen_by(engine)
    assert headers["content-length"] == [str(len(chat()))]
    assert headers["host"] == [engine.url.removeprefix("http://")]
    assert len(headers["x-request-id"]) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("traceparent", TRACE),
        ("tracestate", "a=1,b=2"),
        ("User-Agent", "OpenAI/Python 3.57.0"),
        ("OpenAI-Organization", "org-1"),
        ("X-Stainless-Retry-Count", "1"),
        ("anthropic-version", "2023-06-01"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Empty", ""),
        ("X-Name", "Zoë 東京"),
        ("X-Latin", "Zo\udceb"),
        ("Content-Type", "application/json; charset=utf-8"),
    ],
)
async def test_every_other_header_reaches_the_engine_as_it_came(name: str, value: str) -> None:
    async with ScriptedEngine(says(GOOD)) as engine, serving(engine.url) as gateway:
        await call(gateway.url, CHAT, chat(), [(name, value)])
        assert engine.calls[0].all(name.lower()) == [value.encode("utf-8", "surrogateescape")]


async def test_repeated_headers_stay_repeated(gateway: Gateway, engine: SimulatedEngine) -> None:
    await call(gateway.url, CHAT, chat(), [("X-Tag", "a"), ("x-tag", "b"), ("X-Tag", "a")])
    assert seen_by(engine)["x-tag"] == ["a", "b", "a"]


async def test_the_engine_gets_its_own_host_length_and_key(engine: SimulatedEngine) -> None:
    async with serving(engine.url, endpoint={"api_key": "engine-key"}, tenants=[tenant("a")]) as gateway:
        body = chat(priority=1)
        await call(gateway.url, CHAT, body, [("Authorization", "Bearer a's key"), ("Host", "evil")])
        headers = seen_by(engine)
        (seen,) = asked(engine)
        assert headers["authorization"] == ["Bearer engine-key"]
        assert headers["host"] == [engine.url.removeprefix("http://")]
        assert headers["content-length"] == [str(len(seen.body))]
        assert len(seen.body) < len(body)
        assert "transfer-encoding" not in headers


async def test_an_engine_that_refuses_the_gateways_key_is_no_word_about_the_clients() -> None:
    refusal = whole(401, b'{"error":"Unauthorized"}')
    async with ScriptedEngine(says(refusal)) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat(), [("Authorization", "Bearer fine")])
        assert answer.refusal == (502, "server_error", "upstream_error")


# Request ids.


@pytest.mark.parametrize("id", ["a", "req_0123", "0af76519-16cd-43dd-8448-eb211c80319c", "A.b:c/d+e=f@g", "x" * 128])
async def test_a_sane_request_id_is_kept_and_goes_to_the_engine(
    gateway: Gateway, engine: SimulatedEngine, id: str
) -> None:
    answer = await call(gateway.url, CHAT, chat(), [("X-Request-ID", id)])
    assert answer.head["x-request-id"] == id
    assert seen_by(engine)["x-request-id"] == [id]


@pytest.mark.parametrize("id", ["", "x" * 129, "a b", "a\tb", 'a"b', "a,b", "é", "\udcff", "a;b", "<a>", "{}"])
async def test_an_insane_request_id_is_replaced_everywhere(gateway: Gateway, engine: SimulatedEngine, id: str) -> None:
    answer = await call(gateway.url, CHAT, chat(), [("X-Request-ID", id)])
    own = answer.head["x-request-id"]
    assert own.startswith("req_")
    assert seen_by(engine)["x-request-id"] == [own]


async def test_every_request_without_an_id_gets_one_of_its_own(gateway: Gateway) -> None:
    ids = {(await call(gateway.url, CHAT, chat())).head["x-request-id"] for _ in range(5)}
    assert len(ids) == 5


async def test_errors_and_streams_bear_the_request_id(gateway: Gateway, engine: SimulatedEngine) -> None:
    mine = [("X-Request-ID", "mine")]
    bodies = [chat(stream=True), b"nope", b"{}", chat(model="nope"), chat(temperature=-1)]
    answers = [await call(gateway.url, CHAT, body, mine) for body in bodies]
    answers += [await get(gateway.url, path, mine) for path in ("/nope", CHAT, "/v1/models", "/v1/models/nope")]
    await engine.inject(Fault(Kind.RESET))
    answers.append(await call(gateway.url, CHAT, chat(), mine))
    await engine.clear()
    assert [answer.status for answer in answers] == [200, 400, 400, 404, 400, 404, 405, 200, 404, 502]
    assert [answer.head["x-request-id"] for answer in answers] == ["mine"] * len(answers)


async def test_an_engines_own_request_id_does_not_replace_the_clients() -> None:
    answer_bytes = whole(200, b"{}", "x-request-id: engine's")
    async with ScriptedEngine(says(answer_bytes)) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat(), [("X-Request-ID", "mine")])
        assert answer.head["x-request-id"] == "mine"


# To the client.


HOPS = ("keep-alive: timeout=5", "connection: keep-alive, x-hop", "x-hop: 1", "te: a", "upgrade: h2c", "trailer: x")


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_an_engines_hop_by_hop_headers_end_at_the_gateway(status: int) -> None:
    async with ScriptedEngine(says(whole(status, b'{"error":{}}', *HOPS))) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        names = {name for name, _ in answer.head.headers}
        assert not names & {"keep-alive", "connection", "x-hop", "te", "upgrade", "trailer", "proxy-authenticate"}


async def test_an_engines_other_headers_reach_the_client() -> None:
    lines = ("x-engine: a", "X-Engine: b", "openai-processing-ms: 7", "x-name: Zo\u00eb", "x-empty:")
    async with ScriptedEngine(says(whole(200, b"{}", *lines))) as engine, serving(engine.url) as gateway:
        head = (await call(gateway.url, CHAT, chat())).head
        assert head.all("x-engine") == ["a", "b"]
        assert head["openai-processing-ms"] == "7"
        assert head["x-name"] == "Zo\u00eb"


async def test_a_stream_has_the_headers_that_keep_proxies_from_holding_it_back() -> None:
    head_bytes = EVENTS_HEAD.replace(b"\r\n\r\n", b"\r\ncache-control: max-age=9\r\nx-accel-buffering: yes\r\n\r\n")
    script = says(head_bytes + chunk(b"data: {}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat(stream=True), [("Accept-Encoding", "gzip, deflate, br, zstd")])
        assert answer.head["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.head["cache-control"] == "no-cache"
        assert answer.head["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.head
        assert "content-length" not in answer.head


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_gateway_says_where_a_request_went_and_why(gateway: Gateway, is_stream: bool) -> None:
    head = (await call(gateway.url, CHAT, chat(stream=is_stream))).head
    assert head["x-kvlane-endpoint"] == "E0"
    assert head["x-kvlane-pool"] == "default"
    assert head["x-kvlane-reason"]
    assert int(head["x-kvlane-queue-ms"]) >= 0
    assert int(head["x-kvlane-prompt-tokens"]) > 0


async def test_the_gateways_own_headers_can_be_switched_off_for_a_tenant(engine: SimulatedEngine) -> None:
    async with serving(engine.url, tenants=[tenant("a", kvlane_headers=False), tenant("b")]) as gateway:
        for name, wanted in (("a", False), ("b", True)):
            head = (await call(gateway.url, CHAT, chat(), [("Authorization", f"Bearer {name}'s key")])).head
            assert [f"x-kvlane-{what}" in head for what in OURS] == [wanted] * len(OURS)


async def test_an_engine_cannot_speak_for_the_gateway() -> None:
    lines = ("x-kvlane-endpoint: evil", "X-Kvlane-Cached-Tokens: 9", "x-kvlane-other: 1")
    async with ScriptedEngine(says(whole(200, b"{}", *lines))) as engine, serving(engine.url) as gateway:
        head = (await call(gateway.url, CHAT, chat())).head
        assert head["x-kvlane-endpoint"] == "E0"
        assert "x-kvlane-other" not in head


# Encodings.


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_gzipped_answer_reaches_the_client_readable(
    gateway: Gateway, engine: SimulatedEngine, is_stream: bool
) -> None:
    """S5: body and length agree."""
    await engine.inject(Fault(Kind.GZIP))
    body = chat(stream=is_stream, sim={"output_tokens": 50, "text": "fish"})
    answer = await call(gateway.url, CHAT, body, [("Accept-Encoding", "gzip")])
    assert "content-encoding" not in answer.head
    if is_stream:
        assert answer.body.count(b'"fish"') == 50
        assert answer.body.endswith(b"}\n\ndata: [DONE]\n\n")
    else:
        assert answer.json["choices"][0]["message"]["content"] == "fish" * 50


async def test_a_gzipped_refusal_reaches_the_client_readable(gateway: Gateway, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.GZIP))
    answer = await call(gateway.url, CHAT, chat(temperature=-1))
    assert answer.status == 400
    assert "temperature must be non-negative" in answer.json["error"]["message"]
    assert "content-encoding" not in answer.head


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("x-gzip", 31), ("GZIP", 31), ("deflate", 15)])
async def test_every_encoding_is_either_undone_or_told(encoding: str, wbits: int) -> None:
    packer = zlib.compressobj(wbits=wbits)
    packed = packer.compress(b'{"text":"' + b"a" * 100_000 + b'"}') + packer.flush()
    script = says(whole(200, packed, f"content-encoding: {encoding}"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        assert "content-encoding" not in answer.head
        assert answer.json == {"text": "a" * 100_000}


@pytest.mark.parametrize("encoding", ["br", "zstd", "aes128gcm", "gzip, br"])
async def test_an_encoding_that_cannot_be_undone_is_told_or_is_a_failure(encoding: str) -> None:
    """Content-Encoding and body must never disagree."""
    packed = b"\x0b\x02\x80packed\x03"
    script = says(whole(200, packed, f"content-encoding: {encoding}"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        if answer.status == 200:
            assert answer.head["content-encoding"] == encoding
            assert answer.body == packed
        else:
            assert answer.refusal == (502, "server_error", "upstream_error")


async def test_a_packed_answer_that_is_cut_is_a_failure() -> None:
    """Its framing is whole, but what it holds is not."""
    packer = zlib.compressobj(wbits=31)
    packed = (packer.compress(b'{"text":"' + secrets.token_hex(2000).encode() + b'"}') + packer.flush())[:-500]
    script = says(whole(200, packed, "content-encoding: gzip"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        assert (await call(gateway.url, CHAT, chat())).refusal == (502, "server_error", "upstream_error")


async def test_a_packed_answer_that_does_not_unpack_is_a_failure() -> None:
    script = says(whole(200, b"not gzip at all", "content-encoding: gzip"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        assert (await call(gateway.url, CHAT, chat())).refusal == (502, "server_error", "upstream_error")
