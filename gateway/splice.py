"""Change single members of a JSON object in its bytes, leaving every other byte as the client sent it.

A body is parsed once to be read and never dumped again: engines and clients may care about what a round trip loses
(number spellings, key order, duplicate keys, unknown fields), and 60 MB need not be built twice. So the few edits that
a gateway makes are cuts in the original bytes: the result is a list of pieces that share memory with the original.

Only members of the top level are found. The scanner trusts that the bytes are valid JSON: they were parsed before.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import orjson

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY = re.compile(rb"[\s,{]*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
_NESTING = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\s,}\]]++", re.DOTALL)

MAX_MEMBERS = 1000

Buffer = bytes | memoryview


class TooManyMembers(ValueError):
    """The object has more members than one looks at."""


@dataclass(frozen=True, slots=True)
class Member:
    """Where one `"key": value` of the top level stands."""

    key: str
    start: int
    """First byte of the key's quote."""
    value_start: int
    end: int
    """Past the last byte of the value."""


def members(body: bytes) -> Iterator[Member]:
    """Walk over the top-level members of a valid JSON object, in order."""
    position = body.index(b"{") + 1
    while match := _KEY.match(body, position):
        value_start = match.end()
        end = _value_end(body, value_start)
        yield Member(orjson.loads(match[1]), match.start(1), value_start, end)
        position = end


def _value_end(body: bytes, start: int) -> int:
    if body[start] not in b"[{":
        scalar = _SCALAR.match(body, start)
        assert scalar is not None
        return scalar.end()
    depth = 0
    for match in _NESTING.finditer(body, start):
        opening = body[match.start()]
        if opening in b"[{":
            depth += 1
        elif opening in b"]}":
            depth -= 1
            if not depth:
                return match.end()
    raise AssertionError("the body was parsed before: its brackets match")


def append(body: bytes, added: dict[str, object]) -> list[Buffer]:
    """Add members behind the last one of an object that is not empty and holds none of them."""
    end = body.rindex(b"}")
    addition = b"," + orjson.dumps(added)[1:-1]
    return [memoryview(body)[:end], addition, memoryview(body)[end:]]


def edit(body: bytes, replace: dict[str, object], drop: Iterable[str] = ()) -> list[Buffer]:
    """Replace the values of some members and cut others out, wherever and however often they stand.

    Raises:
        TooManyMembers: nobody's request has so many; each costs some microseconds of the event loop.
    """
    view = memoryview(body)
    dropped = frozenset(drop)
    pieces: list[Buffer] = []
    position = 0
    kept_before = False
    for count, member in enumerate(members(body)):
        if count >= MAX_MEMBERS:
            raise TooManyMembers(f"the body has more than {MAX_MEMBERS} fields")
        if member.key in dropped:
            # With the comma before it, or, where nothing before it stays, the one behind it.
            cut_start = body.rindex(b",", position, member.start) if kept_before else member.start
            pieces.append(view[position:cut_start])
            position = member.end
            if not kept_before and (comma := re.compile(rb"\s*+,").match(body, member.end)):
                position = comma.end()
            continue
        kept_before = True
        if member.key in replace:
            pieces += [view[position : member.value_start], orjson.dumps(replace[member.key])]
            position = member.end
    pieces.append(view[position:])
    return pieces
