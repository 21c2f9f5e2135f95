"""What varies in a line of a prompt, by its look: times, dates, UUIDs, identifiers, addresses, names, numbers.

Only a line's first MAX_CHARS are looked at. Masks are wide on purpose: a constant that is masked costs nothing, since
what varies is known from the values, whose hashes differ from request to request, and never from the look alone.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_CHARS = 512
MAX_MARKS = 8  # of a line; what is behind them stays as it is

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_DAY = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b\.?,?\s+(?:the\s+)?)?"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?(?:\s?(?:Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b))?"
_DATE = (
    rf"{_DAY}(?:\d{{4}}[-/.]\d\d?[-/.]\d\d?|\d\d?[/.]\d\d?[/.](?:\d{{4}}|\d\d)|{_MONTH}\s\d\d?(?:st|nd|rd|th)?(?:,?\s\d{{4}})?"
    rf"|\d\d?(?:st|nd|rd|th)?\.?\s{_MONTH}(?:,?\s\d{{4}})?)"
)
_LOOKS = re.compile(
    r"(?:\b|(?<=[A-Za-z_])(?=\d))(?=\w{0,64}\d|[\w.+-]{1,64}@"  # most words end here, and cost little
    r"|Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    r"(?:(?P<u>\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b)"
    rf"|(?P<t>\b(?:{_DATE}(?:T|,?\s(?:at\s)?))?{_CLOCK}|\b1[5-9]\d{{8}}(?:\d{{3}}|\.\d+)?\b)"
    rf"|(?P<d>\b{_DATE}(?!\w))"
    r"|(?P<e>[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64})"
    r"|(?P<i>\b(?=[A-Za-z_-]{0,32}\d)(?=[\d_-]{0,32}[A-Za-z])[A-Za-z0-9_-]{6,128}\b)"
    r"|(?P<n>\d+(?:[.,]\d+)*))"
)
_MAYBE = re.compile(r"[0-9@]")
_WHO = r"(?:user|customer|client|employee|member|caller|person|agent|account|tenant|patient|student)"
_PROPER = r"[A-Z][\w'’.-]{0,40}(?: [A-Z][\w'’.-]{0,40}){0,3}"
_NAMES = re.compile(
    rf"(?i:\b{_WHO}(?:['’]s)?[ _-]?(?:name|handle|login)?|\b(?:(?:first|last|full|display|user)[ _-]?)?name|\blogin)"
    rf"[\"'*]{{0,3}}"
    rf"(?:\s?[:=]\s?|\s(?:is|named|called)\s)(?i:the\suser\s)?[\"'*]{{0,3}}(?P<said>{_PROPER}|[a-z][\w.-]{{1,40}}(?=[\"'*,;.)]|\s*$))"
    rf"|(?i:\b(?:speaking|talking|chatting|working|conversation)\s(?:to|with)|\b(?:assisting|helping|serving)|\bon\sbehalf\sof"
    rf"|\b(?:logged|signed)\sin\sas|\bassistant\s(?:of|for|to))\s(?i:(?:the\s)?(?:{_WHO}\s)?)(?P<met>{_PROPER})"
)
_CUES = (
    *("name", "user", "customer", "client", "employee", "member", "caller", "person", "agent", "account", "tenant"),
    *("patient", "student", "login", "speaking", "talking", "chatting", "working", "conversation", "assist"),
    *("helping", "serving", "behalf", "logged in", "signed in"),
)
"""One of them is in every line that _NAMES can find something in, and is found sooner."""
_MEMBER = re.compile(r'"[^"\n]{1,64}"\s*:')
_CUTS = re.compile(r"[,{}\[\]]")


class Span(NamedTuple):
    """What varies, in characters."""

    kind: str
    """A letter of `policies.findings.MARKS`."""
    start: int
    end: int


def spans_in(line: str) -> list[Span]:
    """Find what may vary in a line, in its order."""
    head = line[:MAX_CHARS]
    found = list(_looks(head)) if _MAYBE.search(head) else []
    low = head.lower()
    if any(cue in low for cue in _CUES):
        names = [Span("p", *match.span(match.lastgroup or 0)) for match in _NAMES.finditer(head)]
        found = names + [span for span in found if not any(n.start < span.end and span.start < n.end for n in names)]
        found.sort(key=lambda span: span.start)
    return found[:MAX_MARKS]


def _looks(head: str) -> Iterator[Span]:
    for match in _LOOKS.finditer(head):
        yield Span(match.lastgroup or "n", *match.span())


def mask(line: str, spans: list[Span]) -> str:
    """Put a letter in place of each span, and one space in place of white space."""
    pieces, at = [], 0
    for kind, start, end in spans:
        pieces += [line[at:start], f"<{kind}>"]
        at = end
    pieces.append(line[at:])
    return " ".join("".join(pieces).split())


def is_member(line: str) -> bool:
    """Whether a line holds members of a JSON object."""
    return _MEMBER.search(line, 0, MAX_CHARS) is not None


def unordered(text: str) -> str:
    """Give the members of JSON in one order, whatever order they are in, without commas between them."""
    return "\n".join(sorted(piece for each in _CUTS.split(text) if (piece := each.strip())))
