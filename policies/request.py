"""What routing may know of a request: sizes and identity; never its text, headers or body."""

from typing import NamedTuple, NewType

BlockHash = NewType("BlockHash", int)
"""Hash of one block of prompt tokens, chained to all blocks before it: the engines' prefix-cache unit."""


class InferenceRequest(NamedTuple):
    """One request as a policy sees it.

    Invariants: `prompt_tokens` and `output_tokens` are at least 0; `deadline` is on the same monotonic clock as `now`.
    A named tuple and no frozen dataclass: one is made per request, at half the price.
    """

    id: str
    model: str
    tenant: str = "anonymous"
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Output that is expected: what the client allows, or what its like have produced."""
    prefix: tuple[BlockHash, ...] = ()
    """Chained hashes of the full blocks of the prompt, first block first; empty when nothing is known of it."""
    deadline: float = float("inf")
