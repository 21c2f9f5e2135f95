"""Flame: where the gateway's CPU goes under each load, sampled by py-spy from outside the process."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from loadtests.bench.measure import Engine, Running, measure
from loadtests.bench.rows import Load
from loadtests.bench.table import OURS
from loadtests.bench.targets import OUT, Missing

RATE_HZ = 500  # samples a second; with more, py-spy's own pauses begin to show
PY_SPY = OUT / "py-spy" / "bin" / "py-spy"


def record(
    folder: Path,
    running: Sequence[Running],
    loads: Sequence[Load],
    engine: Engine,
    *,
    seconds: float,
    load_core: int,
) -> list[Path]:
    """Load our gateway once more with each load while py-spy samples it; one file of folded stacks for each.

    Raises:
        Missing: py-spy is not installed, or our gateway is not among the targets.
    """
    ours = next((target for target in running if target.name == OURS), None)
    if ours is None or not PY_SPY.exists():
        raise Missing(f"a profile needs the target {OURS} and py-spy: make bench-setup")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for load in loads:
        files.append(folder / f"{load.name.replace(',', '').replace(' ', '-')}.folded")
        length = ["--duration", str(max(1, round(load.warm_s + seconds)))]
        form = ["--format", "raw", "--rate", str(RATE_HZ), "--output", str(files[-1])]
        spy = subprocess.Popen([PY_SPY, "record", "--pid", str(ours.pid), *length, *form], stdout=subprocess.DEVNULL)
        try:
            measure(ours, load, engine, seconds=seconds, load_core=load_core)
            spy.wait(timeout=seconds + 30)
        finally:
            spy.kill()
            spy.wait()
    return files
