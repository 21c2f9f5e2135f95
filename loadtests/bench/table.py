"""Table: medians of the samples, ratios to the rivals, and whether they keep the targets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median

from rich.table import Table

from loadtests.bench.rows import BASELINE, ROWS, Row, Sample
from loadtests.bench.targets import DIRECT

OURS = "kvlane"
FLOOR = "nginx"
SATURATED = 0.9  # of the core; below, the load or the engine was the bottleneck and the ratios shrink
DISTURBED = 0.1  # of the core, by other work: enough to colour a figure through the caches
GATE_SLACK = 1.25  # a shared machine's medians of five differ by up to a fifth

Samples = Mapping[str, Mapping[str, Sequence[Sample]]]  # target -> load -> one a round


def figure(row: Row, target: str, samples: Samples) -> float:
    """Take the median over the rounds; NaN where there is nothing to take it of."""
    rounds = samples.get(target, {}).get(row.load.name, ())
    if not rounds:
        return math.nan
    value = median(row.value(sample) for sample in rounds)
    if row.above_direct and target != DIRECT:
        value -= figure(row, DIRECT, samples)
    return value


def ratio(row: Row, target: str, rival: str, samples: Samples) -> float:
    """Divide a target's figure by a rival's; NaN where either is missing or the rival's is not positive."""
    below = figure(row, rival, samples)
    return figure(row, target, samples) / below if below > 0 else math.nan


def verdict(row: Row, samples: Samples) -> str:
    """Say whether our figure keeps the row's target: "yes", "no", or "" where that cannot be told."""
    if row.limit is not None:
        value, limit = figure(row, OURS, samples), row.limit
    elif row.ratio_limit is not None:
        value, limit = ratio(row, OURS, BASELINE, samples), row.ratio_limit
    else:
        return ""
    if math.isnan(value):
        return ""
    return "yes" if value <= limit else "no"


def broken_gates(samples: Samples) -> list[str]:
    """Name each row whose CPU is over its bound against nginx (else the engine itself), slack included."""
    broken = []
    for row in ROWS:
        for rival, bound in row.gate.items():
            value = ratio(row, OURS, rival, samples)
            if math.isnan(value):
                continue
            if value > bound * GATE_SLACK:
                broken.append(f"{row.title}: {value:.2f}x {rival}, at most {bound:g}x and {GATE_SLACK - 1:.0%}")
            break
    return broken


def notes(samples: Samples) -> list[str]:
    """Say what a reader must know: loads that did not saturate a target, other work on its core, errors."""
    lines = []
    loads = list({row.load.name: row.load for row in ROWS}.values())
    for target, by_load in samples.items():
        for load in loads:
            rounds = by_load.get(load.name, ())
            if not rounds:
                continue
            busy = median(sample.core_busy for sample in rounds)
            others = median(sample.core_busy - sample.core_share for sample in rounds)
            if load.saturates and busy < SATURATED and target != DIRECT:
                lines.append(f"{target}, {load.name}: not saturated, its core was {busy:.0%} busy")
            if others > DISTURBED and target != DIRECT:
                lines.append(f"{target}, {load.name}: other work took {others:.0%} of its core")
            if errors := sum(sample.errors for sample in rounds):
                lines.append(f"{target}, {load.name}: {errors:,} errors at the client")
    return lines


def render(samples: Samples, title: str) -> Table:
    """Lay out one line a row and one column a target, then our ratios and targets."""
    table = Table(title=title, caption="\n".join(notes(samples)), caption_justify="left")
    table.add_column("")
    for target in samples:
        table.add_column("direct: engine" if target == DIRECT else target, justify="right", no_wrap=True)
    shown = [rival for rival in (BASELINE, FLOOR) if rival in samples and OURS in samples]
    for rival in shown:
        table.add_column(f"{OURS} / {rival}", justify="right")
    if OURS in samples:
        table.add_column("target", justify="right")
        table.add_column("met")
    for row in ROWS:
        if not any(row.load.name in by_load for by_load in samples.values()):
            continue
        cells = [_number(figure(row, target, samples), row.unit) for target in samples]
        cells += [_times(ratio(row, OURS, rival, samples)) for rival in shown]
        if OURS in samples:
            cells += [_target(row), verdict(row, samples)]
        table.add_row(row.title, *cells)
    return table


def as_json(samples: Samples, facts: Mapping[str, object]) -> dict[str, object]:
    """Give the figures, and every sample they are taken from, as plain data."""
    return {
        **facts,
        "rows": [
            {
                "title": row.title,
                "unit": row.unit,
                "load": row.load.name,
                "figures": {target: _null(figure(row, target, samples)) for target in samples},
                "ratio_limit": row.ratio_limit,
                "limit": row.limit,
                "met": verdict(row, samples) or None,
            }
            for row in ROWS
        ],
        "notes": notes(samples),
        "samples": {
            target: {load: [asdict(sample) for sample in rounds] for load, rounds in by_load.items()}
            for target, by_load in samples.items()
        },
    }


def _number(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def _times(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}x"


def _target(row: Row) -> str:
    if row.limit is not None:
        return f"{row.limit:g} {row.unit}"
    return "" if row.ratio_limit is None else f"{row.ratio_limit:g}x {BASELINE}"


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value
