"""The reader that reads as the engine does: ids, chains, keys, and what it does when it cannot."""

import asyncio
from array import array
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.routes import ENGINE_ROUTES, Route
from gateway.tokens import Reading, estimate_prompt_tokens
from gateway.tokens.encoding import LARGE_BYTES, Encoder
from gateway.tokens.exact import Model, TokenReader
from gateway.tokens.plain import TextReader
from gateway.tokens.segments import Cutter, Segments
from gateway.tokens.template import ChatTemplates
from gateway.tokens.turns import learn
from policies.prefix import block_hashes
from tests.gateway.tokens.bodies import ANSWER, CHATS, HELLO, PROMPTS, SYSTEM, TOOL, Body, text, user
from tests.gateway.tokens.conftest import CHAT, COMPLETION, ROOT, SEED, SMALL, TOKENIZE, shared

GOLDEN: dict[str, list[int]] = orjson.loads((Path(__file__).parent / "golden.json").read_bytes())["ids"]
"""What vLLM's /tokenize made of each body with the small tokenizer."""
RESPONSES, MESSAGES = ENGINE_ROUTES["/v1/responses"], ENGINE_ROUTES["/v1/messages"]
LONG = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 12
RENDERED = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
BODIES: dict[str, Body] = {**CHATS, **PROMPTS}


def hashes(ids: list[int], unit_tokens: int = 1) -> tuple[int, ...]:
    return block_hashes(ROOT, array("I", ids), unit_tokens)


@pytest.mark.parametrize("what", BODIES)
async def test_ids_are_those_of_vllm(reader: TokenReader, what: str) -> None:
    body = BODIES[what]
    for route in (TOKENIZE, CHAT if "messages" in body else COMPLETION):
        reading = await reader.read(route, body, ROOT, 1)
        assert (reading.prompt_tokens, reading.prefix) == (len(GOLDEN[what]), hashes(GOLDEN[what]))
        assert reading.is_exact


@pytest.mark.parametrize("unit_tokens", [1, 3, 16, 64])
async def test_units_are_full_and_chained(reader: TokenReader, unit_tokens: int) -> None:
    ids = GOLDEN["calls with words"]
    for _ in range(2):
        reading = await reader.read(CHAT, CHATS["calls with words"], ROOT, unit_tokens)
        assert reading.prefix == hashes(ids, unit_tokens)
        assert reading.unit_tokens == unit_tokens


async def test_a_body_is_not_changed(reader: TokenReader) -> None:
    for body in BODIES.values():
        before = orjson.dumps(body)
        await reader.read(CHAT, body, ROOT, 16)
        assert orjson.dumps(body) == before


# What is remembered changes nothing.

SPECIAL = st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "<|im_start", "im_start|>", "\n"])
WORDS = st.lists(st.one_of(SPECIAL, st.text(max_size=20)), max_size=6).map("".join)
TALKS = st.lists(WORDS, min_size=1, max_size=5).map(
    lambda said: [{"role": "assistant" if at % 2 else "user", "content": words} for at, words in enumerate(said)]
)
same_readers = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@same_readers
@given(messages=TALKS)
async def test_ids_with_segments_are_the_ids_of_the_whole(
    reader: TokenReader, small: Model, messages: list[Body]
) -> None:
    assert small.templates is not None
    template = small.templates.choose(has_tools=False)
    for upto in range(1, len(messages) + 1):
        whole = list(small.encode(template.render(messages[:upto])))
        for unit_tokens in (1, 16):
            reading = await reader.read(CHAT, {"messages": messages[:upto]}, ROOT, unit_tokens)
            assert (reading.prompt_tokens, reading.prefix) == (len(whole), hashes(whole, unit_tokens))


@same_readers
@given(prompt=WORDS)
async def test_the_same_text_as_a_completion_reads_the_same(reader: TokenReader, small: Model, prompt: str) -> None:
    reading = await reader.read(COMPLETION, {"prompt": prompt}, ROOT, 1)
    assert reading.prefix == hashes(list(small.encode(prompt)))


