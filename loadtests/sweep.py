"""Case, sweep: many simulations at once, and the search for the highest rate that a policy serves well."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import sqrt
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty

from loadtests.doors import Admission
from loadtests.logged import Log
from loadtests.results import Result
from loadtests.scenario import Scenario, Stage
from loadtests.simulate import TOLD_AFTER_S, Simulation

ENOUGH = 0.95  # of the requests must meet the objective for a rate to count as served
STEPS = 6  # of the bisection: a bracket of 1:2 is narrowed to 1 %
MAX_SHIFTS = 3  # of the bracket, up or down, when all of it is on one side
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """One policy and seed under one scenario."""

    scenario: Scenario
    policy: str
    seed: int
    gateways: int = 1
    share: str = "own"
    told_after_s: float = TOLD_AFTER_S
    work_factor: float = 1.0
    long_endpoints: int = 0
    rate: float | None = None
    """In place of the scenario's."""
    admission: Admission = Admission.NONE
    limit: float | None = None
    """Of the admission rule, in place of its own."""
    smoothing_s: float = 0.0
    """For so long the gateway's own queue holds bursts together."""
    log: Path | None = None
    """Where what the gateways would have logged is written."""
    is_max_rate: bool = False
    """Look for the highest rate within the objective."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What to run, where the rate is given."""
        return self.scenario.stages if self.rate is None else self.scenario.at(self.rate)


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a case."""

    case: Case
    runs: list[Result]
    """One for each counted stage; of a search, the one at the highest rate that was served well."""
    max_rate: float | None = None
    """Requests per second; 0.0 where no rate was served well, None where none was looked for."""


def run(case: Case, progress: Callable[[float], None] = lambda share: None) -> Finding:
    """Run a case; `progress` is told what share of it is done."""
    if not case.is_max_rate:
        runs = _simulate(case, case.stages, False, progress)
        assert runs is not None
        return Finding(case, runs)
    best: list[Result] = []
    step = 0

    def is_served(rate: float) -> bool:
        nonlocal best, step
        done, step = step, step + 1
        runs = _simulate(case, case.scenario.at(rate), True, lambda share: progress(min(1.0, (done + share) / STEPS)))
        if runs is None or runs[-1].slo_attainment < ENOUGH:
            return False
        best = runs[-1:]
        return True

    rate = highest(is_served, *case.scenario.bracket)
    return Finding(case, best, rate)


def highest(is_served: Callable[[float], bool], low: float, high: float) -> float:
    """Find the highest rate that is served, by geometric bisection.

    Args:
        low, high: Where to look first; if every rate between is served, or none, the bracket above or below is next.
    Returns:
        The highest rate that was tried and served, 0.0 if none was.
    """
    ratio = high / low
    best = 0.0
    for _ in range(MAX_SHIFTS + 1):
        at, above = low, high
        for _ in range(STEPS):
            middle = sqrt(at * above)
            if is_served(middle):
                best = at = middle
            else:
                above = middle
        if at > low and above < high:
            break
        if at > low:
            low, high = high, high * ratio
        elif best:
            break  # the bracket below was served as far as it goes
        else:
            low, high = low / ratio, low
    return best


def sweep(cases: Sequence[Case], processes: int, progress: Callable[[int, float], None]) -> list[Finding]:
    """Run cases, several at once.

    Args:
        progress: Told the place of a case and what share of it is done.
    """
    if processes == 1 or len(cases) == 1:
        return [run(case, partial(progress, place)) for place, case in enumerate(cases)]
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of whoever calls
    told: Queue[tuple[int, float]] = context.Queue()
    with ProcessPoolExecutor(min(processes, len(cases)), context, _connect, (told,)) as pool:
        futures = [pool.submit(_run_apart, place, case) for place, case in enumerate(cases)]
        try:
            while not all(future.done() for future in futures):
                try:
                    progress(*told.get(timeout=POLL_S))
                except Empty:
                    continue
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            told.close()


_TOLD: "list[Queue[tuple[int, float]]]" = []  # of a process of the pool: where progress is told


def _connect(told: "Queue[tuple[int, float]]") -> None:
    _TOLD[:] = [told]


def _run_apart(place: int, case: Case) -> Finding:
    return run(case, lambda share: _TOLD[0].put((place, share)))


def _simulate(
    case: Case, stages: Sequence[Stage], give_up: bool, progress: Callable[[float], None]
) -> list[Result] | None:
    """Run stages one after the other; None if it was given up."""
    whole_s = sum(stage.arrivals_s for stage in stages)
    passed_s = 0.0

    def on_progress(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds
        progress(min(1.0, passed_s / whole_s))

    with ExitStack() as stack:
        log = None if case.log is None else stack.enter_context(Log(case.log))
        simulation = Simulation(
            case.scenario,
            case.policy,
            seed=case.seed,
            gateways=case.gateways,
            share=case.share,
            told_after_s=case.told_after_s,
            work_factor=case.work_factor,
            long_endpoints=case.long_endpoints,
            admission=case.admission,
            limit=case.limit,
            smoothing_s=case.smoothing_s,
            on_progress=on_progress,
            on_record=None if log is None else log.write,
        )
        results = []
        for stage in stages:
            result = simulation.run(stage, give_up and stage.is_counted)
            if result is None:
                return None
            if stage.is_counted:
                results.append(result)
        return results
