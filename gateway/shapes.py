"""Makes the shape of a prompt (`policies/shape.py`): what a log may keep of how it begins.

Bounded: of each part MAX_LINES at its beginning and LAST_LINES at its end are told one by one, and what is between them
as one segment. Lines that came before are known by a hash and cost half a microsecond each, whole parts even less; so
constant prompts are cheap, and it is new text that costs. So many prompts a second are looked at, and no more: what
ruins caches does so all day, and the rest tells nothing new.

Hashes are BLAKE2 with a key: whoever has a log, but not the key, cannot try texts against it. What is remembered is
remembered under hashes that are seeded anew in each process; text is kept only where examples are asked for, and then
with whatever looks like a name, a number, a date, an address or an identifier masked.
"""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import blake2b
from hmac import digest
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest

from gateway.masks import is_member, mask, spans_in, unordered
from gateway.routes import Route
from policies.shape import VERSION, Mark, written

MAX_CHARS = 32_768
MAX_TAIL_CHARS = 4096
MAX_SIZE = 10**9 - 1
MAX_BODY_BYTES = 1 << 20  # of a body with tools, which are written out again
MAX_LINES = {"s": 40, "u": 16}
LAST_LINES = 8  # of a part with more: constant text often stands at its end, behind documents
MAX_CPU = 0.01  # of the time of one core: shapes that cost more are made more rarely
HASH_CHARS = 6  # 36 bits: of ten thousand segments two are taken for one with odds of 1 in 1,400
VALUE_CHARS = 4  # 24 bits: two values that are taken for one would look like white space
MAX_TOOLS = 256  # more are hashed in their order only
MAX_KNOWN = 4096  # lines and parts, some 200 bytes each
MAX_EXAMPLES = 256
LEADING_ROLES = ("system", "developer")


class ShapeMaker:
    """Makes shapes.

    Args:
        secret: The key of all hashes; gateways with one key write logs that can be read together.
        per_second: So many prompts are looked at, on average and in a burst.
        clock: Monotonic seconds.
        keeps_examples: Whether masked text is kept, for `examples`.
    """

    def __init__(
        self, secret: bytes, per_second: float, clock: Callable[[], float], *, keeps_examples: bool = False
    ) -> None:
        self._key = digest(secret, b"prefix shapes", "sha256")
        self._salt = self._hash(b"salt", 4)
        self._interval_s = 1 / per_second
        self._burst_s = 1.0
        self._clock = clock
        self._next_at = float("-inf")
        self._seed = secrets.randbits(64)
        self._known: dict[int, str] = {}
        self._keeps_examples = keeps_examples
        self.examples: dict[str, str] = {}
        """Masked text by its frame; empty unless it is asked for."""

    def of(self, route: Route, document: dict[str, Any], body_bytes: int) -> str | None:
        """Make the shape of a parsed body; None: it is not its turn, or it has no text that is known here."""
        if not route.generates or (body_bytes > MAX_BODY_BYTES and document.get("tools")):
            return None
        now = self._clock()
        due_at = max(self._next_at, now - self._burst_s)
        if due_at > now:
            return None
        shape = self.made(document)
        self._next_at = due_at + max(self._interval_s, (self._clock() - now) / MAX_CPU)
        return shape

    def made(self, document: dict[str, Any]) -> str | None:
        """Make the shape of a parsed body, whoever's turn it is."""
        system, tools, user = beginning_of(document)
        parts = [VERSION, self._salt]
        if system:
            parts.append(self._part("s", system))
        if tools:
            parts.append(self._tools(tools))
        if user:
            parts.append(self._part("u", user))
        return ";".join(parts) if len(parts) > 2 else None

    def _part(self, place: str, text: str) -> str:
        data = text[:MAX_CHARS].encode("utf-8", "replace")
        if len(text) > MAX_CHARS:
            data += b"%d" % len(text) + text[-MAX_TAIL_CHARS:].encode("utf-8", "replace")
        key = xxh3_64_intdigest(data, self._seed)
        known = self._known.get(key)
        if known is None:
            first, middle, last = pieces_of(text, MAX_LINES[place])
            told = [self._line(line) for line in first]
            if middle:
                told.append(self._middle(middle))
            told += [self._line(line) for line in last]
            known = self._keep(key, ",".join(told))
        return f"{place},{known}"

    def _line(self, line: str) -> str:
        data = line.encode("utf-8", "replace")
        key = xxh3_64_intdigest(data, self._seed)
        known = self._known.get(key)
        return self._keep(key, self._segment(line, data)) if known is None else known

    def _keep(self, key: int, told: str) -> str:
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()  # what is still in use is back after one request each
        self._known[key] = told
        return told

    def _segment(self, line: str, data: bytes) -> str:
        spans = spans_in(line)
        masked = mask(line, spans)
        marks = []
        for kind, start, end in spans:
            before, value = (text.encode("utf-8", "replace") for text in (line[:start], line[start:end]))
            marks.append(Mark(kind, len(before), len(value), self._hash(value, VALUE_CHARS)))
        exact = self._hash(data, HASH_CHARS)
        if not is_member(line):
            plain = (masked + "\n").encode("utf-8", "replace")  # as a line that needs no frame of its own is written
            frame = self._hash(b"frame" + plain if marks else plain, HASH_CHARS)
        else:
            marks.append(Mark("k", 0, len(data), self._hash(masked.encode("utf-8", "replace"), VALUE_CHARS)))
            frame = self._hash(b"members" + unordered(masked).encode("utf-8", "replace"), HASH_CHARS)
        if self._keeps_examples and marks and len(self.examples) < MAX_EXAMPLES:
            self.examples[frame] = masked[:200]
        return written(len(data), exact, frame, marks)

    def _middle(self, text: str) -> str:
        exact = self._hash(text[:MAX_CHARS].encode("utf-8", "replace") + b"%d" % len(text), HASH_CHARS)
        return written(min(len(text), MAX_SIZE), exact, exact, [])

    def _tools(self, tools: list[Any]) -> str:
        """Make one segment of all tools: which there are, in which order, and how each is written."""
        try:
            data = orjson.dumps(tools)
        except orjson.JSONEncodeError:  # nested deeper than orjson writes, though not deeper than it reads
            return "t,0.-"
        key = xxh3_64_intdigest(data, self._seed)
        known = self._known.get(key)
        if known is None:
            exact = self._hash(data, HASH_CHARS)
            frame, marks = exact, []
            if len(tools) <= MAX_TOOLS:
                texts = [orjson.dumps(tool, option=orjson.OPT_SORT_KEYS).decode() for tool in tools]
                spans = [[span for span in spans_in(text) if span.kind != "p"] for text in texts]  # each has a name
                frames = [mask(text, found) for text, found in zip(texts, spans, strict=True)]
                as_written = sorted(orjson.dumps(tool) for tool in tools)
                frame = self._hash(b"tools" + "\n".join(sorted(frames)).encode(), HASH_CHARS)
                values: dict[str, list[str]] = {}
                for text, found in zip(texts, spans, strict=True):
                    for kind, start, end in found:
                        values.setdefault(kind, []).append(text[start:end])
                told = {kind: "\n".join(sorted(found)).encode() for kind, found in sorted(values.items())}
                told["o"] = "\n".join(texts).encode()
                told["k"] = b"\n".join(as_written)
                marks = [Mark(kind, 0, len(data), self._hash(text, VALUE_CHARS)) for kind, text in told.items()]
            known = self._keep(key, written(len(data), exact, frame, marks))
        return f"t,{known}"

    def _hash(self, data: bytes, characters: int) -> str:
        return urlsafe_b64encode(blake2b(data, digest_size=6, key=self._key).digest())[:characters].decode()


