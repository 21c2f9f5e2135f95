"""PrefixIndex: which endpoint probably holds which units of which prompts.

One dict gives for each unit a bit mask of the endpoints that hold it. Units are chained, and an endpoint that forgets
a unit has forgotten all behind it, so along a prompt the masks only lose bits. Hence a match is found by bisection:
where two places of a prompt have the same mask, so have all between them, and a prompt of 16k tokens is answered by
some twenty look-ups instead of 256.

Each endpoint has a journal of what it was sent, oldest first. A unit belongs to the last entry that names it
(`_stamps` says which). What an endpoint holds beyond its capacity is taken from the oldest entry, last unit first:
like the engine's own free list, where tails go before the heads that others may still share. So own dispatches are
forgotten about when the engine forgets them; the capacity is the engine's word, since an index half as large costs 29
% of the rate on rag and one twice as large 13 %.

An engine forgets nothing of a request in flight, and counts its age from its end: so the journal names a prompt once
more when it is `done`. Conversations that outgrow the caches (`conv` at 62/s, seeds 1 to 3) hit .577 by dispatches
alone, .595 with ends as well, .618 with KV events.

Where an engine publishes its KV events (`follow`), the events are the truth. Dispatches then count as expected for
SPECULATIVE_S, so that a burst of siblings follows the first of them before the first event comes, and are forgotten
if no event confirms them. What the engine says it holds is then not counted against its capacity: it may have put some
of it elsewhere. An engine whose events tell but a part (`unfollow`) is judged by both, dispatches and events."""

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Sequence

from policies.endpoint import Endpoint
from policies.request import BlockHash

DEFAULT_CAPACITY_TOKENS = 400_000  # an 8B model on an 80 GB GPU, until the engine has told
MAX_JOURNAL = 4  # times the capacity; beyond that, units that later entries name are struck out
MAX_MASKS = 4096  # whose holders are kept spelt out
MAX_TOLD = 4  # times the capacity, in units that an engine says it holds: on its host and its disks as well
SPECULATIVE_S = 3.0  # of 2 to 5: a prefill and the way of its event, and not much more


class _Holding:
    """What one endpoint holds."""

    __slots__ = (
        "bit",
        "clock",
        "expected",
        "is_followed",
        "is_told",
        "journal",
        "journal_units",
        "planted",
        "planted_units",
        "stamps",
    )

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.clock = 0
        self.stamps: dict[BlockHash, int] = {}  # unit -> the last entry that names it
        self.journal: deque[tuple[int, float, Sequence[BlockHash]]] = deque()  # entry, when, units
        self.journal_units = 0
        self.planted: dict[BlockHash, int] = {}  # of prompts mostly new here, the first new unit -> new units
        self.planted_units = 0
        self.is_followed = False
        self.is_told = False  # by events: then a prompt may be held with a gap, for as long as something is expected
        self.expected: dict[BlockHash, float] = {}  # unit -> forget it then, if no event has confirmed it


