"""Real engines through the gateway say what they say without it: answers, streams, usage."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from gateway.app import Gateway
from tests.engines.house import (
    CHAT,
    COMPLETIONS,
    WITH_USAGE,
    Json,
    ask,
    ask_both,
    before,
    chat,
    chunks,
    completion,
    counted,
    faceless,
    is_whole,
    shapes,
    texts_of,
)
from tests.engines.real import BLOCK, NAME, RealEngine

pytestmark = pytest.mark.engines

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TURNS = [
    {"role": "system", "content": "You answer in one line."},
    {"role": "user", "content": "Name a river."},
    {"role": "assistant", "content": "The Elbe."},
    {"role": "user", "content": "Another one?"},
]
WHOLE: dict[str, tuple[str, dict[str, object]]] = {
    "chat": (CHAT, chat("Good morning", max_tokens=12)),
    "chat in turns": (CHAT, chat(messages=TURNS, max_tokens=8)),
    "chat in parts": (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}], max_tokens=8),
    ),
    "chat in other scripts": (CHAT, chat("你好，请自我介绍 🙂 — Grüße, ça va? \u2028 \x00 end", max_tokens=16)),
    "chat of two choices": (CHAT, chat("Toss a coin", n=2, max_tokens=4)),
    "chat with a tool": (CHAT, chat("Rain in Oslo?", tools=[TOOL], tool_choice="none", max_tokens=8)),
    "chat with a tool of its choice": (CHAT, chat("Rain in Oslo?", tools=[TOOL], max_tokens=8)),
    "chat that stops": (CHAT, chat("hi", max_tokens=64, stop=["\n"])),
    "chat with fields nobody knows": (CHAT, chat("hi", max_tokens=3, of_no_meaning={"a": [1, None]})),
    "completion": (COMPLETIONS, completion("Once upon a time", max_tokens=12)),
    "completion of texts": (COMPLETIONS, completion(["Once", "Twice"], max_tokens=4)),
    "completion of tokens": (COMPLETIONS, completion([5, 6, 7, 8], max_tokens=4)),
    "completion of lists of tokens": (COMPLETIONS, completion([[5, 6, 7], [9, 10]], max_tokens=4)),
    "response": ("/v1/responses", {"model": NAME, "input": "hi", "max_output_tokens": 4, "temperature": 0}),
    "message": ("/v1/messages", {**chat("hi", max_tokens=4)}),
    "count of tokens": ("/v1/messages/count_tokens", {"model": NAME, "messages": TURNS}),
    "tokenize": ("/tokenize", {"model": NAME, "prompt": "Grüße 🙂", "content": "Grüße 🙂"}),
    "detokenize": ("/detokenize", {"model": NAME, "tokens": [268, 75, 378, 1308]}),
}
ASKS_USAGE: dict[str, object] = {"stream_options": {"include_usage": True}}
STREAMS = {name: WHOLE[name] for name in WHOLE if name.startswith(("chat", "completion"))}


@pytest.mark.parametrize("what", WHOLE)
async def test_an_answer_is_the_engines_own(engine: RealEngine, gateway: Gateway, what: str) -> None:
    direct, through = await ask_both(gateway, engine, *WHOLE[what])
    assert through.status == direct.status
    if through.status >= 400:
        assert through.body == direct.body
    else:
        assert faceless(through.json) == faceless(direct.json)
        assert list(through.json) == list(direct.json)
    assert through.head["content-type"] == direct.head["content-type"]


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
@pytest.mark.parametrize("what", STREAMS)
async def test_a_stream_is_the_engines_own(engine: RealEngine, gateway: Gateway, what: str, usage: bool) -> None:
    path, plain = STREAMS[what]
    body = {**plain, "stream": True, **(ASKS_USAGE if usage else {})}
    direct, through = await ask_both(gateway, engine, path, body)
    assert through.status == direct.status
    if through.status >= 400:
        assert through.body == direct.body
        return
    assert is_whole(through)
    assert through.head["content-type"] == "text/event-stream; charset=utf-8"
    aside = () if usage else WITH_USAGE
    assert texts_of(through.body) == texts_of(direct.body) != {}
    assert by_name(shapes(through.body, aside)) == by_name(shapes(direct.body, aside))


def by_name(found: list[Json]) -> list[str]:
    """Sort shapes: choices come in any order."""
    return sorted(map(str, found))


async def test_a_stream_says_what_the_whole_answer_says(engine: RealEngine, gateway: Gateway) -> None:
    body = chat("Grüße 你好 🙂", max_tokens=24)
    whole, streamed = await ask(gateway, CHAT, body), await ask(gateway, CHAT, {**body, "stream": True})
    assert texts_of(streamed.body)[0] == whole.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_cached_tokens_pass_and_are_counted(engine: RealEngine, gateway: Gateway, is_stream: bool) -> None:
    body = chat(f"A long story, told as a {is_stream}. " * 30, max_tokens=2)
    if is_stream:
        body |= {"stream": True, **ASKS_USAGE}

    async def usage() -> Any:
        answer = await ask(gateway, CHAT, body)
        return chunks(answer.body)[-1]["usage"] if is_stream else answer.json["usage"]

    first, again = await usage(), await usage()
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert again["prompt_tokens"] - BLOCK <= cached < again["prompt_tokens"]
    told = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, again)]
    assert await counted(gateway, "kvlane_cached_tokens_total", source="reported") == sum(told)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_that_nobody_asked_for_is_counted_and_hidden(
    engine: RealEngine, gateway: Gateway, path: str
) -> None:
    body = (chat if path == CHAT else completion)("Count me", max_tokens=9)
    truth = (await engine.ask(path, body)).json["usage"]
    plain = await engine.ask(path, {**body, "stream": True})
    streamed = await ask(gateway, path, {**body, "stream": True})
    assert all(chunk["choices"] for chunk in chunks(streamed.body))
    assert ["usage" in chunk for chunk in chunks(streamed.body)][-1] == ("usage" in chunks(plain.body)[-1])
    assert await counted(gateway, "kvlane_output_tokens_total", model=NAME) == truth["completion_tokens"] == 9
    assert await counted(gateway, "kvlane_prompt_tokens_total", model=NAME) == truth["prompt_tokens"]


async def test_options_of_a_stream_are_kept_beside_our_own(vllm_up: RealEngine) -> None:
    options = {"include_usage": False, "continuous_usage_stats": False}
    body = chat("hi", max_tokens=3, stream=True, stream_options=options)
    async with before(vllm_up) as gateway:
        direct, through = await ask_both(gateway, vllm_up, CHAT, body)
        assert shapes(through.body, WITH_USAGE) == shapes(direct.body, WITH_USAGE)
        assert await counted(gateway, "kvlane_output_tokens_total", model=NAME) == 3


async def test_an_answer_ends_at_max_tokens(engine: RealEngine, gateway: Gateway) -> None:
    answer = await ask(gateway, CHAT, chat("go on", max_completion_tokens=7))
    assert answer.json["usage"]["completion_tokens"] == 7
    assert answer.json["choices"][0]["finish_reason"] == "length"


async def test_a_stored_response_passes_as_a_stream_of_named_events(engine: RealEngine, gateway: Gateway) -> None:
    body = {"model": NAME, "input": "hi", "max_output_tokens": 4, "temperature": 0, "stream": True}
    direct, through = await ask_both(gateway, engine, "/v1/responses", body)
    assert through.status == direct.status == 200
    assert texts_of_events(through.body) == texts_of_events(direct.body)
    assert await counted(gateway, "kvlane_output_tokens_total", model=NAME) == 4


def texts_of_events(body: bytes) -> list[tuple[str, str]]:
    """Give the kind of each named event, and what those of one kind in a row say together."""
    return [
        (kind, "".join(said(chunk) for chunk in run))
        for kind, run in itertools.groupby(chunks(body), lambda chunk: str(chunk["type"]))
    ]


def said(chunk: Any) -> str:
    delta = chunk.get("delta", "")
    return str(delta.get("text", "") if isinstance(delta, dict) else delta)


async def test_a_stream_of_messages_passes_and_is_counted(engine: RealEngine, gateway: Gateway) -> None:
    body = chat("hi", max_tokens=4, stream=True)
    direct, through = await ask_both(gateway, engine, "/v1/messages", body)
    assert texts_of_events(through.body) == texts_of_events(direct.body)
    assert await counted(gateway, "kvlane_output_tokens_total", model=NAME) == 4


async def test_sixteen_streams_at_once_are_all_whole(engine: RealEngine, gateway: Gateway) -> None:
    bodies = [chat(f"Story {at}", max_tokens=40, ignore_eos=True, stream=True) for at in range(16)]
    answers = await asyncio.gather(*(ask(gateway, CHAT, body) for body in bodies))
    assert [is_whole(answer) for answer in answers] == [True] * 16
    assert await counted(gateway, "kvlane_output_tokens_total", model=NAME) == 16 * 40
    assert await counted(gateway, "kvlane_endpoint_failures_total") == 0


async def test_two_kinds_of_engine_share_the_work_of_one_model(vllm_up: RealEngine, llama_up: RealEngine) -> None:
    async with before(vllm_up, llama_up) as gateway:
        bodies = [chat(f"Story {at}", max_tokens=40, ignore_eos=True, stream=True) for at in range(16)]
        answers = await asyncio.gather(*(ask(gateway, CHAT, body) for body in bodies))
        assert [is_whole(answer) for answer in answers] == [True] * 16
        served = Counter(answer.head["x-kvlane-endpoint"] for answer in answers)
        assert set(served) == {"E0", "E1"}
        assert min(served.values()) >= 4  # half each, but for those that one has done before the last has come
        assert await counted(gateway, "kvlane_output_tokens_total", model=NAME) == 16 * 40
