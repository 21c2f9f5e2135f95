"""Intake: what routing gets to know of a request."""

import asyncio
from random import Random
from typing import Any

import orjson
import pytest

from gateway import openai
from gateway.classes import Classes
from gateway.config import EndpointConfig
from gateway.errors import ContextLengthExceeded
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.intake import Intake
from gateway.routes import ENGINE_ROUTES
from gateway.sections import Admission
from gateway.tenants import ANONYMOUS
from gateway.tokens.plain import TextReader
from gateway.trace import Trace
from gateway.usage import Usage
from policies.learned import OutputHabits
from policies.request import InferenceRequest
from policies.spread import LeastRequests

CHAT = "/v1/chat/completions"


def fleet() -> Fleet:
    """One engine that takes 8,192 tokens of model m."""
    found = Fleet(lambda: 0.0)
    pool = found.add_pool("p", LeastRequests(Random(1)))
    found.add(pool, EndpointConfig(name="e", url="http://e", models=("m",), max_context_tokens=8192))
    return found


class Desk:
    """An intake and what it is asked."""

    def __init__(self, session_header: str | None = None) -> None:
        self.fleet = fleet()
        self.intake = Intake(
            self.fleet,
            lambda model: TextReader(),
            Classes(Admission()),
            session_header,
            OutputHabits(),
            lambda tenant: None,
        )

    def exchange(self, body: dict[str, Any], path: str = CHAT) -> Exchange:
        route = ENGINE_ROUTES[path]
        data = orjson.dumps({"model": "m", **body})
        call = openai.parse(route, "application/json", data)
        return Exchange(route, "POST", path, b"", data, call, ANONYMOUS, InferenceRequest("r", "m"))

    def read(self, body: dict[str, Any], path: str = CHAT, headers: dict[str, str] | None = None) -> InferenceRequest:
        exchange = self.exchange(body, path)
        trace = Trace("r", path, 0.0)
        asyncio.run(self.intake.read(exchange, self.fleet.facts("m"), headers or {}, trace))
        assert exchange.call.document is None
        assert trace.pool == "p"
        assert trace.prompt_tokens == exchange.inference.prompt_tokens
        return exchange.inference


@pytest.fixture
def desk() -> Desk:
    return Desk()


def saying(*texts: str, **fields: Any) -> dict[str, Any]:
    system, *others = texts
    users = [{"role": "user", "content": other} for other in others]
    return {"messages": [{"role": "system", "content": system}, *users], **fields}


SYSTEM = "You answer briefly. " * 40


def test_a_prompt_becomes_tokens_and_a_chain(desk: Desk) -> None:
    one, other = desk.read(saying(SYSTEM, "one")), desk.read(saying(SYSTEM, "other"))
    assert one.prompt_tokens == pytest.approx(len(SYSTEM) / 4, rel=0.05)
    assert len(one.prefix) == one.prompt_tokens // 64
    assert one.prefix == other.prefix
    assert one.unit_tokens == 64


def test_output_is_what_the_client_allows_and_its_like_make(desk: Desk) -> None:
    """Without max_tokens 512 may come at first, then what nine in ten stay below; 256 are expected at first."""
    assert (desk.read(saying(SYSTEM, "a")).allowed_tokens, desk.read(saying(SYSTEM, "a")).output_tokens) == (512, 256)
    limited = desk.read(saying(SYSTEM, "a", max_tokens=100, n=3))
    assert (limited.allowed_tokens, limited.output_tokens) == (100, 300)
    for _ in range(60):
        desk.intake.learn(desk.exchange(saying(SYSTEM, "a", n=2)), Usage(10, 80, 0))
    learned = desk.read(saying(SYSTEM, "a"))
    assert learned.output_tokens == 40
    assert learned.allowed_tokens < 512
    desk.intake.learn(desk.exchange(saying(SYSTEM, "a")), Usage(10, None, 0))
    assert desk.read(saying(SYSTEM, "a")).output_tokens == 40


def test_what_makes_no_tokens_expects_none(desk: Desk) -> None:
    embedding = desk.read({"input": "text " * 100}, "/v1/embeddings")
    assert (embedding.allowed_tokens, embedding.output_tokens, embedding.prompt_tokens) == (0, 0, 126)


def test_without_max_tokens_what_is_left_of_the_context_bounds_the_output(desk: Desk) -> None:
    assert desk.read({"prompt": list(range(8000))}, "/v1/completions").allowed_tokens == 192
    with pytest.raises(ContextLengthExceeded, match="needs 8193: 8192 of prompt and 1 of output"):
        desk.read({"prompt": list(range(8192))}, "/v1/completions")


def test_an_estimate_is_no_reason_to_refuse(desk: Desk) -> None:
    """Ten thousand tokens by their bytes may be seven thousand to the engine, but not half a million."""
    assert desk.read(saying("x" * 40_000, "a")).prompt_tokens > 8192
    with pytest.raises(ContextLengthExceeded, match="at least"):
        desk.read(saying("x" * 2_000_000, "a"))


def test_requests_go_by_their_system_prompt_and_conversations_by_their_opening(desk: Desk) -> None:
    first, other = desk.read(saying(SYSTEM, "first")), desk.read(saying(SYSTEM, "other"))
    assert first.ring_key == other.ring_key is not None
    answered = saying(SYSTEM, "first")
    answered["messages"] += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}]
    second = desk.read(answered)
    answered["messages"] += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}]
    assert second.ring_key == desk.read(answered).ring_key not in (None, first.ring_key)


def test_a_session_takes_the_place_of_what_prompts_share() -> None:
    desk = Desk("x-conversation")
    by_prompt = desk.read(saying(SYSTEM, "a")).ring_key
    by_key = desk.read(saying(SYSTEM, "a", prompt_cache_key="mine")).ring_key
    by_header = desk.read(saying(SYSTEM, "a"), headers={"x-conversation": "mine"}).ring_key
    assert by_key == by_header
    assert by_key not in (None, by_prompt)
    odd = desk.read(saying("Another system prompt", "a", prompt_cache_key=["no", "text"])).ring_key
    assert odd not in (None, by_key)


def test_caches_are_apart_by_salt_and_nothing_else_is(desk: Desk) -> None:
    plain = desk.read(saying(SYSTEM, "a")).prefix
    assert desk.read(saying(SYSTEM, "a", prompt_cache_key="mine", user="u", temperature=0)).prefix == plain
    salted = desk.read(saying(SYSTEM, "a", cache_salt="s")).prefix
    assert not set(salted) & set(plain)
    assert desk.read(saying(SYSTEM, "a", cache_salt=7)).prefix == plain
