"""Deltas: how many tokens a stream has brought, told from its bytes."""

from random import Random

import orjson
import pytest

from gateway.deltas import MERGED_BYTES, Deltas
from gateway.routes import Shape

VLLM = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1795966431,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}\n\n'
    b'data: {"id":"c","object":"chat.completion.chunk","created":1795966431,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"content":" {}\\n"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
    b'data: {"id":"c","object":"chat.completion.chunk","created":1795966431,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"content":" {}\\n"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
    b'data: {"id":"c","object":"chat.completion.chunk","created":1795966431,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"content":" {}\\n"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],'
    b'"system_fingerprint":"vllm-0.32.0-80b5a5d2"}\n\n'
    b"data: [DONE]\n\n"
)
"""As vLLM 0.32 sent it: max_tokens 3, and no usage asked for."""
LLAMA = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"id":"c"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" {}\\n"}}],"id":"c","model":"tiny"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" {}\\n"}}],"id":"c","model":"tiny"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" {}\\n"}}],"id":"c","model":"tiny"}\n\n'
    b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"id":"c","timings":{"predicted_n":3}}\n\n'
    b"data: [DONE]\n\n"
)
"""As llama.cpp b11434 sent it, for the same."""


def event(**payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def delta(index: int = 0, **fields: object) -> bytes:
    return event(id="c", choices=[{"index": index, "delta": fields, "finish_reason": None}])


def counted(stream: bytes, shape: Shape = Shape.CHAT) -> int:
    deltas = Deltas(shape)
    deltas.note(stream)
    return deltas.tokens


@pytest.mark.parametrize("stream", [VLLM, LLAMA], ids=["vllm", "llama.cpp"])
def test_a_delta_is_a_token_in_what_engines_really_send(stream: bytes) -> None:
    assert counted(stream) == 3


def test_what_came_so_far_is_known_at_any_moment() -> None:
    deltas = Deltas(Shape.CHAT)
    for at in range(1, 11):
        deltas.note(delta(content=f" w{at}"))
        assert deltas.tokens == at


def test_choices_count_together_whichever_way_they_are_read() -> None:
    stream = [delta(at % 3, content="x") for at in range(30)]
    assert counted(b"".join(stream)) == 30
    deltas = Deltas(Shape.CHAT)
    for each in stream:
        deltas.note(each)
    assert deltas.tokens == 30


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"role": "assistant", "content": ""}, 0),
        ({"role": "assistant", "content": None}, 0),
        ({}, 0),
        ({"content": "a"}, 1),
        ({"content": '"'}, 1),
        ({"content": "\\"}, 1),
        ({"content": '\\"'}, 1),
        ({"content": '\\\\"\\'}, 1),
        ({"reasoning_content": "hm"}, 1),
        ({"reasoning": "hm"}, 1),
        ({"content": None, "reasoning": "hm", "reasoning_content": "hm"}, 1),
        ({"refusal": "no"}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]}, 1),
        ({"tool_calls": [{"index": 0, "id": "1", "function": {"name": "look_up", "arguments": ""}}]}, 1),
        ({"tool_calls": [{"index": 0, "id": "1", "function": {"name": "look_up", "arguments": "{"}}]}, 1),
    ],
)
def test_a_chat_delta_counts_once_if_there_is_text_in_it(fields: dict[str, object], tokens: int) -> None:
    assert counted(event(choices=[{"index": 0, "delta": fields}])) == tokens


@pytest.mark.parametrize(
    ("shape", "stream", "tokens"),
    [
        (Shape.COMPLETION, event(choices=[{"index": 0, "text": "a"}]) + event(choices=[{"index": 1, "text": ""}]), 1),
        (
            Shape.RESPONSES,
            event(type="response.output_item.added", item={"content": []})
            + event(type="response.output_text.delta", delta="a")
            + event(type="response.function_call_arguments.delta", delta="{")
            + event(type="response.output_text.done", text="a"),
            2,
        ),
        (
            Shape.MESSAGES,
            event(type="content_block_start", content_block={"type": "text", "text": ""})
            + event(type="content_block_delta", delta={"type": "thinking_delta", "thinking": "hm"})
            + event(type="content_block_delta", delta={"type": "text_delta", "text": "a"})
            + event(type="content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"})
            + event(type="message_delta", delta={"stop_reason": "end_turn"}),
            3,
        ),
        (Shape.OTHER, event(choices=[{"delta": {"content": "a"}}]), 0),
        (Shape.OTHER, b'data: {"object": "transcription.chunk", "choices": [{"delta": {"content": "a"}}]}\n\n', 0),
    ],
)
def test_every_shape_is_counted_by_its_own_deltas(shape: Shape, stream: bytes, tokens: int) -> None:
    assert counted(stream, shape) == tokens


def test_reasoning_of_one_choice_counts_beside_the_text_of_another() -> None:
    assert counted(delta(0, content="a") + delta(1, reasoning_content="hm")) == 2


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_spaces_behind_colons_and_crlf_change_nothing(newline: bytes) -> None:
    deltas = Deltas(Shape.CHAT)
    deltas.note(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}' + newline * 2)
    for _ in range(5):
        deltas.note(b'data: {"choices": [{"delta": {"content": "a"}}]}' + newline * 2)
    assert deltas.tokens == 5


def test_generated_text_cannot_look_like_a_delta() -> None:
    deltas = Deltas(Shape.CHAT)
    deltas.note(delta(content='data: data: "content":"x","content": "y","arguments":"z"'))
    assert deltas.count == 1


@pytest.mark.parametrize("interval", [3, 8, 40])
def test_several_tokens_a_delta_are_told_by_their_text(interval: int) -> None:
    """N = 2,000 tokens of 1 to 8 bytes, seed 5; within a quarter: text has 4.1 to 4.7 bytes a token, here it is 4.5."""
    chance = Random(5)
    tokens = ["x" * chance.randint(1, 8) for _ in range(2000)]
    stream = b"".join(delta(content="".join(tokens[at : at + interval])) for at in range(0, 2000, interval))
    assert counted(stream) == pytest.approx(2000, rel=0.25)


def test_one_token_a_delta_is_exact_in_languages_of_many_bytes_a_token() -> None:
    stream = b"".join(delta(content=text) for text in ["\u043f\u0440\u0438\u0432", "\u0928\u092e\u0938", " the"] * 50)
    assert counted(stream) == 150
    assert MERGED_BYTES > 10


def test_a_piece_of_an_event_too_long_to_wait_for_counts_nothing_and_hangs_nothing() -> None:
    assert counted(b'data: {"choices":[{"delta":{"content":"' + b"x" * 1000) == 0
    assert counted(b'data: {"choices":[{"delta":{"content":"' + b"\\") == 0
    assert counted(b'data: {"choices":[{"delta":{"content":"') == 0
