"""Walk: a prompt hashed along its segments, in the four ways in which the doctor asks whether it has seen it before."""

from xxhash import xxh3_64_intdigest

from policies.shape import Segment

TAIL_BYTES = 256  # 64 tokens: a shorter ending that all have is not worth a word


class Walk:
    """A prompt, hashed along its segments."""

    __slots__ = ("beginnings", "chains", "endings", "frames", "positions", "root", "segments", "tails")

    def __init__(self, root: int, segments: tuple[Segment, ...]) -> None:
        self.root = root
        self.segments = segments
        self.chains: list[int] = []
        """Of exact texts, from the first on."""
        self.frames: list[int] = []
        """Of frames, from the first on: the nodes."""
        self.beginnings: list[int] = []
        """Of exact texts, from the beginning of the part."""
        self.endings: list[int] = [0] * len(segments)
        """Of exact texts, from the end of the part back."""
        self.positions: list[int] = []
        """In bytes."""
        chain = frame = root
        part, place, position = root, "", 0
        for segment in segments:
            if segment.place != place:
                place = segment.place
                part = _link(place, root)
            chain = _link(segment.place + segment.exact, chain)
            frame = _link(segment.place + segment.frame, frame)
            part = _link(segment.exact, part)
            self.chains.append(chain)
            self.frames.append(frame)
            self.beginnings.append(part)
            self.positions.append(position)
            position += segment.size
        self.tails: list[int] = [0] * (len(segments) + 1)
        """Of exact texts: the last TAIL_BYTES of the part that a segment is in; the last is of no part."""
        place, tail, size = "", root, 0
        for at in range(len(segments) - 1, -1, -1):
            segment = segments[at]
            if segment.place != place:
                place, size = segment.place, 0
                part = _link(place + "end", root)
            part = self.endings[at] = _link(segment.exact, part)
            if size < TAIL_BYTES:
                tail = part
            self.tails[at] = tail
            size += segment.size
        for at in range(1, len(segments)):  # the whole part's, from its first segment on
            if segments[at].place == segments[at - 1].place:
                self.tails[at] = self.tails[at - 1]

    def above(self, at: int) -> int:
        """Name the node before a segment."""
        return self.frames[at - 1] if at else self.root

    def rest_of_part(self, at: int) -> tuple[str, ...]:
        """Give the frames from a segment to the end of its part."""
        place = self.segments[at].place
        return tuple([segment.frame for segment in self.segments[at:] if segment.place == place])


def _link(name: str, before: int) -> int:
    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), before)