async def test_the_next_turn_encodes_only_what_is_new(small: Model, encoder: Encoder, segments: Segments) -> None:
    encoded: list[str] = []

    def encode(said: str) -> Any:
        encoded.append(said)
        return small.encode(said)

    reader = TokenReader(small._replace(encode=encode), encoder, segments, TextReader())
    await reader.read(CHAT, {"messages": [SYSTEM, HELLO]}, ROOT, 16)
    assert len(encoded) == 1
    encoded.clear()
    await reader.read(CHAT, {"messages": [SYSTEM, HELLO, ANSWER, user("And back?")]}, ROOT, 16)
    assert encoded == [f"<|im_start|>assistant\n{ANSWER['content']}<|im_end|>\n<|im_start|>user\nAnd back?<|im_end|>\n"]
    encoded.clear()
    await reader.read(CHAT, {"messages": [HELLO, SYSTEM, HELLO]}, ROOT, 32)
    assert encoded == []


# Identity: what shares a prefix, and what does not.


async def read(reader: TokenReader, route: Route = CHAT, **body: Any) -> Reading:
    return await reader.read(route, body, ROOT, 16)


async def test_the_same_tail_behind_another_head_shares_nothing(reader: TokenReader) -> None:
    one = await read(reader, messages=[{"role": "system", "content": "You are Lear."}, user(LONG)])
    other = await read(reader, messages=[{"role": "system", "content": "Thou art Kent."}, user(LONG)])
    assert set(one.prefix).isdisjoint(other.prefix)
    assert one.system_key != other.system_key


async def test_a_common_head_is_shared_up_to_where_it_ends(reader: TokenReader) -> None:
    one = await read(reader, messages=[SYSTEM, user(LONG + "One end.")])
    other = await read(reader, messages=[SYSTEM, user(LONG + "Another end, and more.")])
    assert shared(one, other) >= min(len(one.prefix), len(other.prefix)) - 1
    assert one.system_key == other.system_key
    assert one.opening_key != other.opening_key


async def test_a_conversation_goes_on_from_its_last_turn(reader: TokenReader) -> None:
    messages = [SYSTEM, user(LONG)]
    one = await read(reader, messages=messages)
    other = await read(reader, messages=[*messages, {"role": "assistant", "content": LONG}, user("And?")])
    assert shared(one, other) == len(one.prefix)
    assert (one.system_key, one.opening_key) == (other.system_key, other.opening_key)


async def test_the_system_key_is_made_of_system_prompt_and_tools(reader: TokenReader) -> None:
    await keys_are_of_heads(reader)


async def keys_are_of_heads(reader: TokenReader) -> None:
    heads: list[Body] = [
        {"messages": [HELLO]},
        {"messages": [SYSTEM, HELLO]},
        {"messages": [{"role": "system", "content": "Be kind."}, HELLO]},
        {"messages": [HELLO], "tools": [TOOL]},
        {"messages": [SYSTEM, HELLO], "tools": [TOOL]},
        {"messages": [SYSTEM, HELLO], "tools": [{**TOOL, "function": {**TOOL["function"], "name": "other"}}]},
    ]
    readings = [await read(reader, **body) for body in heads]
    keys = [reading.system_key for reading in readings]
    assert keys[0] is None
    assert len({reading.opening_key for reading in readings}) == len(heads)
    assert len(set(keys)) == len(keys)
    for body, key in zip(heads, keys, strict=True):
        longer = {**body, "messages": [*body["messages"], ANSWER, user(LONG)]}
        assert (await read(reader, **longer)).system_key == key


async def test_a_chat_and_its_rendered_completion_are_one(reader: TokenReader) -> None:
    said = [LONG, "Which way?"]
    chat = await read(reader, messages=[{"role": "system", "content": said[0]}, user(said[1])])
    completion = await read(reader, COMPLETION, prompt=RENDERED.format(*said))
    assert chat == completion


async def test_a_completion_is_named_by_its_beginning(reader: TokenReader) -> None:
    one = await read(reader, COMPLETION, prompt=LONG + "one")
    other = await read(reader, COMPLETION, prompt=LONG + "other")
    third = await read(reader, COMPLETION, prompt="Else. " + LONG)
    short = await read(reader, COMPLETION, prompt="Short.")
    assert one.opening_key == other.opening_key
    assert len({one.opening_key, third.opening_key, short.opening_key, None}) == 4
    assert one.system_key is None


async def test_roots_keep_chains_and_keys_apart(reader: TokenReader) -> None:
    body = CHATS["tools and a system prompt"]
    one, other = await reader.read(CHAT, body, ROOT, 16), await reader.read(CHAT, body, type(ROOT)(ROOT + 1), 16)
    assert set(one.prefix).isdisjoint(other.prefix)
    assert (one.system_key, one.opening_key) != (other.system_key, other.opening_key)


