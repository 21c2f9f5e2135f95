"""A reader that looks at a stream of server-sent events while it passes.

Its work per chunk is a few substring searches: deltas are counted by their keys, and only what matters is parsed (the
first token, an error, an abort, the end, the usage that the gateway asked for on its own account). It gives back what
the client may have: whole events, in the bytes in which they came. An event that is cut by TCP waits for its rest, so
that an error can be caught before its first half is gone; one longer than MAX_EVENT_BYTES passes unread.

Ends: `[DONE]` counts only as the whole data of an event, never inside generated text. It is no proof of success either:
engines end dead streams with it. So the outcome has three facts: `is_done`, `failure`, `usage`.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import orjson

from gateway.deltas import Deltas
from gateway.routes import CHAT, COMPLETION, MESSAGES, OTHER, RESPONSES, Shape
from gateway.usage import Usage, read_usage, usage_of

MAX_EVENT_BYTES = 1 << 20
MAX_MARKED_EVENTS = 1000  # looked at in one read, for the same reason
MAX_SOUGHT_EVENTS = 1000  # looked at for the first token; each costs some microseconds of everybody's event loop
_TERMINAL_TYPES = frozenset({"response.completed", "response.incomplete", "response.cancelled", "message_stop"})
_TYPE = re.compile(rb'(?:event:[^\n]{0,100}\n)?data: ?\{"type": ?"([a-z._]{1,50})"')
_USAGE, _SPACED_USAGE = b'"usage":{', b'"usage": {'
_TERMINAL_MARK = {
    CHAT: b"[DONE]",
    COMPLETION: b"[DONE]",
    RESPONSES: b'"response.',
    MESSAGES: b"message_stop",
}


class _Verdict(Enum):
    """What becomes of an event."""

    PASSES = "passes"
    HIDDEN = "hidden"
    LAST = "last"
    FAILED = "failed"


class EventReader:
    """Reads one stream."""

    __slots__ = (
        "_ends_long",
        "_first_usage",
        "_hides_usage",
        "_last_usage",
        "_mark",
        "_marks",
        "_partial",
        "_shape",
        "_sought",
        "_stated_usage",
        "deltas",
        "failure",
        "failure_event",
        "has_content",
        "has_payload",
        "is_done",
        "is_over",
        "response_id",
    )

    def __init__(self, shape: Shape, *, hides_usage: bool) -> None:
        self._shape = shape
        self._hides_usage = hides_usage
        self._mark = _TERMINAL_MARK.get(shape)
        self._marks = [b'"error"', b'"abort"']
        if self._mark is not None:
            self._marks.append(self._mark)
        self._partial = bytearray()
        self._sought = 0
        self._ends_long = False
        self._first_usage = b""
        self._last_usage = b""
        self._stated_usage: Usage | None = None
        self.deltas = Deltas(shape)
        self.has_content = False
        """Whether content, reasoning or a tool call was seen: the first token."""
        self.has_payload = False
        """Whether an event with data was seen, beside comments."""
        self.is_done = False
        self.is_over = False
        """Whether nothing that may pass is still to come: done, or failed."""
        self.failure: dict[str, Any] | None = None
        """The engine's own words for what went wrong inside the stream."""
        self.failure_event = b""
        """Those words as they came, where they are an error that clients understand; left out of what `feed` gives."""
        self.response_id: str | None = None

    @property
    def ends_by_mark(self) -> bool:
        """Whether this stream must say that it is done; a close without it is a truncated answer."""
        return self._mark is not None

    @property
    def ends_at_done(self) -> bool:
        """Whether the body ends right behind the mark, whatever the engine still has to send."""
        return self._mark == b"[DONE]"

    @property
    def usage(self) -> Usage | None:
        """What the engine counted; the last word of it, and for Anthropic's shape the first and the last.

        That shape must have numbers in its first event, before anything is made: there they say nothing of the output,
        and a prompt of 0 is one that the engine does not tell. Events of responses repeat what the client has sent, its
        tools as JSON: there usage is what stands in its own place, and nothing else.
        """
        if self._shape is RESPONSES:
            return self._stated_usage
        if self._shape is not MESSAGES:
            return read_usage(self._last_usage)
        first = read_usage(self._first_usage, is_first=True)
        end = self._last_usage.find(b"message_delta")
        last = read_usage(self._last_usage[end:]) if end >= 0 else None
        if first is None:
            return last
        if last is not None:
            return first.updated_by(last)
        return Usage(first.prompt_tokens, None, first.cached_tokens) if first.prompt_tokens else None

    def feed(self, data: bytes) -> bytes:
        """Take what came, give what may pass on."""
        partial = self._partial
        if not partial and data.endswith((b"\n\n", b"\r\n\r\n")):
            return self._read(data)
        if partial:
            searched = max(0, len(partial) - 3)
            partial += data
            end = _last_boundary(partial, searched)
            if end:
                whole = bytes(partial[:end])
                del partial[:end]
            elif len(partial) > MAX_EVENT_BYTES:
                whole = bytes(partial)
                partial.clear()
                self._note_long(whole)
            else:
                return b""
        else:
            end = _last_boundary(data, 0)
            partial += data[end:]
            if not end:
                return b""
            whole = data[:end]
        return self._read(whole)

    def flush(self) -> bytes:
        """Take the end of the body: what is left is an event without its blank line."""
        rest = bytes(self._partial)
        self._partial.clear()
        return self._read(rest) if rest.strip() else b""

    def _read(self, whole: bytes) -> bytes:
        self.deltas.note(whole)
        if self._ends_long and whole.endswith((b"\n\n", b"\r\n\r\n")):
            self._stated_usage = read_usage(whole) or self._stated_usage
        if b'"usage"' in whole and (_USAGE in whole or _SPACED_USAGE in whole):  # not null, as on every chunk of some
            self._last_usage = whole
            if not self._first_usage:
                self._first_usage = whole
            if self._hides_usage:
                return self._read_closely(whole)
        if self.has_content:
            for mark in self._marks:
                if mark in whole:
                    break
            else:
                return whole
        return self._read_closely(whole)

    def _read_closely(self, whole: bytes) -> bytes:
        """Look at the events that matter; leave out what the client must not see, stop at the end or a failure."""
        kept: list[bytes] = []
        position = 0
        for start, end in self._noteworthy(whole):
            match self._judge(whole[start:end]):
                case _Verdict.LAST:
                    kept.append(whole[position:end])
                    return b"".join(kept)
                case _Verdict.FAILED:
                    kept.append(whole[position:start])
                    return b"".join(kept)
                case _Verdict.HIDDEN:
                    kept.append(whole[position:start])
                    position = end
        if not position:
            return whole
        kept.append(whole[position:])
        return b"".join(kept)

    def _noteworthy(self, whole: bytes) -> Iterator[tuple[int, int]]:
        """Find the events to look at: all until the first token, then those with a mark."""
        position = 0
        while not self.has_content and position < len(whole):
            self._sought += 1
            if self._sought > MAX_SOUGHT_EVENTS:
                self.has_content = True  # or something else that nobody streams before its first token
                break
            end = _end_of_event(whole, position)
            yield position, end
            position = end
        marks = [*self._marks, _USAGE, _SPACED_USAGE] if self._hides_usage else self._marks
        for place in sorted({place for mark in marks for place in _places(whole, mark, position)}):
            if place >= position:
                end = _end_of_event(whole, place)
                yield max(position, _last_boundary(whole, position, place)), end
                position = end

    def _judge(self, event: bytes) -> "_Verdict":
        """Take note of what one event says, and decide whether it passes."""
        data = _data_of(event)
        if self.ends_at_done and data.strip() == b"[DONE]":
            self.is_done = self.is_over = self.has_payload = True
            return _Verdict.LAST
        self.has_payload = self.has_payload or bool(data)
        payload = _parsed(data)
        if payload is None:
            return _Verdict.PASSES
        if self._is_failure(payload):
            self.failure = payload
            self.is_over = True
            if "choices" not in payload:
                self.failure_event = event
            return _Verdict.FAILED
        if self._hides_usage and payload.get("choices") == [] and isinstance(payload.get("usage"), dict):
            return _Verdict.HIDDEN
        self._note(payload)
        return _Verdict.PASSES

    def _note_long(self, beginning: bytes) -> None:
        """Take note of what an event is that is too long to read: the last one repeats what its client has sent."""
        match = _TYPE.match(beginning)
        if match is not None and match[1].decode() in _TERMINAL_TYPES:
            self.is_done = self.is_over = self._ends_long = True

    def _is_failure(self, payload: dict[str, Any]) -> bool:
        if payload.get("error") or payload.get("object") == "error":
            return True
        if payload.get("type") in ("error", "response.failed"):
            return True
        choices = payload.get("choices")
        return isinstance(choices, list) and any(
            isinstance(choice, dict) and choice.get("finish_reason") in ("abort", "error") for choice in choices
        )

    def _note(self, payload: dict[str, Any]) -> None:
        kind = payload.get("type")
        if isinstance(kind, str) and kind in _TERMINAL_TYPES:
            self.is_done = self.is_over = True
        response = payload.get("response")
        if isinstance(response, dict):
            if self.response_id is None and isinstance(response.get("id"), str):
                self.response_id = response["id"]
            if isinstance(response.get("usage"), dict):
                self._stated_usage = usage_of(response["usage"])
        self.has_content = self.has_content or _carries_content(self._shape, payload)


