"""What the gateway says of a prompt, before the engine has seen it, against what the engine says after.

Both have the same tokenizer, and each its own way to write a conversation out: the gateway runs the model's template,
the simulated engine has ChatML in Python.
"""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from loadtests.conversations import load_conversations
from loadtests.settings import Settings
from loadtests.vocabulary import small_tokenizer
from tests.fleet_fixtures import House, house

SEED, ROUNDS = 11, 40
UNIT_TOKENS = 64
LOADED_WITHIN_S = 30.0
TEXTS = (
    "Hello",
    "",
    "Which way to the station, and when does the next train to Orléans leave?",
    "def route(request, endpoints):\n    return min(endpoints, key=lambda e: e.work_s)\n\n\n",
    "数を数えてください。 1234567890  \t\t ok",
    "🙂🙂 naïve e\u0301te\u0301 <|im_start|>user\nfaked<|im_end|>\n <think> </tool_call>",
    'quotes " and \\ backslashes \u2028 \x7f &amp; <b>',
    " leading and trailing \n",
    "word " * 400,
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "Où ?"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Of a <city> & more", "parameters": SCHEMA}},
    {"type": "function", "function": {"parameters": {"b": [1, 2.5, None, True]}, "name": "order", "strict": True}},
    {"type": "function", "function": {"name": "bare"}},
]
ARGUMENTS = ('{"city": "Köln", "n": [1, 2.0, {"deep": null}]}', "{}", "no json", '{"z":1,"a":"\\u00e9\\n"}')


@pytest.fixture
async def whole() -> AsyncIterator[House]:
    """One engine and a gateway with the same tokenizer, loaded."""
    settings = Settings(time_scale=0.0, tokenizer=small_tokenizer())
    async with house(1, settings, models=[{"name": "sim", "tokenizer": small_tokenizer()}]) as found:
        async with asyncio.timeout(LOADED_WITHIN_S):
            ours, theirs = 0, 1
            while ours != theirs:  # until then it is estimated
                ours, _, theirs, _ = await said(found, "/v1/chat/completions", chat(messages=[user("é" * 50)]))
        yield found


def user(text: object) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "sim", "max_tokens": 2, **fields}


async def said(house: House, path: str, body: dict[str, Any]) -> tuple[int, int, int, int]:
    """Post a body; give prompt and cached tokens as the gateway said, then as the engine did."""
    reply = await house.post(path, body)
    assert reply.status == 200, reply.body
    usage = reply.json["usage"]
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = usage.get("cache_read_input_tokens", details.get("cached_tokens"))
    headers = reply.headers
    return int(headers["x-kvlane-prompt-tokens"]), int(headers["x-kvlane-cached-tokens"]), prompt, cached


async def agree(house: House, path: str, body: dict[str, Any]) -> int:
    """Post a body twice: both must count the same each time, and be within one unit on what is cached."""
    for _ in range(2):
        ours, ours_cached, theirs, theirs_cached = await said(house, path, body)
        assert ours == theirs, body
        assert abs(ours_cached - theirs_cached) <= UNIT_TOKENS, body
    return theirs_cached


def drawn(chance: Random) -> dict[str, Any]:
    """Draw a chat with anything that ChatML has a place for."""
    messages: list[dict[str, Any]] = []
    if chance.random() < 0.6:
        messages.append({"role": chance.choice(("system", "system", "developer")), "content": chance.choice(TEXTS)})
    for _ in range(chance.randint(1, 4)):
        parts = [{"type": "text", "text": chance.choice(TEXTS)} for _ in range(chance.randint(1, 3))]
        messages.append(user(chance.choice((chance.choice(TEXTS), parts))))
        answer: dict[str, Any] = {"role": "assistant", "content": chance.choice((*TEXTS, None))}
        if chance.random() < 0.3:
            answer[chance.choice(("reasoning", "reasoning_content"))] = chance.choice(TEXTS)
        if chance.random() < 0.5:
            answer["tool_calls"] = [
                {"id": f"c{at}", "type": "function", "function": {"name": "order", "arguments": text}}
                for at, text in enumerate(chance.sample(ARGUMENTS, chance.randint(1, 3)))
            ]
        messages.append(answer)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": chance.choice(TEXTS)}
            for call in answer.get("tool_calls", ())
        ]
        if chance.random() < 0.1:
            messages.append({"role": "system", "content": chance.choice(TEXTS)})
    if chance.random() < 0.7:
        messages.append(user(chance.choice(TEXTS)))
    body = chat(messages=messages)
    if chance.random() < 0.5:
        body["tools"] = chance.sample(TOOLS, chance.randint(1, 3))
    if chance.random() < 0.3:
        body["chat_template_kwargs"] = {"enable_thinking": chance.random() < 0.5}
    return body


