"""Stand: a simulated fleet with cold caches and the gateway before it, as processes, started as anyone would do it.

Whatever happens, cancellation included, what was started here is ended here.
"""

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

import yaml

from loadtests.vocabulary import SMALL, small_tokenizer

MODEL = "sim"
PROFILE = "bench-8b"  # Llama 3.1 8B on an H100, by bandwidth and arithmetic
READY_WITHIN_S = 30.0
MAX_CONTEXT_TOKENS = 131_072

Result = TypeVar("Result")
STOP_WITHIN_S = 10.0


class NotReady(Exception):
    """The gateway did not become ready, or a process ended; the message has the last lines of their logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to stand up."""

    port: int
    """Of the gateway; the admin listener takes the next."""
    engine_port: int
    """Of the first engine."""
    engines: int = 4
    profile: str = PROFILE
    time_scale: float = 1.0
    max_context_tokens: int = MAX_CONTEXT_TOKENS
    is_tokenized: bool = True
    """Whether gateway and engines cut texts with the small tokenizer; prompts of token ids need none."""
    sections: Mapping[str, object] = field(default_factory=dict)
    """Of the gateway's configuration, beside those that follow from the rest."""

    @property
    def engine_urls(self) -> list[str]:
        """Where the engines are."""
        return [f"http://127.0.0.1:{self.engine_port + at}" for at in range(self.engines)]

    @property
    def gateway_url(self) -> str:
        """Where the gateway is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where its admin listener is."""
        return f"http://127.0.0.1:{self.port + 1}"

    def fleet_words(self) -> list[str]:
        """Give the words after `kvlane-sim` that start the engines."""
        words = ["fleet", "-n", str(self.engines), "--port", str(self.engine_port), "--profile", self.profile]
        words += ["--tokenizer", SMALL] if self.is_tokenized else []
        words += ["--max-context-tokens", str(self.max_context_tokens)]
        return words if self.time_scale == 1.0 else [*words, "--time-scale", str(self.time_scale)]

    def configuration(self, policy: str) -> str:
        """Give the gateway's configuration, in YAML."""
        endpoints = [{"url": url, "profile": self.profile} for url in self.engine_urls]
        document = {
            "listen": {"port": self.port, "admin_port": self.port + 1},
            "pools": [{"name": "default", "policy": policy, "endpoints": endpoints}],
            "models": [{"name": MODEL, "tokenizer": small_tokenizer()}] if self.is_tokenized else [],
            "anonymous": {},
            **self.sections,
        }
        return yaml.safe_dump(document, sort_keys=False)


async def until_stopped(work: Coroutine[None, None, Result]) -> Result | None:
    """Give what the work gives, or None once somebody asked to stop and all has been taken down."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None
    return task.result()


@contextlib.asynccontextmanager
async def stand(plan: Plan, policy: str) -> AsyncIterator[Path]:
    """Run engines and gateway while the block lasts; give the configuration's file.

    Raises:
        NotReady: It did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="kvlane-demo-") as folder:
        file = Path(folder) / "kvlane.yaml"
        file.write_text(plan.configuration(policy), encoding="utf-8")
        async with (
            process(Path(folder) / "fleet.log", "loadtests", *plan.fleet_words()) as fleet,
            process(Path(folder) / "gateway.log", "gateway", "serve", str(file)) as gateway,
        ):
            if not await has_found(plan.engines, plan.admin_url, fleet, gateway):
                raise NotReady("\n".join(("the gateway did not become ready; is a port taken?", *last_lines(folder))))
            yield file


def last_lines(folder: str) -> list[str]:
    """Give what the processes said last that have their logs in a folder."""
    return [line for log in sorted(Path(folder).glob("*.log")) for line in log.read_text().splitlines()[-3:]]


def process(log: Path, module: str, *words: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run one of our commands while the block lasts."""
    return running(log, sys.executable, "-m", module, *words)


@contextlib.asynccontextmanager
async def running(log: Path, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command while the block lasts; in a group of its own, so that Ctrl-C reaches it through us."""
    with log.open("wb") as errors:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        )
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _end(await starting)
            raise
    try:
        yield started
    finally:
        await _end(started)


async def _end(started: asyncio.subprocess.Process) -> None:
    if started.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            started.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(started.wait(), STOP_WITHIN_S)
        except TimeoutError:
            started.kill()
            await started.wait()


async def has_found(engines: int, admin_url: str, *processes: asyncio.subprocess.Process) -> bool:
    """Wait until a gateway has found so many engines; give up when one of the processes ends."""
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at:
        if any(process.returncode is not None for process in processes):
            return False
        if await asyncio.to_thread(_ready_engines, admin_url) == engines:
            return True
        await asyncio.sleep(0.05)
    return False


def _ready_engines(admin_url: str) -> int:
    """Count the engines that the gateway calls ready."""
    try:
        with urlopen(f"{admin_url}/metrics", timeout=1) as answer:
            page: bytes = answer.read()
    except OSError:
        return 0
    lines = [line for line in page.splitlines() if line.startswith(b"kvlane_endpoint_state{")]
    return sum(b'state="ready"' in line and line.endswith(b" 1.0") for line in lines)
