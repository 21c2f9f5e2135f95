"""Where prompts part: nodes of the doctor's tree, the spots where something goes wrong, and when that is told.

Thresholds are here, with their reasons. They are there so that nobody gets a false alarm.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from policies.findings import MARKS, SAME_CONTENT, Fault, Finding, masked, place_name
from policies.generations import Generations
from policies.shape import Mark, Segment

BYTES_PER_TOKEN = 4
MAX_SPOTS = 64  # of a group
MAX_VALUES = 16  # exact texts kept at a node; of more only the number is known
MIN_BREAKS = 5  # fewer are a deployment, or a handful of variants
MIN_BREAK_SHARE = 0.05  # of the requests that come there: what happens more rarely costs little, and may be meant
MIN_WASTE_TOKENS = 64  # a break, on average: a unit of the gateway's, four blocks of vLLM's; less is "Be brief."
MIN_WASTE_SHARE = 0.02  # of the prompt tokens that come there
MIN_REQUESTS = 20  # that came there, before shares mean anything
NEVER_AGAIN = 0.9  # of this share of new values on, they are not remembered: none comes twice
HOUR_S, DAY_S = 3600.0, 86_400.0


class Node:
    """A frame, behind all frames before it."""

    __slots__ = ("count", "distinct", "marks", "size", "tails", "values")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """Bytes of prompts that came here, up to their shapes' ends."""
        self.distinct = 0
        """Texts seen here; those that were forgotten count again."""
        self.values: dict[str, int] = {}
        """Requests by exact text."""
        self.marks: dict[str, tuple[Mark, ...]] = {}
        """Of those texts."""

        self.tails: dict[int, int] = {}
        """Requests by how the part ends that goes on behind it."""

    @property
    def never_repeats(self) -> bool:
        """Whether nearly every request has a text of its own here."""
        return self.count >= MIN_REQUESTS and self.distinct > NEVER_AGAIN * self.count

    def note(self, segment: Segment, size: int) -> None:
        """Count a request."""
        self.count += 1
        self.size += size
        if segment.exact in self.values:
            self.values[segment.exact] += 1
            return
        self.distinct += 1
        if len(self.values) >= MAX_VALUES:
            rarest = min(self.values, key=self.values.__getitem__)
            del self.values[rarest], self.marks[rarest]
        self.values[segment.exact] = 1
        self.marks[segment.exact] = segment.marks

    def end(self, tail: int) -> None:
        """Count how a part ends that goes on from here."""
        if tail not in self.tails and len(self.tails) >= MAX_VALUES:
            del self.tails[min(self.tails, key=self.tails.__getitem__)]
        self.tails[tail] = self.tails.get(tail, 0) + 1

    def fault_of(self, segment: Segment) -> Fault:
        """Say by what a new text differs from those of this frame: from the one that it is nearest to."""
        values = [mark.value for mark in segment.marks]
        letters = [mark.kind for mark in segment.marks]
        nearest: set[str] | None = None
        for marks in self.marks.values():
            differing = {
                letter for letter, value, other in zip(letters, values, marks, strict=False) if value != other.value
            }
            if nearest is None or len(differing) < len(nearest):
                nearest = differing
        return next((fault for letter, fault in MARKS.items() if letter in (nearest or ())), Fault.WHITE_SPACE)


class Spot:
    """A place where prompts part, by one fault."""

    __slots__ = ("above", "breaks", "cost", "nodes", "position", "segment", "told", "wasted")

    def __init__(self, segment: Segment, position: int) -> None:
        self.segment = segment
        self.position = position
        """In bytes."""
        self.breaks = 0
        self.cost = 0.0
        """Tokens wasted, of requests that were looked at."""
        self.wasted = 0.0
        """The same with those that were not, which these stand for."""
        self.told = 0.0
        """Of that, by `note`."""
        self.nodes: dict[int, None] = {}
        """Of the place itself, where its frame is known."""
        self.above: dict[int, None] = {}
        """Of what comes before it."""

    def waste(self, size: int, weight: int) -> None:
        """Add the bytes of a segment that had to be computed again."""
        self.cost += size / BYTES_PER_TOKEN
        self.wasted += weight * size / BYTES_PER_TOKEN


