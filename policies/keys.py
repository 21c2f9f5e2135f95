"""RingKeys: what a request goes by on the ring: its system prompt, or the opening of its conversation.

The opening is system prompt and first user turn: it tells a conversation from others, and the whole of it comes again
with each turn. A request that comes once has an opening that nobody will see again, and only its system prompt to
share. So the key is the longest of the two that more than one request was seen with: the opening from the second turn
on, the system prompt before.

In simulation one gateway fares as well with any of them (conversations: hit rate .60 by opening or by the longest, .595
by system prompt; the rest alike): an index tells it who holds a prompt. It is gateways that do not know of each other
that must look for a prompt in the same place.

Bounded: of the openings those asked about longest ago are forgotten.
"""

from collections import OrderedDict

from policies.request import BlockHash

MAX_OPENINGS = 100_000  # some 10 MB; at 100 conversations a second what began in the last quarter of an hour


class RingKeys:
    """Remembers which openings were seen."""

    def __init__(self, most: int = MAX_OPENINGS) -> None:
        self._most = most
        self._seen: OrderedDict[BlockHash, None] = OrderedDict()

    def __len__(self) -> int:
        """Count the openings that are remembered."""
        return len(self._seen)

    def key_of(self, system_key: BlockHash | None, opening_key: BlockHash | None) -> BlockHash | None:
        """Give the key of a request, and remember its opening.

        Args:
            system_key: Names its system prompt; None where it has none.
            opening_key: Names system prompt and first user turn; None where nothing is known of it.
        """
        if opening_key is None:
            return system_key
        was_seen = opening_key in self._seen
        self._seen[opening_key] = None
        self._seen.move_to_end(opening_key)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
        return opening_key if was_seen or system_key is None else system_key
