"""Figures, ratios, targets and the gate, from samples made by hand."""

import math
from collections.abc import Sequence

import pytest
from rich.console import Console

from loadtests.bench.rows import LARGE, LONE, MANY, ROWS, SMALL, Load, Row, Sample
from loadtests.bench.table import as_json, broken_gates, figure, notes, ratio, render, verdict

CPU_SMALL = next(row for row in ROWS if row.load is SMALL)
CPU_LARGE = next(row for row in ROWS if row.load is LARGE)
CPU_CHUNK = next(row for row in ROWS if row.load is MANY)
TTFT = next(row for row in ROWS if row.load is LONE)


def sample(
    cpu_us: float = 10.0,
    *,
    core_share: float = 1.0,
    core_busy: float = 1.0,
    ttft_us: float = 5_000.0,
    chunk_delay_ms: float = 1.0,
    errors: int = 0,
) -> Sample:
    """Make a sample of a saturated, faultless target."""
    return Sample(
        cpu_us=cpu_us,
        core_share=core_share,
        core_busy=core_busy,
        per_s=20_000,
        ttft_us=ttft_us,
        chunk_delay_ms=chunk_delay_ms,
        rss_mb=60,
        freed_s=0.1,
        errors=errors,
    )


def of(load: Load, *samples: Sample) -> dict[str, Sequence[Sample]]:
    return {load.name: samples}


def rivals(
    ours: float, *, sglang: float | None = None, nginx: float | None = None
) -> dict[str, dict[str, Sequence[Sample]]]:
    """Make samples of the 1 KB row from each target's CPU."""
    figures = {"direct": 5.0, "nginx": nginx, "sglang-router": sglang, "kvlane": ours}
    return {name: of(SMALL, sample(cpu)) for name, cpu in figures.items() if cpu is not None}


def test_a_figure_is_the_median_of_the_rounds() -> None:
    assert figure(CPU_SMALL, "kvlane", {"kvlane": of(SMALL, sample(40), sample(1_000), sample(44))}) == 44


def test_a_figure_without_samples_is_not_a_number() -> None:
    assert math.isnan(figure(CPU_SMALL, "kvlane", {}))
    assert math.isnan(figure(CPU_LARGE, "kvlane", {"kvlane": of(SMALL, sample())}))


def test_ttft_is_told_as_what_is_added_to_a_direct_connection() -> None:
    samples = {"direct": of(LONE, sample(ttft_us=5_100)), "kvlane": of(LONE, sample(ttft_us=5_600))}
    assert figure(TTFT, "kvlane", samples) == pytest.approx(0.5)
    assert figure(TTFT, "direct", samples) == pytest.approx(5.1)
    assert math.isnan(figure(TTFT, "kvlane", {"kvlane": samples["kvlane"]}))


def test_a_ratio_to_a_missing_rival_is_not_a_number() -> None:
    assert ratio(CPU_SMALL, "kvlane", "sglang-router", rivals(44, sglang=55)) == pytest.approx(0.8)
    assert math.isnan(ratio(CPU_SMALL, "kvlane", "sglang-router", rivals(44)))


@pytest.mark.parametrize(
    ("row", "samples", "said"),
    [
        (CPU_SMALL, rivals(55, sglang=55), "yes"),
        (CPU_SMALL, rivals(56, sglang=55), "no"),
        (CPU_SMALL, rivals(56), ""),
        (CPU_LARGE, {name: of(LARGE, sample(cpu)) for name, cpu in (("kvlane", 120), ("sglang-router", 100))}, "yes"),
        (TTFT, {"direct": of(LONE, sample(ttft_us=5_000)), "kvlane": of(LONE, sample(ttft_us=6_001))}, "no"),
        (next(row for row in ROWS if row.title.startswith("CPU, stream")), rivals(1), ""),
    ],
)
def test_a_target_is_met_at_its_limit_and_not_told_without_a_rival(
    row: Row, samples: dict[str, dict[str, Sequence[Sample]]], said: str
) -> None:
    assert verdict(row, samples) == said


def test_the_gate_compares_cpu_with_nginx_and_has_a_slack() -> None:
    assert broken_gates(rivals(66.2, nginx=10)) == []
    assert broken_gates(rivals(66.4, nginx=10)) == ["CPU, 1 KB: 6.64x nginx, at most 5.3x and 25%"]


def test_the_gate_falls_back_on_the_engine_itself_without_nginx() -> None:
    assert broken_gates(rivals(1_000)) == ["CPU, 1 KB: 200.00x direct, at most 25x and 25%"]


def test_percentiles_and_memory_are_never_gated() -> None:
    late = {"direct": of(MANY, sample()), "kvlane": of(MANY, sample(chunk_delay_ms=900))}
    assert broken_gates(late) == []


def test_notes_say_what_was_not_saturated_disturbed_or_failed() -> None:
    samples = {
        "direct": of(SMALL, sample(core_share=0.4, core_busy=0.5)),
        "nginx": of(SMALL, sample(core_share=0.55, core_busy=0.6)),
        "sglang-router": of(SMALL, sample(core_share=0.7, core_busy=0.99)),
        "kvlane": of(SMALL, sample(errors=2), sample(errors=1)) | of(MANY, sample(core_share=0.3, core_busy=0.3)),
    }
    assert notes(samples) == [
        "nginx, 1 KB: not saturated, its core was 60% busy",
        "sglang-router, 1 KB: other work took 29% of its core",
        "kvlane, 1 KB: 3 errors at the client",
    ]


def test_the_table_has_a_line_for_each_measured_row_and_our_ratios() -> None:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(render(rivals(44, sglang=55, nginx=15), "a title"))
    text = captured.get()
    line = next(line for line in text.splitlines() if "CPU, 1 KB" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "CPU, 1 KB",
        "5.00 us",
        "15.0 us",
        "55.0 us",
        "44.0 us",
        "0.80x",
        "2.93x",
        "1x sglang-router",
        "yes",
    ]
    assert "CPU, 64 KB" not in text


def test_the_data_has_null_where_there_is_no_figure() -> None:
    data = as_json(rivals(44), {"rounds": 1})
    rows = data["rows"]
    assert isinstance(rows, list)
    assert rows[0]["figures"] == {"direct": 5.0, "kvlane": 44.0}
    assert rows[1]["figures"] == {"direct": None, "kvlane": None}
