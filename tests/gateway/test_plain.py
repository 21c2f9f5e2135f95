"""PlainReader: what a body that is no stream says, and how much that is."""

from typing import Any

import orjson
import pytest

from gateway.plain import TAIL_BYTES, PlainReader
from gateway.routes import Shape
from gateway.usage import Usage

CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"a":1}'}}


def reader(body: bytes, shape: Shape = Shape.CHAT, *, is_json: bool = True, piece: int = 1 << 20) -> PlainReader:
    found = PlainReader(shape, is_json=is_json)
    for at in range(0, len(body), piece):
        found.note(body[at : at + piece])
    return found


@pytest.mark.parametrize(
    ("shape", "body", "texts"),
    [
        (
            Shape.CHAT,
            {"choices": [{"message": {"content": "a", "reasoning": "hm", "reasoning_content": "hm"}}]},
            ["a", "hm"],
        ),
        (Shape.CHAT, {"choices": [{"message": {"content": "a"}}, {"message": {"content": "a"}}]}, ["a", "a"]),
        (Shape.CHAT, {"choices": [{"message": {"content": None, "tool_calls": [CALL]}}]}, ["look_up", '{"a":1}']),
        (Shape.COMPLETION, {"choices": [{"text": "a"}, {"text": ""}, {"text": "b"}]}, ["a", "b"]),
        (
            Shape.RESPONSES,
            {
                "output": [
                    {"type": "reasoning", "summary": [{"text": "hm"}]},
                    {"type": "message", "content": [{"type": "output_text", "text": "a"}]},
                    {"type": "function_call", "name": "look_up", "arguments": "{}"},
                ]
            },
            ["look_up", "{}", "hm", "a"],
        ),
        (
            Shape.MESSAGES,
            {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "name": "f", "input": {"a": 1}}]},
            ["hm", "f", '{"a":1}'],
        ),
        (Shape.OTHER, {"data": [{"embedding": [1, 2]}]}, []),
        (Shape.CHAT, {"choices": 7}, []),
        (Shape.CHAT, {"choices": [7, {"message": 7}, {"message": {"content": [1], "tool_calls": [{}]}}]}, []),
        (Shape.CHAT, [], []),
    ],
)
def test_every_shape_gives_the_texts_that_were_generated(shape: Shape, body: Any, texts: list[str]) -> None:
    found = reader(orjson.dumps(body), shape)
    assert found.texts == texts
    assert found.tokens == -(-sum(map(len, texts)) // 4)


def test_what_is_no_json_has_no_texts() -> None:
    assert reader(b'{"choices":').texts == []
    assert (reader(b"RIFF....", is_json=False).texts, reader(b"RIFF....", is_json=False).tokens) == ([], 0)


def test_of_a_long_body_only_the_end_is_kept_and_all_of_it_is_the_estimate() -> None:
    body = orjson.dumps({"choices": [{"message": {"content": "x" * 400_000}}]})
    found = reader(body, piece=5000)
    assert found.texts is None
    assert found.tokens == -(-len(body) // 4)
    said = body[:-1] + b',"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    assert reader(said, piece=TAIL_BYTES).usage == Usage(1, 2, None)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("usage", [None, Usage(7, 3, None)])
def test_usage_of_a_long_response_is_what_stands_in_its_own_place(usage: Usage | None, is_first: bool) -> None:
    """Its client's tools stand beside it, as JSON, and are not usage whatever they say."""
    said = None if usage is None else {"input_tokens": 7, "output_tokens": 3}
    forged = [{"parameters": {"usage": {"input_tokens": 0, "output_tokens": 0}}}] * 3
    padded = {"id": "resp_1", "instructions": "x" * 100_000}
    body = {**padded, "usage": said, "tools": forged} if is_first else {**padded, "tools": forged, "usage": said}
    assert reader(orjson.dumps({**body, "user": None}), Shape.RESPONSES, piece=5000).usage == usage
