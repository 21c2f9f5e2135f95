"""EngineBlocks: an engine's cached blocks, as its KV events tell them, in terms of our own units.

An engine names each block by a hash of its own, chained like ours but made in ways that differ by engine, version and
seed. So nothing is predicted: an event that stores blocks carries their tokens and the name of the block before them,
and from these our own chain is made. What is kept of a block is a slot: a place in flat arrays, and one dict leads from
the engine's name to it.

    stored, parent None     a chain begins at `root_of(adapter, salt)`
    stored, parent known    the chain goes on from there
    stored, parent unknown  it began before we listened: ignored
    removed                 a copy is gone; with the last one, this block and all behind it are out of reach

A unit is *held* while its last block is in reach: stored, with all blocks before it stored as well. That is what a
prompt can hit, and what PrefixIndex relies on. A block that is gone keeps its slot while stored blocks hang from it:
stored again, they are back in reach.

The engine's blocks may be smaller than our unit (then tokens of a unit's blocks are kept until its last, since other
chains may branch off in its middle) or larger; one must divide the other. vLLM tells of each copy of a block, one event
a copy: they are counted (`counts_copies`). The other engines tell of a block once per medium. A block is held while it
is on any medium.

What cannot be mapped is counted by reason, and `is_telling` says whether it is so much that an endpoint's own
dispatches say more."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from policies.events import DEVICE, Event, Removed, Stored
from policies.prefix import ID_BYTES, block_hashes
from policies.request import BlockHash

MAX_BLOCKS = 400_000  # of one endpoint: 400k tokens at SGLang's page of 1, 6.4 million at vLLM's 16; some 70 MB if full
MAX_COPIES = 0xFFF  # counted on the device; the bits above are the other media
KEY_MASK = (1 << 60) - 1  # of the engine's hash, signed or not: an int of two digits; a collision costs a wrong guess
OTHER_MEDIA = {"CPU": 1 << 12, "CPU_PINNED": 1 << 12, "STORAGE": 1 << 13, "DISK": 1 << 13}
ANY_OTHER = 1 << 14
MIN_MAPPED_SHARE = 0.9  # below that, a prompt that was sent and not confirmed may well be held
MIN_TOLD = 64  # blocks, before that share means anything
TOP = 0  # the slot above all chains
NOWHERE = -1  # no slot


class Unmapped(Enum):
    """Why blocks could not be mapped."""

    ORPHAN = "orphan"
    """What comes before them was stored before we listened, or was not mapped either."""
    CONTENT = "content"
    """Media or embeddings: the engine's tokens do not tell them apart."""
    ROOT = "root"
    """The model or adapter is not known here."""
    SIZE = "size"
    """Neither our unit nor their block divides the other, or they are partial."""
    FULL = "full"
    """More blocks than are kept."""


class Change(NamedTuple):
    """What an event changed: first these are gone, then those are held."""

    gone: Sequence[BlockHash] = ()
    held: Sequence[tuple[BlockHash, ...]] = ()
    """Units by chain: each is the continuation of what is held already, in order."""


NOTHING = Change()


