"""Counts what a stream has brought of its answer, for when its engine does not say: no usage, or no end.

Engines send a token at a time, so deltas with text in them are tokens; those of several choices count together. They
are found by their keys, in the bytes: inside generated text the quotes would be escaped, so a model cannot forge one.
Where an engine sends several tokens in a delta (SGLang's --stream-interval, TensorRT-LLM's, a server that lags) deltas
say too little, and the text tells: no language has MERGED_BYTES a token over a whole answer, and what has more is
estimated by its bytes, as prompts are. So a count is exact to the tokens without text (an end, a tool call's frame),
or, of merged deltas, as good as four bytes a token are; two tokens a delta do not show.
"""

from gateway.routes import CHAT, COMPLETION, MESSAGES, OTHER, RESPONSES, Shape
from gateway.tokens import BYTES_PER_TOKEN

MERGED_BYTES = 12  # a delta; Russian and Hindi have 8 to 9 a token, Chinese as \\u escapes 10
MAX_RUN = 64  # of backslashes that are looked at: a text of quotes must not cost its length for each
_QUOTE, _ESCAPE = b'"', ord("\\")
_NAMES = {
    CHAT: ("content", "reasoning_content", "reasoning", "arguments", "refusal", "name"),
    COMPLETION: ("text",),
    RESPONSES: ("delta",),
    MESSAGES: ("text", "thinking", "partial_json"),
    OTHER: (),
}
"""Of the members that hold text, the most frequent first; a tool call's name comes without arguments."""
_COMPACT = {shape: tuple(f'"{name}":"'.encode() for name in names) for shape, names in _NAMES.items()}
_SPACED = {shape: tuple(f'"{name}": "'.encode() for name in names) for shape, names in _NAMES.items()}


class Deltas:
    """What one stream has brought so far."""

    __slots__ = ("_compact", "_keys", "_shape", "count", "text_bytes")

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._keys = self._compact = _COMPACT[shape]
        self.count = 0
        """Deltas with text in them."""
        self.text_bytes = 0
        """Of their text, as JSON spells it."""

    @property
    def tokens(self) -> int:
        """How many tokens that was."""
        if self.text_bytes > MERGED_BYTES * self.count:
            return -(-self.text_bytes // BYTES_PER_TOKEN)
        return self.count

    def note(self, events: bytes) -> None:
        """Count the deltas in whole events; half a microsecond for one."""
        left = events.count(b"data:")
        for key in self._keys:
            place = events.find(key)
            while place >= 0:
                start = place + len(key)
                end = events.find(_QUOTE, start)
                while events[end - 1] == _ESCAPE and end > start and _is_escaped(events, start, end):
                    end = events.find(_QUOTE, end + 1)
                if end > start:
                    self.count += 1
                    self.text_bytes += end - start
                    left -= 1
                elif end < 0:  # cut: an event too long to wait for
                    return
                place = events.find(key, end)
            if left <= 0:  # every event is accounted for: none has a second text
                return
        if self._keys and not self.count and self._keys is self._compact and b'": "' in events:
            self._keys = _SPACED[self._shape]
            self.note(events)
            if not self.count:
                self._keys = self._compact


def _is_escaped(data: bytes, start: int, place: int) -> bool:
    """Whether a quote belongs to the text that began at `start`: an odd number of backslashes is before it."""
    run = data[max(start, place - MAX_RUN) : place]
    return (len(run) - len(run.rstrip(b"\\"))) % 2 == 1
