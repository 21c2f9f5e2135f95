"""Statement: what was used in a time, as an operator reads it; sums of days put together by what he asks for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from policies.accounts import REFUSED, Counts, Sums, add

MONTH_CHARS = len("2027-01")


class By(Enum):
    """How long the time of a row is."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"

    def period(self, day: str, total: str) -> str:
        """Name the time that a day is put under."""
        return day if self is By.DAY else day[:MONTH_CHARS] if self is By.MONTH else total


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts, told in the units that people read."""

    counts: Mapping[str, int]

    @property
    def refusals(self) -> dict[str, int]:
        """How often it was told no, by code."""
        return {
            name.removeprefix(REFUSED): count for name, count in sorted(self.counts.items()) if name.startswith(REFUSED)
        }

    def figures(self) -> dict[str, int | float]:
        """Give every figure but the refusals' codes; requests are all that came, whatever became of them."""
        got = self.counts.get
        refused = sum(self.refusals.values())
        ended = {name: got(name, 0) for name in ("served", "failed", "disconnected", "client_errors")}
        prompt, cached = got("prompt_tokens", 0), got("cached_tokens", 0)
        return {
            "requests": sum(ended.values()) + refused,
            **ended,
            "refused": refused,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "uncached_tokens": prompt - cached,
            "output_tokens": got("output_tokens", 0),
            "weighted_tokens": got("weighted_tokens", 0),
            "cost_micros": (got("cost_nanos", 0) + 500) // 1000,
            "engine_s": got("engine_us", 0) / 1_000_000,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """What one tenant used of one model in one time."""

    period: str
    tenant: str
    model: str
    usage: Usage


def rows(
    days: Iterable[tuple[str, Sums]], by: By, total: str, *, tenant: str | None = None, model: str | None = None
) -> list[Row]:
    """Put the sums of days together.

    Args:
        days: Each with its name.
        by: What a row is of.
        total: What the whole time is called.
        tenant: Whose; None: everybody's.
        model: Of which; None: of all.

    Returns:
        By time, tenant and model, sorted.
    """
    periods: dict[str, dict[tuple[str, str], Counts]] = {}
    for day, sums in days:
        chosen = {
            who: counts
            for who, counts in sums.items()
            if (tenant is None or who[0] == tenant) and (model is None or who[1] == model)
        }
        into = periods.setdefault(by.period(day, total), {})
        add(into, chosen, most=len(into) + len(chosen))
    return [
        Row(period, *who, Usage(counts))
        for period, sums in sorted(periods.items())
        for who, counts in sorted(sums.items())
    ]
