"""press: rules of admission side by side over HTTP and in virtual time, beyond what a small fleet can serve.

Over HTTP: processes, the gateway as it is served, engines that keep real time; each cell gets them anew, with cold
caches. In virtual time: the same jobs, rates and engines as discrete events, no network. Both are counted by one Tally.

    none             admission is off: engines queue for themselves
    max_concurrency  the same, and whoever comes while so many are under way is turned away before the gateway
    wait_bound       exists in virtual time alone
    flow             the gateway's queue as the virtual one has it: `policies.tickets.CLASSES`

The fleet is small so that a machine of two cores keeps real time: mind the column `late`.
"""

import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isinf
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from loadtests.bars import OURS, OVERLOADS
from loadtests.command import NumbersFile, console_beside, outcome_of, show, write_numbers
from loadtests.crowd import Crowd, press, tenants_section
from loadtests.demo import BUSY_S
from loadtests.doors import Admission
from loadtests.drive import Target
from loadtests.overload import CELLS
from loadtests.results import Result
from loadtests.scenario import Fleet, Scenario, Stage, load
from loadtests.simulate import Simulation
from loadtests.sources import source
from loadtests.stand import Plan, stand
from loadtests.workloads import Job
from policies.tickets import CLASSES

FLEET = Fleet(endpoints=2, profile="llama-8b-l40s", max_context_tokens=32_768)  # 7 requests a second keep it busy
SEED = 67  # of the first hundred, one of five whose bursts are 5 % of the seconds counted, and over before they end
MAX_INFLIGHT = 30  # for each engine: of 15, 20, 25, 30, 35, 40 and more the best at twice the capacity, on other seeds
LADDER = 1.15  # from rate to rate in the search for the capacity: goodput is flat at the top
NOT_SHOWN = ("Jain\nparts", "\nshare")  # with so few requests for each tenant they say nothing
UNKNOWN = ("output_tokens_per_s", "imbalance", "gateways", "share", "policy")  # over HTTP nobody looks, or all alike
SHOWN = tuple(cell for cell in CELLS if cell[0] not in NOT_SHOWN)


@dataclass(frozen=True, slots=True)
class Cell:
    """What one rule came to at one rate, one way or the other."""

    times: float
    """Of the capacity."""
    rule: Admission
    is_http: bool
    result: Result
    late_s: float | None = None
    """How late requests were sent, at the 99th percentile."""
    delay_s: float | None = None
    """How late the sender was woken up, at the 95th."""
    failed: tuple[tuple[str, int], ...] = ()


def admission_section(rule: Admission) -> dict[str, object]:
    """Give the part of the gateway's configuration that makes it follow a rule."""
    match rule:
        case Admission.NONE | Admission.MAX_CONCURRENCY:
            return {"enabled": False}
        case Admission.FLOW:
            known = [{**asdict(each), "crowded_wait_s": _finite(each.crowded_wait_s)} for each in CLASSES]
            return {"classes": known}
        case Admission.WAIT_BOUND:
            raise ValueError(f"{rule.value} is no rule of the gateway")


def _finite(seconds: float) -> float | None:
    return None if isinf(seconds) else seconds


def jobs_of(scenario: Scenario, seed: int, stage: Stage) -> list[Job]:
    """Give the very jobs that a simulation with this seed makes of a stage."""
    return list(source(scenario.workload, str(seed)).jobs(stage.rate, stage.arrivals_s))


def in_virtual_time(scenario: Scenario, rule: Admission, seed: int, stage: Stage) -> Result:
    """Simulate a rule."""
    limit = float(MAX_INFLIGHT) if rule is Admission.MAX_CONCURRENCY else None
    result = Simulation(scenario, OURS, seed=seed, admission=rule, limit=limit).run(stage)
    assert result is not None
    return result


def capacity(scenario: Scenario, seed: int) -> float:
    """Give the highest goodput of the default rule at any rate, in virtual time, over the scenario's own stage."""
    stage = scenario.stages[0]
    best, rate = 0.0, float(scenario.fleet.endpoints)
    while rate <= 2 * max(best, scenario.fleet.endpoints):
        found = in_virtual_time(scenario, Admission.FLOW, seed, stage.model_copy(update={"rate": rate}))
        best, rate = max(best, found.goodput_per_s), rate * LADDER
    return best


def summed(crowd: Crowd, seed: int, stage: Stage) -> Result:
    """Sum up what came over HTTP, as a simulation does."""
    return crowd.tally.result(
        policy=OURS,
        seed=seed,
        gateways=1,
        share="own",
        rate=stage.rate,
        counted_s=stage.arrivals_s - stage.warm_up_s,
        output_tokens_per_s=0.0,
    )