def picture(content: str) -> Body:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}


async def test_a_picture_counts_by_rule_and_by_its_content(small: Model, encoder: Encoder, segments: Segments) -> None:
    reader = TokenReader(small, encoder, segments, TextReader(), image_tokens=160)
    read_with = [
        await reader.read(CHAT, {"messages": [SYSTEM, user([text("See: "), picture(content)])]}, ROOT, 16)
        for content in ("AAAA" * 100_000, "AAAA" * 100_000, "AAAB" * 100_000)
    ]
    without = await reader.read(CHAT, {"messages": [SYSTEM, user("See: ")]}, ROOT, 16)
    assert read_with[0] == read_with[1]
    assert read_with[0].prompt_tokens == read_with[2].prompt_tokens
    assert 160 <= read_with[0].prompt_tokens - without.prompt_tokens <= 165
    assert shared(read_with[0], read_with[2]) < len(read_with[0].prefix) - 9
    assert not read_with[0].is_exact


async def test_a_mark_that_a_client_writes_is_no_picture(reader: TokenReader) -> None:
    parts = [text("\x00media 0\x00\x00media 7\x00"), picture("AAAA")]
    reading = await read(reader, messages=[user(parts)])
    assert 1024 < reading.prompt_tokens < 1024 * 2 + 100


# Other bodies.


async def test_prompts_of_ids_are_taken_as_they_are(reader: TokenReader) -> None:
    ids = list(range(100))
    one = await read(reader, COMPLETION, prompt=ids)
    assert (one.prompt_tokens, one.prefix, one.is_exact) == (100, hashes(ids, 16), True)
    other = await read(reader, COMPLETION, prompt=ids[::-1])
    assert set(one.prefix).isdisjoint(other.prefix)
    several = await read(reader, COMPLETION, prompt=[ids, ids[:30]])
    assert (several.prompt_tokens, several.prefix) == (130, one.prefix)


async def test_of_several_prompts_the_tokens_are_summed_and_the_first_is_the_prefix(reader: TokenReader) -> None:
    one, other = await read(reader, COMPLETION, prompt=LONG), await read(reader, COMPLETION, prompt="Else.")
    both = await read(reader, COMPLETION, prompt=[LONG, "Else."])
    assert both.prompt_tokens == one.prompt_tokens + other.prompt_tokens
    assert both.prefix == one.prefix


async def test_responses_and_messages_read_as_the_chat_they_become(reader: TokenReader) -> None:
    call = {"to": "Dover"}
    chat = await read(
        reader,
        messages=[
            {"role": "system", "content": "Be brief."},
            HELLO,
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "find_way", "arguments": orjson.dumps(call).decode()},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "78 miles"},
        ],
        tools=[TOOL],
    )
    function = TOOL["function"]
    response = await read(
        reader,
        RESPONSES,
        instructions="Be brief.",
        input=[
            HELLO,
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "c", "name": "find_way", "arguments": orjson.dumps(call).decode()},
            {"type": "function_call_output", "call_id": "c", "output": "78 miles"},
        ],
        tools=[{"type": "function", **function}],
    )
    message = await read(
        reader,
        MESSAGES,
        system=[text("Be brief.")],
        messages=[
            HELLO,
            {
                "role": "assistant",
                "content": [text("Let me see."), {"type": "tool_use", "id": "c", "name": "find_way", "input": call}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [text("78 miles")]}]},
        ],
        tools=[
            {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
        ],
    )
    assert chat.is_exact
    assert response == chat
    assert message.prefix == chat.prefix
    assert (message.prompt_tokens, message.system_key) == (chat.prompt_tokens, chat.system_key)


async def test_texts_to_embed_are_read(reader: TokenReader) -> None:
    embeddings = ENGINE_ROUTES["/v1/embeddings"]
    one = await read(reader, embeddings, input=LONG)
    both = await read(reader, embeddings, input=[LONG, "Else."])
    completion = await read(reader, COMPLETION, prompt=LONG)
    assert (one.prefix, one.is_exact) == (completion.prefix, True)
    assert both.prompt_tokens > one.prompt_tokens
    ranked = await read(reader, ENGINE_ROUTES["/v1/rerank"], query="Which?", documents=[LONG, {"text": "Else."}])
    assert ranked.prompt_tokens > both.prompt_tokens


