"""Edits leave every other byte alone."""

import json
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.splice import append, edit, members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(["model", "a", "priority", "stream", 'q"{', "é"]), VALUES, min_size=1)
LAYOUTS = st.sampled_from([(None, (",", ":")), (2, (",", ": ")), (None, (" , ", " : "))])


def dump(value: object, layout: Any) -> bytes:
    indent, separators = layout
    return json.dumps(value, indent=indent, separators=separators).encode()


@given(OBJECTS, LAYOUTS)
def test_members_are_those_that_a_parser_finds(value: dict[str, Any], layout: Any) -> None:
    body = dump(value, layout)
    found = {m.key: orjson.loads(body[m.value_start : m.end]) for m in members(body)}
    assert found == orjson.loads(body)


@given(OBJECTS, LAYOUTS)
def test_a_replaced_value_is_all_that_differs(value: dict[str, Any], layout: Any) -> None:
    body = dump(value, layout)
    edited = orjson.loads(b"".join(edit(body, {"model": "other"})))
    assert edited == {**orjson.loads(body), **({"model": "other"} if "model" in value else {})}


@given(OBJECTS, LAYOUTS)
def test_dropped_members_leave_valid_json_behind(value: dict[str, Any], layout: Any) -> None:
    body = dump(value, layout)
    edited = orjson.loads(b"".join(edit(body, {}, drop=("priority", "a"))))
    assert edited == {k: v for k, v in orjson.loads(body).items() if k not in ("priority", "a")}


@given(OBJECTS, LAYOUTS)
def test_an_appended_member_is_found_by_every_parser(value: dict[str, Any], layout: Any) -> None:
    body = dump(value, layout) + b" \n"
    assert json.loads(b"".join(append(body, {"stream_options": {"include_usage": True}}))) == {
        **json.loads(body),
        "stream_options": {"include_usage": True},
    }


def test_nothing_changes_where_nothing_is_asked() -> None:
    body = b' {"a" : 1.50, "a":1e3,\t"z":"\\u00e9 \xc3\xa9"} '
    assert b"".join(edit(body, {})) == body


def test_every_copy_of_a_repeated_key_is_dropped() -> None:
    body = b'{"priority":1,"a":2,"priority":3}'
    assert b"".join(edit(body, {}, drop=["priority"])) == b'{"a":2}'
