"""What an OpenAI client may expect of every endpoint, through the real application in front of simulated engines."""

import base64
import struct
from typing import Any

import orjson
import pytest

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.until import until
from tests.wire.client import CHAT, RawClient, call, chat, events, get
from tests.wire.engine import ScriptedEngine, says, whole
from tests.wire.house import asked, metric, serving, tenant

ODD = (
    b'{ "model":"sim",\t"model" : "sim",\r\n"messages":[{"role":"user","content":"na\\u00efve \xf0\x9f\x9b\xa4 \\/"}] ,'
    b' "temperature":1.50, "presence_penalty" :7e-1,"top_p":1E-1,'
    b'"x_unknown":{"b":1,"a":[null,18446744073709551616,-0.0]},"":0 }\n'
)
"""A good body that no JSON library would write: spaces, an old key twice, odd numbers, unknown fields."""
TEXTS = ["one fish", "two fish"]
JSON_ROUTES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/audio/speech": {"input": "Hi", "voice": "alloy"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/rerank": {"query": "fish", "documents": TEXTS},
    "/v1/score": {"text_1": "fish", "text_2": TEXTS},
    "/classify": {"input": TEXTS},
    "/pooling": {"input": TEXTS},
}


def body_for(route: str) -> bytes:
    return orjson.dumps({"model": "sim", **JSON_ROUTES[route]})


# Bodies.


@pytest.mark.parametrize("route", JSON_ROUTES)
async def test_a_route_gives_the_engines_answer_untouched(
    gateway: Gateway, engine: SimulatedEngine, route: str
) -> None:
    """S1: request and answer are the same bytes at both ends."""
    headers = [("x-request-id", "same")]  # engines name their answers after it
    through = await call(gateway.url, route, body_for(route), headers)
    direct = await call(engine.url, route, body_for(route), headers)
    assert through.status == 200
    assert without_time(through.body) == without_time(direct.body)
    assert through.head["content-type"] == direct.head["content-type"]
    first, second = asked(engine)
    assert (first.method, first.target, first.body) == (second.method, second.target, second.body)


