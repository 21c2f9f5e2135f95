"""Remembers how the beginnings of prompts were read, so that the next turn of a conversation costs only what is new.

A rendered prompt is cut before each token that begins a turn. Two things are kept, each within its bytes, the least
recently used going first:

    ids    of a segment by its text: the same document in another conversation
    links  of a prompt up to the end of a segment, by all the text before it: the block hashes that the segment
           completed, and the ids of the block that it left open

Keys are XXH3 of 128 bits over a segment's text, with the key before as seed, so that one hash a segment names the whole
beginning. The first seed is drawn for the process: nobody outside can make two texts collide.

Cutting is exact for tokens that the tokenizer finds in the text before it does anything else: those that are not
normalised (or where nothing normalises), take no blanks from their neighbours, do not ask whether they stand alone, and
cannot lie across another such token. `cut_tokens` gives those; `checks` then tries them on sample texts as well.
"""

import asyncio
import contextlib
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from xxhash import xxh3_128_intdigest

from policies.prefix import block_hashes
from policies.request import BlockHash

ID_BYTES = 4
ENTRY_BYTES = 300  # of a dictionary entry with key and value, beside what it holds
SLICE_UNITS = 2048  # hashed in a row: half a millisecond
LINK_BYTES = 40  # of a hash in a tuple: the pointer and the number
_SEED = (1 << 64) - 1

Kept = TypeVar("Kept")


class Added(Protocol):
    """A token that is found in text as it stands: `tokenizers.AddedToken`."""

    @property
    def content(self) -> str: ...
    @property
    def single_word(self) -> bool: ...
    @property
    def lstrip(self) -> bool: ...
    @property
    def rstrip(self) -> bool: ...


class Link(NamedTuple):
    """What one segment did to a chain."""

    tokens: int
    hashes: tuple[BlockHash, ...]
    """Of the units that it completed."""
    tail: bytes
    """Ids of the unit that it left open."""


class Recent(Generic[Kept]):
    """Keeps what was used last, within a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[int, tuple[Kept, int]] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: int) -> Kept | None:
        """Find what is kept, and count it as used."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: int, value: Kept, size: int) -> None:
        """Keep a value of so many bytes; one that is larger than a quarter of all is not kept."""
        size += ENTRY_BYTES
        if size * 4 > self._max_bytes:
            return
        old = self._kept.pop(key, None)
        if old is not None:
            self.held_bytes -= old[1]
        self._kept[key] = value, size
        self.held_bytes += size
        while self.held_bytes > self._max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self.held_bytes -= freed


class Segments:
    """What is known of beginnings, for one tokenizer.

    Args:
        seed: 64 bits that nobody outside knows.
        max_ids_bytes: For ids of segments.
        max_links_bytes: For chains.
    """

    def __init__(self, seed: int, *, max_ids_bytes: int, max_links_bytes: int) -> None:
        self._seed = seed & _SEED
        self.ids: Recent[bytes] = Recent(max_ids_bytes)
        self.links: Recent[Link] = Recent(max_links_bytes)

    def ids_key(self, text: bytes) -> int:
        """Name a segment by its text."""
        return xxh3_128_intdigest(text, self._seed)

    def start(self, root: BlockHash, unit_tokens: int) -> "Chain":
        """Begin a chain."""
        seed = xxh3_128_intdigest(b"%d:%d" % (root, unit_tokens), self._seed)
        return Chain(self.links, root, unit_tokens, seed)