# What cannot be read is estimated, and never an error.

ODD: dict[str, Body] = {
    "nothing": {},
    "no messages": {"messages": []},
    "messages that are a text": {"messages": "hello"},
    "a message that is a text": {"messages": ["hello"]},
    "a message without a role": {"messages": [{"content": "hello"}]},
    "a role that the template refuses": {"messages": [{"role": "jester", "content": "hello"}]},
    "a part that nobody knows": {"messages": [user([{"type": "smell", "smell": "x"}])]},
    "parts that are numbers": {"messages": [user([1, 2, None])]},
    "a call that is none": {"messages": [HELLO, {"role": "assistant", "tool_calls": ["x"]}]},
    "calls that are a text": {"messages": [HELLO, {"role": "assistant", "tool_calls": "x"}]},
    "tools that are a text": {"messages": [HELLO], "tools": "x"},
    "tools without names": {"messages": [HELLO], "tools": [{"type": "function", "function": {}}]},
    "a template of the client's own": {"messages": [HELLO], "chat_template": "{{ 7 * 7 }}"},
    "a template among the variables": {"messages": [HELLO], "chat_template_kwargs": {"chat_template": "x"}},
    "variables that are a list": {"messages": [HELLO], "chat_template_kwargs": [1]},
    "half a character": {"messages": [user("\ud83d")]},
    "a continuation behind a prompt": {"messages": [HELLO], "continue_final_message": True},
    "a flag that is a text": {"messages": [HELLO], "add_generation_prompt": "yes"},
    "prompts that are objects": {"prompt": [{"a": 1}]},
    "ids that are too large": {"prompt": [1, -1, 1 << 40]},
    "ids among texts": {"prompt": [1, "a", None]},
    "a number": {"prompt": 7},
}


@pytest.mark.parametrize("what", ODD)
async def test_what_cannot_be_read_is_estimated(reader: TokenReader, what: str) -> None:
    for route in ENGINE_ROUTES.values():
        reading = await reader.read(route, ODD[what], ROOT, 16)
        assert len(reading.prefix) * 16 <= reading.prompt_tokens
    assert reader.faults == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "image_url", "tool_calls", "function", "name", "input", "arguments"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@same_readers
@given(
    document=st.dictionaries(
        st.sampled_from(
            [
                "messages",
                "prompt",
                "input",
                "tools",
                "system",
                "instructions",
                "documents",
                "chat_template_kwargs",
                "reasoning",
            ]
        ),
        JSON,
        max_size=4,
    )
)
async def test_no_body_makes_a_reader_fail(reader: TokenReader, document: Body) -> None:
    for route in ENGINE_ROUTES.values():
        for one in (reader, TextReader()):
            reading = await one.read(route, document, ROOT, 16)
            assert 0 <= len(reading.prefix) * 16 <= reading.prompt_tokens
    assert reader.faults == 0


async def test_long_prompts_are_estimated(small: Model, encoder: Encoder, segments: Segments) -> None:
    reader = TokenReader(small, encoder, segments, TextReader(), max_text_bytes=4000)
    assert (await read(reader, COMPLETION, prompt="a" * 3900)).is_exact
    body = {"prompt": "a" * 4100}
    long = await read(reader, COMPLETION, **body)
    assert long == await TextReader().read(COMPLETION, body, ROOT, 16)
    assert (long.prompt_tokens - estimate_prompt_tokens(body), long.is_exact) == (1, False)  # 1: the text's end


async def test_what_would_wait_too_long_is_estimated(small: Model, segments: Segments) -> None:
    encoder = Encoder(max_queued_chars=100_000)
    reader = TokenReader(small, encoder, segments, TextReader())
    bodies = [{"prompt": f"{at} {LONG * 60}"} for at in range(6)]
    readings = await asyncio.gather(*(reader.read(COMPLETION, body, ROOT, 64) for body in bodies))
    assert [reading.is_exact for reading in readings] == [True] + [False] * 5
    assert encoder.queued_chars == 0
    assert (await reader.read(COMPLETION, bodies[1], ROOT, 64)).is_exact
    await encoder.close()


