"""Run the bench: `python -m loadtests.bench` (or: make bench, after make bench-setup).

Rounds are interleaved among the targets, each round in another order, so that what the machine does meanwhile
falls on all alike; a figure is the median of the rounds. All targets stay up throughout and are idle while
another is measured.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import Progress

from loadtests.bench.flame import record
from loadtests.bench.measure import Engine, Running, measure
from loadtests.bench.processes import Process, pinned
from loadtests.bench.rows import ROWS, Sample
from loadtests.bench.table import as_json, broken_gates, render
from loadtests.bench.targets import (
    DIRECT,
    ENGINES,
    TARGETS,
    Command,
    Missing,
    Place,
    custom,
    free_ports,
    mock_engine,
    wait_until_serving,
)

MISSED_GATE = 1
CANNOT_RUN = 2
INTERRUPTED = 130
WIDTH = 150  # of a table that goes to a file
LOADS = tuple({row.load.name: row.load for row in ROWS}.values())

console = Console(stderr=True)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="figures are medians of so many (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one round of one-second windows: to see that it runs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="target or load; repeatable")
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more target; the command has {port} {admin_port} {engines} {folder}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and samples there")
    parser.add_argument("--gate", action="store_true", help="exit 1 when CPU is over its bound against nginx")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="stacks of kvlane under each load, by py-spy")
    return parser.parse_args(words)


def chosen(only: Sequence[str], names: Sequence[str]) -> list[str]:
    """Keep the names asked for, or all when none of these was."""
    return [name for name in names if name in only] or list(names)


def cores() -> tuple[int, int]:
    """Choose the proxy's core and the load's; they are one where the machine has one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[min(1, len(usable) - 1)]


@contextmanager
def fleet(
    commands: Mapping[str, Command], *, proxy_core: int, load_core: int
) -> Iterator[tuple[Engine, list[Running]]]:
    """Start the engine and every target that can run; all are gone on the way out.

    Raises:
        Missing: the engine itself cannot run. A missing target is said and left out.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvlane-bench-")))
        base = free_ports(ENGINES)
        engine = stack.enter_context(Process(mock_engine(base), core=load_core, log=folder / "engine.log"))
        wait_until_serving(base, engine)
        running = [Running(DIRECT, base, engine.pid, load_core)]
        port = base + ENGINES
        for name, command in commands.items():
            port = free_ports(2, port)
            own = folder / name
            own.mkdir()
            place = Place(range(base, base + ENGINES), port, port + 1, own)
            try:
                proxy = stack.enter_context(Process(command(place), core=proxy_core, log=own / "log"))
                wait_until_serving(port, proxy)
            except Missing as exc:
                console.print(f"[yellow]{name} is left out: {exc}[/]")
                continue
            running.append(Running(name, port, proxy.pid, proxy_core))
            port += 2
        yield Engine(base), running


def run(options: argparse.Namespace) -> int:
    """Measure what the options say and print it; return the exit status."""
    added = dict(word.split("=", 1) for word in options.add)
    commands = {**TARGETS, **{name: custom(template) for name, template in added.items()}}
    commands = {name: commands[name] for name in chosen(options.only, list(commands))}
    loads = [load for load in LOADS if load.name in chosen(options.only, [load.name for load in LOADS])]
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, options.seconds)
    proxy_core, load_core = cores()
    started = time.time()
    places = fleet(commands, proxy_core=proxy_core, load_core=load_core)
    with pinned(load_core), places as (engine, running):
        samples: dict[str, dict[str, list[Sample]]] = {target.name: {} for target in running}
        turns = [
            (turn + 1, load, target)
            for turn in range(rounds)
            for load in loads
            for target in running[turn % len(running) :] + running[: turn % len(running)]
        ]
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("", total=len(turns))
            for turn, load, target in turns:
                progress.update(bar, description=f"round {turn}/{rounds}: {load.name}: {target.name}")
                sample = measure(target, load, engine, seconds=seconds, load_core=load_core)
                samples[target.name].setdefault(load.name, []).append(sample)
                progress.advance(bar)
        if options.profile:
            files = record(options.profile, running, loads, engine, seconds=seconds, load_core=load_core)
            console.print("profiles:", *files)
    cpu = "shared by proxy and load: ONE CORE" if proxy_core == load_core else "one core for the proxy"
    title = f"medians of {rounds} rounds of {seconds:g} s, {cpu}"
    out = Console()
    out = out if out.is_terminal else Console(width=WIDTH)
    out.print(render(samples, title))
    if options.json:
        facts = {"started": started, "rounds": rounds, "seconds": seconds, "load_average": os.getloadavg()}
        options.json.write_text(json.dumps(as_json(samples, facts), indent=1) + "\n")
    broken = broken_gates(samples)
    for line in broken if options.gate else ():
        console.print(f"[red]gate: {line}[/]")
    return MISSED_GATE if options.gate and broken else 0


def interrupt(number: int, frame: FrameType | None) -> None:
    """Unwind, ending all that was started; further signals must not disturb that."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(words: Sequence[str]) -> int:
    """Return the exit status."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, interrupt)
    options = parse(words)
    try:
        return run(options)
    except Missing as exc:
        console.print(f"[red]the bench cannot run: {exc}[/]")
        return CANNOT_RUN
    except KeyboardInterrupt:
        console.print("interrupted: every process of the bench has ended")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
