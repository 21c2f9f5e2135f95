"""What real engines refuse, and what the gateway refuses before them."""

from typing import Any

import orjson
import pytest

from gateway.app import Gateway
from tests.engines.house import CHAT, COMPLETIONS, ask, ask_both, before, chat, completion, counted
from tests.engines.real import CONTEXT, NAME, RealEngine
from tests.wire.client import call

pytestmark = pytest.mark.engines

LONG = "word " * 2300
"""Too long for the engines, by their tokens; by its bytes, which is all that the gateway goes by, it may fit."""
TOO_LONG = "word " * 6000
"""Too long for certain."""
WRONG = {
    "too long": (CHAT, chat(LONG, max_tokens=3)),
    "too long, streamed": (CHAT, chat(LONG, max_tokens=3, stream=True)),
    "too long for a completion": (COMPLETIONS, completion(LONG, max_tokens=3)),
    "messages that are none": (CHAT, chat(messages="hello")),
    "messages that are none, streamed": (CHAT, chat(messages="hello", stream=True)),
    "a negative limit": (CHAT, chat(max_tokens=-3)),
    "no prompt": (COMPLETIONS, {"model": NAME}),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_refusal_passes_byte_for_byte_and_is_not_tried_again(
    vllm_up: RealEngine, llama_up: RealEngine, what: str
) -> None:
    path, body = WRONG[what]
    refusals = {}
    for engine in (vllm_up, llama_up):
        direct = await engine.ask(path, body)
        refusals[direct.status, direct.body] = engine.name
    async with before(vllm_up, llama_up) as gateway:
        for sent in range(1, 5):
            answer = await ask(gateway, path, body)
            assert (answer.status, answer.body) in refusals
            assert answer.status == 400
            assert await counted(gateway, "kvlane_endpoint_requests_total") == sent
        assert await counted(gateway, "kvlane_endpoint_failures_total", kind="broken") == 0
        good = await ask(gateway, CHAT, chat(max_tokens=2))
        assert good.status == 200


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_is_too_long_for_certain_never_reaches_an_engine(
    engine: RealEngine, gateway: Gateway, path: str, is_stream: bool
) -> None:
    body = (chat if path == CHAT else completion)(TOO_LONG, max_tokens=3, stream=is_stream)
    assert (await engine.ask(path, body)).status == 400
    answer = await ask(gateway, path, body)
    assert answer.refusal == (400, "invalid_request_error", "context_length_exceeded")
    assert f"maximum context length is {CONTEXT} tokens" in str(answer.error["message"])
    assert await counted(gateway, "kvlane_endpoint_requests_total") == 0


async def test_an_unknown_model_never_reaches_an_engine(engine: RealEngine, gateway: Gateway) -> None:
    answer = await ask(gateway, CHAT, {**chat(), "model": "nobody/knows"})
    assert answer.refusal == (404, "invalid_request_error", "model_not_found")
    assert answer.error["param"] == "model"
    assert await counted(gateway, "kvlane_endpoint_requests_total") == 0


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "tiny", "messages": [', b"\xff\xfe", b"[]", b'"text"'])
async def test_what_is_no_json_object_never_reaches_an_engine(
    engine: RealEngine, gateway: Gateway, body: bytes
) -> None:
    answer = await ask(gateway, CHAT, body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert await counted(gateway, "kvlane_endpoint_requests_total") == 0


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/score", "/classify", "/pooling"])
async def test_what_an_engine_is_not_made_for_has_its_own_status(
    engine: RealEngine, gateway: Gateway, path: str
) -> None:
    body = {"model": NAME, "input": "hi", "query": "hi", "documents": ["a"], "text_1": "a", "text_2": "b"}
    direct, through = await ask_both(gateway, engine, path, body)
    assert through.status == direct.status >= 400
    if "error" in direct.json:
        assert through.body == direct.body
    else:
        error: Any = through.error
        assert error["message"] in str(direct.json)
    assert await counted(gateway, "kvlane_endpoint_requests_total") == 1
    assert await counted(gateway, "kvlane_endpoint_failures_total", kind="broken") == 0


@pytest.mark.parametrize(
    "target", ["/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc", "/slots", "/props", "/metrics", "/load"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_steers_an_engine_is_not_there(
    engine: RealEngine, gateway: Gateway, target: str, method: str
) -> None:
    answer = await call(gateway.url, target, b"{}" if method == "POST" else b"", method=method)
    assert answer.refusal == (404, "invalid_request_error", "not_found")


async def test_headers_say_where_an_answer_is_from(engine: RealEngine, gateway: Gateway) -> None:
    answer = await call(
        gateway.url,
        CHAT,
        orjson.dumps(chat(max_tokens=2)),
        [("X-Request-Id", "my-own-1"), ("Authorization", "Bearer x")],
    )
    assert answer.status == 200
    assert (answer.head["x-request-id"], answer.head["x-kvlane-endpoint"]) == ("my-own-1", "E0")
    if engine.name == "vllm":
        assert answer.json["id"] == "chatcmpl-my-own-1"
