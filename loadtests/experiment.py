"""simulate: policies side by side in virtual time, as a command."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtests.command import NumbersFile, console_beside, write_numbers
from loadtests.doors import Admission
from loadtests.logtrace import BrokenLog, own_rate, rows, span_s
from loadtests.results import Result
from loadtests.rules.catalog import NAMES
from loadtests.scenario import BARE, Scenario, load, names
from loadtests.sweep import Case, Finding, sweep

DEFAULT_POLICIES = ("round_robin", "least_requests", "bounded_load", "least_work")
SEVERAL = ("--policy", "--seed", "--only", "--times")


class Share(StrEnum):
    """What gateways tell each other."""

    OWN = "own"
    SHARED = "shared"
    EVENTS = "events"
    PRETENDED = "pretended"


def spread(words: Sequence[str]) -> list[str]:
    """Write `--seed 1 2 3` as the command line reads it: the option before each value."""
    found: list[str] = []
    option = None
    for word in words:
        if word.startswith("-"):
            option = word if word in SEVERAL else None
        elif option is not None and found[-1] != option:
            found.append(option)
        found.append(word)
    return found


def simulate(
    scenario: Annotated[
        str | None, typer.Argument(help=f"{', '.join(names())}; or a YAML file of the same form.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="An access log of kvlane: its requests, on the scenario's fleet (or 8 of bench-8b)."),
    ] = None,
    endpoints: Annotated[int | None, typer.Option(min=1, help="Engines, not as many as the scenario has.")] = None,
    policy: Annotated[
        list[str], typer.Option(help=f"One or several of {', '.join(NAMES)}.", show_default=False)
    ] = list(DEFAULT_POLICIES),  # noqa: B006  typer copies it
    seed: Annotated[list[int], typer.Option(help="One or several; the same seed makes the same requests.")] = [0],  # noqa: B006
    gateways: Annotated[int, typer.Option(min=1, help="Gateway replicas; requests come to any.")] = 1,
    share: Annotated[
        Share,
        typer.Option(
            help="own: nothing; shared: all they do, a little late; events: the engines tell all what they hold; "
            "pretended: nothing, and the ring's home of a prompt is taken to hold it."
        ),
    ] = Share.OWN,
    told_after_ms: Annotated[float, typer.Option(min=0, help="How late the others know, with --share shared.")] = 20,
    work_factor: Annotated[
        float,
        typer.Option(
            min=0.01, help="The gateways take prefills for so many times as long as they are, until they learn better."
        ),
    ] = 1.0,
    long_pool: Annotated[
        int, typer.Option(min=0, help="So many of the engines serve prompts from 32k tokens on, and only those.")
    ] = 0,
    admission: Annotated[
        Admission,
        typer.Option(
            help="Who is let in. none: all; max_concurrency: so many at once for each engine; wait_bound: where the "
            "engine is to begin within so many seconds; flow: the gateway's own queue."
        ),
    ] = Admission.NONE,
    limit: Annotated[
        float | None, typer.Option(min=0, help="The figure of the rule; of flow: seconds to wait in a crowd.")
    ] = None,
    smoothing_ms: Annotated[
        float, typer.Option(min=0, max=1000, help="Of flow: for so long bursts are held, to be placed in fair order.")
    ] = 0,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests per second, not the scenario's.")] = None,
    max_rate: Annotated[bool, typer.Option("--max-rate", help="Find the highest rate within the SLO.")] = False,
    access_log: Annotated[
        Path | None, typer.Option(help="Write the access log that the gateway would have written, of one policy.")
    ] = None,
    json: NumbersFile = None,
    processes: Annotated[int, typer.Option(min=1, help="Simulations at once.")] = 2,
) -> None:
    """Compare policies on a simulated fleet in virtual time."""
    unknown = [name for name in policy if name not in NAMES]
    if unknown:
        raise typer.BadParameter(f"no policy {unknown[0]!r}: {', '.join(NAMES)}", param_hint="--policy")
    wanted = experiment(scenario, trace, endpoints)
    if access_log is not None and (len(policy) > 1 or len(seed) > 1 or max_rate):
        raise typer.BadParameter("it is of one run: say one --policy and one --seed", param_hint="--access-log")
    if long_pool >= wanted.fleet.endpoints:
        raise typer.BadParameter("it leaves nobody for the others", param_hint="--long-pool")
    if admission is Admission.FLOW and share is Share.EVENTS:
        raise typer.BadParameter("the queue cannot look into the engines", param_hint="--share")
    cases = [
        Case(
            wanted,
            name,
            number,
            gateways,
            share.value,
            told_after_ms / 1e3,
            work_factor,
            long_pool,
            rate,
            admission,
            limit,
            smoothing_ms / 1e3,
            access_log,
            max_rate,
        )
        for name in policy
        for number in seed
    ]
    console = console_beside(json)
    findings = watched(console, cases, processes)
    if json is not None:
        write_numbers(json, as_json(findings))
    doors = "one gateway" if gateways == 1 else f"{gateways} gateways, state {share.value}"
    fleet = wanted.fleet
    console.print(f"[bold]{wanted.name}[/bold]: {wanted.about}; {fleet.endpoints} x {fleet.profile}, {doors}")
    if max_rate:
        console.print(rates_table(findings))
    console.print(runs_table([result for finding in findings for result in finding.runs]))


def experiment(scenario: str | None, trace: Path | None, endpoints: int | None) -> Scenario:
    """Read what is to be simulated, or say in a line what is wrong with it."""
    if scenario is None and trace is None:
        raise typer.BadParameter(f"say one of {', '.join(names())}, a YAML file, or --trace", param_hint="SCENARIO")
    try:
        wanted = BARE if scenario is None else load(scenario)
    except (LookupError, ValidationError) as exc:
        raise typer.BadParameter(str(exc).strip("'\""), param_hint="SCENARIO") from exc
    if trace is not None:
        try:
            past = rows(trace)
        except (OSError, BrokenLog) as exc:
            raise typer.BadParameter(str(exc), param_hint="--trace") from exc
        wanted = wanted.replaying(trace, own_rate(past), span_s(past))
    if endpoints is not None:
        wanted = wanted.model_copy(update={"fleet": wanted.fleet.model_copy(update={"endpoints": endpoints})})
    return wanted


def as_json(findings: Sequence[Finding]) -> dict[str, object]:
    """Give the document of `--json`."""
    document: dict[str, object] = {"runs": [asdict(result) for finding in findings for result in finding.runs]}
    if any(finding.max_rate is not None for finding in findings):
        document["max_rate"] = [
            {
                "policy": finding.case.policy,
                "seed": finding.case.seed,
                "gateways": finding.case.gateways,
                "share": finding.case.share,
                "requests_per_s": finding.max_rate,
            }
            for finding in findings
        ]
    return document


def watched(console: Console, cases: list[Case], processes: int) -> list[Finding]:
    """Run cases with a progress bar."""
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=float(len(cases)))
        done = [0.0] * len(cases)

        def tell(place: int, share: float) -> None:
            done[place] = share
            progress.update(bar, completed=sum(done))

        return sweep(cases, processes, tell)


def rates_table(findings: Sequence[Finding]) -> Table:
    """Show the highest rates, one row a policy."""
    table = Table("policy", "requests/s", "by seed", title="highest rate within the SLO", title_justify="left")
    table.columns[1].justify = "right"
    for policy in dict.fromkeys(finding.case.policy for finding in findings):
        rates = [finding.max_rate or 0.0 for finding in findings if finding.case.policy == policy]
        table.add_row(policy, f"{fmean(rates):.1f}", "  ".join(f"{rate:.1f}" for rate in rates))
    return table


CELLS: tuple[tuple[str, Callable[[Result], float | None], str], ...] = (
    ("rate", lambda result: result.rate, ".4g"),
    ("hits", lambda result: result.hit_rate * 100, ".1f"),
    ("TTFT", lambda result: _ms(result.ttft_s.mean), ".0f"),
    ("p50", lambda result: _ms(result.ttft_s.p50), ".0f"),
    ("p99", lambda result: _ms(result.ttft_s.p99), ".0f"),
    ("TPOT\np99", lambda result: _ms(result.tpot_s.p99), ".0f"),
    ("E2E", lambda result: _ms(result.e2e_s.mean), ".0f"),
    ("out/s", lambda result: result.output_tokens_per_s, ".0f"),
    ("good/s", lambda result: result.goodput_per_s, ".1f"),
    ("SLO", lambda result: result.slo_attainment * 100, ".1f"),
    ("over", lambda result: result.imbalance, ".2f"),
)


def runs_table(results: Sequence[Result]) -> Table:
    """Show what came of each policy and rate: means over the seeds. It fits 80 columns."""
    title = "means over seeds; times in ms, hits and SLO met in %, over: the busiest engine's load over the mean"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("policy", no_wrap=True)
    for name, _, _ in CELLS:
        table.add_column(name, justify="right", no_wrap=True)
    rates = len({(result.policy, result.rate) for result in results}) > len({result.policy for result in results})
    for policy, rate in dict.fromkeys((result.policy, result.rate if rates else 0.0) for result in results):
        alike = [result for result in results if result.policy == policy and (not rates or result.rate == rate)]
        cells = []
        for _, value, form in CELLS:
            values = [known for result in alike if (known := value(result)) is not None]
            cells.append(format(fmean(values), form) if values else "-")
        table.add_row(policy, *cells)
    if refused := sum(result.refused for result in results):
        table.caption = f"{refused:,} of {sum(result.requests for result in results):,} requests refused"
    return table


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
