"""A reader of bodies that are no streams, while they pass: their end, for usage, and what they say.

Of a long body only its end is kept. One that was held back until it was whole is kept whole, and where its engine does
not say how many tokens it made, the texts in it can be counted.
"""

from typing import Any

import orjson

from gateway.routes import CHAT, COMPLETION, MESSAGES, OTHER, RESPONSES, Shape
from gateway.tokens import BYTES_PER_TOKEN
from gateway.usage import Usage, read_usage, usage_of

TAIL_BYTES = 16384  # of a long body, enough to hold usage at its end
MAX_TEXTS = 1000  # of one answer; nobody asks for more choices
MAX_LOOKS = 64  # at what is called usage in an end: engines have it last, or clients' own things behind it
_USAGE = b'"usage"'
_MESSAGE_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_PART_TEXTS = ("text", "thinking", "refusal")


class PlainReader:
    """Reads one body."""

    __slots__ = ("_is_json", "_kept", "_kept_bytes", "_passed_bytes", "_shape")

    def __init__(self, shape: Shape, *, is_json: bool) -> None:
        self._shape = shape
        self._is_json = is_json
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._passed_bytes = 0

    def note(self, data: bytes) -> None:
        """Take what passes."""
        self._kept.append(data)
        self._kept_bytes += len(data)
        self._passed_bytes += len(data)
        while self._kept_bytes - len(self._kept[0]) >= TAIL_BYTES:
            self._kept_bytes -= len(self._kept.pop(0))

    @property
    def _end(self) -> bytes:
        return self._kept[0] if len(self._kept) == 1 else b"".join(self._kept)

    @property
    def usage(self) -> Usage | None:
        """What the engine says it used.

        Anthropic's shape must have numbers: where both are 0 nothing was told, since no message has no prompt. There a
        model's calls are JSON, and a response repeats its client's tools: usage is what stands in its own place.
        """
        is_here = self._passed_bytes == self._kept_bytes
        if self._is_json and self._shape in (RESPONSES, MESSAGES):
            usage = stated_usage(self._end) if is_here else usage_at_end(self._end)
        else:
            usage = read_usage(self._end)
        if self._shape is MESSAGES and usage is not None and not (usage.prompt_tokens or usage.output_tokens):
            return None
        return usage

    @property
    def texts(self) -> list[str] | None:
        """What was generated; None where not all of the body is here any more."""
        if not self._is_json or self._shape is OTHER:
            return []
        return texts_in(self._shape, self._end) if self._passed_bytes == self._kept_bytes else None

    @property
    def tokens(self) -> int:
        """An estimate of how many tokens that was, by its bytes; of a body that is not here any more, by all of it."""
        texts = self.texts
        size = self._passed_bytes if texts is None else sum(len(text.encode("utf-8", "replace")) for text in texts)
        return -(-size // BYTES_PER_TOKEN)


def stated_usage(body: bytes) -> Usage | None:
    """Read the usage of a JSON object; None where there is none."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return usage_of(_object(payload, "usage")) if isinstance(payload, dict) else None


def usage_at_end(end: bytes) -> Usage | None:
    """Read the usage of a JSON object of which only the end is here; None where there is none.

    What stands in the object itself can be told from what is nested in it: with a brace before it, all that follows is
    an object again.
    """
    place = end.rfind(_USAGE)
    for _ in range(MAX_LOOKS):
        if place < 0:
            break
        rest = b"{" + end[place:]
        if _is_object(rest):
            return stated_usage(rest)
        place = end.rfind(_USAGE, 0, place)
    return None


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        return False


def texts_in(shape: Shape, body: bytes) -> list[str]:
    """Give the texts that were generated, calls included; none of what is no answer of this shape."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    if not isinstance(payload, dict):
        return []
    texts: list[str] = []
    if shape is CHAT:
        texts += (text for choice in _objects(payload, "choices") for text in _of_message(_object(choice, "message")))
    elif shape is COMPLETION:
        texts += _strings(_objects(payload, "choices"), ("text",))
    elif shape is RESPONSES:
        items = _objects(payload, "output")
        parts = [part for item in items for name in ("content", "summary") for part in _objects(item, name)]
        texts += _strings(items, ("name", "arguments")) + _strings(parts, _PART_TEXTS)
    elif shape is MESSAGES:
        parts = _objects(payload, "content")
        texts += _strings(parts, ("name", *_PART_TEXTS))
        texts += (orjson.dumps(part["input"]).decode() for part in parts if part.get("input"))
    return texts[:MAX_TEXTS]


def _of_message(message: dict[str, Any]) -> list[str]:
    calls = [_object(call, "function") for call in _objects(message, "tool_calls")]
    return _strings([message], _MESSAGE_TEXTS) + _strings(calls, ("name", "arguments"))


def _object(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _objects(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = value.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _strings(values: list[dict[str, Any]], names: tuple[str, ...]) -> list[str]:
    """Give the texts under these names; one where two are the same: some engines give reasoning both its names."""
    texts: list[str] = []
    for value in values:
        found = [value[name] for name in names if value.get(name)]
        texts += dict.fromkeys(text for text in found if isinstance(text, str))
    return texts
