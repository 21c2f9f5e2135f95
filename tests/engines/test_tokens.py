"""What the gateway reads of a prompt is what real engines compute with: the same ids, one by one."""

from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.routes import ENGINE_ROUTES
from gateway.tokens.asked import Dialect, EngineReader
from gateway.tokens.encoding import Encoder
from gateway.tokens.exact import TokenReader
from gateway.tokens.loaded import token_reader
from gateway.tokens.plain import TextReader
from policies.prefix import block_hashes, root_of
from tests.engines.house import CHAT, COMPLETIONS, ask, before, until
from tests.engines.installed import model
from tests.engines.real import NAME, RealEngine
from tests.gateway.tokens.bodies import CHATS, HELLO, PROMPTS, SYSTEM, TOOL, Body, text, user

pytestmark = pytest.mark.engines

ROOT = root_of(NAME)
BODIES: dict[str, Body] = {**CHATS, **PROMPTS}
LLAMA_CHATS = ("one message", "a system prompt", "three turns", "many languages", "code and digits")
"""Those that llama.cpp's own rendering of the template does not change: it has tools and parts its own way.

It does not normalise either: of "many languages" its count is the same, and some of its ids are not.
"""


@pytest.fixture
async def reader() -> AsyncIterator[TokenReader]:
    """Reads with the tokenizer that the engines have."""
    encoder = Encoder()
    yield token_reader(str(model("tiny")), encoder, TextReader())
    await encoder.close()


async def ids_of(engine: RealEngine, body: Body) -> list[int]:
    answer = await engine.ask("/tokenize", {"model": NAME, **body})
    assert answer.status == 200, answer.body
    ids: list[int] = answer.json["tokens"]
    return ids


@pytest.mark.parametrize("what", BODIES)
async def test_vllm_finds_the_same_ids(vllm_up: RealEngine, reader: TokenReader, what: str) -> None:
    body = BODIES[what]
    ids = await ids_of(vllm_up, body)
    path = CHAT if "messages" in body else COMPLETIONS
    for route in (ENGINE_ROUTES["/tokenize"], ENGINE_ROUTES[path]):
        reading = await reader.read(route, body, ROOT, 1)
        assert (reading.prompt_tokens, reading.is_exact) == (len(ids), True)
        assert reading.prefix == block_hashes(ROOT, array("I", ids), 1)


PAID: dict[str, tuple[str, Body]] = {
    "a chat": (CHAT, {"messages": [SYSTEM, HELLO]}),
    "reasoning by its old name": (
        CHAT,
        {"messages": [HELLO, {"role": "assistant", "content": "x", "reasoning_content": "Hm."}, HELLO]},
    ),
    "an effort": (CHAT, {"messages": [HELLO], "reasoning_effort": "none"}),
    "tools": (CHAT, {"messages": [SYSTEM, HELLO], "tools": [TOOL], "tool_choice": "none"}),
    "a completion": (COMPLETIONS, {"prompt": "Once upon a time"}),
    "two completions": (COMPLETIONS, {"prompt": ["Once upon a time", "there was"]}),
    "ids": (COMPLETIONS, {"prompt": [5, 6, 7]}),
    "a response": ("/v1/responses", {"instructions": "Be brief.", "input": "Which way?"}),
    "a response to items": ("/v1/responses", {"input": [HELLO, {"role": "assistant", "content": "There."}, HELLO]}),
    "a message": ("/v1/messages", {"system": [text("Be brief.")], "messages": [user([text("Which"), text("way?")])]}),
}


@pytest.mark.parametrize("what", PAID)
async def test_vllm_charges_what_was_read(vllm_up: RealEngine, reader: TokenReader, what: str) -> None:
    path, body = PAID[what]
    limit = {"max_output_tokens": 1} if path == "/v1/responses" else {"max_tokens": 1}
    answer = await vllm_up.ask(path, {"model": NAME, **body, **limit})
    assert answer.status == 200, answer.body
    usage: Any = answer.json["usage"]
    reading = await reader.read(ENGINE_ROUTES[path], body, ROOT, 16)
    cached = usage.get("cache_read_input_tokens") or 0
    assert usage.get("prompt_tokens", (usage.get("input_tokens") or 0) + cached) == reading.prompt_tokens
    assert reading.is_exact


@pytest.mark.parametrize("what", ["tools", "tools and a system prompt", "a call and its result"])
async def test_the_gateway_counts_a_chat_with_tools_as_the_engine_does(vllm_up: RealEngine, what: str) -> None:
    async with before(vllm_up, models=[{"name": NAME, "tokenizer": str(model("tiny"))}]) as gateway:
        await until(lambda: all(gateway.readers.exactness().values()))
        answer = await ask(gateway, CHAT, {"model": NAME, **BODIES[what], "tool_choice": "none", "max_tokens": 1})
    counted = int(answer.head["x-kvlane-prompt-tokens"])
    assert counted == answer.json["usage"]["prompt_tokens"] == len(await ids_of(vllm_up, BODIES[what]))


@pytest.mark.parametrize("what", LLAMA_CHATS)
async def test_llamacpp_charges_what_was_read(llama_up: RealEngine, reader: TokenReader, what: str) -> None:
    answer = await llama_up.ask(CHAT, {"model": NAME, **CHATS[what], "max_tokens": 1})
    reading = await reader.read(ENGINE_ROUTES[CHAT], CHATS[what], ROOT, 16)
    assert answer.json["usage"]["prompt_tokens"] == reading.prompt_tokens


DIALECTS = {"vllm": Dialect.VLLM, "llama.cpp": Dialect.LLAMACPP}


@pytest.mark.parametrize("what", ["one message", "a system prompt", "three turns", "a prompt", "a prompt in Chinese"])
async def test_an_engine_that_is_asked_says_what_the_tokenizer_says(
    engine: RealEngine, reader: TokenReader, what: str
) -> None:
    async def ask(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        answer = await engine.ask(path, body)
        found: dict[str, Any] | None = answer.json if answer.status == 200 else None
        return found

    asked = EngineReader(NAME, ask, DIALECTS[engine.name], TextReader())
    route = ENGINE_ROUTES[CHAT if "messages" in BODIES[what] else COMPLETIONS]
    told, read = [await one.read(route, BODIES[what], ROOT, 1) for one in (asked, reader)]
    assert (told.prompt_tokens, told.prefix, told.is_exact) == (read.prompt_tokens, read.prefix, True)
