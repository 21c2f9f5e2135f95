"""The simulated engine over HTTP: the shapes of vLLM 0.32, as seen on its wire."""

import base64
import struct
from typing import Any

import aiohttp
import pytest

from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.loadtests.calls import chat, events, post, raw, raw_chat, stream, streamed, text
from tests.until import until

SLOW = Settings(time_scale=1.0)
LONG = "word " * 400

CHAT_KEYS = {
    "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
    "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics",
}  # fmt: skip
MESSAGE_KEYS = {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}
USAGE_KEYS = {
    "prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details",
}  # fmt: skip


# chat


async def test_chat_answer_has_the_keys_of_vllm(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    status, answer = await post(http, engine, "/v1/chat/completions", chat())
    assert status == 200
    assert set(answer) == CHAT_KEYS
    choice = answer["choices"][0]
    assert set(choice) == {
        "index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts",
    }  # fmt: skip
    assert set(choice["message"]) == MESSAGE_KEYS
    assert set(answer["usage"]) == USAGE_KEYS
    assert answer["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0, "created_cache_tokens": 0, "multimodal_tokens": None,
    }  # fmt: skip
    assert answer["usage"]["completion_tokens"] == 10
    assert choice["finish_reason"] == "length"


async def test_stream_is_role_then_content_then_usage_then_done(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    role, *content, usage, done = events(await stream(http, engine, streamed()))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert set(role) == {"id", "object", "created", "model", "choices", "prompt_token_ids", "prompt_text"}
    assert [set(chunk) for chunk in content] == [{"id", "object", "created", "model", "choices"}] * 10
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None] * 9 + ["length"]
    assert set(content[0]["choices"][0]) == {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    assert set(content[9]["choices"][0]) == {"index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"}
    assert usage["choices"] == []
    assert set(usage["usage"]) == USAGE_KEYS - {"completion_tokens_details"}
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "created_cache_tokens": 0}
    assert done == "[DONE]"


async def test_usage_is_streamed_only_when_asked_for(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    chunks = events(await stream(http, engine, chat(stream=True)))[:-1]
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    assert "system_fingerprint" in chunks[-1]


async def test_continuous_usage_is_on_every_chunk_and_tells_cached_only_at_the_end(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(await stream(http, engine, chat(stream=True, stream_options=options)))[:-1]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [*range(11), 10]
    assert ["prompt_tokens_details" in chunk["usage"] for chunk in chunks] == [False] * 11 + [True]


async def test_streamed_and_whole_text_are_the_same(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, answer = await post(http, engine, "/v1/chat/completions", chat())
    assert text(await stream(http, engine, streamed())) == answer["choices"][0]["message"]["content"]


async def test_every_choice_has_a_text_of_its_own(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, answer = await post(http, engine, "/v1/chat/completions", chat(n=3))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3
    assert answer["usage"]["completion_tokens"] == 30


async def test_answer_ends_by_itself_before_its_limit(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, answer = await post(http, engine, "/v1/chat/completions", chat(ignore_eos=False, max_tokens=20_000))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert 1 <= answer["usage"]["completion_tokens"] < 20_000


async def test_tests_may_wish_for_length_alphabet_and_text(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    wish = chat(max_tokens=100, sim={"output_tokens": 7, "alphabet": "emoji"})
    _, answer = await post(http, engine, "/v1/chat/completions", wish)
    assert answer["usage"]["completion_tokens"] == 7
    assert len(answer["choices"][0]["message"]["content"].encode()) > 7 * 4
    said = await stream(http, engine, streamed(max_tokens=6, sim={"text": "data: [DONE]\n\n"}))
    assert text(said) == "data: [DONE]\n\n"
    reasoned = events(await stream(http, engine, streamed(sim={"reasoning_tokens": 1})))
    assert [list(event["choices"][0]["delta"]) for event in reasoned[1:3]] == [["reasoning"], ["content"]]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_answer_may_be_a_tool_call(http: aiohttp.ClientSession, engine: SimulatedEngine, is_stream: bool) -> None:
    wish = {"tool": "look_up", "text": '{"a": 1}'}
    if is_stream:
        told = events(await stream(http, engine, streamed(sim=wish, max_tokens=3)))
        first, *rest = (event["choices"][0]["delta"]["tool_calls"][0] for event in told[1:4])
        assert (first["function"]["name"], first["type"]) == ("look_up", "function")
        assert "".join(call["function"]["arguments"] for call in (first, *rest)) == '{"a": 1}'
    else:
        _, answer = await post(http, engine, "/v1/chat/completions", chat(sim=wish, max_tokens=2))
        message = answer["choices"][0]["message"]
        assert message["content"] is None
        assert message["tool_calls"][0]["function"]["name"] == "look_up"


# the cache


async def test_second_request_hits_the_prefix(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    usages = []
    for turn in (LONG, LONG, f"other {LONG}"):
        _, answer = await post(http, engine, "/v1/chat/completions", chat(turn))
        usages.append(answer["usage"])
    full = (usages[1]["prompt_tokens"] - 1) // 16 * 16
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, full, 0]  # what all prompts share, the template's head, is less than a block


async def test_next_turn_hits_the_answer_too(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, answer = await post(http, engine, "/v1/chat/completions", chat(LONG, max_tokens=100))
    said = answer["choices"][0]["message"]["content"]
    turns = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "?"},
    ]
    _, after = await post(http, engine, "/v1/chat/completions", chat(messages=turns))
    known = answer["usage"]["total_tokens"] - 1
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16


async def test_cache_salt_isolates(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    cached = []
    for salt in ("a", "a", "b"):
        _, answer = await post(http, engine, "/v1/chat/completions", chat(LONG, cache_salt=salt))
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, True, False]


async def test_token_ids_of_a_text_hit_the_same_blocks(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, tokens = await post(http, engine, "/tokenize", {"model": "sim", "prompt": LONG})
    ask = {"model": "sim", "max_tokens": 1}
    await post(http, engine, "/v1/completions", {**ask, "prompt": LONG})
    _, answer = await post(http, engine, "/v1/completions", {**ask, "prompt": tokens["tokens"]})
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == (tokens["count"] - 1) // 16 * 16


@pytest.mark.parametrize("engine", [Settings(time_scale=0.0, tells_cached=False)], indirect=True)
async def test_cached_tokens_can_be_withheld(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, answer = await post(http, engine, "/v1/chat/completions", chat())
    assert answer["usage"]["prompt_tokens_details"] is None


# other dialects


@pytest.mark.parametrize(
    ("prompt", "choices"), [("one two", 2), (["one", "two"], 4), ([5, 6, 7], 2), ([[5, 6], [7]], 4)]
)
async def test_completion_prompts_of_every_kind(
    http: aiohttp.ClientSession, engine: SimulatedEngine, prompt: Any, choices: int
) -> None:
    body = {"model": "sim", "prompt": prompt, "n": 2, "max_tokens": 3, "ignore_eos": True}
    _, answer = await post(http, engine, "/v1/completions", body)
    assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
    assert answer["usage"]["completion_tokens"] == 3 * choices
    assert set(answer["choices"][0]) == {
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids",
        "routed_experts",
    }  # fmt: skip


async def test_completion_echoes_its_prompt(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    body = {"model": "sim", "prompt": "one two", "echo": True, "max_tokens": 1}
    _, answer = await post(http, engine, "/v1/completions", body)
    assert answer["choices"][0]["text"].startswith("one two")


async def test_completion_stream(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    body = {"model": "sim", "prompt": ["one", "two"], "echo": True, "max_tokens": 3, "ignore_eos": True}
    _, whole = await post(http, engine, "/v1/completions", body)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with http.post(f"{engine.url}/v1/completions", json={**body, **options}) as response:
        *chunks, usage, done = events(await response.read())
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 6, "[DONE]")


async def test_prompt_can_be_echoed_without_output(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    body = {"model": "sim", "prompt": "one two", "echo": True, "max_tokens": 0}
    _, answer = await post(http, engine, "/v1/completions", body)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("one two", 0)


async def test_embeddings_as_floats_and_as_base64(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    body = {"model": "sim", "input": ["one", "two"]}
    _, floats = await post(http, engine, "/v1/embeddings", body)
    _, packed = await post(http, engine, "/v1/embeddings", {**body, "encoding_format": "base64"})
    vector = floats["data"][0]["embedding"]
    unpacked = struct.unpack(f"<{len(vector)}f", base64.b64decode(packed["data"][0]["embedding"]))
    assert unpacked == pytest.approx(vector)
    assert floats["data"][1]["embedding"] != vector


async def test_responses_are_streamed_with_event_lines_and_without_done(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    body = {"model": "sim", "input": "hello", "stream": True, "max_output_tokens": 2}
    async with http.post(f"{engine.url}/v1/responses", json=body) as response:
        data = await response.read()
    names = [line[7:] for line in data.decode().splitlines() if line.startswith("event: ")]
    payloads = events(data)
    assert names == [payload["type"] for payload in payloads]
    assert [payload["sequence_number"] for payload in payloads] == list(range(len(payloads)))
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names.count("response.output_text.delta") == 2
    assert names[-1] == "response.completed"
    assert payloads[-1]["response"]["usage"]["output_tokens"] == 2


async def test_responses_are_kept_continued_and_forgotten(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, first = await post(http, engine, "/v1/responses", {"model": "sim", "input": LONG})
    more = {"model": "sim", "input": "and?", "previous_response_id": first["id"]}
    _, second = await post(http, engine, "/v1/responses", more)
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
    kept = f"{engine.url}/v1/responses/{first['id']}"
    async with http.get(kept) as response:
        assert (await response.json())["output"] == first["output"]
    async with http.get(f"{engine.url}/v1/responses/{second['id']}/input_items") as response:
        assert [item["role"] for item in (await response.json())["data"]] == ["user", "assistant", "user"]
    async with http.post(f"{kept}/cancel") as response:
        assert (await response.json())["status"] == "cancelled"
    async with http.delete(kept) as response:
        assert (await response.json())["deleted"] is True
    async with http.get(kept) as response:
        assert response.status == 404
    status, _ = await post(http, engine, "/v1/responses", more)
    assert status == 404


async def test_messages_have_the_shape_of_anthropic(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    body = {"model": "sim", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}], "system": "be brief"}
    _, answer = await post(http, engine, "/v1/messages", body)
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["type"] == "text"
    _, counted = await post(http, engine, "/v1/messages/count_tokens", body)
    assert counted["input_tokens"] == answer["usage"]["input_tokens"]
    async with http.post(f"{engine.url}/v1/messages", json={**body, "stream": True}) as response:
        data = await response.read()
    names = [line[7:] for line in data.decode().splitlines() if line.startswith("event: ")]
    assert names == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    status, error = await post(http, engine, "/v1/messages", {**body, "model": "nope"})
    assert (status, error["type"]) == (404, "error")


async def test_audio_takes_forms_and_gives_bytes(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    form = aiohttp.FormData({"model": "sim"})
    form.add_field("file", b"\x00\xff" * 50_000, filename="a.wav", content_type="audio/wav")
    async with http.post(f"{engine.url}/v1/audio/transcriptions", data=form) as response:
        assert (await response.json())["text"]
    speech = {"model": "sim", "input": "say this", "voice": "alloy"}
    async with http.post(f"{engine.url}/v1/audio/speech", json=speech) as response:
        assert response.content_type == "audio/wav"
        assert (await response.read()).startswith(b"RIFF")


async def test_scores_ranks_and_classes(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    _, scored = await post(http, engine, "/v1/score", {"model": "sim", "text_1": "q", "text_2": ["a", "b", "c"]})
    scores = [item["score"] for item in scored["data"]]
    _, ranked = await post(http, engine, "/v1/rerank", {"model": "sim", "query": "q", "documents": ["a", "b", "c"]})
    assert [item["relevance_score"] for item in ranked["results"]] == sorted(scores, reverse=True)
    _, classes = await post(http, engine, "/classify", {"model": "sim", "input": ["a", "b"]})
    assert len(classes["data"]) == 2
    _, pooled = await post(http, engine, "/pooling", {"model": "sim", "input": "a"})
    assert pooled["data"][0]["object"] == "pooling"


async def test_tokens_go_there_and_back(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    said = "Zwölf Boxkämpfer jagen\n\n 🧭  老虎 x"
    _, tokens = await post(http, engine, "/tokenize", {"prompt": said, "return_token_strs": True})
    assert max(tokens["tokens"]) < 2**53
    _, back = await post(http, engine, "/detokenize", {"tokens": tokens["tokens"]})
    assert back == {"prompt": said}
    _, talk = await post(http, engine, "/tokenize", {"messages": chat()["messages"]})
    _, answer = await post(http, engine, "/v1/chat/completions", chat())
    assert talk["count"] == answer["usage"]["prompt_tokens"]


# what probes ask


async def test_models_tell_the_context(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    async with http.get(f"{engine.url}/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("sim", "vllm", 32_768)
    assert isinstance(model["created"], int)


async def test_metrics_have_the_names_of_vllm(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    for _ in range(2):
        await post(http, engine, "/v1/chat/completions", chat(LONG))
    async with http.get(f"{engine.url}/metrics") as response:
        page = await response.text()
        assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="sim"}'
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert float(samples[f"vllm:{name}{labels}"]) == 0.0
    queries = float(samples[f"vllm:prefix_cache_queries_total{labels}"])
    assert 0 < float(samples[f"vllm:prefix_cache_hits_total{labels}"]) < queries / 2
    assert float(samples[f"vllm:time_to_first_token_seconds_count{labels}"]) == 2
    assert float(samples['vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"}']) == 2
    assert float(samples["process_start_time_seconds"]) > 1e9
    config = next(line for line in page.splitlines() if line.startswith("vllm:cache_config_info{"))
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="25000"' in config
    assert 'kv_cache_size_tokens="400000"' in config


# refusals


@pytest.mark.parametrize(
    ("fields", "status", "type", "param", "says"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "model", "The model `nope` does not exist. Valid aliases: sim."),
        ({"messages": "hi"}, 400, "Bad Request", "body.messages", "'msg': 'Input should be a valid list'"),
        ({"messages": None}, 400, "Bad Request", "body.messages", "Field required"),
        ({"temperature": -3}, 400, "BadRequestError", "temperature", "temperature must be non-negative, got -3.0."),
        ({"max_tokens": 50_000}, 400, "BadRequestError", "max_tokens", "cannot be greater than max_model_len=32768"),
        ({"max_tokens": 32_760}, 400, "BadRequestError", "input_tokens", "maximum context length is 32768 tokens"),
        (
            {"messages": [{"role": "user", "content": "x " * 40_000}]},
            400,
            "BadRequestError",
            "input_tokens",
            "your prompt contains at least 32769 input tokens",
        ),
        ({"cache_salt": ""}, 400, "BadRequestError", "cache_salt", "must be a non-empty string"),
        ({"stream_options": {}}, 400, "BadRequestError", "stream_options", "only be defined when"),
        ({"max_tokens": "9"}, 400, "Bad Request", "body.max_tokens", "valid integer"),
    ],
)
async def test_refuses_in_the_words_of_vllm(
    http: aiohttp.ClientSession,
    engine: SimulatedEngine,
    fields: dict[str, Any],
    status: int,
    type: str,
    param: str,
    says: str,
) -> None:
    got, answer = await post(http, engine, "/v1/chat/completions", chat(**fields))
    error = answer["error"]
    assert (got, error["code"], error["type"], error["param"]) == (status, status, type, param)
    assert says in error["message"]
    assert (engine.facts.live, engine.model.running) == (0, 0)


async def test_refuses_what_is_no_json(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    async with http.post(f"{engine.url}/v1/chat/completions", data=b'{"model":') as response:
        assert response.status == 400
        assert "json_invalid" in (await response.json())["error"]["message"]


async def test_unknown_paths_and_methods(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    assert await post(http, engine, "/v1/nope", {}) == (404, {"detail": "Not Found"})
    async with http.get(f"{engine.url}/v1/chat/completions") as response:
        assert response.status == 405
        assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("engine", [Settings(api_key="secret")], indirect=True)
async def test_wrong_key_is_refused(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    assert await post(http, engine, "/v1/chat/completions", chat()) == (401, {"error": "Unauthorized"})


@pytest.mark.parametrize("engine", [Settings(max_num_seqs=1, max_queued=1)], indirect=True)
async def test_full_queue_is_503(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    writers = []
    for at in range(2):
        writers.append((await raw(engine, raw_chat(chat(max_tokens=10_000))))[1])
        await until(lambda at=at: engine.facts.live == at + 1)  # type: ignore[misc]
    await until(lambda: engine.model.running == 1)
    status, answer = await post(http, engine, "/v1/chat/completions", chat())
    assert (status, answer["error"]["type"]) == (503, "Service Unavailable")
    assert engine.meters.rejected == 1
    for writer in writers:
        writer.close()


# who leaves


@pytest.mark.parametrize("engine", [SLOW], indirect=True)
@pytest.mark.parametrize("is_stream", [True, False])
async def test_client_that_leaves_is_forgotten_at_once(engine: SimulatedEngine, is_stream: bool) -> None:
    _, writer = await raw(engine, raw_chat(chat(max_tokens=10_000, stream=is_stream)))
    await until(lambda: engine.model.decoding == 1)
    writer.close()
    await until(lambda: engine.facts.aborted == 1)
    (departure,) = engine.facts.departures
    assert (departure.phase, departure.path) == ("decoding", "/v1/chat/completions")
    assert departure.tokens >= 1
    assert repr(engine.model) == "<EngineModel 0 running, 0 waiting, kv 0/25000>"
    assert (engine.facts.live, engine.facts.finished, engine.facts.connections) == (0, 0, 0)


@pytest.mark.parametrize("engine", [Settings(max_num_seqs=1)], indirect=True)
async def test_client_that_leaves_the_queue_is_forgotten_too(engine: SimulatedEngine) -> None:
    _, first = await raw(engine, raw_chat(chat(max_tokens=10_000)))
    await until(lambda: engine.model.running == 1)
    _, second = await raw(engine, raw_chat(chat(max_tokens=10_000)))
    await until(lambda: engine.model.waiting == 1)
    second.write_eof()  # half a close is leaving too
    await until(lambda: engine.model.waiting == 0)
    assert engine.facts.departures[0].phase == "waiting"
    first.close()
    second.close()


# what tests can see


async def test_requests_are_kept_as_they_came(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    body = b'{"model":"sim",  "messages":[{"role":"user","content":"hi"}], "max_tokens":1, "unknown": {"x": [1.0]}}'
    headers = {"X-Request-Id": "abc", "content-type": "application/json"}
    async with http.post(f"{engine.url}/v1/chat/completions?a=b", data=body, headers=headers) as response:
        assert (await response.json())["id"] == "chatcmpl-abc"
    seen = engine.facts.recent[-1]
    assert seen.body == body
    assert seen.target == "/v1/chat/completions?a=b"
    assert ("X-Request-Id", "abc") in seen.headers
    assert engine.facts.calls["/v1/chat/completions"] == engine.facts.engine_calls == 1


@pytest.mark.parametrize("engine", [Settings(time_scale=0.0, echoes_request_id=True)], indirect=True)
async def test_request_id_can_be_echoed(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    for path in ("/v1/models", "/nope"):
        async with http.get(engine.url + path, headers={"x-request-id": "abc"}) as response:
            assert response.headers["x-request-id"] == "abc"
    async with http.post(f"{engine.url}/v1/chat/completions", json=streamed()) as response:
        assert response.headers["x-request-id"]


async def test_pipelined_requests_are_answered_in_order(engine: SimulatedEngine) -> None:
    get = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
    reader, writer = await raw(engine, raw_chat(chat(max_tokens=1)) + get % b"version" + get % b"nope")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 OK" in head
    rest = await reader.readuntil(b'{"detail":"Not Found"}')
    assert rest.index(b"chatcmpl-") < rest.index(b'{"version":"0.32.0"}') < rest.index(b"404 Not Found")
    writer.close()


async def test_bodies_may_be_announced_and_chunked(engine: SimulatedEngine) -> None:
    body = raw_chat(chat(max_tokens=1)).split(b"\r\n\r\n", 1)[1]
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    reader, writer = await raw(engine, head)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    for piece in (body[:10], body[10:]):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    writer.write(b"0\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert engine.facts.recent[-1].body == body
    writer.close()


async def test_connection_ends_when_the_client_asks_for_it(engine: SimulatedEngine) -> None:
    reader, writer = await raw(engine, b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b'{"version":"0.32.0"}')
    writer.close()


async def test_bytes_that_are_no_http_are_refused(engine: SimulatedEngine) -> None:
    reader, writer = await raw(engine, b"hello\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
