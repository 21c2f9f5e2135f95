"""What an engine says a request used, in each of the spellings that engines have.

Found without parsing the answer: the `"usage"` objects are short and stand near the end, so the last one that holds
token counts is cut out of the bytes and parsed alone. Inside generated text the quotes would be escaped, so a model
cannot forge one. Zero is data, absent is not zero: `cached_tokens` is None where the engine does not tell.
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_BRACES = re.compile(rb"[{}]")


@dataclass(frozen=True, slots=True)
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


def read_usage(data: bytes, *, is_first: bool = False) -> Usage | None:
    """Read the last usage object (the first, where asked) in a piece of an answer."""
    places = [match.end() - 1 for match in _USAGE.finditer(data)]
    for place in places if is_first else reversed(places):
        usage = _usage_at(data, place)
        if usage is not None:
            return usage
    return None


def _usage_at(data: bytes, start: int) -> Usage | None:
    depth = 0
    for brace in _BRACES.finditer(data, start, start + 4096):
        depth += 1 if data[brace.start()] == 0x7B else -1
        if not depth:
            try:
                return usage_of(orjson.loads(data[start : brace.end()]))
            except orjson.JSONDecodeError:
                return None
    return None


def usage_of(counts: dict[str, Any]) -> Usage | None:
    """Read a usage object: OpenAI's chat, completions and embeddings, its responses, Anthropic's messages."""
    prompt = _count(counts, "prompt_tokens", "input_tokens")
    output = _count(counts, "completion_tokens", "output_tokens")
    if prompt is None and output is None:
        prompt = _count(counts, "total_tokens")
        if prompt is None:
            return None
    cached = None
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = counts.get(name)
        if isinstance(details, dict):
            cached = _count(details, "cached_tokens")
    read = _count(counts, "cache_read_input_tokens")
    if read is not None:
        # Anthropic counts what was read from and written to the cache beside input_tokens, not inside.
        cached = read
        prompt = (prompt or 0) + read + (_count(counts, "cache_creation_input_tokens") or 0)
    return Usage(prompt, output, cached)


def _count(counts: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = counts.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