def pieces_of(text: str, most: int) -> tuple[list[str], str, list[str]]:
    """Cut a text into its first lines, so many at most, its last ones, and what is between them."""
    first, size = lines_of(text[:MAX_CHARS], most)
    rest = text[size:]
    if not rest:
        return first, "", []
    end = rest[-MAX_TAIL_CHARS:]
    if len(end) < len(rest):
        end = end[end.find("\n") + 1 :]  # from where a line begins; if none does, all of it is one
    lines, _ = lines_of(end, len(end))
    last = lines[-LAST_LINES:]
    return first, rest[: len(rest) - sum(map(len, last))], last


def lines_of(text: str, most: int) -> tuple[list[str], int]:
    """Cut a text into lines, each with the blank lines behind it; blank lines at the beginning go with the first.

    Returns:
        So many at most, and their characters.
    """
    lines: list[str] = []
    at, end = 0, len(text)
    while at < end and len(lines) < most:
        to = at
        while to < end and text[to].isspace():
            to += 1
        to = text.find("\n", to) + 1 or end
        while to < end and text[to].isspace():  # blank lines, and the indent of the next: that is given back
            to += 1
        if to < end:
            to = text.rfind("\n", at, to) + 1
        lines.append(text[at:to])
        at = to
    return lines, at


def beginning_of(document: dict[str, Any]) -> tuple[str, list[Any], str]:
    """Give the system prompt, the tools and the user's first turn of a body, of whichever shape it is."""
    turns = document.get("messages", document.get("input"))
    system = [_text(document.get("system")), _text(document.get("instructions"))]
    user = ""
    if isinstance(turns, list):
        for turn in turns[:16]:
            if not isinstance(turn, dict):
                continue
            if turn.get("role") in LEADING_ROLES:
                system.append(_text(turn.get("content")))
            elif turn.get("role") == "user":
                user = _text(turn.get("content"))
                break
    else:
        prompt = turns if turns is not None else document.get("prompt")
        user = _text(prompt[:1] if isinstance(prompt, list) else prompt)
    tools = document.get("tools")
    return "\n".join(filter(None, system)), tools if isinstance(tools, list) else [], user


def _text(content: object) -> str:
    """Give a content as text: itself, or its parts of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_texts(content[:32]))


def _texts(parts: Iterable[object]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            yield text
        elif isinstance(part, str):
            yield part
