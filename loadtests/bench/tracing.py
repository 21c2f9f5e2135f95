"""What tracing costs: CPU per request of the gateway without it, and with 0, 1, 10 and 100 % of requests recorded.

    python -m loadtests.bench.tracing [--rounds 5] [--seconds 3] [--also NAME=CHECKOUT]

The same load for all, in interleaved rounds; figures are medians. Twice: `paced`, some hundred requests a second, where
every span that should be sent is; and at saturation, where what the exporter cannot keep up with is dropped, so that
tracing everything costs what it may and no more. CPU is of the gateway's whole process, its exporting thread included;
the collector is a process on the load's core that reads and forgets.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from aiohttp import web
from rich.console import Console
from rich.table import Table

from loadtests.bench.__main__ import cores
from loadtests.bench.measure import Engine, Running, measure
from loadtests.bench.processes import Process, pinned
from loadtests.bench.rows import Load, Sample
from loadtests.bench.targets import ENGINES, free_ports, mock_engine, wait_until_serving

PACED = Load("paced", "1k_warm", connections=4, ttft_us=8_000, saturates=False)
LOADS = (PACED, Load("saturated", "1k_warm", connections=64))
RATIOS = {"off": None, "0 %": 0.0, "1 %": 0.01, "10 %": 0.1, "100 %": 1.0}


def collect(port: int) -> None:
    """Take whatever is sent, and forget it; answers GET /v1/models, as the bench's targets do."""

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response()

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/v1/{path}", take)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


def config(engines: list[str], port: int, ratio: float | None, collector: int) -> dict[str, object]:
    """Write the configuration of one target."""
    tracing = {} if ratio is None else {"endpoint": f"http://127.0.0.1:{collector}", "ratio": ratio, "slow_s": 60}
    return {
        "listen": {"port": port, "admin_port": port + 1},
        "anonymous": {},
        "pools": [{"endpoints": [{"url": url} for url in engines]}],
        **({"tracing": tracing} if tracing else {}),
    }


def run(options: argparse.Namespace) -> None:
    """Measure, and print the table."""
    ratios = {name: ratio for name, ratio in RATIOS.items() if name in options.only or not options.only}
    also = dict(word.split("=", 1) for word in options.also)
    proxy_core, load_core = cores()
    samples: dict[tuple[str, str], list[Sample]] = {}
    with pinned(load_core), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvlane-tracing-")))
        base = free_ports(ENGINES)
        engine = stack.enter_context(Process(mock_engine(base), core=load_core, log=folder / "engine.log"))
        wait_until_serving(base, engine)
        urls = [f"http://127.0.0.1:{port}" for port in range(base, base + ENGINES)]
        collector = free_ports(1, base + ENGINES)
        words = [sys.executable, "-m", "loadtests.bench.tracing", "--collect", str(collector)]
        wait_until_serving(collector, stack.enter_context(Process(words, core=load_core, log=folder / "collector.log")))
        targets = []
        port = collector + 1
        for name in (*also, *ratios):
            port = free_ports(2, port)
            file = folder / f"{port}.yaml"
            file.write_text(json.dumps(config(urls, port, ratios.get(name), collector)))
            path = also.get(name, str(Path.cwd()))
            words = ["env", f"PYTHONPATH={path}", sys.executable, "-m", "gateway", "serve", str(file)]
            proxy = stack.enter_context(Process(words, core=proxy_core, log=folder / f"{port}.log"))
            wait_until_serving(port, proxy)
            targets.append(Running(name, port, proxy.pid, proxy_core))
            port += 2
        for turn in range(options.rounds):
            for load in LOADS:
                for target in targets[turn % len(targets) :] + targets[: turn % len(targets)]:
                    sample = measure(target, load, Engine(base), seconds=options.seconds, load_core=load_core)
                    samples.setdefault((target.name, load.name), []).append(sample)
    table = Table(title=f"CPU of the gateway, us per request of 1 KB; medians of {options.rounds}")
    table.add_column("recorded")
    for load in LOADS:
        table.add_column(load.name, justify="right")
        table.add_column("requests/s", justify="right")
    for name in (*also, *ratios):
        cells = [name]
        for load in LOADS:
            taken = samples[name, load.name]
            cells.append(f"{statistics.median(each.cpu_us for each in taken):.1f}")
            cells.append(f"{statistics.median(each.per_s for each in taken):.0f}")
        table.add_row(*cells)
    Console().print(table)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.tracing", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    also = "another checkout, untraced"
    parser.add_argument("--also", action="append", default=[], metavar="NAME=CHECKOUT", help=also)
    only = "one of the rows; repeatable"
    parser.add_argument("--only", action="append", default=[], choices=RATIOS, metavar="ROW", help=only)
    parser.add_argument("--collect", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect is not None:
        collect(options.collect)
    else:
        run(options)


if __name__ == "__main__":
    main()
