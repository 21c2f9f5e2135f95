"""Link: the load's HTTP/1.1 client, one connection; cheap, since it shares the machine with what it measures.

It reads just enough of a stream: JSON only up to the first token, then a count of events, and the tail for
usage. After that it knows whether the stream really ended well: [DONE], no error event, no finish_reason
"abort".
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import httptools
import orjson

TAIL_BYTES = 4096  # usage and [DONE] are in the last few hundred


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are monotonic seconds; uvloop's own clock ticks in milliseconds."""

    due_at: float
    """When it was to be sent, whether or not we could: waiting for a free connection counts."""
    status: int = 0
    error: str | None = None
    """Kind of failure, or None."""
    endpoint: str = ""
    """The answer's x-kvlane-endpoint."""
    first_at: float | None = None
    """First token that carries content."""
    last_at: float = 0.0
    events: int = 0
    """Events with content."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    queue_s: float | None = None
    """The answer's x-kvlane-queue-ms."""
    predicted_queue_s: float | None = None
    """The answer's x-kvlane-predicted-queue-ms."""


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._outcome: Outcome | None = None
        self._then: Callable[[Link, Outcome], None] | None = None
        self._tail = b""
        self._is_stream = False
        self.is_usable = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.is_usable = True

    def send(self, request: bytes, outcome: Outcome, then: "Callable[[Link, Outcome], None]") -> None:
        """Send a request; `then` is called once its outcome is whole."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._outcome, self._then = outcome, then
        self._tail = b""
        self._is_stream = False
        self._transport.write(request)

    def give_up(self) -> None:
        """Leave, whatever is under way."""
        self._end("timeout")
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("bad answer")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        self._transport = None
        self._end("reset" if exc is not None else "closed early")

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered, outcome = name.lower(), self._outcome
        if lowered == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")
        elif outcome is None:
            return
        elif lowered == b"x-kvlane-endpoint":
            outcome.endpoint = value.decode("latin-1")
        elif lowered == b"x-kvlane-queue-ms" and value.isdigit():
            outcome.queue_s = int(value) / 1e3
        elif lowered == b"x-kvlane-predicted-queue-ms" and value.isdigit():
            outcome.predicted_queue_s = int(value) / 1e3

    def on_headers_complete(self) -> None:
        if self._outcome is not None and self._parser is not None:
            self._outcome.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        outcome = self._outcome
        if outcome is None:
            return
        if self._is_stream:
            now = monotonic()
            if outcome.first_at is None and _has_content(self._tail + data):
                outcome.first_at = now
            fresh = data.count(b'"finish_reason":')
            if fresh:
                outcome.events += fresh
                outcome.last_at = now
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def on_message_complete(self) -> None:
        outcome = self._outcome
        if outcome is None or self._parser is None:
            return
        if not self._parser.should_keep_alive():
            self.is_usable = False
        if outcome.status != 200:
            self._end(f"status {outcome.status}")
        else:
            self._end(self._verdict(outcome))
        if not self.is_usable:
            self.close()

    def _verdict(self, outcome: Outcome) -> str | None:
        """Read the end of a stream; say what is wrong with it."""
        is_done = False
        for line in self._tail.split(b"\n"):
            payload = line.strip().removeprefix(b"data:").strip()
            if payload == b"[DONE]":
                is_done = True
            elif b'"error"' in payload or b'"usage"' in payload or b'"abort"' in payload:
                try:
                    event = orjson.loads(payload)
                except orjson.JSONDecodeError:
                    continue  # the tail begins within a line
                if event.get("error"):
                    return "error event"
                if any(choice.get("finish_reason") == "abort" for choice in event.get("choices") or ()):
                    return "finish_reason abort"
                if usage := event.get("usage"):
                    outcome.prompt_tokens = usage.get("prompt_tokens", 0)
                    outcome.output_tokens = usage.get("completion_tokens", 0)
                    details = usage.get("prompt_tokens_details") or {}
                    outcome.cached_tokens = details.get("cached_tokens")
        return None if is_done or not self._is_stream else "no [DONE]"

    def _end(self, error: str | None) -> None:
        outcome, then = self._outcome, self._then
        self._outcome = self._then = self._parser = None
        if outcome is not None and then is not None:
            outcome.error = error
            outcome.last_at = outcome.last_at or monotonic()
            outcome.output_tokens = outcome.output_tokens or max(0, outcome.events - 1)
            then(self, outcome)


def _has_content(data: bytes) -> bool:
    """Say whether events hold a token, not only the role."""
    for line in data.split(b"\n"):
        payload = line.strip().removeprefix(b"data:").strip()
        if not payload.startswith(b"{"):
            continue
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            continue  # not whole yet
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("content") or delta.get("reasoning") or delta.get("tool_calls") or choice.get("text"):
                return True
    return False