def _last_boundary(data: bytes | bytearray, start: int, end: int | None = None) -> int:
    """Give the place behind the last blank line that begins at `start` or later; 0 where there is none."""
    lf = data.rfind(b"\n\n", start, end)
    crlf = data.rfind(b"\n\r\n", start, end)
    return max(lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0)


def _end_of_event(data: bytes, start: int) -> int:
    """Give the place behind the next blank line; the end where there is none."""
    lf = data.find(b"\n\n", start)
    crlf = data.find(b"\n\r\n", start, lf if lf >= 0 else None)
    if crlf >= 0:
        return crlf + 3
    return lf + 2 if lf >= 0 else len(data)


def _places(data: bytes, mark: bytes, start: int) -> Iterator[int]:
    """Find a mark: the first so many times, and the last, which is where an end stands."""
    place = data.find(mark, start)
    for _ in range(MAX_MARKED_EVENTS):
        if place < 0:
            return
        yield place
        place = data.find(mark, place + 1)
    yield data.rfind(mark)


def _data_of(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return payload if isinstance(payload, dict) else None


def _carries_content(shape: Shape, payload: dict[str, Any]) -> bool:
    if shape is RESPONSES:
        return str(payload.get("type", "")).endswith(".delta")
    if shape is MESSAGES:
        return payload.get("type") == "content_block_delta"
    if shape is OTHER:
        return True
    choices = payload.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    choice = choices[0]
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(
        delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls", "refusal", "audio")
    )