async def over_http(scenario: Scenario, rule: Admission, seed: int, stage: Stage, ports: tuple[int, int]) -> Crowd:
    """Press a gateway and a fleet of its own."""
    jobs = jobs_of(scenario, seed, stage)
    fleet = scenario.fleet
    plan = Plan(
        port=ports[0],
        engine_port=ports[1],
        engines=fleet.endpoints,
        profile=fleet.profile,
        max_context_tokens=fleet.max_context_tokens,
        is_tokenized=False,
        sections={"admission": admission_section(rule), "tenants": tenants_section(jobs)},
    )
    most_open = MAX_INFLIGHT * fleet.endpoints if rule is Admission.MAX_CONCURRENCY else None
    target = Target(url=plan.gateway_url)
    async with stand(plan, OURS):
        return await press(target, jobs, scenario.objective, warm_up_s=stage.warm_up_s, most_open=most_open)


def pressed(
    only: Annotated[list[Admission], typer.Option(help="One or several rules.")] = list(Admission),  # noqa: B006  typer copies it
    times: Annotated[list[float], typer.Option(min=0.1, help="What the fleet can serve, so often.")] = list(OVERLOADS),  # noqa: B006
    seconds: Annotated[float, typer.Option(min=1, help="Of arrivals that are counted; answers are awaited.")] = 30.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of arrivals before them.")] = 10.0,
    seed: Annotated[int, typer.Option(help="The same seed makes the same requests, either way.")] = SEED,
    port: Annotated[int, typer.Option(help="Of the gateway; the admin listener takes the next.")] = 8080,
    engine_port: Annotated[int, typer.Option(help="Of the first engine.")] = 9001,
    json: NumbersFile = None,
) -> None:
    """Compare rules of admission over HTTP and in virtual time, in some eleven minutes; a cell over HTTP takes one."""
    console = console_beside(json)
    scenario = load("overload").model_copy(update={"fleet": FLEET})
    most = capacity(scenario, seed)
    stages = {
        each: Stage(rate=round(each * most, 2), arrivals_s=warm_up + seconds, warm_up_s=warm_up) for each in times
    }
    console.print(f"{FLEET.endpoints} x {FLEET.profile}; the highest goodput of the default is {most:.2f}/s")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # without admission hundreds are open at once

    async def all_of_them() -> list[Cell]:
        cells = []
        for factor, stage in stages.items():
            for rule in only:
                if rule is not Admission.WAIT_BOUND:
                    console.print(f"over HTTP: {factor:g} times, {rule.value}: {stage.rate:g}/s")
                    crowd = await over_http(scenario, rule, seed, stage, (port, engine_port))
                    failed = tuple(crowd.failed.items())
                    result = summed(crowd, seed, stage)
                    cells.append(Cell(factor, rule, True, result, crowd.late(), crowd.delay(), failed))
                cells.append(Cell(factor, rule, False, in_virtual_time(scenario, rule, seed, stage)))
        return cells

    cells = outcome_of(all_of_them(), console)
    if json is not None:
        write_numbers(json, {"capacity": most, "cells": as_json(cells)})
    show(console, table(cells))
    for line in doubts(cells):
        console.print(line)


def as_json(cells: Sequence[Cell]) -> list[dict[str, object]]:
    """Give what `--json` has of each cell."""
    return [
        {
            "times": cell.times,
            "rule": cell.rule.value,
            "way": "http" if cell.is_http else "virtual",
            "late_s": cell.late_s,
            "delay_s": cell.delay_s,
            "failed": dict(cell.failed),
            **{name: value for name, value in asdict(cell.result).items() if name not in UNKNOWN},
        }
        for cell in cells
    ]


def table(cells: Sequence[Cell]) -> Table:
    """Show each way under the other. It fits 100 columns."""
    title = (
        "seconds; SLO and TTFT of those let in, batch aside in TTFT and the first error of the predicted wait; "
        "no: refused; its: of batch; wait: p50; late: sent by so many ms, p99"
    )
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("times", "rule", "by"):
        shown.add_column(heading, no_wrap=True)
    for name, _, _ in SHOWN:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("late\nms", justify="right", no_wrap=True)
    for cell in cells:
        values = [(value(cell.result), form) for _, value, form in SHOWN]
        shown.add_row(
            f"{cell.times:g}",
            cell.rule.value,
            "HTTP" if cell.is_http else "virtual",
            *("-" if value is None else format(value, form) for value, form in values),
            "" if cell.late_s is None else f"{cell.late_s * 1e3:.0f}",
        )
    return shown


def doubts(cells: Sequence[Cell]) -> list[str]:
    """Say what speaks against the figures: a machine that was busy, requests that failed."""
    said = []
    worst = max((cell.delay_s or 0.0 for cell in cells), default=0.0)
    if worst > BUSY_S:
        said.append(
            f"this machine is busy: the sender was woken up {worst * 1e3:.0f} ms late (p95), and so was all else"
        )
    for cell in cells:
        if cell.failed:
            what = ", ".join(f"{count} {name}" for name, count in cell.failed)
            said.append(f"{cell.times:g} times, {cell.rule.value}: neither served nor refused, and counted so: {what}")
    return said