def without_time(body: bytes) -> object:
    """Leave out when an answer was made; what is not JSON stays bytes."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    return {name: value for name, value in parsed.items() if not name.startswith("created")}


async def test_an_odd_body_reaches_the_engine_byte_for_byte(gateway: Gateway, engine: SimulatedEngine) -> None:
    """S1."""
    answer = await call(gateway.url, CHAT, ODD)
    assert answer.status == 200
    assert asked(engine)[0].body == ODD


@pytest.mark.parametrize("extra", [{}, {"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}])
async def test_a_body_that_asks_for_its_own_usage_is_not_changed(
    gateway: Gateway, engine: SimulatedEngine, extra: dict[str, Any]
) -> None:
    """S1: the gateway asks for usage only where the client does not."""
    body = chat(**extra)
    answer = await call(gateway.url, CHAT, body)
    assert answer.status == 200
    assert asked(engine)[0].body == body


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None, "x": [1]}])
async def test_usage_is_asked_for_in_streams_and_no_other_byte_is_changed(
    gateway: Gateway, engine: SimulatedEngine, options: object
) -> None:
    """S9."""
    told = b"" if options is None else b',"stream_options" : ' + orjson.dumps(options)
    before, after = b'{"stream":true' + told, b', "temperature":1.50,"messages":[{"role":"user","content":"\\u00e9"}]'
    after += b' ,"model" : "sim" }\n'
    answer = await call(gateway.url, CHAT, before + after)
    assert answer.status == 200
    body = asked(engine)[0].body
    assert orjson.loads(body)["stream_options"] == {
        **(options if isinstance(options, dict) else {}),
        "include_usage": True,
    }
    kept = after.rstrip(b" }\n") if options is None else after
    assert kept in body
    assert body.startswith(b'{"stream":true')
    assert {**orjson.loads(body), "stream_options": 0} == {**orjson.loads(before + after), "stream_options": 0}


@pytest.mark.parametrize("options", ["null", '{"include_usage":false,"include_usage":true}', '"none"', "7"])
async def test_odd_stream_options_are_the_engines_to_judge(
    gateway: Gateway, engine: SimulatedEngine, options: str
) -> None:
    body = b'{"stream_options":' + options.encode() + b"," + chat(stream=True)[1:]
    through = await call(gateway.url, CHAT, body)
    direct = await call(engine.url, CHAT, body)
    assert through.status == direct.status


async def test_stream_options_without_a_stream_are_refused_by_the_engine_not_mended(
    gateway: Gateway, engine: SimulatedEngine
) -> None:
    body = chat(stream_options={"include_usage": True})
    answer = await call(gateway.url, CHAT, body)
    assert answer.status == 400
    assert asked(engine)[0].body == body


@pytest.mark.parametrize(
    ("body", "at_engine"),
    [
        (b'{"priority":5,"model":"sim","prompt":"a","n":1.0}', b'{"model":"sim","prompt":"a","n":1.0}'),
        (b'{"model":"sim","prompt":"a", "priority" : -1}', b'{"model":"sim","prompt":"a"}'),
        (b'{"model":"sim","priority":[1,{"a":"}]"}],"prompt":"a"}', b'{"model":"sim","prompt":"a"}'),
        (b'{"model":"sim","pri\\u006frity":9,"prompt":"a"}', b'{"model":"sim","prompt":"a"}'),
        (b'{"priority":1,"model":"sim","priority":2,"prompt":"a","priority":3}', b'{"model":"sim","prompt":"a"}'),
        (b'{"model":"sim","prompt":"a","x":{"priority":1}}', b'{"model":"sim","prompt":"a","x":{"priority":1}}'),
        (b'{"model":"sim","prompt":"\\"priority\\":1,"}', b'{"model":"sim","prompt":"\\"priority\\":1,"}'),
    ],
)
async def test_priority_is_cut_out_and_every_other_byte_is_kept(
    gateway: Gateway, engine: SimulatedEngine, body: bytes, at_engine: bytes
) -> None:
    answer = await call(gateway.url, "/v1/completions", body)
    assert answer.status in (200, 400)  # n=1.0 is no integer to the engine
    assert asked(engine)[0].body == at_engine


@pytest.mark.parametrize(("kind", "kept"), [("vllm", True), ("trtllm", False)])
async def test_a_field_is_cut_out_for_an_engine_that_refuses_what_it_does_not_know(kind: str, kept: bool) -> None:
    body = b'{"model":"sim","service_tier":"flex","prompt":"a", "data_parallel_rank":1}'
    async with (
        ScriptedEngine(says(whole(200, b"{}"))) as engine,
        serving(engine.url, endpoint={"kind": kind}) as gateway,
    ):
        assert (await call(gateway.url, "/v1/completions", body)).status == 200
        tier = b'"service_tier":"flex",' if kept else b""
        assert engine.calls[0].body == b'{"model":"sim",' + tier + b'"prompt":"a"}'


async def test_an_engine_below_a_path_is_asked_there() -> None:
    async with ScriptedEngine(says(whole(200, b"{}"))) as engine, serving(engine.url + "/fleet/a") as gateway:
        assert (await call(gateway.url, "/v1/completions?x=1", body_for("/v1/completions"))).status == 200
        assert engine.calls[0].target == "/fleet/a/v1/completions?x=1"


@pytest.mark.parametrize("prompt", ["one fish", TEXTS, [101, 102, 103], [[101, 102], [103]]])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_completion_prompt_may_be_text_or_ids_one_or_many(
    gateway: Gateway, prompt: object, is_stream: bool
) -> None:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 3, "stream": is_stream}
    answer = await call(gateway.url, "/v1/completions", orjson.dumps(body))
    assert answer.status == 200
    answers = 2 if prompt in (TEXTS, [[101, 102], [103]]) else 1
    if is_stream:
        chunks = [orjson.loads(data) for data in events(answer.body) if data != "[DONE]"]
        assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == set(range(answers))
    else:
        assert len(answer.json["choices"]) == answers


async def test_embeddings_in_base64_pass_untouched(gateway: Gateway) -> None:
    body = {"model": "sim", "input": TEXTS, "encoding_format": "base64"}
    answer = await call(gateway.url, "/v1/embeddings", orjson.dumps(body))
    vectors = [struct.unpack("<64f", base64.b64decode(entry["embedding"])) for entry in answer.json["data"]]
    assert len(vectors) == 2
    assert all(-1 <= number <= 1 for vector in vectors for number in vector)


async def test_speech_passes_as_binary(gateway: Gateway) -> None:
    answer = await call(gateway.url, "/v1/audio/speech", body_for("/v1/audio/speech"))
    assert answer.head["content-type"] == "audio/wav"
    assert answer.body[:4] == b"RIFF"
    assert bytes(range(256)) in answer.body


@pytest.mark.parametrize("size", [0, 1, 300_000, 3_000_000])
async def test_large_and_small_bodies_pass_whole_both_ways(size: int) -> None:
    sent = chat("x" * size)
    reply = orjson.dumps({"text": "y" * size})
    async with ScriptedEngine(says(whole(200, reply))) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, sent)
        assert answer.body == reply
        assert engine.calls[0].body == sent


async def test_n_requests_are_n_engine_calls() -> None:
    """R13: one engine call for each request, whatever it asks for and however it ends; polls come beside."""
    async with Cluster(4, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        sent = 0
        for route in JSON_ROUTES:
            for at in range(3):
                extra = {"stream": at == 1} if route in ("/v1/chat/completions", "/v1/completions") else {}
                body = {"model": "sim", **JSON_ROUTES[route], **extra, **({"temperature": -1.0} if at == 2 else {})}
                answer = await call(gateway.url, route, orjson.dumps(body))
                assert answer.status in (200, 400)
                sent += 1
                assert sum(len(asked(engine)) for engine in cluster) == sent
        assert sum(member.leases_total for member in gateway.fleet.members()) == sent


async def test_a_body_with_two_models_is_judged_by_the_one_that_engines_take(engine: SimulatedEngine) -> None:
    async with serving(
        engine.url, tenants=[tenant("a", models=["sim"])], endpoint={"models": ["sim", "secret"]}
    ) as gateway:
        body = b'{"model":"sim","prompt":"Hi","model":"secret"}'
        answer = await call(gateway.url, "/v1/completions", body, [("Authorization", "Bearer a's key")])
        assert answer.refusal == (403, "permission_error", "model_not_allowed")
        assert not asked(engine)


# Models.


async def test_models_are_listed_with_all_that_clients_read() -> None:
    settings = Settings(time_scale=0, models=("sim", "org/sim-7b"))
    async with Cluster(2, settings) as cluster, serving(*cluster.urls, endpoint={"models": []}) as gateway:
        listed = (await get(gateway.url, "/v1/models")).json
        assert listed["object"] == "list"
        assert sorted(model["id"] for model in listed["data"]) == ["org/sim-7b", "sim"]
        for model in listed["data"]:
            assert model["object"] == "model"
            assert isinstance(model["created"], int)
            assert isinstance(model["owned_by"], str)
            one = await get(gateway.url, "/v1/models/" + model["id"].replace("/", "%2F"))
            assert one.json == model
        assert (await get(gateway.url, "/v1/models/org/sim-7b")).status == 200
        assert (await get(gateway.url, "/v1/models/org%2fsim-7b")).status == 200
        assert not any(map(asked, cluster))


@pytest.mark.parametrize(
    "id", ["nope", "sim/", "%2Fsim", "sim%00", "%ff%fe", "..%2F..%2Fsleep", "sim%252F", "a" * 3000]
)
async def test_an_unknown_model_id_is_404(gateway: Gateway, engine: SimulatedEngine, id: str) -> None:
    answer = await get(gateway.url, f"/v1/models/{id}")
    assert answer.refusal == (404, "invalid_request_error", "model_not_found")
    assert answer.error["param"] == "model"
    assert not asked(engine)


async def test_models_are_listed_with_one_of_two_engines_down() -> None:
    """S12."""
    async with Cluster(2, Settings(time_scale=0)) as cluster:
        await cluster.kill(1)
        async with serving(*cluster.urls, endpoint={"models": []}, ready=1) as gateway:
            answer = await get(gateway.url, "/v1/models")
            assert answer.status == 200
            assert [model["id"] for model in answer.json["data"]] == ["sim"]
            assert (await call(gateway.url, CHAT, chat())).status == 200


async def test_a_known_model_without_a_live_engine_is_503_and_an_unknown_one_404() -> None:
    """S12."""
    async with Cluster(2, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        for engine in cluster:
            await engine.kill()
        await until(lambda: not gateway.fleet.is_serving())
        answer = await call(gateway.url, CHAT, chat())
        assert answer.refusal == (503, "service_unavailable_error", "server_overloaded")
        assert int(answer.head["retry-after"]) >= 1
        assert (await get(gateway.url, "/v1/models/sim")).status == 200
        unknown = await call(gateway.url, CHAT, chat(model="nope"))
        assert unknown.refusal == (404, "invalid_request_error", "model_not_found")
        assert unknown.error["param"] == "model"
        assert (await get(gateway.url, "/readyz")).status == 503


@pytest.mark.parametrize("tells_cached", [True, False])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_no_cached_tokens_stay_zero_and_untold_ones_absent(tells_cached: bool, is_stream: bool) -> None:
    """S8: what the client reads and what the gateway counts."""
    settings = Settings(time_scale=0, tells_cached=tells_cached)
    async with Cluster(1, settings) as cluster, serving(*cluster.urls) as gateway:
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if is_stream else {}
        answer = await call(gateway.url, CHAT, chat(stream=is_stream, **options))
        usage = orjson.loads(list(events(answer.body))[-2])["usage"] if is_stream else answer.json["usage"]
        told = usage["prompt_tokens_details"]
        assert await metric(gateway, "kvlane_output_tokens_total") == usage["completion_tokens"]
        counted = await metric(gateway, "kvlane_cached_tokens_total", source="reported")
        assert (told and told["cached_tokens"], counted) == ((0, 0) if tells_cached else (None, None))


# Listeners.


async def test_the_api_port_has_health_pages_and_no_admin(gateway: Gateway, client: RawClient) -> None:
    assert (await get(gateway.url, "/healthz")).status == 200
    assert (await get(gateway.url, "/readyz")).status == 200
    for path in ("/metrics", "/admin/endpoints", "/admin", "/ui", "/"):
        assert (await get(gateway.url, path)).refusal == (404, "invalid_request_error", "not_found")
    assert (await get(gateway.admin_url, "/metrics")).status == 200
    assert (await get(gateway.admin_url, "/v1/models")).status == 404
    assert (await get(gateway.admin_url, "/nope")).error["code"] == "not_found"


async def test_readiness_follows_the_engines_and_health_does_not(gateway: Gateway, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.UNHEALTHY))
    await until(lambda: not gateway.fleet.is_serving())
    assert (await get(gateway.url, "/readyz")).status == 503
    assert (await get(gateway.url, "/healthz")).status == 200
    await engine.clear()
    await until(gateway.fleet.is_serving)
    assert (await get(gateway.url, "/readyz")).status == 200
