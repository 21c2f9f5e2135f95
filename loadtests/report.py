"""Summary: what a load comes to, as data, as JSON and as tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil

import orjson
from rich.console import Console
from rich.table import Table

from loadtests.client import Outcome
from loadtests.drive import Run


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution, in seconds; None where nothing was measured."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Sum up values."""
        if not values:
            return cls(None, None, None, None)
        ordered = sorted(values)
        return cls(sum(ordered) / len(ordered), *(percentile(ordered, share) for share in (0.5, 0.95, 0.99)))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Give the least of the sorted values that `share` of them do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of a run. TPOT is the mean time between tokens of one request."""

    requests: int
    succeeded: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    cached_share: float | None
    """Cached over prompt tokens, of the answers that told."""
    ttft: Spread
    tpot: Spread
    e2e: Spread
    errors: dict[str, int]
    statuses: dict[str, int]
    endpoints: dict[str, int]

    @classmethod
    def of(cls, run: Run) -> "Summary":
        """Sum up a run."""
        good = [outcome for outcome in run.outcomes if outcome.error is None]
        duration = max(run.ended_at - run.started_at, 1e-9)
        told = [outcome for outcome in good if outcome.cached_tokens is not None]
        told_tokens = sum(outcome.prompt_tokens for outcome in told)
        return cls(
            requests=len(run.outcomes),
            succeeded=len(good),
            duration_s=duration,
            requests_per_s=len(good) / duration,
            output_tokens_per_s=sum(outcome.output_tokens for outcome in run.outcomes) / duration,
            prompt_tokens=sum(outcome.prompt_tokens for outcome in run.outcomes),
            output_tokens=sum(outcome.output_tokens for outcome in run.outcomes),
            cached_share=sum(outcome.cached_tokens or 0 for outcome in told) / told_tokens if told_tokens else None,
            ttft=Spread.of([o.first_at - o.due_at for o in good if o.first_at is not None]),
            tpot=Spread.of([tpot for outcome in good if (tpot := _tpot_s(outcome)) is not None]),
            e2e=Spread.of([outcome.last_at - outcome.due_at for outcome in good]),
            errors=dict(Counter(outcome.error for outcome in run.outcomes if outcome.error)),
            statuses=dict(Counter(str(outcome.status) for outcome in run.outcomes if outcome.status)),
            endpoints=dict(Counter(outcome.endpoint for outcome in run.outcomes if outcome.endpoint)),
        )

    def json(self) -> bytes:
        """Render as JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)

    def show(self, console: Console, title: str) -> None:
        """Print as tables."""
        good = f"{self.succeeded:,} of {self.requests:,} requests succeeded"
        console.print(f"[bold]{title}[/bold]: {good} in {self.duration_s:.1f} s")
        cached = "not told" if self.cached_share is None else f"{self.cached_share:.1%}"
        console.print(
            f"{self.requests_per_s:,.1f} requests/s, {self.output_tokens_per_s:,.0f} output tokens/s;"
            f" {self.prompt_tokens:,} prompt tokens, cached {cached}"
        )
        times = Table("ms", "mean", "p50", "p95", "p99")
        for column in times.columns[1:]:
            column.justify = "right"
        for name, spread in (("TTFT", self.ttft), ("TPOT", self.tpot), ("E2E", self.e2e)):
            times.add_row(name, *(_ms(value) for value in (spread.mean, spread.p50, spread.p95, spread.p99)))
        console.print(times)
        for name, counts in (("error", self.errors), ("status", self.statuses), ("endpoint", self.endpoints)):
            if counts:
                table = Table(name, "requests")
                table.columns[1].justify = "right"
                for key, count in sorted(counts.items()):
                    table.add_row(key, f"{count:,}")
                console.print(table)


def _tpot_s(outcome: Outcome) -> float | None:
    if outcome.first_at is None or outcome.output_tokens < 2:
        return None
    return (outcome.last_at - outcome.first_at) / (outcome.output_tokens - 1)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:,.1f}"
