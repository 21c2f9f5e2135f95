"""Shapes say what prompts have in common and what not, within bounds, and no text."""

import copy
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routes import ENGINE_ROUTES
from gateway.shapes import (
    LAST_LINES,
    MAX_BODY_BYTES,
    MAX_EXAMPLES,
    MAX_KNOWN,
    MAX_LINES,
    ShapeMaker,
    lines_of,
    pieces_of,
)
from policies.shape import MAX_CHARS, Segment, shape_of

CHAT = ENGINE_ROUTES["/v1/chat/completions"]
SECRET = b"a secret of the tests"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"a": 1, "b": 2}}} for name in ("one", "two")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def maker(**options: Any) -> ShapeMaker:
    return ShapeMaker(SECRET, 20, Clock(), **options)


def segments(document: dict[str, Any], by: ShapeMaker | None = None) -> tuple[Segment, ...]:
    made = (by or maker()).made(document)
    assert made is not None
    assert len(made) <= MAX_CHARS
    shape = shape_of(made)
    assert shape is not None
    return shape.segments


def system(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": text}]}


def test_the_same_prompt_has_the_same_shape_wherever_it_is_made() -> None:
    assert segments(system("a\nb 1")) == segments(system("a\nb 1"))
    assert maker().made(system("a")) != ShapeMaker(b"another", 20, Clock()).made(system("a"))


def test_what_varies_changes_the_text_and_not_the_frame() -> None:
    (a,), (b,) = segments(system("It is 7:30 now")), segments(system("It is 8:45 now"))
    assert a.exact != b.exact
    assert a.frame == b.frame
    assert [(mark.kind, mark.offset, mark.length) for mark in a.marks] == [("t", 6, 4)]
    assert a.marks != b.marks


@pytest.mark.parametrize("other", ["one\ntwo ", "one\r\ntwo", " one\n\n\ntwo\n", "\none\n\ttwo"])
def test_white_space_changes_the_text_and_not_the_frame(other: str) -> None:
    plain, odd = segments(system("one\ntwo")), segments(system(other))
    assert [each.frame for each in plain] == [each.frame for each in odd]
    assert [each.exact for each in plain] != [each.exact for each in odd]


def test_tools_in_another_order_or_with_other_keys_have_one_frame() -> None:
    plain, turned = segments({"tools": TOOLS, "prompt": "x"})[0], segments({"tools": TOOLS[::-1], "prompt": "x"})[0]
    keys = copy.deepcopy(TOOLS)
    keys[0]["function"] = dict(reversed(keys[0]["function"].items()))  # type: ignore[attr-defined]
    renamed = segments({"tools": keys, "prompt": "x"})[0]
    assert plain.frame == turned.frame == renamed.frame
    assert {a.kind for a, b in zip(plain.marks, turned.marks, strict=True) if a != b} == {"o"}
    assert {a.kind for a, b in zip(plain.marks, renamed.marks, strict=True) if a != b} == {"k"}
    assert segments({"tools": TOOLS[:1], "prompt": "x"})[0].frame != plain.frame


def test_sizes_add_up_to_the_text_in_bytes() -> None:
    text = "\n".join(f"Zeile {n} mit Ümlaut" + "\n" * (n % 3) for n in range(30))
    assert sum(each.size for each in segments(system(text))) == len(text.encode())


def test_a_long_part_is_told_by_its_first_and_last_lines() -> None:
    text = "".join(f"line {n} x\n" for n in range(500))
    assert len(segments(system(text))) == MAX_LINES["s"] + 1 + LAST_LINES
    assert sum(each.size for each in segments(system(text))) == len(text)
    assert segments(system("new\n" + text))[-LAST_LINES:] != ()
    ends = [[each.exact for each in segments(system(head + text))[-LAST_LINES:]] for head in ("", "more\nlines\n")]
    assert ends[0] == ends[1]


def test_lines_have_the_blank_lines_behind_them() -> None:
    assert lines_of("\n\na\n\n  b\n c", 9) == (["\n\na\n\n", "  b\n", " c"], 11)
    assert lines_of("a\nb\nc", 2) == (["a\n", "b\n"], 4)
    assert lines_of("", 9) == ([], 0)
    assert lines_of(" \n ", 9) == ([" \n "], 3)
    assert pieces_of("a\nb", 9) == (["a\n", "b"], "", [])
    assert pieces_of("x" * 40_000, 9) == (["x" * 32_768], "x" * 3136, ["x" * 4096])


@pytest.mark.parametrize(
    ("document", "places"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "u"),
        ({"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}], "tools": TOOLS}, "stu"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]}]}, "u"),
        ({"system": [{"type": "text", "text": "be"}], "messages": [{"role": "user", "content": "hi"}]}, "su"),
        ({"instructions": "be", "input": "hi"}, "su"),
        ({"instructions": "be", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}, "su"),
        ({"prompt": "hi"}, "u"),
        ({"prompt": ["hi", "there"]}, "u"),
        ({"messages": ["odd", {"role": "developer", "content": "be"}]}, "s"),
    ],
)
def test_the_beginning_is_found_in_every_shape_of_body(document: dict[str, Any], places: str) -> None:
    assert "".join(each.place for each in segments(document)) == places


@pytest.mark.parametrize("document", [{}, {"prompt": [1, 2]}, {"messages": 7}, {"messages": []}, {"tools": []}])
def test_what_has_no_text_has_no_shape(document: dict[str, Any]) -> None:
    assert maker().made(document) is None


def test_so_many_a_second_are_looked_at() -> None:
    clock = Clock()
    shapes = ShapeMaker(SECRET, 16, clock)
    assert sum(shapes.of(CHAT, {"prompt": "x"}, 9) is not None for _ in range(100)) == 17
    clock.now = 0.5
    assert sum(shapes.of(CHAT, {"prompt": "x"}, 9) is not None for _ in range(100)) == 8


def test_what_costs_more_is_made_more_rarely() -> None:
    ticks = iter((1.0, 1.1, 1.2, 9.9, 10.1, 10.1))
    shapes = ShapeMaker(SECRET, 20, lambda: next(ticks))
    assert [shapes.of(CHAT, {"prompt": "x"}, 9) is None for _ in range(3)] == [False, True, True]
    assert shapes.of(CHAT, {"prompt": "x"}, 9) is not None


def test_what_generates_nothing_or_is_huge_is_not_looked_at() -> None:
    shapes = maker()
    assert shapes.of(ENGINE_ROUTES["/v1/embeddings"], {"input": "x"}, 9) is None
    assert shapes.of(CHAT, {"prompt": "x", "tools": TOOLS}, MAX_BODY_BYTES + 1) is None
    assert shapes.of(CHAT, {"prompt": "x"}, MAX_BODY_BYTES + 1) is not None


def test_memory_is_bounded_and_forgetting_changes_nothing() -> None:
    shapes = maker(keeps_examples=True)
    first = segments(system("It is 7:30"), shapes)
    for at in range(MAX_KNOWN):
        shapes.made(system(f"{'abcdefghij'[at % 10] * (at // 10 + 1)} {at}"))
    assert len(shapes._known) <= MAX_KNOWN
    assert len(shapes.examples) == MAX_EXAMPLES
    assert segments(system("It is 7:30"), shapes) == first


def test_text_is_kept_only_where_it_is_asked_for_and_masked() -> None:
    shapes, discreet = maker(keeps_examples=True), maker()
    for each in (shapes, discreet):
        each.made(system("User: Maria Gonzalez\nA secret line\nIt is 7:30"))
    assert set(shapes.examples.values()) == {"User: <p>", "It is <t>"}
    assert discreet.examples == {}


def test_tools_that_cannot_be_written_out_are_left_alone() -> None:
    deep: Any = 1
    for _ in range(600):
        deep = [deep]
    assert [each.place for each in segments({"prompt": "x", "tools": [deep]})] == ["t", "u"]
    many = [{"n": at} for at in range(300)]
    (tools, _) = segments({"prompt": "x", "tools": many})
    assert tools.marks == ()


LEAF = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text()
NAMES = st.sampled_from(["messages", "role", "content", "text", "system", "user", "tools", "input", "prompt", "type"])
ANY = st.recursive(LEAF, lambda inner: st.lists(inner) | st.dictionaries(NAMES | st.text(), inner), max_leaves=40)


@given(document=st.dictionaries(NAMES, ANY))
@settings(max_examples=100, deadline=None)
def test_whatever_a_client_sends_it_has_a_shape_that_can_be_read_or_none(document: dict[str, Any]) -> None:
    try:
        sent = orjson.loads(orjson.dumps(document))
    except (orjson.JSONEncodeError, orjson.JSONDecodeError):
        return
    made = maker().made(sent)
    assert made is None or shape_of(made) is not None


@given(text=st.text(alphabet=st.sampled_from('ab 1:."{},\n\r\té@-'), max_size=3000), seed=st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_cut_texts_are_whole(text: str, seed: int) -> None:
    first, middle, last = pieces_of(text, Random(seed).randrange(1, 9))
    assert "".join(first) + middle + "".join(last) == text