async def test_a_client_that_goes_takes_nobodys_ids_along(small: Model, encoder: Encoder, segments: Segments) -> None:
    reader = TokenReader(small, encoder, segments, TextReader())
    body = {"prompt": LONG * 100}
    going, staying = (asyncio.create_task(reader.read(COMPLETION, body, ROOT, 64)) for _ in range(2))
    await asyncio.sleep(0)
    going.cancel()
    assert (await staying).is_exact
    assert encoder.queued_chars == 0


async def test_large_conversations_are_rendered_in_a_thread_and_read_the_same(
    reader: TokenReader, small: Model
) -> None:
    messages = [{"role": "assistant" if at % 2 else "user", "content": f"{at} {LONG}"} for at in range(301)]
    reading = await reader.read(CHAT, {"messages": messages}, ROOT, 64)
    assert small.templates is not None
    whole = small.encode(small.templates.choose(has_tools=False).render(messages))
    assert reading.prefix == hashes(list(whole), 64)


async def test_of_large_prompts_each_has_a_round_of_the_loop_to_itself(
    small: Model, encoder: Encoder, segments: Segments
) -> None:
    rounds: list[int] = []
    now = 0
    loop = asyncio.get_running_loop()

    class Counting(Cutter):
        def cut(self, text: str) -> list[str]:
            if len(text) > LARGE_BYTES:
                rounds.append(now)
            return super().cut(text)

    def tick() -> None:
        nonlocal now
        now += 1
        if len(rounds) < 40:
            loop.call_soon(tick)

    loop.call_soon(tick)
    number = loaded_number(small)
    reader = TokenReader(small._replace(cutter=Counting(number)), encoder, segments, TextReader())
    body = {"messages": [SYSTEM, user(LONG * 50)]}
    readings = await asyncio.gather(*(reader.read(CHAT, body, ROOT, 64) for _ in range(40)))
    assert len(set(readings)) == 1
    assert len(rounds) == 40
    assert len(set(rounds)) == len(rounds)


def loaded_number(small: Model) -> dict[str, int]:
    (token,) = small.cutter.tokens
    return {token: small.encode(token)[0]}


async def test_what_vllm_cuts_away_is_not_counted(reader: TokenReader) -> None:
    whole = await read(reader, messages=[SYSTEM, user(LONG)])
    cut = await read(reader, messages=[SYSTEM, user(LONG)], truncate_prompt_tokens=20)
    assert (cut.prompt_tokens, cut.prefix) == (20, ())
    for limit in (-1, 10_000, None, "x"):
        assert await read(reader, messages=[SYSTEM, user(LONG)], truncate_prompt_tokens=limit) == whole


# Templates that put things elsewhere.

ELSEWHERE = {
    "tools into the first turn": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if tools and loop.index0 == 1 %}{{ tools | tojson }}{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}",
        (True, False),
    ),
    "all into the last turn": (
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{% if loop.last and tools %}"
        "{{ tools | tojson }}{% endif %}{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}"
        "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}",
        (False, False),
    ),
    "no turns at all": ("{{ messages | tojson }}{{ tools | tojson }}", None),
}


@pytest.mark.parametrize("what", ELSEWHERE)
async def test_keys_tell_heads_apart_wherever_a_template_puts_them(
    small: Model, encoder: Encoder, segments: Segments, what: str
) -> None:
    source, held = ELSEWHERE[what]
    templates = ChatTemplates({"default": source}, {})
    turns = learn(templates, ["<|im_start|>", "<|im_end|>"])
    assert held == (turns and (turns.holds_system, turns.holds_tools))
    reader = TokenReader(small._replace(templates=templates, turns=turns), encoder, segments, TextReader())
    await keys_are_of_heads(reader)


async def test_memory_stays_within_its_bytes(small: Model, encoder: Encoder) -> None:
    segments = Segments(SEED, max_ids_bytes=20_000, max_links_bytes=10_000)
    reader = TokenReader(small, encoder, segments, TextReader())
    for at in range(200):
        await read(reader, messages=[SYSTEM, user(f"{at} {LONG}"[: 20 * at])])
        assert segments.ids.held_bytes <= 20_000
        assert segments.links.held_bytes <= 10_000
    assert len(segments.ids) > 3
    again = await read(reader, messages=[SYSTEM, user(f"0 {LONG}"[:0])])
    assert again.is_exact


def test_the_small_tokenizer_is_small() -> None:
    assert (SMALL / "tokenizer.json").stat().st_size < 300_000
