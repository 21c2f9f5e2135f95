"""HotPrefixes: which beginnings many prompts share, of those that came lately.

A prompt is a chain of hashes, and it is counted at a few depths: 1, 2, 4, 8, ... units. Each such node knows how many
prompts came through it, with weights that fade, and how far all of them agree: that is the prefix that is told, exact
to a unit, however coarse the depths are. One prompt that parts early spoils the nodes above the place where it does so
and none below, so a system prompt of 15 units is found at depths 1, 2, 4 and 8, and told once.

Nothing is asked of the hot path but to leave its last prompts somewhere: these are a sample, and so are the weights.
Memory is bounded, by nodes and by units of each; what is forgotten are the prefixes with the least weight.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

from policies.request import BlockHash

FADE_S = 300.0  # the weight of a prompt falls to a third in this time
MAX_NODES = 2048  # some 200 prompts that have nothing in common
MAX_UNITS = 512  # of a prompt, 32k tokens: what more it shares is not told
MIN_WEIGHT = 1.5  # prompts: one alone shares nothing


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A beginning that prompts share."""

    last: BlockHash
    """Its last unit's hash, which stands for all of it."""
    units: int
    prompts: float
    """That began so lately, as far as they were sampled; it fades."""
    label: str
    """As `note` was last told."""


@dataclass(eq=False, slots=True)
class _Node:
    """What came through one place."""

    prefix: Sequence[BlockHash]
    """Of the first that came through."""
    common: int
    """Units of it that all have."""
    weight: float
    at: float
    label: str


class HotPrefixes:
    """Counts beginnings of prompts; one a pool, since chains of different units have nothing in common."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self._nodes: dict[BlockHash, _Node] = {}

    def __repr__(self) -> str:
        return f"<HotPrefixes {len(self._nodes)} nodes>"

    def note(self, prefix: Sequence[BlockHash], label: str, now: float) -> None:
        """Count one prompt; `label` is told with what it shares (its model)."""
        prefix = prefix[:MAX_UNITS]
        for depth in _depths(len(prefix)):
            node = self._nodes.get(prefix[depth - 1])
            if node is None:
                if len(self._nodes) >= self._max_nodes:
                    self._prune(now)
                self._nodes[prefix[depth - 1]] = _Node(prefix, len(prefix), 1.0, now, label)
            else:
                node.common = _shared(node.prefix, prefix, node.common)
                node.weight = _faded(node, now) + 1
                node.at, node.label = now, label

    def top(self, most: int, now: float) -> list[HotPrefix]:
        """Give the prefixes that spare the most units when they are cached, the best first."""
        best: dict[BlockHash, HotPrefix] = {}
        for node in self._nodes.values():
            weight = _faded(node, now)
            last = node.prefix[node.common - 1]
            if weight >= MIN_WEIGHT and (last not in best or weight > best[last].prompts):
                best[last] = HotPrefix(last, node.common, weight, node.label)
        return sorted(best.values(), key=lambda each: -each.units * (each.prompts - 1))[:most]

    def _prune(self, now: float) -> None:
        """Forget the half that weighs least."""
        kept = sorted(self._nodes.items(), key=lambda item: -_faded(item[1], now))[: self._max_nodes // 2]
        self._nodes = dict(kept)


def _depths(units: int) -> Iterator[int]:
    depth = 1
    while depth <= units:
        yield depth
        depth *= 2


def _faded(node: _Node, now: float) -> float:
    return node.weight * exp((node.at - now) / FADE_S)


def _shared(one: Sequence[BlockHash], other: Sequence[BlockHash], most: int) -> int:
    """Count the leading units that two prompts share, `most` at most; chained, so that they part once."""
    most = min(most, len(other))
    if one[most - 1] == other[most - 1]:
        return most
    return bisect_left(range(most), True, key=lambda at: one[at] != other[at])
