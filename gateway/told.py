"""Told: what one engine has told of its cache, and how its pool's index hears of it.

The index believes events over dispatches (`follow`) only while they tell all: while every publisher of the engine is
connected, was heard from its beginning or from the last time that it cleared its cache, and nearly all blocks could be
mapped. Else events and dispatches count side by side. Whenever that begins, the index forgets what only dispatches say.

An engine of several data parallel ranks has as many caches: a unit is held while one of them holds it.

Nothing is written of an incarnation that has ended: its Endpoint is nobody's any more. Events are taken in slices of
SLICE_S, so that ten thousand at once do not hold up the tokens of a stream."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from gateway.members import Member
from policies.blocks import EngineBlocks
from policies.events import Cleared, Event
from policies.request import BlockHash

SLICE_S = 0.001  # of work at a time; one event of a long prompt takes as long

RootOf: TypeAlias = Callable[[Member, str, str], BlockHash | None]
"""Our chain's root at an engine for an adapter ("" for none) and a salt; None: it is not known here."""


class Rank:
    """One publisher of an engine."""

    def __init__(self, blocks: EngineBlocks) -> None:
        self.blocks = blocks
        self.last: int | None = None
        """Number of the last message; -1 before the first, None where that is not known."""
        self.time = float("-inf")
        """Of the last message, by the engine's clock."""
        self.is_whole = False
        """Whether we know all that it holds."""
        self.is_connected = False


class Told:
    """What one engine has told.

    Args:
        member: The engine.
        root_of: See RootOf.
        unit_tokens_of: Tokens of our unit at an engine.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        member: Member,
        root_of: RootOf,
        unit_tokens_of: Callable[[Member], int],
        clock: Callable[[], float],
    ) -> None:
        self.member = member
        self.endpoint = member.endpoint
        self.ranks: list[Rank] = []
        self.is_followed = False
        """Whether the index believes its events over dispatches."""
        self.events = 0
        self.gaps = 0
        """Times that messages were missing."""
        self.replays = 0
        """Times that what was published before was asked for."""
        self.unreadable = 0
        """Messages that made no sense."""
        self.trouble = ""
        """Why it is not listened to, in words; empty where it is, or has nothing to tell."""
        self._root_of = partial(root_of, member)
        self._unit_tokens_of = unit_tokens_of
        self._unit_tokens = 0
        self._clock = clock
        self._slice_ends = 0.0
        self._holders: Counter[BlockHash] = Counter()
        """Ranks that hold a unit, where there are several."""

    @property
    def blocks(self) -> int:
        """Blocks of the engine that are kept track of."""
        return sum(len(rank.blocks) for rank in self.ranks)

    def begin(self, count: int, *, counts_copies: bool) -> None:
        """Know nothing of an engine's `count` publishers."""
        self.endpoint = self.member.endpoint
        self._unit_tokens = self._unit_tokens_of(self.member)
        self._holders.clear()
        self.ranks = [
            Rank(EngineBlocks(self._unit_tokens, self._root_of, counts_copies=counts_copies)) for _ in range(count)
        ]

    def is_stale(self) -> bool:
        """Whether the engine is a new incarnation, or our unit has changed: `begin` again."""
        return self.member.endpoint is not self.endpoint or self._unit_tokens_of(self.member) != self._unit_tokens

    def end(self) -> None:
        """Listen no more: dispatches count alone from now on."""
        self.ranks = []
        self.settle()

    async def take_in(self, rank: Rank, events: Iterable[Event]) -> None:
        """Tell the index what events say, and give way to others between slices."""
        index = self.member.pool.index
        for event in events:
            if self.member.endpoint is not self.endpoint:
                return
            self.events += 1
            if isinstance(event, Cleared):
                self.clear(rank)
            else:
                gone, held = rank.blocks.apply(event)
                if gone:
                    index.removed(self.endpoint, self._held_by_none(gone))
                for run in held:
                    index.stored(self.endpoint, self._held_by_one(run), self._clock())
            if self._clock() >= self._slice_ends:
                await asyncio.sleep(0)
                self._slice_ends = self._clock() + SLICE_S

    def clear(self, rank: Rank, *, is_whole: bool = True) -> None:
        """Drop all that a publisher told; say whether it is known to hold nothing now."""
        self._held_by_none(rank.blocks.clear())
        rank.is_whole = is_whole
        if self.member.endpoint is self.endpoint:
            self._restate()

    def settle(self) -> None:
        """Let the index believe events over dispatches, or not, as they tell all or not."""
        is_followed = bool(self.ranks) and all(
            rank.is_whole and rank.is_connected and rank.blocks.is_telling for rank in self.ranks
        )
        if is_followed == self.is_followed:
            return
        self.is_followed = is_followed
        if self.member.endpoint is not self.endpoint:
            return
        if is_followed:
            self._restate()
        else:
            self.member.pool.index.unfollow(self.endpoint)

    def _restate(self) -> None:
        """Let the index know what was told, and nothing else."""
        index = self.member.pool.index
        index.forget(self.endpoint)
        if self.is_followed:
            index.follow(self.endpoint)
        for rank in self.ranks:
            for run in rank.blocks.held():
                index.stored(self.endpoint, run, self._clock())

    def _held_by_one(self, units: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """Give those units of a rank that no other holds: the end of a chain."""
        if len(self.ranks) > 1:
            self._holders.update(units)
            return [unit for unit in units if self._holders[unit] == 1]
        return units

    def _held_by_none(self, units: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """Give those units that a rank held and no other holds."""
        if len(self.ranks) > 1:
            self._holders.subtract(units)
            units = [unit for unit in units if self._holders[unit] <= 0]
            for unit in units:
                del self._holders[unit]
        return units
