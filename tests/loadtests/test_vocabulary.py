"""The simulated engine with a real tokenizer: its tokens are the tokenizer's, what it says is one of them a step."""

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests import chatml
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from loadtests.vocabulary import OWN, Vocabulary, small_tokenizer, vocabulary
from tests.loadtests.calls import chat, post

BPE = vocabulary(small_tokenizer())
with_tokenizer = pytest.mark.parametrize(
    "engine", [Settings(time_scale=0.0, tokenizer=small_tokenizer())], indirect=True, ids=["bpe"]
)
SYSTEM = {"role": "system", "content": "You are terse."}
USER = {"role": "user", "content": "Which way?"}


def test_engines_of_one_process_share_a_vocabulary_and_need_none() -> None:
    assert vocabulary(small_tokenizer()) is BPE
    assert vocabulary(None) is OWN


def test_what_is_no_tokenizer_is_named(tmp_path: object) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        vocabulary(f"{tmp_path}/tokenizer.json")


@given(st.text(alphabet=st.characters(codec="ascii")))
def test_tokens_of_ascii_give_the_text_and_their_ids_back(text: str) -> None:
    tokens = BPE.cut(text)
    assert BPE.text(tokens) == text
    assert BPE.from_ids(BPE.to_ids(tokens)) == tokens


@given(st.lists(st.integers(-(1 << 70), 1 << 70), unique=True))
def test_any_ids_are_tokens_and_different_ids_are_different(ids: list[int]) -> None:
    assert len(set(BPE.from_ids(ids))) == len(ids)


@given(st.integers(0, 1 << 60), st.integers(1, 60))
def test_what_is_said_is_cut_into_the_tokens_that_were_made(seed: int, count: int) -> None:
    language = BPE.language(seed, "words", None)
    assert BPE.cut(language.text(count)) == [language.token(at) for at in range(count)]


@given(st.text(min_size=1))
def test_a_given_answer_is_said_token_for_token(text: str) -> None:
    language = BPE.language(1, "words", text)
    count = len(BPE.cut(text))
    assert language.text(count) == text
    assert [language.token(at) for at in range(count)] == BPE.cut(text)


@pytest.mark.parametrize("chosen", [OWN, BPE], ids=["own", "bpe"])
def test_next_turn_begins_with_the_tokens_of_the_last_and_its_answer(chosen: Vocabulary) -> None:
    before = chosen.talk([SYSTEM, USER], None, {})
    language = chosen.language(7, "words", None)
    made = [language.token(at) for at in range(30)]
    after = chosen.talk([SYSTEM, USER, {"role": "assistant", "content": language.text(30)}, USER], None, {})
    assert after[: len(before) + 29] == before + made[:-1]


def test_a_conversation_is_written_as_chatml() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at":"é"}'}}
    tools = [{"type": "function", "function": {"parameters": {}, "name": "look"}}]
    messages = [SYSTEM, USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "left"}, USER]
    text = "".join(chatml.render(messages, tools))
    assert text == (
        "<|im_start|>system\nYou are terse.\n\n# Tools\n\nYou may call functions. They are, one a line:\n<tools>\n"
        '{"type": "function", "function": {"name": "look", "description": null, "parameters": {}}}\n</tools>\n\n'
        "A call is a JSON object with a name and arguments:\n<tool_call>\n"
        '{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWhich way?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nleft\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nWhich way?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_final_message_can_be_left_open() -> None:
    options = {"continue_final_message": True, "add_generation_prompt": False}
    text = "".join(chatml.render([USER, {"role": "assistant", "content": "To the"}], None, options))
    assert text.endswith("<|im_start|>assistant\nTo the")


@pytest.mark.parametrize("messages", [[], ["hi"], [{"content": "hi"}], [{"role": "oracle", "content": "hi"}]])
def test_what_is_no_conversation_is_refused(messages: list[object]) -> None:
    with pytest.raises(ValueError, match="messages"):
        chatml.render(messages)


@with_tokenizer
async def test_an_engine_counts_caches_and_echoes_by_its_tokenizer(
    engine: SimulatedEngine, http: aiohttp.ClientSession
) -> None:
    body = chat("数を数えて " * 40)
    prompt = len(BPE.talk(body["messages"], None, {}))
    _, first = await post(http, engine, "/v1/chat/completions", body)
    _, again = await post(http, engine, "/v1/chat/completions", body)
    assert first["usage"]["prompt_tokens"] == prompt
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    echoed = {"model": "sim", "prompt": "left, or right?", "echo": True, "max_tokens": 1}
    _, answer = await post(http, engine, "/v1/completions", echoed)
    assert answer["choices"][0]["text"].startswith("left, or right?")
