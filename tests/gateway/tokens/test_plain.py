"""Prompts read as bytes."""

from array import array
from typing import Any

import orjson
import pytest

from gateway.routes import ENGINE_ROUTES, Route
from gateway.tokens import Reading, estimate_prompt_tokens
from gateway.tokens.plain import TextReader
from policies.prefix import block_hashes
from tests.gateway.tokens.bodies import ANSWER, CALL, CHATS, HELLO, SYSTEM, TOOL, Body, text, user
from tests.gateway.tokens.conftest import CHAT, COMPLETION, ROOT, shared

RESPONSES, MESSAGES = ENGINE_ROUTES["/v1/responses"], ENGINE_ROUTES["/v1/messages"]
LONG = "All the world's a stage, and all the men and women merely players. " * 40


async def read(route: Route = CHAT, unit_tokens: int = 16, **body: Any) -> Reading:
    return await TextReader(image_tokens=100).read(route, body, ROOT, unit_tokens)


def picture(content: str) -> Body:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}", "detail": "high"}}


@pytest.mark.parametrize("unit_tokens", [16, 64, 100])
async def test_four_bytes_are_a_token_in_count_and_chain(unit_tokens: int) -> None:
    reading = await read(COMPLETION, unit_tokens, prompt="é" * 2000)
    assert (reading.prompt_tokens, len(reading.prefix)) == (1001, 1000 // unit_tokens)
    assert (reading.unit_tokens, reading.is_exact) == (unit_tokens, False)


@pytest.mark.parametrize("what", CHATS)
async def test_estimates_are_near_the_bytes_of_the_text(what: str) -> None:
    reading = await TextReader().read(CHAT, CHATS[what], ROOT, 16)
    written = len(orjson.dumps(CHATS[what])) / 4
    assert estimate_prompt_tokens(CHATS[what]) <= reading.prompt_tokens <= written
    assert len(reading.prefix) * 16 <= reading.prompt_tokens


async def test_ids_are_exact_and_spread_by_what_they_are() -> None:
    one, other = [await read(COMPLETION, prompt=list(ids)) for ids in (range(100), range(1, 101))]
    assert one.prefix == block_hashes(ROOT, array("I", range(100)), 16)
    assert (one.prompt_tokens, one.is_exact) == (100, True)
    assert set(one.prefix).isdisjoint(other.prefix)
    assert one.opening_key != other.opening_key


async def test_long_prompts_are_hashed_in_slices_and_the_same() -> None:
    ids = list(range(100_000))
    assert (await read(COMPLETION, 1, prompt=ids)).prefix == block_hashes(ROOT, array("I", ids), 1)
    short, long = await read(COMPLETION, 16, prompt=LONG * 20), await read(COMPLETION, 16, prompt=LONG * 100)
    assert shared(short, long) == len(short.prefix)


async def test_the_same_tail_behind_another_head_shares_nothing() -> None:
    heads = ["You are Lear.", "You are Kent."]
    one, other = [await read(messages=[{"role": "system", "content": head}, user(LONG)]) for head in heads]
    assert set(one.prefix).isdisjoint(other.prefix)
    assert one.system_key != other.system_key


async def test_a_conversation_goes_on_from_its_last_turn() -> None:
    one = await read(messages=[SYSTEM, user(LONG)], tools=[TOOL])
    other = await read(messages=[SYSTEM, user(LONG), ANSWER, HELLO], tools=[TOOL])
    assert shared(one, other) == len(one.prefix)
    assert (one.system_key, one.opening_key) == (other.system_key, other.opening_key)


async def test_keys_are_made_of_head_and_first_turn() -> None:
    bodies: list[Body] = [
        {"messages": [HELLO]},
        {"messages": [SYSTEM, HELLO]},
        {"messages": [HELLO], "tools": [TOOL]},
        {"messages": [SYSTEM, HELLO], "tools": [TOOL]},
        {"messages": [{**SYSTEM, "role": "developer"}, user("Else?")]},
    ]
    readings = [await read(**body) for body in bodies]
    assert readings[0].system_key is None
    assert len({reading.system_key for reading in readings}) == len({reading.opening_key for reading in readings}) == 5
    assert (await read(messages=[ANSWER])).opening_key is None
    assert (await read(COMPLETION, prompt=LONG)).opening_key is not None
    assert (await read(COMPLETION)).opening_key is None


async def test_calls_are_part_of_the_prompt() -> None:
    one, other = [
        await read(messages=[HELLO, {"role": "assistant", "content": None, "tool_calls": calls}])
        for calls in ([CALL], [{**CALL, "function": {"name": "f", "arguments": "{}"}}])
    ]
    assert one.prompt_tokens > other.prompt_tokens > 10


@pytest.mark.parametrize(
    "part",
    [
        picture("AAAA" * 1000),
        {"type": "input_audio", "input_audio": {"data": "AAAA" * 1000, "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA" * 1000}},
        {"type": "input_image", "image_url": "data:image/png;base64," + "AAAA" * 1000},
        {"type": "file", "file": {"file_data": "AAAA" * 1000}},
        {"image_url": "data:image/png;base64," + "AAAA" * 1000},
    ],
)
async def test_pictures_count_by_rule_whatever_their_bytes(part: Body) -> None:
    reading = await read(messages=[user([text("What is it?"), part])])
    assert 100 <= reading.prompt_tokens < 110
    other = await read(
        messages=[user([text("What is it?"), orjson.loads(orjson.dumps(part).replace(b"AAAA", b"AAAB"))])]
    )
    assert other.prompt_tokens == reading.prompt_tokens
    assert shared(reading, other) == 0


async def test_of_several_prompts_the_first_is_the_prefix() -> None:
    one, both = await read(COMPLETION, prompt=[LONG]), await read(COMPLETION, prompt=[LONG, LONG])
    assert one.prefix == both.prefix
    assert 2 * one.prompt_tokens - 1 <= both.prompt_tokens <= 2 * one.prompt_tokens


async def test_responses_and_messages_are_conversations() -> None:
    response = await read(RESPONSES, instructions="Be brief.", input=[user([text(LONG)])])
    message = await read(MESSAGES, system="Be brief.", messages=[user([text(LONG)])])
    assert response == message
    assert None not in (response.system_key, response.opening_key)
    assert (await read(RESPONSES, input=LONG)).opening_key is not None


async def test_what_is_nested_without_end_is_left_out() -> None:
    deep: Any = "x"
    for _ in range(1000):
        deep = {"a": [deep]}
    assert (await read(messages=[user([deep])], tools=[deep])).prompt_tokens < 10
