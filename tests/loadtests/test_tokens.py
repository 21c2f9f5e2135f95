"""The simulated engine's tokens: what shares a prefix, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.kvcache import BLOCK_TOKENS
from loadtests.tokens import ALPHABETS, Json, Language, chain, content_text, cut, from_ids, root, talk, to_ids

SYSTEM = {"role": "system", "content": "You are terse. " * 20}
USER = {"role": "user", "content": "Which way?"}
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def shared(one: list[bytes], other: list[bytes]) -> int:
    """Count the tokens that both begin with."""
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


@given(st.binary())
def test_tokens_joined_are_the_text(text: bytes) -> None:
    assert b"".join(cut(text)) == text


@given(st.text())
def test_ids_give_the_tokens_back(text: str) -> None:
    tokens = cut(text.encode("utf-8", "surrogatepass"))
    assert from_ids(to_ids(tokens)) == tokens


@given(st.lists(st.integers(-(1 << 70), 1 << 70)))
def test_any_ids_are_tokens_and_different_ids_are_different(ids: list[int]) -> None:
    tokens = from_ids(ids)
    assert len(tokens) == len(ids)
    assert all(tokens)


@given(st.text(max_size=50), st.text(max_size=50))
def test_what_follows_a_newline_does_not_change_what_is_before(head: str, tail: str) -> None:
    line = f"{head}\n".encode("utf-8", "replace")
    assert cut(line + tail.encode("utf-8", "replace"))[: len(cut(line))] == cut(line)


def test_english_is_about_three_and_a_half_bytes_a_token() -> None:
    text = b"The quick brown fox jumps over the lazy dog while nobody is watching from the window " * 10
    assert 3.0 < len(text) / len(cut(text)) < 4.2


def test_next_turn_begins_with_the_tokens_of_the_last_and_its_answer() -> None:
    before = talk([SYSTEM, USER])
    answer = Language(7).text(30)
    after = talk([SYSTEM, USER, {"role": "assistant", "content": answer}, USER])
    said = cut(answer.encode())
    assert len(said) == 30
    assert after[: len(before) + 29] == (before + said)[:-1]


def test_tools_come_after_the_system_text() -> None:
    with_tools, without = talk([SYSTEM, USER], TOOLS), talk([SYSTEM, USER])
    assert 70 < shared(with_tools, without) < len(without) - 10
    assert shared(talk([USER], TOOLS), talk([USER])) < 5
    assert shared(talk([SYSTEM, USER], TOOLS), talk([SYSTEM, {**USER, "content": "x"}], TOOLS)) > 80


def test_content_as_text_or_as_parts_is_the_same() -> None:
    parts: list[Json] = [{"type": "text", "text": USER["content"]}]
    assert talk([{**USER, "content": parts}]) == talk([USER])


def test_images_differ_by_their_content() -> None:
    one, other = (content_text([{"type": "image_url", "image_url": {"url": url}}]) for url in ("a", "b"))
    assert one != other
    assert content_text(None) == ""


def test_tool_calls_are_part_of_the_conversation() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    assert talk([USER, call]) != talk([USER, {**call, "tool_calls": []}])


@pytest.mark.parametrize("messages", [["hi"], [{"content": "hi"}], [{"role": "user", "content": 5}]])
def test_what_is_no_message_is_refused(messages: list[Json]) -> None:
    with pytest.raises(ValueError, match=r"content|messages\.0"):
        talk(messages)


def test_blocks_are_chained_and_full_ones_only() -> None:
    tokens = [b"%d" % at for at in range(3 * BLOCK_TOKENS + 5)]
    start = root("sim", "")
    ids = chain(tokens, start)
    assert len(ids) == 3
    changed = chain([b"x", *tokens[1:]], start)
    assert not set(ids) & set(changed)
    assert chain(tokens[: 2 * BLOCK_TOKENS], start) == ids[:2]
    assert chain(tokens[BLOCK_TOKENS:], ids[0]) == ids[1:]


def test_models_and_salts_never_match() -> None:
    assert len({root("sim", ""), root("sim", "a"), root("sim", "b"), root("other", "a"), root("sima", "")}) == 5


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_every_word_is_one_token(alphabet: str) -> None:
    language = Language(3, alphabet)
    for at in range(500):
        assert len(cut(language.word(at).encode())) == 1
