"""The official client before real engines cannot tell the gateway from the engine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gateway.app import Gateway
from tests.engines.house import WITH_USAGE, Json, before, chat, faceless
from tests.engines.real import NAME, RealEngine

pytestmark = pytest.mark.engines

CLIENT_S = 30.0
SEEN_S = 1.0
HELLO: Any = [{"role": "user", "content": "Grüße 🙂"}]
LONG: Any = [{"role": "user", "content": "word " * 2300}]  # by its bytes it may fit: the engine is asked
WRONG: Any = "hello"
ENDLESS: Any = chat(max_tokens=1900, stream=True)
Act = Callable[[AsyncOpenAI], Awaitable[Any]]


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=CLIENT_S) as client:
        yield client


async def outcome(url: str, act: Act) -> Json:
    """Give what came of it as plain data; what was raised is an outcome too."""
    async with client_of(url) as client:
        try:
            result = await act(client)
            if isinstance(result, openai.AsyncStream):
                found: Json = [chunk.to_dict(mode="json") async for chunk in result]
            else:
                found = result.to_dict(mode="json")
        except openai.APIStatusError as error:
            return {"raised": type(error).__name__, "status": error.status_code, "body": error.body}  # type: ignore[dict-item]
        except openai.APIError as error:
            return {"raised": type(error).__name__}
    return joined(faceless(found, WITH_USAGE))


def joined(found: Json) -> Json:
    """Join the words of a stream's chunks: engines in a hurry do."""
    if not isinstance(found, list):
        return found
    words = ""
    shapes: list[Json] = []
    for chunk in found:
        assert isinstance(chunk, dict)
        choices: Any = chunk.get("choices") or []
        for choice in choices:
            for place in (choice, choice.get("delta", {})):
                for name in ("text", "content"):
                    words += place.pop(name, None) or ""
        if chunk not in shapes:
            shapes.append(chunk)
    return [words, *shapes]


ACTS: dict[str, Act] = {
    "chat": lambda client: client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=8, temperature=0, seed=7
    ),
    "chat stream": lambda client: client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=8, temperature=0, stream=True
    ),
    "chat stream with usage": lambda client: client.chat.completions.create(
        model=NAME,
        messages=HELLO,
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ),
    "completion": lambda client: client.completions.create(model=NAME, prompt="Once", max_tokens=8, temperature=0),
    "completion stream": lambda client: client.completions.create(
        model=NAME, prompt="Once", max_tokens=8, temperature=0, stream=True
    ),
    "response": lambda client: client.responses.create(model=NAME, input="hi", max_output_tokens=4, temperature=0),
    "too long": lambda client: client.chat.completions.create(model=NAME, messages=LONG),
    "too long, streamed": lambda client: client.chat.completions.create(model=NAME, messages=LONG, stream=True),
    "wrong": lambda client: client.chat.completions.create(model=NAME, messages=WRONG),
    "impatient": lambda client: client.chat.completions.create(**{**ENDLESS, "stream": False}, timeout=0.2),
}


@pytest.mark.parametrize("what", ACTS)
async def test_sees_what_it_sees_without_the_gateway(engine: RealEngine, gateway: Gateway, what: str) -> None:
    await outcome(engine.url, ACTS[what])  # the engine's caches know it from now on
    direct = await outcome(engine.url, ACTS[what])
    assert await outcome(gateway.url, ACTS[what]) == direct


async def test_lists_the_models(engine: RealEngine, gateway: Gateway) -> None:
    async with client_of(gateway.url) as client:
        assert [model.id async for model in client.models.list()] == [NAME]
        assert (await client.models.retrieve(NAME)).id == NAME
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nobody/knows")


async def test_raises_not_found_for_an_unknown_model(engine: RealEngine, gateway: Gateway) -> None:
    async with client_of(gateway.url) as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="nobody/knows", messages=HELLO)
        assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_raises_what_says_that_the_engine_does_not_embed(engine: RealEngine, gateway: Gateway) -> None:
    raised = []
    for url in (engine.url, gateway.url):
        async with client_of(url) as client:
            with pytest.raises(openai.APIStatusError) as error:
                await client.embeddings.create(model=NAME, input="hi")
        raised.append((type(error.value), error.value.status_code))
    assert raised[0] == raised[1]


async def test_stops_the_engine_by_closing_a_stream(busy: RealEngine) -> None:
    async with before(busy) as gateway, client_of(gateway.url) as client:
        stream = await client.chat.completions.create(**ENDLESS)
        await anext(aiter(stream))
        assert await busy.load() == (1, 0)
        await stream.close()
        await busy.comes_to(0, within_s=SEEN_S)
