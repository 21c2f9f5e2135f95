"""What an engine is asked for, how that stands, and what it tells of it. Pure; a part of the simulated
engine."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from loadtests.kvcache import Run

Id: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine is asked to generate, and what will really come of it."""

    id: Id
    prompt_tokens: int
    output_tokens: int
    """Tokens it will really make; 0 for a pass that only reads, such as an embedding."""
    max_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of the full blocks of prompt and output, each chained to all before it: equal ids mean equal
    prefixes. May end early: blocks without an id are never shared."""


class Refusal(Enum):
    """Why a generation was not taken."""

    CONTEXT = "prompt and output exceed the context"
    QUEUE = "queue full"


class What(Enum):
    """What came of an iteration."""

    FIRST_TOKEN = "first token"
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Event(NamedTuple):
    """One thing that came of an iteration; all fall at its end."""

    what: What
    id: Id
    cached_tokens: int
    """Prompt tokens found in the cache when it was first admitted."""


class Sequence:
    """A generation on its way through the engine."""

    __slots__ = (
        "allocated", "blocks", "cached", "computed", "doubles", "ends", "generation", "is_decoding",
        "is_gone", "made", "run", "shared", "shift", "target",
    )  # fmt: skip

    def __init__(self, generation: Generation, root: Run) -> None:
        self.generation = generation
        self.blocks = generation.blocks
        self.cached = -1  # not admitted yet
        self.made = 0  # tokens generated up to the last prefill
        self.is_gone = False
        self.reset(root)

    def reset(self, root: Run) -> None:
        """Stand in the queue without any memory."""
        self.is_decoding = False
        self.target = self.generation.prompt_tokens + self.made
        self.computed = self.allocated = self.shared = self.doubles = 0
        self.run = root
        self.shift = self.ends = 0  # decoding: context = shift + step; the last token is due at step `ends`
