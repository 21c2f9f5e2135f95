"""What routing may know of a request: sizes and identity; never its text, headers or body."""

from collections.abc import Iterable
from math import lcm
from typing import NamedTuple, NewType

BlockHash = NewType("BlockHash", int)
"""Hash of one unit of prompt tokens, chained to all units before it: see prefix.py."""

UNIT_TOKENS = 64  # at least; entries of 16 cost four times as much and route no better

MAX_BLOCK_TOKENS = 2048  # an engine that says more is not believed


def unit_for(block_tokens: Iterable[int]) -> int:
    """Give the tokens of a unit where engines have blocks of these sizes: a multiple of each, at least UNIT_TOKENS."""
    sane = [block for block in block_tokens if 0 < block <= MAX_BLOCK_TOKENS]
    block = lcm(*sane)
    if block > MAX_BLOCK_TOKENS:  # of engines that have nothing in common: right for the coarsest
        block = max(sane)
    return block * -(-UNIT_TOKENS // block)


class InferenceRequest(NamedTuple):
    """One request as a policy sees it.

    Invariants: all sizes are at least 0, `len(prefix) * unit_tokens <= prompt_tokens`; `deadline` is on the same
    monotonic clock as `now`. A named tuple and no frozen dataclass: one is made per request, at half the price.
    """

    id: str
    model: str
    tenant: str = "anonymous"
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Output that is expected: what its like have produced, and never more than is allowed."""
    prefix: tuple[BlockHash, ...] = ()
    """Chained hashes of the full units of the prompt, first unit first; empty when nothing is known of it."""
    deadline: float = float("inf")
    ring_key: BlockHash | None = None
    """Names what the request shares with its like, for the ring: its system prompt or its session."""
    allowed_tokens: int = 0
    """Output that may come: max_tokens, or the learned 90th percentile where the client names none."""
    unit_tokens: int = UNIT_TOKENS
    """Tokens that one hash of `prefix` stands for."""
    service_class: str = ""
    """Class of service by its name in admission; one that is not known there counts as the first."""
    weight: float = 1.0
    """Of its tenant: its share of what is served while tenants compete."""
    needs: str = ""
    """What its engine must be able to do, and not every engine is; empty: nothing."""
