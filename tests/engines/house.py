"""before: the real gateway before real engines; and what an answer says, whoever gave it and when."""

import contextlib
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import orjson

from gateway.app import Gateway, running
from gateway.config import build
from policies.endpoint import Endpoint
from tests.engines.real import NAME, PATIENCE_S, RealEngine
from tests.until import until as soon
from tests.wire.client import Answer, call, events
from tests.wire.house import is_quiet, metric, no_faults, ready_endpoints, standing, who_calls

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
INTERVAL_S = 0.1  # of health checks and of reading figures: a second, scaled
BY_NATURE = {"id": "id", "created": "time", "created_at": "time", "completed_at": "time", "timings": "times"}
"""Members that are others with each answer, and what they are."""
WITH_USAGE = ("timings", "system_fingerprint")
"""What engines put on a stream's last chunk: on that with the usage, where one is asked for, else on the one before.
A client that did not ask loses them with the usage that the gateway asked for itself."""


until = partial(soon, within_s=PATIENCE_S)


@contextlib.asynccontextmanager
async def before(*engines: RealEngine, **sections: Any) -> AsyncIterator[Gateway]:
    """Run a gateway before engines that it is told nothing of but where they are; at the end nothing may be left.

    Args:
        engines: Which are named E0, E1 ...
        sections: More configuration, by section.
    """
    whole = {
        "listen": {"port": 0, "admin_port": 0},
        "pools": [{"endpoints": [{"name": f"E{at}", "url": engine.url} for at, engine in enumerate(engines)]}],
        **sections,
        "health": {"interval_s": INTERVAL_S, "state_interval_s": INTERVAL_S, **sections.get("health", {})},
    }
    with no_faults():
        async with running(build(who_calls(whole), "test", {})) as gateway:
            await until(lambda: len(ready_endpoints(gateway)) == len(engines), lambda: standing(gateway))
            await until(lambda: all(endpoint.report.running is not None for endpoint in endpoints(gateway)))
            yield gateway
            await until(lambda: is_quiet(gateway), lambda: standing(gateway), within_s=1)


def endpoints(gateway: Gateway) -> list[Endpoint]:
    """Give the present incarnation of each engine."""
    return [member.endpoint for member in gateway.fleet.members()]


def in_flight(gateway: Gateway) -> list[int]:
    """Give what the gateway's books say of each engine."""
    return [endpoint.outstanding.requests for endpoint in endpoints(gateway)]


def chat(text: str = "hello", /, **fields: object) -> dict[str, object]:
    """Make the body of a chat request that has the same answer every time."""
    return {"model": NAME, "messages": [{"role": "user", "content": text}], "temperature": 0, "seed": 7, **fields}


def completion(prompt: object = "hello", /, **fields: object) -> dict[str, object]:
    """Make the body of a completion request that has the same answer every time."""
    return {"model": NAME, "prompt": prompt, "temperature": 0, "seed": 7, **fields}


def endless(text: str = "hello", /, **fields: object) -> dict[str, object]:
    """Make the body of a chat request that is answered for as long as the context allows: seconds at least."""
    return chat(text, max_tokens=1900, ignore_eos=True, **fields)


async def ask(gateway: Gateway, path: str, body: object) -> Answer:
    """Send a request through the gateway."""
    return await call(gateway.url, path, body if isinstance(body, bytes) else orjson.dumps(body))


async def ask_both(gateway: Gateway, engine: RealEngine, path: str, body: object) -> tuple[Answer, Answer]:
    """Ask an engine without the gateway and through it, when its caches know the request already."""
    await engine.ask(path, body)
    return await engine.ask(path, body), await ask(gateway, path, body)


async def counted(gateway: Gateway, name: str, **labels: str) -> float:
    """Read one of the gateway's own metrics; what was never counted is 0."""
    return await metric(gateway, name, **labels) or 0.0


# What an answer says.


def faceless(value: Json, aside: Collection[str] = ()) -> Json:
    """Put away what differs by nature, and members named in `aside`."""
    if isinstance(value, dict):
        return {
            name: f"<{BY_NATURE[name]}>" if name in BY_NATURE else faceless(item, aside)
            for name, item in value.items()
            if name not in aside
        }
    return [faceless(item, aside) for item in value] if isinstance(value, list) else value


def chunks(body: bytes) -> list[Any]:
    """Read the events of a stream, but for its end and for the `null` that llama.cpp begins some with."""
    return [orjson.loads(data) for data in events(body) if data not in ("[DONE]", "null")]


def texts_of(body: bytes) -> dict[int, str]:
    """Join what a stream says, by choice."""
    said: dict[int, str] = {}
    for choice in _choices(chunks(body)):
        words = choice.get("text") or choice.get("delta", {}).get("content") or ""
        said[choice["index"]] = said.get(choice["index"], "") + words
    return said


def shapes(body: bytes, aside: Collection[str] = ()) -> list[Json]:
    """Give what a stream's events are beside their words, without repeats: engines in a hurry join tokens.

    They join the last ones with the end, too: an event that says words and ends a choice stands for words before it.
    """
    found: list[Json] = []
    for chunk in chunks(body):
        shape = faceless(chunk, aside)
        for choice in _choices([shape]):
            for words in (choice, choice.get("delta", {})):
                said = {name: words.get(name) for name in ("content", "text")}
                is_end = choice.get("finish_reason")
                words.update({name: "<words>" for name, word in said.items() if word or (is_end and word == "")})
        found += [each for each in (*_words_before(shape), shape) if each not in found]
    return found


def _words_before(shape: Any) -> Iterator[Json]:
    ending = [
        choice for choice in _choices([shape]) if "<words>" in (*choice.values(), *choice.get("delta", {}).values())
    ]
    if any(choice.get("finish_reason") for choice in ending):
        reasons = ("finish_reason", "stop_reason")
        open_yet: list[Json] = [
            {**choice, **{name: None for name in reasons if name in choice}} for choice in shape["choices"]
        ]
        yield {**shape, "choices": open_yet}


def is_whole(answer: Answer) -> bool:
    """Say whether a stream ended as a good one does: as its framing says, and by its own word."""
    return answer.is_whole and answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n")


def _choices(found: Sequence[Any]) -> list[Any]:
    return [choice for chunk in found for choice in chunk.get("choices", ())]