class EngineBlocks:
    """The cached blocks of one engine.

    Args:
        unit_tokens: Tokens of our unit.
        root_of: Gives our chain's root for an adapter ("" for none) and a salt; None where there is none.
        counts_copies: Whether the engine tells of each copy of a block on the device, as vLLM does.
        max_blocks: Kept at most; chains beyond are not mapped.
    """

    def __init__(
        self,
        unit_tokens: int,
        root_of: Callable[[str, str], BlockHash | None],
        *,
        counts_copies: bool = True,
        max_blocks: int = MAX_BLOCKS,
    ) -> None:
        self.unit_tokens = unit_tokens
        self._root_of = root_of
        self._counts_copies = counts_copies
        self._max_blocks = max_blocks
        self.block_tokens = 0
        """Of the engine; 0 until it has told."""
        self.unmapped: Counter[Unmapped] = Counter()
        """Blocks that could not be mapped, since the last clear."""
        self.mapped = 0
        """Blocks that could."""
        self._reset(0)

    def __len__(self) -> int:
        """Count the blocks that are kept track of."""
        return len(self._slots)

    def __repr__(self) -> str:
        return f"<EngineBlocks {len(self._slots)} of {self.block_tokens} tokens, {sum(self._reached) - 1} in reach>"

    @property
    def is_telling(self) -> bool:
        """Whether what the events tell is nearly all that the engine holds."""
        lost = sum(self.unmapped.values())
        return lost + self.mapped < MIN_TOLD or self.mapped >= MIN_MAPPED_SHARE * (lost + self.mapped)

    # Being told.

    def apply(self, event: Event) -> Change:
        """Take in one event, in the order in which the engine sent them."""
        if isinstance(event, Stored):
            return self._store(event)
        if isinstance(event, Removed):
            return self._remove(event)
        return Change(self.clear())

    def clear(self) -> tuple[BlockHash, ...]:
        """Forget all blocks, and give the units that were held."""
        gone = tuple(unit for run in self.held() for unit in run)
        self.unmapped.clear()
        self.mapped = 0
        self._reset(self.block_tokens)
        return gone

    def held(self) -> Iterator[tuple[BlockHash, ...]]:
        """Give all units that are held, by chain: what a run continues comes in runs before it."""
        return self._walk(list(self._children(TOP)), self._is_reached)

    # Inside.

    def _reset(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._group: int | None = None
        size, unit = block_tokens or 1, self.unit_tokens
        self._blocks_a_unit = max(1, unit // size)
        self._units_a_block = max(1, size // unit)
        self._is_mappable = unit % size == 0 or size % unit == 0
        self._keeps_tokens = self._blocks_a_unit > 1
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._keys = array("Q", [0])
        self._parent = array("i", [-1])
        self._child = array("i", [-1])
        self._next = array("i", [-1])
        self._before = array("i", [-1])
        self._copies = array("H", [1])
        self._place = array("H", [self._blocks_a_unit - 1])  # in its unit
        self._reached = bytearray([1])
        self._links = array("Q", bytes(8 * self._units_a_block))  # the last of a slot: where the chain goes on from
        self._tokens = array("I", bytes(ID_BYTES * size)) if self._keeps_tokens else array("I")

    def _store(self, event: Stored) -> Change:
        told, size = len(event.hashes), event.block_tokens
        gone: Sequence[BlockHash] = ()
        if size > self.block_tokens:  # the first word, or what came before were partial blocks
            gone = self.clear()
            self._reset(size)
        if size < max(1, self.block_tokens) or not self._is_mappable or told * size != len(event.tokens) or not told:
            self.unmapped[Unmapped.SIZE] += told
            return Change(gone)
        if self._group is None:
            self._group = event.group
        if event.group != self._group:
            return Change(gone)
        root: BlockHash | None = None
        if event.parent is None:
            above = TOP
            root = None if event.adapter is None else self._root_of(event.adapter, event.salt)
            if root is None:
                self.unmapped[Unmapped.ROOT] += told
                return Change(gone)
        else:
            above = self._slots.get(event.parent & KEY_MASK, NOWHERE)
            if above == NOWHERE:
                self.unmapped[Unmapped.ORPHAN] += told
                return Change(gone)
        return Change(gone, self._lengthen(event, above, root))

    def _lengthen(self, event: Stored, above: int, root: BlockHash | None) -> list[tuple[BlockHash, ...]]:
        """Store blocks below one that is known."""
        size = self.block_tokens
        told = len(event.hashes)
        mapped = told if event.mapped is None else min(told, event.mapped)
        if mapped < told:
            self.unmapped[Unmapped.CONTENT] += told - mapped
        run: list[BlockHash] = []
        back: list[int] = []
        is_reached = bool(self._reached[above])
        for at in range(mapped):
            key = event.hashes[at] & KEY_MASK
            slot = self._slots.get(key)
            if slot is None:
                if len(self._slots) >= self._max_blocks:
                    self.unmapped[Unmapped.FULL] += mapped - at
                    break
                slot = self._make(key, above, root, event.tokens[at * size : (at + 1) * size])
            elif self._child[slot] >= 0:
                back.append(slot)
            if not self._copies[slot] and event.medium == DEVICE:  # nearly all
                self._copies[slot] = 1
            else:
                self._add_copy(slot, event.medium)
            self.mapped += 1
            if is_reached and not self._reached[slot]:
                self._reached[slot] = 1
                run += self._units(slot)
            is_reached = bool(self._reached[slot])
            above, root = slot, None
        runs = [tuple(run)] if run else []
        if back and is_reached:  # stored blocks that hang from one that was gone are in reach again
            fresh = [child for slot in back for child in self._children(slot) if self._is_back(child)]
            runs += self._walk(fresh, self._come_back)
        return runs

    def _make(self, key: int, above: int, root: BlockHash | None, tokens: "array[int]") -> int:
        """Make a slot below another, and continue the chain by it."""
        place = (self._place[above] + 1) % self._blocks_a_unit
        link = BlockHash(self._links[(above + 1) * self._units_a_block - 1]) if root is None else root
        if place + 1 == self._blocks_a_unit:
            data = self._tokens_of_unit(above, place) + tokens
            links = block_hashes(link, data, self.unit_tokens)
        else:
            links = (link,)
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._keys)
            for column in (self._keys, self._parent, self._child, self._next, self._before, self._copies, self._place):
                column.append(0)
            self._reached.append(0)
            self._links.extend(links)
            if self._keeps_tokens:
                self._tokens.extend(tokens)
        self._keys[slot] = key
        self._copies[slot] = 0
        self._place[slot] = place
        if self._units_a_block == 1:
            self._links[slot] = links[0]
        else:
            self._links[slot * len(links) : (slot + 1) * len(links)] = array("Q", links)
        if self._keeps_tokens:
            self._tokens[slot * self.block_tokens : (slot + 1) * self.block_tokens] = tokens
        first = self._child[above]
        self._parent[slot], self._child[slot], self._next[slot], self._before[slot] = above, -1, first, -1
        if first >= 0:
            self._before[first] = slot
        self._child[above] = slot
        self._slots[key] = slot
        return slot

    def _tokens_of_unit(self, slot: int, count: int) -> "array[int]":
        """Give the tokens of `count` blocks, the last of which is `slot`."""
        tokens, size = array("I"), self.block_tokens
        for _ in range(count):
            tokens = self._tokens[slot * size : (slot + 1) * size] + tokens
            slot = self._parent[slot]
        return tokens

    def _remove(self, event: Removed) -> Change:
        if event.group is not None and event.group != self._group:
            return NOTHING
        gone: list[BlockHash] = []
        slots, copies, reached, medium = self._slots, self._copies, self._reached, event.medium
        for engine_hash in event.hashes:
            slot = slots.get(engine_hash & KEY_MASK)
            if slot is None:
                continue
            if copies[slot] == 1 and medium == DEVICE:  # nearly all
                copies[slot] = 0
            else:
                self._drop_copy(slot, medium)
                if copies[slot]:
                    continue
            if reached[slot]:
                reached[slot] = 0
                gone += self._units(slot)
                if self._child[slot] >= 0:
                    for run in self._walk(list(self._children(slot)), self._go):
                        gone += run
            self._let_go(slot)
        return Change(tuple(gone))

    def _let_go(self, slot: int) -> None:
        """Free a slot that is gone and has nothing below, and then those above it of which the same is true."""
        while slot != TOP and not self._copies[slot] and self._child[slot] < 0:
            above, before, after = self._parent[slot], self._before[slot], self._next[slot]
            if before >= 0:
                self._next[before] = after
            else:
                self._child[above] = after
            if after >= 0:
                self._before[after] = before
            del self._slots[self._keys[slot]]
            self._free.append(slot)
            slot = above

    def _add_copy(self, slot: int, medium: str) -> None:
        copies = self._copies[slot]
        if medium != DEVICE:
            copies |= OTHER_MEDIA.get(medium, ANY_OTHER)
        elif not copies & MAX_COPIES or (self._counts_copies and copies & MAX_COPIES < MAX_COPIES):
            copies += 1
        self._copies[slot] = copies

    def _drop_copy(self, slot: int, medium: str) -> None:
        copies = self._copies[slot]
        if medium != DEVICE:
            copies &= ~OTHER_MEDIA.get(medium, ANY_OTHER)
        elif copies & MAX_COPIES:
            copies -= 1
        self._copies[slot] = copies

    def _units(self, slot: int) -> Sequence[BlockHash]:
        """Give the units that end in a block."""
        if self._place[slot] + 1 < self._blocks_a_unit:
            return ()
        if self._units_a_block == 1:
            return (BlockHash(self._links[slot]),)
        first = slot * self._units_a_block
        return [BlockHash(link) for link in self._links[first : first + self._units_a_block]]

    def _children(self, slot: int) -> Iterator[int]:
        child = self._child[slot]
        while child >= 0:
            yield child
            child = self._next[child]

    def _walk(self, starts: list[int], is_of: Callable[[int], bool]) -> Iterator[tuple[BlockHash, ...]]:
        """Go down from some slots, to those below that `is_of` says; give the units, chain by chain."""
        open_slots = [slot for slot in starts if is_of(slot)]
        while open_slots:
            slot = open_slots.pop()
            run: list[BlockHash] = []
            while True:
                run += self._units(slot)
                below = [child for child in self._children(slot) if is_of(child)]
                if not below:
                    break
                slot = below.pop()
                open_slots += below
            if run:
                yield tuple(run)

    def _is_reached(self, slot: int) -> bool:
        return bool(self._reached[slot])

    def _is_back(self, slot: int) -> bool:
        return bool(self._copies[slot]) and not self._reached[slot]

    def _come_back(self, slot: int) -> bool:
        """Whether a block comes back into reach; it is then."""
        if not self._is_back(slot):
            return False
        self._reached[slot] = 1
        return True

    def _go(self, slot: int) -> bool:
        """Whether a block goes out of reach; it is then."""
        if not self._reached[slot]:
            return False
        self._reached[slot] = 0
        return True