class Waste(NamedTuple):
    """Tokens that a sure fault has cost since it was last told."""

    fault: Fault
    tokens: float


class Group:
    """A tenant's requests to a model, under one salt."""

    def __init__(self, root: int, at: float) -> None:
        self.root = root
        self.first_at = self.last_at = at
        self.requests = 0
        self.spots: dict[tuple[Fault, str, int], Spot] = {}

    def spot(self, fault: Fault, segment: Segment, position: int, node: int | None, above: int) -> Spot | None:
        """Give the spot of a fault; None: there are too many. What is lost, and white space, has one for all lines."""
        key = (fault, segment.place, -1 if node is None or fault is Fault.WHITE_SPACE else segment.line)
        spot = self.spots.get(key)
        if spot is None:
            if len(self.spots) >= MAX_SPOTS:
                return None
            spot = self.spots[key] = Spot(segment, position)
        elif segment.line < spot.segment.line:
            spot.segment, spot.position = segment, position
        if node is not None and len(spot.nodes) < MAX_VALUES:
            spot.nodes[node] = None
        if len(spot.above) < MAX_VALUES:
            spot.above[above] = None
        return spot

    def due(self, nodes: Generations[Node]) -> list[Waste]:
        """Give what sure faults have cost since it was last given."""
        wastes = []
        for (fault, _, _), spot in self.spots.items():
            if spot.wasted > spot.told and self._is_sure(fault, spot, nodes):
                wastes.append(Waste(fault, spot.wasted - spot.told))
                spot.told = spot.wasted
        return wastes

    def findings(self, tenant: str, model: str, nodes: Generations[Node]) -> Iterator[Finding]:
        """Give what is sure."""
        lasted_s = self.last_at - self.first_at
        for (fault, place, _), spot in self.spots.items():
            if self._is_sure(fault, spot, nodes):
                came, size = self._came(spot, nodes)
                segment = spot.segment
                distinct = sum(node.distinct for node in _known(spot.nodes, nodes))
                offset = min((mark.offset for mark in segment.marks if MARKS[mark.kind] is fault), default=0)
                yield Finding(
                    tenant=tenant,
                    model=model,
                    fault=fault,
                    place=place_name(place),
                    line=segment.line + 1,
                    offset_bytes=offset,
                    position_tokens=(spot.position + offset) // BYTES_PER_TOKEN,
                    requests=came,
                    breaks=spot.breaks,
                    variants=distinct or spot.breaks,
                    wasted_tokens=round(spot.wasted),
                    wasted_tokens_per_day=spot.wasted * DAY_S / lasted_s if lasted_s >= HOUR_S else None,
                    share=min(1.0, spot.cost * BYTES_PER_TOKEN / max(1, size)),
                    frame=segment.frame if segment.frame != segment.exact else "",
                    example=masked(segment, fault),
                )

    def _came(self, spot: Spot, nodes: Generations[Node]) -> tuple[int, int]:
        """Count the requests that came to a spot, and the bytes of their prompts.

        Of a known frame those that have it, else those that came to where it would be; at nodes one behind the other
        they count more than once, so that shares come out too small rather than too large.
        """
        found = _known(spot.nodes or spot.above, nodes)
        return min(self.requests, sum(node.count for node in found)), sum(node.size for node in found)

    def _is_sure(self, fault: Fault, spot: Spot, nodes: Generations[Node]) -> bool:
        """Whether a fault is told: it comes again and again, and costs.

        Where all variants say the same, two are one too many: then it is enough that many requests have a rarer one.
        """
        came, size = self._came(spot, nodes)
        if came < MIN_REQUESTS or spot.cost < MIN_WASTE_TOKENS * spot.breaks:
            return False
        if spot.breaks >= MIN_BREAKS and spot.breaks >= MIN_BREAK_SHARE * came:
            return spot.cost * BYTES_PER_TOKEN >= MIN_WASTE_SHARE * size
        if fault not in SAME_CONTENT:
            return False
        rarer = sum(node.count - max(node.values.values()) for node in _known(spot.nodes, nodes))
        return rarer >= max(MIN_BREAKS, MIN_BREAK_SHARE * came)


def _known(keys: Iterable[int], nodes: Generations[Node]) -> list[Node]:
    return [node for key in keys if (node := nodes.get(key)) is not None]