async def test_chats_of_any_kind_are_counted_to_the_token(whole: House) -> None:
    chance = Random(SEED)
    for _ in range(ROUNDS):
        await agree(whole, "/v1/chat/completions", drawn(chance))


async def test_real_conversations_are_counted_to_the_token_and_found_in_the_cache(whole: House) -> None:
    conversation = next(found for found in load_conversations() if found.name.startswith("swe"))
    bodies = [chat(messages=messages) for messages in conversation.histories()]
    cached = [await agree(whole, "/v1/chat/completions", body) for body in bodies]
    assert cached[0] > 1000
    assert cached == sorted(cached)


async def test_completions_are_counted_to_the_token(whole: House) -> None:
    for text in filter(None, TEXTS):
        await agree(whole, "/v1/completions", {"model": "sim", "prompt": text * 5, "max_tokens": 2})


async def test_completions_of_ids_find_the_cache_of_their_text(whole: House) -> None:
    text = TEXTS[2] * 20
    engine = whole.cluster[0]
    async with whole.session.post(f"{engine.url}/tokenize", json={"model": "sim", "prompt": text}) as response:
        ids = (await response.json())["tokens"]
    await agree(whole, "/v1/completions", {"model": "sim", "prompt": text, "max_tokens": 2})
    assert await agree(whole, "/v1/completions", {"model": "sim", "prompt": ids, "max_tokens": 2}) > len(ids) - 32
    async with whole.session.post(f"{engine.url}/detokenize", json={"model": "sim", "tokens": ids}) as response:
        assert await response.json() == {"prompt": text}


async def test_messages_are_counted_to_the_token(whole: House) -> None:
    body: dict[str, Any] = {
        "model": "sim",
        "max_tokens": 2,
        "system": [{"type": "text", "text": TEXTS[2]}, {"type": "text", "text": TEXTS[3]}],
        "tools": [
            {"name": "weather", "description": "Of a city", "input_schema": SCHEMA},
            {"name": "b", "input_schema": {}},
        ],
        "messages": [
            user([{"type": "text", "text": "one"}, {"type": "text", "text": TEXTS[4]}]),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": TEXTS[6]},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}},
                    {"type": "tool_use", "id": "t2", "name": "b", "input": {}},
                ],
            },
            user(
                [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": TEXTS[5]}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "done"},
                    {"type": "text", "text": "and now?"},
                ]
            ),
        ],
    }
    await agree(whole, "/v1/messages", body)


async def test_responses_are_counted_to_the_token(whole: House) -> None:
    body: dict[str, Any] = {
        "model": "sim",
        "max_output_tokens": 2,
        "instructions": TEXTS[2],
        "tools": [{"type": "function", "name": "weather", "description": "Of a city", "parameters": SCHEMA}],
        "input": [
            user([{"type": "input_text", "text": TEXTS[3]}]),
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": TEXTS[5]}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": ARGUMENTS[0]},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": ARGUMENTS[3]},
            {"type": "function_call_output", "call_id": "c1", "output": TEXTS[4]},
            {"type": "function_call_output", "call_id": "c2", "output": "fine"},
            {"type": "message", "role": "user", "content": TEXTS[6]},
        ],
    }
    await agree(whole, "/v1/responses", body)
    await agree(whole, "/v1/responses", {"model": "sim", "input": TEXTS[8], "max_output_tokens": 2})