class PrefixIndex:
    """Knows the probable holders of prefixes; one a pool, told by whoever charges endpoints.

    Invariants: along every prompt that was learned, holders only drop out; an endpoint holds at most its capacity.
    """

    def __init__(self) -> None:
        self._masks: dict[BlockHash, int] = {}
        self._holdings: dict[Endpoint, _Holding] = {}
        self._endpoints: dict[int, Endpoint] = {}  # by bit
        self._free_bits: list[int] = []
        self._holders_of: dict[int, tuple[Endpoint, ...]] = {}

    def __len__(self) -> int:
        """Count the distinct units that are held somewhere."""
        return len(self._masks)

    def __repr__(self) -> str:
        held = ", ".join(f"{endpoint.name} {len(each.stamps)}" for endpoint, each in self._holdings.items())
        return f"<PrefixIndex {len(self._masks)} units: {held}>"

    # Asking.

    def matched(self, prefix: Sequence[BlockHash]) -> dict[Endpoint, int]:
        """Give the endpoints that hold the beginning of a prompt, each with its units (at least 1), most units last."""
        found: dict[Endpoint, int] = {}
        masks = self._masks.get
        end = len(prefix)
        low = 0
        mask = masks(prefix[0], 0) if prefix else 0
        while mask:
            # prefix[low] has this mask; find the first place behind it that has another.
            if masks(prefix[end - 1], 0) == mask:
                place, rest = end, 0
            else:
                place, high, rest = low + 1, end - 1, masks(prefix[end - 1], 0)
                while place < high:
                    middle = (place + high) >> 1
                    other = masks(prefix[middle], 0)
                    if other == mask:
                        place = middle + 1
                    else:
                        high, rest = middle, other
            found.update(dict.fromkeys(self._holders(mask & ~rest), place))
            low, mask = place, mask & rest
        return found

    def matched_on(self, endpoint: Endpoint, prefix: Sequence[BlockHash]) -> int:
        """Count the leading units of a prompt that one endpoint holds."""
        holding = self._holdings.get(endpoint)
        return 0 if holding is None else _known(holding.stamps, prefix)

    def held_tokens(self, endpoint: Endpoint) -> int:
        """Count the tokens that an endpoint holds, as far as we know."""
        holding = self._holdings.get(endpoint)
        return 0 if holding is None else len(holding.stamps) * endpoint.unit_tokens

    def fill(self, endpoint: Endpoint) -> float:
        """Give the share of its capacity that an endpoint holds, as far as we know."""
        holding = self._holdings.get(endpoint)
        return 0.0 if holding is None else len(holding.stamps) / _capacity_units(endpoint)

    def planted(self, endpoints: Iterable[Endpoint]) -> list[int]:
        """Count the units that prompts brought to each of which less than half was held, until the first is forgotten.

        So many prompts have their home there, by size. What is held tells less: as long as the prompts that will
        follow them have not all been seen, it depends on which came first.
        """
        get = self._holdings.get
        return [0 if (holding := get(endpoint)) is None else holding.planted_units for endpoint in endpoints]

    def working_set_tokens(self, endpoint: Endpoint, now: float, window_s: float = 300.0) -> int:
        """Count the tokens that requests of the last `window_s` named there and that are still held: for metrics."""
        holding = self._holdings.get(endpoint)
        if holding is None:
            return 0
        since = next((entry for entry, when, _ in holding.journal if when >= now - window_s), holding.clock + 1)
        return sum(entry >= since for entry in holding.stamps.values()) * endpoint.unit_tokens

    # Being told.

    def learn(self, endpoint: Endpoint, prefix: Sequence[BlockHash], now: float) -> None:
        """Note that an endpoint was sent a prompt, and so will hold it."""
        holding = self._holding_of(endpoint)
        if holding.is_followed:
            self._expect(holding, prefix, now)
        known = _known(holding.stamps, prefix)
        if 2 * known < len(prefix):
            holding.planted[prefix[known]] = len(prefix) - known
            holding.planted_units += len(prefix) - known
        self._note(endpoint, holding, prefix, known, now)

    def done(self, endpoint: Endpoint, prefix: Sequence[BlockHash], now: float) -> None:
        """Note that an endpoint has answered a prompt: from now on it may forget it.

        The answer, which it holds too, has no hashes until the next turn brings them. Taking it off the capacity until
        then was tried: it is worth .004 of the hit rate on conversations, and where answers are long (b2b) caches look
        full of what nobody will ask for.
        """
        holding = self._holdings.get(endpoint)
        if holding is not None and not holding.is_followed and prefix:
            if holding.stamps.get(prefix[-1]) == holding.clock:  # nothing was sent there since
                return
            self._note(endpoint, holding, prefix, _known(holding.stamps, prefix), now)

    def unlearn(self, endpoint: Endpoint, prefix: Sequence[BlockHash], kept: Container[BlockHash]) -> None:
        """Take back what `learn` noted of a prompt that the engine refused, but for units in `kept`."""
        holding = self._holdings.get(endpoint)
        if holding is not None:
            for unit in reversed(prefix):
                if unit in kept:
                    break
                self._drop(holding, unit)

    def follow(self, endpoint: Endpoint) -> None:
        """Believe an endpoint's KV events from now on: `stored`, `removed`, `forget`."""
        holding = self._holding_of(endpoint)
        holding.is_followed = holding.is_told = True

    def unfollow(self, endpoint: Endpoint) -> None:
        """Believe dispatches again: events are lost, or do not tell all. What is held stays, and what is expected."""
        holding = self._holdings.get(endpoint)
        if holding is not None:
            holding.is_followed = False
            holding.expected.clear()

    def stored(self, endpoint: Endpoint, units: Sequence[BlockHash], now: float) -> None:
        """Note units that the engine says it has stored, in the order of their chain."""
        holding = self._holding_of(endpoint)
        holding.is_told = True
        for unit in units:
            holding.expected.pop(unit, None)
        self._note(endpoint, holding, units, _known(holding.stamps, units), now)

    def removed(self, endpoint: Endpoint, units: Iterable[BlockHash]) -> None:
        """Note units that the engine says it no longer holds."""
        holding = self._holdings.get(endpoint)
        if holding is not None:
            holding.is_told = True
            for unit in units:
                self._drop(holding, unit)

    def forget(self, endpoint: Endpoint) -> None:
        """Forget all of an endpoint: it restarted, left, or emptied its cache."""
        holding = self._holdings.pop(endpoint, None)
        if holding is not None:
            for unit in list(holding.stamps):
                self._drop(holding, unit)
            del self._endpoints[holding.bit]
            self._holders_of.clear()
            self._free_bits.append(holding.bit)

    # Inside.

    def _holders(self, mask: int) -> tuple[Endpoint, ...]:
        """Give the endpoints of a mask; the same few masks come again and again."""
        holders = self._holders_of.get(mask)
        if holders is None:
            if len(self._holders_of) >= MAX_MASKS:
                self._holders_of.clear()
            holders = tuple(endpoint for bit, endpoint in self._endpoints.items() if mask & bit)
            self._holders_of[mask] = holders
        return holders

    def _holding_of(self, endpoint: Endpoint) -> _Holding:
        holding = self._holdings.get(endpoint)
        if holding is None:
            bit = self._free_bits.pop() if self._free_bits else 1 << len(self._holdings)
            holding = self._holdings[endpoint] = _Holding(bit)
            self._endpoints[bit] = endpoint
            self._holders_of.clear()
        return holding

    def _note(self, endpoint: Endpoint, holding: _Holding, units: Sequence[BlockHash], known: int, now: float) -> None:
        """Write units into the journal, the first `known` of them held already, and keep within the capacity."""
        if not units:
            return
        stamps, bit, masks = holding.stamps, holding.bit, self._masks
        for unit in units if holding.is_told else units[known:]:
            masks[unit] = masks.get(unit, 0) | bit
        holding.clock += 1
        stamps.update(dict.fromkeys(units, holding.clock))
        holding.journal.append((holding.clock, now, units))
        holding.journal_units += len(units)
        capacity = _capacity_units(endpoint)
        if holding.is_followed:
            capacity *= MAX_TOLD
        if len(stamps) > capacity:
            self._evict(holding, capacity)
        if holding.journal_units > MAX_JOURNAL * capacity + len(units):
            _strike(holding)

    def _evict(self, holding: _Holding, capacity: int) -> None:
        """Forget the oldest units, of one prompt the last first."""
        stamps, journal = holding.stamps, holding.journal
        while len(stamps) > capacity:
            entry, when, units = journal.popleft()
            holding.journal_units -= len(units)
            left = len(units)
            while left and len(stamps) > capacity:
                left -= 1
                if stamps.get(units[left]) == entry:
                    self._drop(holding, units[left])
            if left:
                journal.appendleft((entry, when, units[:left]))
                holding.journal_units += left

    def _drop(self, holding: _Holding, unit: BlockHash) -> None:
        """Take one unit from one endpoint, if it has it."""
        if holding.stamps.pop(unit, None) is not None:
            mask = self._masks[unit] & ~holding.bit
            if mask:
                self._masks[unit] = mask
            else:
                del self._masks[unit]
        holding.expected.pop(unit, None)
        holding.planted_units -= holding.planted.pop(unit, 0)

    def _expect(self, holding: _Holding, prefix: Sequence[BlockHash], now: float) -> None:
        """Note what only a dispatch speaks for, and forget what was expected in vain."""
        expected = holding.expected
        while expected:
            unit, until = next(iter(expected.items()))
            if until > now:
                break
            self._drop(holding, unit)
        for unit in prefix:
            if unit not in holding.stamps:
                expected[unit] = now + SPECULATIVE_S


def _capacity_units(endpoint: Endpoint) -> int:
    return (endpoint.report.kv_capacity_tokens or DEFAULT_CAPACITY_TOKENS) // endpoint.unit_tokens or 1


def _known(stamps: dict[BlockHash, int], units: Sequence[BlockHash]) -> int:
    """Count the leading units that are held; whoever holds one holds all before it."""
    if not units or units[0] not in stamps:
        return 0
    if units[-1] in stamps:
        return len(units)
    return bisect_left(units, True, 1, len(units) - 1, key=lambda unit: unit not in stamps)


def _strike(holding: _Holding) -> None:
    """Rewrite the journal without the units that later entries name."""
    stamps, journal = holding.stamps, holding.journal
    kept: deque[tuple[int, float, Sequence[BlockHash]]] = deque()
    for entry, when, units in journal:
        own = [unit for unit in units if stamps.get(unit) == entry]
        if own:
            kept.append((entry, when, tuple(own)))
    holding.journal = kept
    holding.journal_units = sum(len(units) for _, _, units in kept)
