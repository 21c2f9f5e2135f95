"""Rows: what the bench measures, under which load, and how much it may be.

The limits are the column "first" of our performance targets: ratios of CPU to sglang-router (round robin), and plain
figures for what is felt. `gate` is the same bound told against nginx, and against the mock engine's own CPU where nginx
is missing, because a machine in CI has no sglang-router: on two shared cores sglang-router costs 5.3x of nginx at 1 KB
and 25x of the engine, and so on. Only CPU is gated, with a slack; requests per second and percentiles say more about
the machine than about us.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loadtests.bench.targets import DIRECT

BASELINE = "sglang-router"


@dataclass(frozen=True, slots=True)
class Load:
    """One way to load a target: a closed loop of connections, and how the engine behind it answers."""

    name: str
    body: str  # a file of .bench/bodies, without .json
    connections: int
    warm_s: float = 1.0  # before the window: connections open, pools fill
    stagger_s: float = 0.0  # the connections start spread over this
    ttft_us: int = 0
    interval_us: int = 0  # between chunks of a stream; 0: as fast as they are taken
    counts_chunks: bool = False  # CPU is told per chunk, not per request
    saturates: bool = True  # the proxy's core is meant to be the bottleneck


@dataclass(frozen=True, slots=True)
class Sample:
    """What one window of one load on one target showed."""

    cpu_us: float  # of the target's process tree, per request or per chunk
    core_share: float  # of its core, the target's own
    core_busy: float  # of its core, anyone's: under SATURATED the load or the engine was the bottleneck
    per_s: float  # requests or chunks
    ttft_us: float  # median, as the client saw it
    chunk_delay_ms: float  # 99th percentile of client's receipt minus engine's stamp
    rss_mb: float  # at the end of the window
    freed_s: float  # from the clients' end to the engine's last request gone
    errors: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    title: str
    unit: str
    load: Load
    value: Callable[[Sample], float]
    above_direct: bool = False  # told as what the target adds to a direct connection
    ratio_limit: float | None = None  # of our figure to sglang-router's
    limit: float | None = None  # of our figure
    gate: Mapping[str, float] = field(default_factory=dict)  # rival -> ratio


def _cpu(sample: Sample) -> float:
    return sample.cpu_us


SMALL = Load("1 KB", "1k_warm", connections=64)
MEDIUM = Load("8 KB", "8k_warm", connections=64)
LARGE = Load("64 KB", "64k_warm", connections=32)
STREAM = Load("64 chunks", "1k_s64_warm", connections=128)  # sglang-router holds each for 43 ms
MANY = Load(
    "1,000 streams",
    "1k_s1000_warm",
    connections=1000,
    warm_s=3.0,
    stagger_s=2.05,  # 2.05 ms apart, so that 1,000 streams of 50 ms beats have 1,000 different phases
    interval_us=50_000,  # 20 chunks a second each
    counts_chunks=True,
    saturates=False,
)
LONE = Load("lone stream", "1k_s16_warm", connections=1, ttft_us=5_000, saturates=False)

ROWS = (
    Row("CPU, 1 KB", "us", SMALL, _cpu, ratio_limit=1.0, gate={"nginx": 5.3, DIRECT: 25.0}),
    Row("CPU, 8 KB", "us", MEDIUM, _cpu, ratio_limit=1.0, gate={"nginx": 7.0, DIRECT: 20.0}),
    Row("CPU, 64 KB", "us", LARGE, _cpu, ratio_limit=1.2, gate={"nginx": 8.0, DIRECT: 17.0}),
    Row("CPU, stream of 64 chunks", "us", STREAM, _cpu),
    Row("CPU per chunk, 1,000 streams", "us", MANY, _cpu, ratio_limit=1.0, gate={"nginx": 1.4, DIRECT: 2.8}),
    Row("delay per chunk p99, 1,000 streams", "ms", MANY, lambda sample: sample.chunk_delay_ms, limit=2.0),
    Row("memory, 1,000 streams", "MB", MANY, lambda sample: sample.rss_mb, limit=250.0),
    Row("1,000 clients vanish: engine freed", "s", MANY, lambda sample: sample.freed_s, limit=0.2),
    Row("TTFT added to a lone stream", "ms", LONE, lambda s: s.ttft_us / 1e3, above_direct=True, limit=1.0),
)
