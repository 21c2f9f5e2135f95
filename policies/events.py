"""What an engine tells of its KV cache, whichever engine it is; gateway/engines/kvevents.py reads its messages."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

DEVICE = ""
"""The medium that prompts are computed on; every other one has a name."""


class Stored(NamedTuple):
    """Blocks of one chain, first block first, that are in the cache now."""

    hashes: Sequence[int]
    parent: int | None
    """The engine's hash of the block before the first; None at the beginning of a chain."""
    tokens: "array[int]"
    """As array("I"), those of all blocks."""
    block_tokens: int
    adapter: str | None = ""
    """None: there is one, of unknown name."""
    salt: str = ""
    mapped: int | None = None
    """Blocks before the first whose tokens do not say what is in it: media, embeddings. None: all."""
    medium: str = DEVICE
    group: int = 0
    """Of layers with the same kind of cache: of several, the first one that is told of is followed."""


class Removed(NamedTuple):
    """Blocks that are no longer on a medium."""

    hashes: Sequence[int]
    medium: str = DEVICE
    group: int | None = None


class Cleared(NamedTuple):
    """Nothing is cached any more."""


Event: TypeAlias = Stored | Removed | Cleared
