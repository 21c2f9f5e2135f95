"""W3C Trace Context: whose trace a request belongs to, read from its headers and written for an engine.

    traceparent: 00-<trace id, 32 hex>-<parent span id, 16 hex>-<flags, 2 hex>
    tracestate:  vendor=value,other=value

What clients send is hostile: a traceparent that is not valid to the letter counts as none, and takes its tracestate
along; a tracestate that is not valid is dropped alone (https://www.w3.org/TR/trace-context-2/, 3.2 and 3.3).
"""

import re
from dataclasses import dataclass

from multidict import MultiMapping

SAMPLED = 0x01
RANDOM = 0x02  # level 2: the trace id was drawn at random; passed on as it came
MAX_STATE_CHARS = 512  # as much as everybody has to pass on
MAX_STATE_MEMBERS = 32
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_KEY = r"[a-z0-9][a-z0-9_*/-]{0,240}(?:@[a-z][a-z0-9_*/-]{0,13})?"
_MEMBER = re.compile(rf"({_KEY})=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]")


@dataclass(frozen=True, slots=True)
class Parent:
    """The span of a client that a request belongs to."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""
    """Its tracestate; empty where there is none, or none that is valid."""

    @property
    def is_sampled(self) -> bool:
        """Whether the client records its part."""
        return bool(self.flags & SAMPLED)


def parent_of(headers: MultiMapping[str]) -> Parent | None:
    """Read whose trace a request belongs to; None where it does not say, or not validly."""
    told = headers.getall("traceparent", ())
    if len(told) != 1:
        return None
    found = _PARENT.fullmatch(told[0])
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    parent = Parent(int(trace_id, 16), int(span_id, 16), int(flags, 16) & (SAMPLED | RANDOM), _state_of(headers))
    return parent if parent.trace_id and parent.span_id else None


def _state_of(headers: MultiMapping[str]) -> str:
    told = ",".join(headers.getall("tracestate", ()))
    if not told or len(told) > MAX_STATE_CHARS:
        return ""
    members = [member.strip(" \t") for member in told.split(",")]
    named = [_MEMBER.fullmatch(member) for member in members if member]
    keys = [found[1] for found in named if found is not None]
    if len(keys) < len(named) or len(set(keys)) < len(keys) or len(keys) > MAX_STATE_MEMBERS:
        return ""
    return ",".join(member for member in members if member)


def lines_of(trace_id: int, span_id: int, flags: int, state: str) -> bytes:
    """Write the header lines that make a span the parent of what an engine does."""
    lines = f"traceparent: 00-{trace_id:032x}-{span_id:016x}-{flags:02x}\r\n"
    return (f"{lines}tracestate: {state}\r\n" if state else lines).encode()