class Chain:
    """One prompt, as far as it is read: first follow what is known, then extend it with ids."""

    def __init__(self, links: Recent[Link], root: BlockHash, unit_tokens: int, key: int) -> None:
        self._links = links
        self._unit_bytes = unit_tokens * ID_BYTES
        self._unit_tokens = unit_tokens
        self._last = root
        self._key = key
        self._tail = b""
        self.tokens = 0
        self.hashes: list[BlockHash] = []

    def follow(self, segment: bytes) -> bool:
        """Take a segment from memory, where it is known behind what was read."""
        key = xxh3_128_intdigest(segment, self._key & _SEED)
        link = self._links.get(key)
        if link is None:
            return False
        self._key = key
        self._take(link)
        return True

    async def extend(self, segment: bytes, ids: bytes) -> None:
        """Take a segment by its ids, and remember it."""
        self._key = xxh3_128_intdigest(segment, self._key & _SEED)
        data = self._tail + ids if self._tail else ids
        end = len(data) - len(data) % self._unit_bytes
        hashes: list[BlockHash] = []
        step = self._unit_bytes * SLICE_UNITS
        for start in range(0, end, step):
            if start:
                await asyncio.sleep(0)
            last = hashes[-1] if hashes else self._last
            hashes += block_hashes(last, data[start : min(start + step, end)], self._unit_tokens)
        link = Link(len(ids) // ID_BYTES, tuple(hashes), data[end:])
        self._take(link)
        self._links.put(self._key, link, len(hashes) * LINK_BYTES + len(link.tail))

    def pass_over(self, ids: bytes) -> None:
        """Take a few ids without remembering them; they are part of what is remembered behind them."""
        self._key = xxh3_128_intdigest(ids, self._key & _SEED)
        data = self._tail + ids
        end = len(data) - len(data) % self._unit_bytes
        hashes = block_hashes(self._last, data[:end], self._unit_tokens)
        self._take(Link(len(ids) // ID_BYTES, hashes, data[end:]))

    def _take(self, link: Link) -> None:
        self.tokens += link.tokens
        self._tail = link.tail
        if link.hashes:
            self.hashes += link.hashes
            self._last = link.hashes[-1]


def cut_tokens(added: Iterable[Added], wanted: Iterable[str]) -> tuple[str, ...]:
    """Give those of the wanted tokens at which a text may be cut.

    Args:
        added: All that the tokenizer finds in text as it stands.
        wanted: Where cuts would be of use.
    """
    tokens = [token for token in added if token.content]
    if any(token.single_word for token in tokens):
        return ()
    names = set(wanted)
    clean = {
        token.content
        for token in tokens
        if token.content in names
        and not (token.lstrip or token.rstrip)
        and not any(_overlaps(other.content, token.content) for other in tokens if other.content != token.content)
    }
    return tuple(sorted(clean))


def _overlaps(other: str, token: str) -> bool:
    """Whether a match of `other` can keep `token` from being found where it stands."""
    return token in other or any(other.endswith(token[:size]) for size in range(1, min(len(token), len(other))))


class Cutter:
    """Cuts texts before tokens, and ids as the text would be cut.

    Args:
        tokens: Each with its id.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tuple(tokens)
        self._ids = tuple(tokens.values())
        self._pattern = re.compile("|".join(map(re.escape, tokens))) if len(tokens) > 1 else None

    def cut(self, text: str) -> list[str]:
        """Cut a text; joined, the pieces are the text."""
        if not self.tokens:
            return [text]
        if self._pattern is None:
            token = self.tokens[0]
            first, *others = text.split(token)
            pieces = [token + piece for piece in others]
            return [first, *pieces] if first or not pieces else pieces
        starts = [match.start() for match in self._pattern.finditer(text)]
        if not starts or starts[0]:
            starts.insert(0, 0)
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def cut_ids(self, ids: bytes, pieces: int) -> list[bytes]:
        """Cut the ids of so many pieces that were joined; each but perhaps the first begins with a token of these."""
        if pieces == 1:
            return [ids]
        values = array("I", ids)
        starts = sorted(at for number in self._ids for at in _places(values, number))
        if len(starts) < pieces:
            starts.insert(0, 0)
        assert len(starts) == pieces, f"{pieces} pieces begin {len(starts)} times"
        ends = [*starts[1:], len(values)]
        return [ids[start * ID_BYTES : end * ID_BYTES] for start, end in zip(starts, ends, strict=True)]


def _places(values: "array[int]", number: int) -> Iterator[int]:
    at = -1
    with contextlib.suppress(ValueError):
        while True:
            at = values.index(number, at + 1)
            yield at
