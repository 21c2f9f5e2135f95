"""Measure: load one target for one window and read what it cost.

The proxy has one core to itself, the engine and the load share the other. The window is cut by two readings,
each of the target's CPU time and of the engine's own counters, so that requests and CPU are of the same
seconds whatever the client counts; the client's percentiles come from its own window, the same but for some
milliseconds.
"""

import http.client
import json
import subprocess
import time
from dataclasses import dataclass

from loadtests.bench.processes import PROC, cpu_ns, idle_s, pinned, rss_bytes
from loadtests.bench.rows import Load, Sample
from loadtests.bench.targets import OUT

EDGE_S = 0.3  # the load runs on for this long after the second reading
DRAIN_LIMIT_S = 15.0  # a target that holds the engine longer than this after its clients left is told as this
DRAIN_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Running:
    """A target that serves: where, and whose CPU is counted."""

    name: str
    port: int
    pid: int
    core: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A moment's counts."""

    at_s: float
    cpu_ns: int
    core_idle_s: float
    requests: int
    chunks: int


class Engine:
    """The mock engine's control page: pace and counters."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, query: str = "") -> dict[str, int]:
        """Read the counters, after setting what the query says (`ttft_us=5000&interval_us=0`)."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", f"/ctl?{query}")
            counters: dict[str, int] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return counters

    def wait_until_free(self) -> float:
        """Wait until no request is left and say how long that took, at most DRAIN_LIMIT_S."""
        started = time.monotonic()
        while self.ask()["active"] and time.monotonic() - started < DRAIN_LIMIT_S:
            time.sleep(DRAIN_POLL_S)
        return time.monotonic() - started


def measure(target: Running, load: Load, engine: Engine, *, seconds: float, load_core: int) -> Sample:
    """Load a target and return the window's sample; every process started here has ended."""
    engine.ask(f"ttft_us={load.ttft_us}&interval_us={load.interval_us}")
    command = [OUT / "loadgen", "-p", target.port, "-b", OUT / "bodies" / f"{load.body}.json"]
    pace = ["-c", load.connections, "-w", load.warm_s, "-d", seconds + EDGE_S, "-S", load.stagger_s]
    with pinned(load_core):
        client = subprocess.Popen([str(word) for word in command + pace], stdout=subprocess.PIPE)
    try:
        time.sleep(load.warm_s)
        before = _read(target, engine)
        time.sleep(seconds)
        after = _read(target, engine)
        rss = rss_bytes(target.pid)
        out, _ = client.communicate(timeout=EDGE_S + 30)
    finally:
        client.kill()
        client.wait()
    freed_s = engine.wait_until_free()
    return _sample(load, before, after, json.loads(out), rss_mb=rss / 1e6, freed_s=freed_s)


def _read(target: Running, engine: Engine) -> Reading:
    counters = engine.ask()
    at_s, cpu = time.monotonic(), cpu_ns(target.pid)
    idle = idle_s(target.core, (PROC / "stat").read_text())
    return Reading(at_s, cpu, idle, counters["req"], counters["chunks"])


def _sample(
    load: Load, before: Reading, after: Reading, client: dict[str, float], *, rss_mb: float, freed_s: float
) -> Sample:
    cpu = after.cpu_ns - before.cpu_ns
    window_s = after.at_s - before.at_s
    count = after.chunks - before.chunks if load.counts_chunks else after.requests - before.requests
    return Sample(
        cpu_us=cpu / 1e3 / count if count else float("nan"),
        core_share=cpu / 1e9 / window_s,
        core_busy=1 - (after.core_idle_s - before.core_idle_s) / window_s,
        per_s=count / window_s,
        ttft_us=client["ttft_p50"],
        chunk_delay_ms=client["cd_p99"] / 1e3,
        rss_mb=rss_mb,
        freed_s=freed_s,
        errors=int(client["errors"]),
    )
