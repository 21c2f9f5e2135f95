"""RingKeys: what a request's like have in common, for the ring: the system prompt, or that and the first user turn.

The longest beginning that more than one request has been seen with: of a conversation its own, of requests that share
a system prompt and nothing else, that. Bounded: the opening seen longest ago is forgotten first.
"""

from collections import OrderedDict

from policies.request import BlockHash

MAX_OPENINGS = 100_000


class RingKeys:
    """Remembers openings."""

    def __init__(self, most: int = MAX_OPENINGS) -> None:
        self._most = most
        self._seen: OrderedDict[BlockHash, None] = OrderedDict()

    def key_of(self, system_key: BlockHash | None, opening_key: BlockHash | None) -> BlockHash | None:
        """Give the key of a request, and remember its opening."""
        if opening_key is None or system_key is None:
            return opening_key if system_key is None else system_key
        is_known = opening_key in self._seen
        self._seen[opening_key] = None
        self._seen.move_to_end(opening_key)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
        return opening_key if is_known else system_key
