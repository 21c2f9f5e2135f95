"""What an engine says a request used, in each of the spellings that engines have.

Found without parsing the answer: the `"usage"` objects are short and stand near the end, so the last one that holds
token counts is cut out of the bytes and parsed alone. Inside generated text the quotes would be escaped, so a model
cannot forge one. Zero is data, absent is not zero: `cached_tokens` is None where the engine does not tell.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

_KEY = b'"usage"'
_OPENING = re.compile(rb"\s*:\s*\{")
MAX_USAGE_BYTES = 4096
MAX_COUNT = 1 << 31  # of tokens of one request; an engine that says more is out of its mind


@dataclass(slots=True)
class Usage:
    """Token counts of one request, as the engine reports them."""

    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None

    def updated_by(self, later: "Usage") -> "Usage":
        """Give the counts of a later report, and those of this one where the later does not tell."""
        return Usage(
            self.prompt_tokens if later.prompt_tokens is None else later.prompt_tokens,
            self.output_tokens if later.output_tokens is None else later.output_tokens,
            self.cached_tokens if later.cached_tokens is None else later.cached_tokens,
        )


class Used(NamedTuple):
    """What one request is charged for and told to have used, however it ended."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt; 0 where the engine does not tell."""
    output_tokens: int
    is_reported: bool
    """Whether the engine said all of it; else the prompt is as it was read here, and the output as it was counted."""


def used(usage: Usage | None, *, prompt_tokens: int, counted_tokens: int) -> Used:
    """Settle on what was used: what the engine says, and where it does not, what is known without it.

    Args:
        prompt_tokens: As they were read before the request was sent.
        counted_tokens: Of output that has come.
    """
    if usage is None:
        return Used(prompt_tokens, 0, counted_tokens, False)
    prompt = prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
    output = counted_tokens if usage.output_tokens is None else usage.output_tokens
    is_reported = usage.prompt_tokens is not None and (usage.output_tokens is not None or not counted_tokens)
    return Used(prompt, min(prompt, usage.cached_tokens or 0), output, is_reported)


def read_usage(data: bytes, *, is_first: bool = False) -> Usage | None:
    """Read the last usage object (the first, where asked) in a piece of an answer."""
    place = data.find(_KEY) if is_first else data.rfind(_KEY)
    while place >= 0:
        usage = _usage_behind(data, place + len(_KEY))
        if usage is not None:
            return usage
        place = data.find(_KEY, place + 1) if is_first else data.rfind(_KEY, 0, place)
    return None


def _usage_behind(data: bytes, place: int) -> Usage | None:
    """Read the object behind a key: it holds numbers, and at most objects of numbers."""
    match = _OPENING.match(data, place)
    if match is None:
        return None
    start = match.end() - 1
    end = data.find(b"}", start) + 1
    while end and data.count(b"{", start, end) > data.count(b"}", start, end):
        end = data.find(b"}", end) + 1 if end - start < MAX_USAGE_BYTES else 0
    try:
        return usage_of(orjson.loads(data[start:end]))
    except orjson.JSONDecodeError:
        return None


def usage_of(counts: dict[str, Any]) -> Usage | None:
    """Read a usage object: OpenAI's chat, completions and embeddings, its responses, Anthropic's messages."""
    prompt = _count(counts.get("prompt_tokens", counts.get("input_tokens")))
    output = _count(counts.get("completion_tokens", counts.get("output_tokens")))
    if prompt is None and output is None:
        prompt = _count(counts.get("total_tokens"))
        if prompt is None:
            return None
    cached = None
    details = counts.get("prompt_tokens_details", counts.get("input_tokens_details"))
    if isinstance(details, dict):
        cached = _count(details.get("cached_tokens"))
    read = _count(counts.get("cache_read_input_tokens"))
    if read is not None:
        # Anthropic counts what was read from and written to the cache beside input_tokens, not inside.
        cached = read
        prompt = (prompt or 0) + read + (_count(counts.get("cache_creation_input_tokens")) or 0)
    if cached is not None and prompt is not None:
        cached = min(cached, prompt)
    return Usage(prompt, output, cached)


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None
