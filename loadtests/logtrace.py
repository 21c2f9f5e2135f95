"""An access log as a source of requests: who asked for how much and when, and what prompts began with.

Two prompts of the log share what their fingerprints say they share: to the unit of 64 tokens for the first 32, and from
there on a 16th too little at worst. What a request goes by on the ring is what it went by then. An answer that nobody
knows the length of (its request was refused, or failed) takes the mean of those that are known; what was the client's
own mistake is left out. Answers are not shared: of a conversation, later prompts hold them already.

At another rate than its own a log is several of itself, as `traces` says.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import orjson

from loadtests.kvcache import BLOCK_TOKENS
from loadtests.traces import superpose
from loadtests.workloads import Job
from policies.fingerprint import DEPTHS, marks_of
from policies.record import Outcome, RequestRecord, record_of

SPACE = 1 << 16  # ids of a mark, one a block between it and the mark before: at most 2**14 units of 4
COPY = 0x9E37_79B9_7F4A  # odd, so that copies of a mark stay apart
MARKS = 1 << 48
MAX_UNIT_TOKENS = 4096


class LogRow(NamedTuple):
    """One request of a log."""

    at: float
    """Seconds after the log's first."""
    tenant: str
    service_class: str
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    """Marks of its beginnings."""
    unit_tokens: int
    ring_key: int | None

    @property
    def session(self) -> int:
        """What tells it from those it shares little with; a 16th of a prompt is little."""
        return hash((self.tenant, self.ring_key)) if self.ring_key is not None else self.hash_ids[0]

    def blocks(self, copy: int) -> tuple[int, ...]:
        """Give the ids of the blocks that its marks stand for, in one copy of the log."""
        found: list[int] = []
        for mark, depth in zip(self.hash_ids, DEPTHS, strict=False):
            first = (mark + copy * COPY) % MARKS * SPACE
            found += range(first, first + depth * self.unit_tokens // BLOCK_TOKENS - len(found))
        return tuple(found[: self.prompt_tokens // BLOCK_TOKENS])


class BrokenLog(ValueError):
    """A log that has nothing to replay; the message says why."""


@cache
def rows(path: Path) -> tuple[LogRow, ...]:
    """Read a log, in order of arrival.

    Raises:
        OSError: It cannot be read.
        BrokenLog: Nothing in it can be served again.
    """
    found, broken, left_out = [], 0, 0
    with path.open("rb") as file:
        for line in file:
            try:
                record = record_of(orjson.loads(line))
            except ValueError:
                broken += 1
                continue
            if record.outcome is Outcome.CLIENT_ERROR or record.prompt_tokens < 1 or record.unit_tokens is None:
                left_out += 1
            else:
                found.append(record)
    if not found:
        raise BrokenLog(f"{path} has nothing to replay: {broken} broken lines, {left_out} that no engine could serve")
    return _rows(sorted(found, key=lambda record: record.arrived_at))


def _rows(records: Sequence[RequestRecord]) -> tuple[LogRow, ...]:
    known = [record.output_tokens for record in records if record.output_tokens is not None]
    usual = max(1, round(sum(known) / len(known))) if known else 1
    first = records[0].arrived_at
    return tuple(
        LogRow(
            record.arrived_at - first,
            record.tenant,
            record.service_class or "",
            record.prompt_tokens,
            max(1, usual if record.output_tokens is None else record.output_tokens),
            _marks(record.prefix),
            min(max(BLOCK_TOKENS, record.unit_tokens or 0), MAX_UNIT_TOKENS),
            next(iter(_marks(record.ring_key or "")), None),
        )
        for record in records
    )


def _marks(fingerprint: str) -> tuple[int, ...]:
    try:
        return tuple(marks_of(fingerprint))
    except ValueError:
        return ()


class LogSource:
    """The requests of a log."""

    def __init__(self, path: Path, seed: str) -> None:
        self._rows, self._seed = rows(path), seed

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give them as they came; at the log's own rate each once, from its first on."""
        for at, copy, row in self._at(rate, duration_s):
            opening = min(row.prompt_tokens, row.unit_tokens)
            ring = None if row.ring_key is None else (row.ring_key + copy * COPY) % MARKS
            yield Job(
                at,
                row.tenant,
                row.prompt_tokens,
                row.output_tokens,
                row.blocks(copy),
                opening,
                opening,
                service_class=row.service_class,
                ring=ring,
            )

    def _at(self, rate: float, duration_s: float) -> Iterable[tuple[float, int, LogRow]]:
        if rate == own_rate(self._rows):
            return ((row.at, 0, row) for row in self._rows if row.at < duration_s)
        return superpose(self._rows, rate, duration_s, self._seed)


def span_s(rows: Sequence[LogRow]) -> float:
    """Say how long a log is: a little past its last arrival."""
    return rows[-1].at + 1.0


def own_rate(rows: Sequence[LogRow]) -> float:
    """Say at which rate a log's requests came."""
    return len(rows) / span_s(rows)
