"""overload: rules of admission side by side in virtual time, beyond what the fleet can serve, as a command."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Annotated

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.bars import BARS, CAPACITY, OURS, OVERLOADS, table
from loadtests.command import show
from loadtests.doors import Admission
from loadtests.experiment import watched
from loadtests.results import Result
from loadtests.scenario import load
from loadtests.sweep import Case, Finding

CELLS: tuple[tuple[str, Callable[[Result], float | None], str], ...] = (
    ("good/s", lambda result: result.goodput_per_s, ".1f"),
    ("SLO\n%", lambda result: result.admitted_slo * 100, ".1f"),
    ("TTFT\np50", lambda result: result.normal_ttft_s.p50, ".2f"),
    ("\np99", lambda result: result.normal_ttft_s.p99, ".2f"),
    ("TPOT\np99", lambda result: result.tpot_s.p99, ".3f"),
    ("no\n%", lambda result: result.refused / max(1, result.requests) * 100, ".0f"),
    ("batch\n%", lambda result: result.batch_share * 100, ".0f"),
    ("its\nno %", lambda result: result.batch_refused_share * 100, ".0f"),
    ("Jain\nparts", lambda result: result.jain, ".2f"),
    ("\nshare", lambda result: result.jain_share, ".2f"),
    ("err\np50", lambda result: result.wait_error_s and result.wait_error_s[0], ".2f"),
    ("\np90", lambda result: result.wait_error_s and result.wait_error_s[1], ".2f"),
    ("its\nwait", lambda result: result.batch_wait_s.p50, ".1f"),
    ("err\np50", lambda result: result.batch_wait_error_s and result.batch_wait_error_s[0], ".1f"),
    ("\np90", lambda result: result.batch_wait_error_s and result.batch_wait_error_s[1], ".1f"),
)


def overload(
    seed: Annotated[list[int], typer.Option(help="One or several.")] = [1, 2, 3],  # noqa: B006  typer copies it
    jobs: Annotated[int, typer.Option(min=1, help="Simulations at once.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write the numbers there.")] = None,
) -> None:
    """Compare rules of admission at 1.5, 2 and 3 times of what the fleet can serve. It takes some ten minutes."""
    scenario = load("overload")
    cases = [
        Case(scenario, OURS, number, rate=times * CAPACITY, admission=rule)
        for times in OVERLOADS
        for rule in Admission
        for number in seed
    ]
    console, start = Console(), monotonic()
    findings = watched(console, cases, jobs)
    show(console, rules_table(findings))
    console.print(table(BARS["overload"], BARS["overload"].judge(findings), monotonic() - start))
    if json is not None:
        runs = [
            {"admission": finding.case.admission.value, **asdict(result)}
            for finding in findings
            for result in finding.runs
        ]
        json.write_bytes(orjson.dumps(runs, option=orjson.OPT_INDENT_2) + b"\n")


def rules_table(findings: Sequence[Finding]) -> Table:
    """Show what came of each rule and rate: means over the seeds. It fits 100 columns."""
    title = (
        "means over seeds; seconds; SLO and TTFT of those let in, batch aside in TTFT, Jain and the first error of the "
        "predicted wait; no: refused; its: of batch; wait: p50"
    )
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("rate", "rule"):
        shown.add_column(heading, no_wrap=True)
    for name, _, _ in CELLS:
        shown.add_column(name, justify="right", no_wrap=True)
    for rate, rule in dict.fromkeys((finding.case.rate, finding.case.admission) for finding in findings):
        results = [
            result
            for finding in findings
            if (finding.case.rate, finding.case.admission) == (rate, rule)
            for result in finding.runs
        ]
        cells = []
        for _, value, form in CELLS:
            values = [known for result in results if (known := value(result)) is not None]
            cells.append(format(fmean(values), form) if values else "-")
        shown.add_row(f"{rate:g}", rule.value, *cells)
    return shown
