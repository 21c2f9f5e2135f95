"""Processes of the bench: start one on a core, read what its tree has cost, end it by its id.

CPU time is the run time the scheduler has booked, `/proc/PID/task/TID/schedstat`, first field: nanoseconds,
user and system together, where `/proc/PID/stat` counts ticks of 10 ms. A thread that ends takes its count
along, so a window during which threads end reads low; the targets here keep theirs.

Every process is started in a session of its own, so that the terminal's Ctrl-C reaches the bench alone, which
then ends what it started: SIGTERM, a grace, SIGKILL, each to the ids of the tree, never to a name.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GRACE_S = 3.0  # nginx and the gateway end within one; sglang-router would wait 180 for its open streams


def tree(pid: int, proc: Path = PROC) -> list[int]:
    """Name a process and all its descendants, parents first; empty once it is gone."""
    try:
        listings = [task / "children" for task in (proc / str(pid) / "task").iterdir()]
        children = [int(child) for listing in listings for child in listing.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(each for child in children for each in tree(child, proc))]


def is_running(pid: int, proc: Path = PROC) -> bool:
    """Say whether a process is there and has not ended; one that only waits to be reaped has."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")  # the name in brackets may hold anything


def run_ns(schedstat: str) -> int:
    """Read the run time in nanoseconds from the line `run_ns wait_ns slices` of a schedstat file."""
    return int(schedstat.split()[0])


def cpu_ns(pid: int, proc: Path = PROC) -> int:
    """Sum user and system time, in nanoseconds, over every thread of a process and its descendants."""
    total = 0
    for member in tree(pid, proc):
        for task in (proc / str(member) / "task").glob("*"):
            try:
                total += run_ns((task / "schedstat").read_text())
            except (
                FileNotFoundError,
                ProcessLookupError,
            ):  # the thread ended between the listing and the read
                continue
    return total


def rss_bytes(pid: int, proc: Path = PROC) -> int:
    """Sum the resident memory of a process and its descendants; pages they share count once for each."""
    total = 0
    for member in tree(pid, proc):
        try:
            total += int((proc / str(member) / "statm").read_text().split()[1]) * PAGE_BYTES
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def idle_s(core: int, stat: str) -> float:
    """Read from /proc/stat how long a core has been idle, in seconds.

    Idle time is measured, while busy time is guessed from which process a tick meets: work that runs between ticks,
    as streams in step with the clock do, is not seen there.
    """
    line = next(line for line in stat.splitlines() if line.split()[0] == f"cpu{core}")
    idle, iowait = line.split()[4:6]
    return (int(idle) + int(iowait)) / TICKS_PER_S


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Let processes that are started inside inherit an affinity to one core; ours is put back after."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Process:
    """One process that the bench started on a core; as a context manager it is gone on the way out."""

    def __init__(self, command: Sequence[str], *, core: int, log: Path) -> None:
        """Start it; its two outputs go to the log file."""
        self._log = log
        with pinned(core), log.open("wb") as out:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def last_words(self, lines: int = 5) -> str:
        """Quote the end of its log, for the message that says why it is not there."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def end(self) -> None:
        """End the whole tree and wait for it; harmless when it has ended already."""
        members = tree(self.pid)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            _signal(members, signum)
            limit = time.monotonic() + GRACE_S
            while any(is_running(member) for member in members) and time.monotonic() < limit:
                time.sleep(0.02)
        self._popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


def _signal(pids: Sequence[int], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
