"""Engines asked for ids."""

from array import array
from typing import Any

import pytest

from gateway.tokens.asked import Dialect, EngineReader
from gateway.tokens.plain import TextReader
from policies.prefix import block_hashes
from tests.gateway.tokens.bodies import CHATS, HELLO, SYSTEM, TOOL, text, user
from tests.gateway.tokens.conftest import CHAT, COMPLETION, ROOT

IDS = list(range(50))


class Engine:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append((path, body))
        answer: dict[str, Any] | None = self.answers.get(path.strip("/").replace("-", "_"))
        return answer


def reader_of(engine: Engine, dialect: Dialect = Dialect.VLLM) -> EngineReader:
    return EngineReader("m", engine.ask, dialect, TextReader())


async def test_ids_are_what_the_engine_says_and_are_asked_once() -> None:
    engine = Engine(tokenize={"tokens": IDS, "count": 50})
    reader = reader_of(engine)
    body = {"messages": [SYSTEM, HELLO], "tools": [TOOL], "reasoning_effort": "low"}
    one, other = [await reader.read(CHAT, body, ROOT, 16) for _ in range(2)]
    assert one == other
    assert (one.prompt_tokens, one.prefix, one.is_exact) == (50, block_hashes(ROOT, array("I", IDS), 16), True)
    assert engine.asked == [
        (
            "/tokenize",
            {
                "messages": [SYSTEM, HELLO],
                "tools": [TOOL],
                "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": True},
                "add_generation_prompt": True,
                "model": "m",
                "continue_final_message": False,
                "add_special_tokens": False,
            },
        )
    ]


async def test_llamacpp_renders_first() -> None:
    engine = Engine(tokenize={"tokens": IDS}, apply_template={"prompt": "<user>hi"})
    reading = await reader_of(engine, Dialect.LLAMACPP).read(CHAT, {"messages": [HELLO]}, ROOT, 16)
    assert reading.prompt_tokens == 50
    assert engine.asked[1] == ("/tokenize", {"content": "<user>hi", "add_special": True})


async def test_prompts_are_asked_one_by_one() -> None:
    engine = Engine(tokenize={"tokens": IDS})
    reading = await reader_of(engine).read(COMPLETION, {"prompt": ["a", "b"]}, ROOT, 16)
    assert (reading.prompt_tokens, len(engine.asked)) == (100, 2)
    ids = await reader_of(engine).read(COMPLETION, {"prompt": IDS}, ROOT, 16)
    assert ids.is_exact
    assert len(engine.asked) == 2


@pytest.mark.parametrize(
    "answer", [None, {}, {"tokens": None}, {"tokens": "abc"}, {"tokens": ["a"]}, {"tokens": [-1]}, {"tokens": {"a": 1}}]
)
@pytest.mark.parametrize("dialect", Dialect)
async def test_what_is_no_answer_is_an_estimate(answer: Any, dialect: Dialect) -> None:
    engine = Engine(tokenize=answer, apply_template={"prompt": "x"})
    for route, body in ((CHAT, CHATS["tools"]), (COMPLETION, {"prompt": "abc"})):
        reading = await reader_of(engine, dialect).read(route, body, ROOT, 16)
        assert reading == await TextReader().read(route, body, ROOT, 16)


async def test_pictures_and_long_prompts_are_not_sent() -> None:
    engine = Engine(tokenize={"tokens": IDS})
    picture = {"type": "image_url", "image_url": {"url": "data:,x"}}
    bodies: list[dict[str, Any]] = [
        {"messages": [user([text("hi"), picture])]},
        {"messages": [user("x" * (1 << 21))]},
        {"messages": "hello"},
        {"messages": [1]},
    ]
    for body in bodies:
        assert not (await reader_of(engine).read(CHAT, body, ROOT, 16)).is_exact
    assert engine.asked == []
