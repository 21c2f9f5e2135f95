"""A reader that looks at a stream of server-sent events while it passes.

Its work per chunk is a few substring searches: only what matters is parsed (the first token, an error, an abort, the
end, the usage that the gateway asked for on its own account). It gives back what the client may have: whole events, in
the bytes in which they came. An event that is cut by TCP waits for its rest, so that an error can be caught before its
first half is gone; one longer than MAX_EVENT_BYTES passes unread.

Ends: `[DONE]` counts only as the whole data of an event, never inside generated text. It is no proof of success either:
engines end dead streams with it. So the outcome has three facts: `is_done`, `failure`, `usage`.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson

from gateway.routes import Shape
from gateway.usage import Usage, read_usage

MAX_EVENT_BYTES = 1 << 20
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_TERMINAL_TYPES = frozenset({"response.completed", "response.incomplete", "response.cancelled", "message_stop"})
_TERMINAL_MARK = {
    Shape.CHAT: b"[DONE]",
    Shape.COMPLETION: b"[DONE]",
    Shape.RESPONSES: b'"response.',
    Shape.MESSAGES: b"message_stop",
}


class EventReader:
    """Reads one stream."""

    __slots__ = (
        "_first_usage",
        "_hides_usage",
        "_last_usage",
        "_mark",
        "_partial",
        "_shape",
        "events",
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
        self._partial = bytearray()
        self._first_usage = b""
        self._last_usage = b""
        self.events = 0
        """Blocks of events that have passed: not tokens, but something to count where an engine tells no usage."""
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
        """What the engine counted; the last word of it, and for Anthropic's shape the first and the last."""
        last = read_usage(self._last_usage)
        if self._shape is Shape.MESSAGES and self._first_usage:
            first = read_usage(self._first_usage, is_first=True)
            if first is not None and last is not None:
                return first.updated_by(last)
        return last

    def feed(self, data: bytes) -> bytes:
        """Take what came, give what may pass on."""
        partial = self._partial
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
            else:
                return b""
        elif data.endswith((b"\n\n", b"\r\n\r\n")):
            whole = data
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
        has_usage = b'"usage"' in whole
        if has_usage:
            self._last_usage = whole
            if not self._first_usage:
                self._first_usage = whole
        self.events += 1
        if (
            not self.has_content
            or b'"error"' in whole
            or b'"abort"' in whole
            or (self._mark is not None and self._mark in whole)
            or (has_usage and self._hides_usage)
        ):
            return self._read_events(whole)
        return whole

    def _read_events(self, whole: bytes) -> bytes:
        """Look at each event; leave out what the client must not see, stop at the end or a failure."""
        kept: list[bytes] = []
        for event in _events(whole):
            data = _data_of(event)
            if data.strip() == b"[DONE]" and self.ends_at_done:
                self.is_done = self.is_over = self.has_payload = True
                kept.append(event)
                break
            payload = _parsed(data)
            if payload is None:
                kept.append(event)
                continue
            self.has_payload = True
            if self._is_failure(payload):
                self.failure = payload
                self.is_over = True
                if "choices" not in payload:
                    self.failure_event = event
                break
            if self._hides_usage and payload.get("choices") == [] and isinstance(payload.get("usage"), dict):
                continue
            kept.append(event)
            self._note(payload)
        return whole if len(kept) == 1 and kept[0] == whole else b"".join(kept)

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
        if kind in _TERMINAL_TYPES:
            self.is_done = self.is_over = True
        response = payload.get("response")
        if self.response_id is None and isinstance(response, dict) and isinstance(response.get("id"), str):
            self.response_id = response["id"]
        self.has_content = self.has_content or _carries_content(self._shape, payload)


def _last_boundary(data: bytes | bytearray, start: int) -> int:
    """Give the place behind the last blank line, 0 where there is none behind `start`."""
    lf = data.rfind(b"\n\n", start)
    crlf = data.rfind(b"\n\r\n", start)
    return max(lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0)


def _events(whole: bytes) -> Iterator[bytes]:
    position = 0
    for match in _BLANK_LINE.finditer(whole):
        yield whole[position : match.end()]
        position = match.end()
    if position < len(whole):
        yield whole[position:]


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
    if shape is Shape.RESPONSES:
        return str(payload.get("type", "")).endswith(".delta")
    if shape is Shape.MESSAGES:
        return payload.get("type") == "content_block_delta"
    if shape is Shape.OTHER:
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
