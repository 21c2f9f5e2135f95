"""Traces of real traffic as sources of requests, at any rate.

A trace has the rate it had. For more, several copies run at once, each turned to begin at a time of its own and with
prefixes of its own: what comes close together in one copy is not near anything of another. For less than whole copies,
sessions are left out of each, whole ones, so that what is left still finds its prefixes. (Squeezing time would also
change how long a cache must remember.)
"""

from collections.abc import Iterator, Sequence
from csv import DictReader
from datetime import datetime
from functools import cache
from importlib.resources import files
from math import ceil
from random import Random
from typing import NamedTuple, Protocol, TypeVar

import orjson

from loadtests.kvcache import BLOCK_TOKENS
from loadtests.scenario import Azure
from loadtests.workloads import Job, Library, Texts

HASHED_TOKENS = 512  # what one of Mooncake's ids stands for
COPY_IDS = 1 << 20  # ids of one copy; the trace has 183,000


class Past(Protocol):
    """A request that came once, and is to come again."""

    @property
    def at(self) -> float:
        """Seconds after the first."""
        ...

    @property
    def hash_ids(self) -> tuple[int, ...]:
        """What it begins with; empty where that is not known."""
        ...

    @property
    def session(self) -> int:
        """What tells it from those it shares nothing with."""
        ...


P = TypeVar("P", bound=Past)


class Row(NamedTuple):
    """One request of a trace."""

    at: float
    """Seconds after the trace's first."""
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Chained ids of its beginnings, each `HASHED_TOKENS` longer; the last may be partial."""

    @property
    def session(self) -> int:
        """What tells it from those it shares nothing with: the second id, since the first is common to all."""
        return self.hash_ids[min(1, len(self.hash_ids) - 1)] if self.hash_ids else 0

    def blocks(self, copy: int) -> tuple[int, ...]:
        """Give the ids of the prompt's full blocks, in one copy of the trace."""
        each = HASHED_TOKENS // BLOCK_TOKENS
        first = copy * COPY_IDS
        ids = [block for id in self.hash_ids for block in range((first + id) * each, (first + id + 1) * each)]
        return tuple(ids[: self.prompt_tokens // BLOCK_TOKENS])


@cache
def mooncake() -> tuple[Row, ...]:
    """Read Moonshot's conversations, in order of arrival."""
    file = files("loadtests") / "data" / "traces" / "mooncake_conversation.jsonl"
    lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    return tuple(
        Row(line["timestamp"] / 1e3, line["input_length"], line["output_length"], tuple(line["hash_ids"]))
        for line in lines
    )


@cache
def azure() -> tuple[Row, ...]:
    """Read Microsoft's conversations, in order of arrival."""
    text = (files("loadtests") / "data" / "traces" / "azure2023_conv.csv").read_text(encoding="utf-8")
    lines = list(DictReader(text.splitlines()))
    times = [datetime.fromisoformat(line["TIMESTAMP"][:26]) for line in lines]  # microseconds are fine enough
    return tuple(
        Row((at - times[0]).total_seconds(), int(line["ContextTokens"]), int(line["GeneratedTokens"]))
        for at, line in zip(times, lines, strict=True)
    )


def superpose(rows: Sequence[P], rate: float, duration_s: float, seed: str) -> Iterator[tuple[float, int, P]]:
    """Give a trace's rows at another rate, as (time, copy, row), in order of time."""
    length = rows[-1].at + 1e-3
    copies = ceil(rate * length / len(rows))
    share = rate * length / len(rows) / copies
    found = []
    for copy in range(copies):
        start = Random(f"start {seed} {copy}").random() * length
        single = Random(f"kept {seed} {copy}")
        kept: dict[int, bool] = {}
        for row in rows:
            at = (row.at - start) % length
            if at >= duration_s:
                continue
            draw = single.random()
            if kept.setdefault(row.session, draw < share) if row.hash_ids else draw < share:
                found.append((at, copy, row))
    found.sort(key=lambda item: item[:2])
    return iter(found)


class MooncakeSource:
    """The requests of Moonshot's trace. Answers are not shared: the ids of later prompts hold them already."""

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give them as they came."""
        for at, copy, row in superpose(mooncake(), rate, duration_s, self._seed):
            opening = min(row.prompt_tokens, 2 * HASHED_TOKENS)
            system = min(row.prompt_tokens, HASHED_TOKENS)
            yield Job(at, "mooncake", row.prompt_tokens, row.output_tokens, row.blocks(copy), system, opening)


class AzureSource:
    """The requests of Microsoft's trace, each as much of a system prompt as there is room for and a text of its own."""

    def __init__(self, spec: Azure, seed: str, texts: Texts) -> None:
        self._spec, self._seed, self._texts = spec, seed, texts
        self._library = Library(spec.systems, texts, Random(f"systems {seed}"))

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give them as they came."""
        chance = Random(f"jobs {self._seed}")
        for at, _, row in superpose(azure(), rate, duration_s, self._seed):
            drawn = self._library.draw(chance)
            shared = max(0, min(drawn.tokens, row.prompt_tokens - self._spec.least_user_tokens))
            head = drawn.blocks[: shared // BLOCK_TOKENS]
            blocks = self._texts.extend(head, self._texts.begin(), row.prompt_tokens + row.output_tokens)
            yield Job(at, "azure", row.prompt_tokens, row.output_tokens, blocks, shared, row.prompt_tokens)
