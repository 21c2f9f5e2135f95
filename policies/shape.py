"""Shape: what a prompt begins with, as sizes and salted hashes, so that a log can tell where prompts part and no text.

A shape is what an access log line says of a prompt, made by `gateway/shapes.py`. It has parts in the order in which
most chat templates put them (system prompt, tools, the user's first turn); a part has segments: a line with the blank
lines behind it, all tools together, or the rest of a part that is too long. Of each segment:

    size     bytes
    exact    hash of its text
    frame    hash of its text with the varying parts masked and white space collapsed; of tools and of JSON, whatever
             the order of members
    marks    what was masked: kind, offset and length in bytes, hash of the value

Two segments of one frame that differ in `exact` say the same but for the marks whose values differ; where none does,
but for white space. All hashes are keyed with a salt that never leaves the gateway; `salt` names it, since hashes of
two salts have nothing in common.

    1;SALT;s,212.k3J9aQ,57.x8Pq2L.9dK2ss.t14-8:h2;t,8120.…;u,…
"""

from typing import NamedTuple

VERSION = "1"
PLACES = {"s": "system prompt", "t": "tools", "u": "first user turn"}
KINDS = "utdepinok"
"""Letters of marks: `findings.MARKS` says what they are."""
MAX_DIGITS = 9
MAX_SEGMENTS = 64  # of a part: more are no shape of ours
MAX_CHARS = 16_384  # of a shape


class Mark(NamedTuple):
    """A masked part of a segment."""

    kind: str
    """One of KINDS."""
    offset: int
    length: int
    value: str
    """Its hash."""


class Segment(NamedTuple):
    """A piece of a prompt."""

    place: str
    """A key of PLACES."""
    line: int
    """In its part, from 0; the middle of a long part counts as one."""
    size: int
    exact: str
    frame: str
    marks: tuple[Mark, ...] = ()


class Shape(NamedTuple):
    """What a prompt begins with."""

    salt: str
    segments: tuple[Segment, ...]


def written(size: int, exact: str, frame: str, marks: list[Mark]) -> str:
    """Write a segment; a frame that says no more than the text itself is left out."""
    if frame == exact:
        return f"{size}.{exact}"
    told = "+".join([f"{mark.kind}{mark.offset}-{mark.length}:{mark.value}" for mark in marks])
    return f"{size}.{exact}.{frame}.{told}" if told else f"{size}.{exact}.{frame}"


def shape_of(text: str) -> Shape | None:
    """Read a shape; None: it is none, or of another version."""
    if len(text) > MAX_CHARS:
        return None
    version, *rest = text.split(";")
    if version != VERSION or not rest:
        return None
    salt, *parts = rest
    segments: list[Segment] = []
    try:
        for part in parts:
            place, *told = part.split(",")
            if place not in PLACES or len(told) > MAX_SEGMENTS:
                return None
            segments += [_segment(place, line, each) for line, each in enumerate(told)]
    except ValueError:
        return None
    return Shape(salt, tuple(segments))


def _segment(place: str, line: int, text: str) -> Segment:
    size, exact, *rest = text.split(".")
    frame = rest[0] if rest else exact
    marks = rest[1].split("+") if len(rest) > 1 else []
    return Segment(place, line, _count(size), exact, frame, tuple(map(_mark, marks)))


def _mark(text: str) -> Mark:
    where, value = text.split(":")
    offset, length = where[1:].split("-")
    if where[0] not in KINDS:
        raise ValueError("no mark has this letter")
    return Mark(where[0], _count(offset), _count(length), value)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise ValueError("is no count")
    return int(text)
