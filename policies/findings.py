"""Finding: a fault that keeps prompts from being found in engines' prefix caches, and what to do about it."""

from dataclasses import dataclass
from enum import Enum

from policies.shape import PLACES, Segment


class Fault(Enum):
    """What differs where prompts part: a metric label."""

    TIME = "time"
    DATE = "date"
    UUID = "uuid"
    ID = "id"
    EMAIL = "email"
    NAME = "name"
    NUMBER = "number"
    TOOL_ORDER = "tool_order"
    KEY_ORDER = "key_order"
    WHITE_SPACE = "white_space"
    BLOCK_ORDER = "block_order"
    INSERTED = "inserted"
    VARYING = "varying"


MARKS = {
    "u": Fault.UUID,
    "t": Fault.TIME,
    "d": Fault.DATE,
    "e": Fault.EMAIL,
    "p": Fault.NAME,
    "i": Fault.ID,
    "n": Fault.NUMBER,
    "o": Fault.TOOL_ORDER,
    "k": Fault.KEY_ORDER,
}
"""By letter; of several that differ in a segment the first here is named: a time's date and numbers change with it."""

SAME_CONTENT = frozenset((Fault.WHITE_SPACE, Fault.TOOL_ORDER, Fault.KEY_ORDER))
"""Where all variants say the same, so that nobody wants more than one of them."""

WORDS = {
    Fault.TIME: "a time of day",
    Fault.DATE: "a date",
    Fault.UUID: "a UUID",
    Fault.ID: "an identifier",
    Fault.EMAIL: "an e-mail address",
    Fault.NAME: "a name",
    Fault.NUMBER: "a number",
    Fault.TOOL_ORDER: "the same tools in another order",
    Fault.KEY_ORDER: "the same JSON with its members in another order",
    Fault.WHITE_SPACE: "the same text with other white space",
    Fault.BLOCK_ORDER: "the same blocks in another order",
    Fault.INSERTED: "text that grows or is put in before constant text",
    Fault.VARYING: "text that varies before constant text",
}

ADVICE = {
    Fault.TIME: "Put the time at the end of the last user turn, or give it to the model by a tool.",
    Fault.DATE: "Put the date behind all constant text: at the end of the system prompt, or in the last user turn.",
    Fault.UUID: "Leave the UUID out, or put it behind all constant text; models rarely need it, metadata carries it.",
    Fault.ID: "Leave the identifier out, or put it behind all constant text.",
    Fault.EMAIL: "Put what is known of the user behind all constant text.",
    Fault.NAME: "Put what is known of the user behind all constant text: a block of its own before the first turn.",
    Fault.NUMBER: "Leave the number out, or put it behind all constant text.",
    Fault.TOOL_ORDER: "Sort the tools by name before each request: a set or a map has no order of its own.",
    Fault.KEY_ORDER: "Write JSON with sorted keys (Python: json.dumps(…, sort_keys=True)).",
    Fault.WHITE_SPACE: "Build the text in one place, and normalise it: strip ends, \\n as line end, one blank line.",
    Fault.BLOCK_ORDER: "Sort the blocks by something that stays (their id), and put them behind all constant text.",
    Fault.INSERTED: "Put what grows behind what stays: constant text first, then memory, examples, documents.",
    Fault.VARYING: "Put the constant text first, then what varies.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in the prompts that a tenant sends to a model."""

    tenant: str
    model: str
    fault: Fault
    place: str
    """Which part of the prompt."""
    line: int
    """In that part, from 1; of what is found in many lines, the first."""
    offset_bytes: int
    """In that line, of what varies."""
    position_tokens: int
    """From the beginning of the prompt, estimated."""
    requests: int
    """That came as far as this place."""
    breaks: int
    """Of them, had something new here, so that all behind it had to be computed again."""
    variants: int
    """Different texts seen here; of very many, at least so many."""
    wasted_tokens: int
    """Constant prompt tokens behind it that no cache could serve; those behind a later fault are that one's."""
    wasted_tokens_per_day: float | None
    """At the rate that was observed; None where that was for less than an hour."""
    share: float
    """Of all prompt tokens of these requests."""
    frame: str
    """Names the segment with the varying part masked, in the salt's hashes; empty where nothing is masked."""
    example: str
    """The line with what varies masked, and everything else as dots."""

    @property
    def what(self) -> str:
        """Say what it is, and where."""
        return f"{WORDS[self.fault]} in line {self.line} of the {self.place}"

    @property
    def advice(self) -> str:
        """Say what to do."""
        return ADVICE[self.fault]


MAX_DOTS = 24  # on each side


def masked(segment: Segment, fault: Fault) -> str:
    """Draw a segment whose text nobody has: dots for bytes, and the names of what is masked."""
    places = [mark for mark in segment.marks if MARKS[mark.kind] is fault]
    if not places:
        return ""
    drawn, at = "", 0
    for mark in places:
        drawn += _dots(mark.offset - at) + f"<{fault.value}>"
        at = mark.offset + mark.length
    return drawn + _dots(segment.size - at)


def _dots(count: int) -> str:
    return "·" * count if count <= MAX_DOTS else f"·· {count} bytes ··"


def place_name(place: str) -> str:
    """Name a part of a prompt."""
    return PLACES[place]
