"""Prefix identity: token ids become a chain of hashes, one a unit, each made of its unit and the hash before it.

Two prompts share their first n hashes exactly when they share model, adapter, salt and their first n units (but for
collisions of 64 bits; whoever counts by hashes must bear them, since the hash has no key and can be forged). So a chain
is cut or continued anywhere: hashes of a segment that many prompts begin with are kept, and the rest is hashed from the
last of them on. The hash is XXH3 with the hash before as its seed: the same in every process and on every machine,
since ids are laid out little-endian.

A unit is a multiple of the engine's block. A partial last unit has no hash: engines cache full blocks only.
"""

import sys
from array import array
from collections.abc import Callable
from typing import cast

from xxhash import xxh3_64_intdigest

from policies.request import UNIT_TOKENS, BlockHash

ID_BYTES = 4
CHUNK_BYTES = 256  # some 64 tokens of text: as fine as the chain over ids
MEDIA_IDS_FROM = 1 << 31  # above every vocabulary


def root_of(model: str, adapter: str = "", salt: str = "") -> BlockHash:
    """Hash what an engine keeps caches apart by: the chain's first link. Lengths keep ("a", "b") from ("ab", "")."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (model, adapter, salt)]
    return BlockHash(xxh3_64_intdigest(b"".join(b"%d:%b" % (len(part), part) for part in parts)))


def block_hashes(
    root: BlockHash, tokens: "array[int] | bytes", unit_tokens: int = UNIT_TOKENS
) -> tuple[BlockHash, ...]:
    """Hash each full unit of token ids, chained to all units before it.

    Args:
        root: What comes before: `root_of`, or the last hash of a segment of whole units.
        tokens: Token ids as array("I"), or their bytes, four each, little-endian.
        unit_tokens: Tokens per hash; a multiple of the engine's block (vLLM: block_size, 16 by default).
    Returns:
        n // unit_tokens hashes.
    """
    if isinstance(tokens, bytes):
        data = tokens
    elif tokens.itemsize != ID_BYTES:
        raise ValueError(f"token ids are 4 bytes each, these are {tokens.itemsize}")
    elif sys.byteorder == "little":
        data = tokens.tobytes()
    else:
        swapped = tokens[:]
        swapped.byteswap()
        data = swapped.tobytes()
    return _chain(root, data, unit_tokens * ID_BYTES)


def text_hashes(root: BlockHash, text: bytes, chunk_bytes: int = CHUNK_BYTES) -> tuple[BlockHash, ...]:
    """Hash each full chunk, chained: identity for models without a tokenizer."""
    return _chain(root, text, chunk_bytes)


def media_ids(content: bytes, count: int) -> "array[int]":
    """Give ids for `count` tokens of an image, audio or video, by its content: other content, other ids.

    They lie above every vocabulary, so that no text reads like a picture.
    """
    first = xxh3_64_intdigest(content)
    ids = (MEDIA_IDS_FROM | ((first >> 32) & 0x7FFFFFFF), MEDIA_IDS_FROM | (first & 0x7FFFFFFF))
    return array("I", ids * ((count + 1) // 2))[:count]


_link = cast(Callable[[bytes, int], BlockHash], xxh3_64_intdigest)  # a call of BlockHash for each costs half as much


def _chain(root: BlockHash, data: bytes, size: int) -> tuple[BlockHash, ...]:
    link = root
    return tuple([link := _link(data[at : at + size], link) for at in range(0, len(data) - size + 1, size)])
