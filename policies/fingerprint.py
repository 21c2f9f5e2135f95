"""Fingerprint: what an access log keeps of a prompt's prefix, enough to tell how much two prompts share.

A prompt is a chain of hashes, one a unit of 64 tokens or so (prefix.py). All of them would be 2,000 for 128k tokens, so
the log keeps some: those of the first 32 units, and from there on 16 an octave (every 2nd up to 64, every 4th up to
128, ...). Each stands for all units before it as well, since they are chained. So of two prompts it is known how many
units they share, at worst a 16th too few, 3 % in the mean; exactly, where they share 32 units or fewer. 1k tokens keep
16 marks, 8k 64, 128k 128, a million 176; a mark is 8 characters, so that is 128 bytes, 512 bytes, 1 KB, 1.4 KB.

A mark is a keyed hash (BLAKE2b) of the chain's hash. Without the key, which stays with the deployment, nobody can guess
a prompt and look whether it is in the log; the chain's own hash has no key and would tell. 48 bits are enough: of 10
million marks at the same depth one in 28 million comparisons takes a stranger for a friend.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from policies.request import BlockHash

MARK_CHARS, MARK_BYTES = 8, 6
EXACT_UNITS = 32
MOST_MARKS = 256  # 32 million units; what is longer is cut there
KEPT_MARKS = 16_384  # of BLAKE2b, some 4 MB: half a microsecond each, where a dict takes a tenth of that


def _depths() -> Iterator[int]:
    yield from range(1, EXACT_UNITS + 1)
    step = 1
    while True:
        depth = EXACT_UNITS * step
        step *= 2
        yield from range(depth + step, 2 * depth + 1, step)


def _first(count: int) -> tuple[int, ...]:
    each = _depths()
    return tuple(next(each) for _ in range(count))


DEPTHS = _first(MOST_MARKS)
"""How many units each mark stands for, the first mark's first."""
_PLACES = tuple(depth - 1 for depth in DEPTHS)  # in the chain


class Fingerprinter:
    """Makes the fingerprints of one deployment.

    Args:
        key: Up to 64 bytes, secret; fingerprints by different keys have nothing in common.
    """

    def __init__(self, key: bytes) -> None:
        @lru_cache(KEPT_MARKS)
        def mark(link: int) -> str:
            return urlsafe_b64encode(
                blake2b(link.to_bytes(8, "little"), digest_size=MARK_BYTES, key=key).digest()
            ).decode()

        self.mark = mark

    def of(self, prefix: Sequence[BlockHash]) -> str:
        """Give the marks of a prefix, one after the other without anything between."""
        mark = self.mark
        return "".join([mark(prefix[place]) for place in _PLACES[: bisect_right(DEPTHS, len(prefix))]])


def marks_of(fingerprint: str) -> list[int]:
    """Give the marks as numbers below 2**48, the first unit's first.

    Raises:
        ValueError: It is none.
    """
    if len(fingerprint) % MARK_CHARS:
        raise ValueError("is no fingerprint: it ends within a mark")
    data = urlsafe_b64decode(fingerprint)  # leaves out what is no base64, so that it has to be counted
    count = len(fingerprint) // MARK_CHARS
    if len(data) != count * MARK_BYTES or count > MOST_MARKS:
        raise ValueError("is no fingerprint: it is no base64, or too long")
    return [int.from_bytes(data[at : at + MARK_BYTES], "big") for at in range(0, len(data), MARK_BYTES)]
