"""RealEngine: an engine's process, on a free port of its own, and how it is asked without the gateway.

    stopped --start--> loading --/health says 200--> up --stop, or a signal--> stopped

One that a test has killed is started again, on the same port, by whoever needs it next. Only processes that were
started here are ever signalled: each engine leads a session of its own, so that its children can be found when it is
gone.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from tests.engines.installed import llama_server, model, vllm_command
from tests.ports import free_port
from tests.wire.client import Answer, call, get

POLITE = ("nice", "-n", "10")
LOADING_S = 240.0  # vLLM takes 40 to 80 s on an idle machine
TICK_S = 0.05
STOPPING_S = 5.0
PATIENCE_S = 30.0  # engines share two cores with whatever else runs
LOG_TAIL = 3000
NAME = "tiny"
"""The model, as both engines call it: whatever can be served by either is."""
SLOTS = 4
"""Requests that llama.cpp works on at once."""
SEQUENCES = 8
"""Requests that vLLM works on at once."""
CONTEXT = 2048
"""Tokens of one request, at all of them."""
BLOCK = 32
"""Tokens of a block at vLLM; on a CPU, 32 must divide it."""


class RealEngine:
    """One engine.

    Args:
        name: For tests that know their engine.
        command: Without the address.
        environment: Beside ours.
        load: What its metrics page calls the requests that run, and those that wait.
        log: File for what it prints.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        load: tuple[str, str],
        log: Path,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [*POLITE, *command, "--host", "127.0.0.1", "--port", str(self.port)]
        self._environment = {**os.environ, **environment}
        self._load = load
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process: that of the API, where an engine has several."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it, unless it runs, and wait until it is well."""
        if self.is_alive:
            return
        self.stop()  # whatever its last run has left
        started = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220  # it outlives the loop of the test that needs it first
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        while not await self.is_well():
            assert self.is_alive, f"{self.name} has died: {self._last_words()}"
            assert time.monotonic() - started < LOADING_S, f"{self.name} does not come up: {self._last_words()}"
            await asyncio.sleep(TICK_S)
        print(f"\n{self.name} is up after {time.monotonic() - started:.1f} s")

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill_core(self) -> None:
        """Kill the process that computes, but not the one that listens; vLLM alone has two."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        (core,) = [int(pid) for pid in children if "EngineCor" in Path(f"/proc/{pid}/comm").read_text()]
        os.kill(core, signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until the process is gone; one that lingers is killed."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, STOPPING_S)
        self.stop()

    def stop(self) -> None:
        """End the process and its children."""
        if self._process is None:
            return
        if self.is_alive:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOPPING_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    async def is_well(self) -> bool:
        """Ask for its health."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            return (await get(self.url, "/health")).status == 200
        return False

    async def ask(self, path: str, body: object) -> Answer:
        """Send a request without the gateway."""
        return await call(self.url, path, body if isinstance(body, bytes) else orjson.dumps(body))

    async def page(self, path: str) -> Any:
        """Read one of its own JSON pages."""
        return (await get(self.url, path)).json

    async def load(self) -> tuple[int, int]:
        """Count the requests that it works on, and those that wait in it, as it says itself."""
        page = (await get(self.url, "/metrics")).body.decode()
        running, waiting = (_figure(page, name) for name in self._load)
        return running, waiting

    async def comes_to(
        self, running: int, waiting: int = 0, *, within_s: float = PATIENCE_S, every_s: float = TICK_S
    ) -> float:
        """Wait until it says that it has so much to do, asking `every_s`; give the seconds that this took."""
        started = time.monotonic()
        while (told := await self.load()) != (running, waiting):
            assert time.monotonic() - started < within_s, f"{self.name} still has {told} after {within_s:g} s"
            await asyncio.sleep(every_s)
        return time.monotonic() - started

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL:]


def _figure(page: str, name: str) -> int:
    match = re.search(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
    assert match is not None, f"no {name} on the metrics page"
    return int(float(match[1]))


def vllm(log: Path, *more: str) -> RealEngine:
    """Give vLLM with the tiny model and further options, not started yet.

    Raises:
        Missing: it is not installed.
    """
    command: list[str | Path] = [vllm_command(), "serve", model("tiny"), "--served-model-name", NAME]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT)]
    command += ["--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", str(CONTEXT)]
    command += ["--block-size", str(BLOCK), "--kv-cache-memory-bytes", str(64 << 20)]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-request-id-headers", *more]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_SERVER_DEV_MODE": "1",  # the control routes are there, and must not be reached
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    load = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return RealEngine("vllm", command, environment, load, log)


def llama(log: Path, *, is_slow: bool = False) -> RealEngine:
    """Give llama.cpp's server, not started yet.

    Raises:
        Missing: it is not installed.
    """
    server = llama_server()
    command: list[str | Path] = [server, "-m", model("slow" if is_slow else "tiny") / "model.gguf", "--alias", NAME]
    command += ["-t", "1", "-tb", "1", "-c", str(SLOTS * CONTEXT), "-np", str(SLOTS)]
    command += ["--metrics", "--slots", "--jinja", "--no-ui", "--offline"]
    environment = {"LD_LIBRARY_PATH": str(server.parent)}
    load = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    return RealEngine("slow llama.cpp" if is_slow else "llama.cpp", command, environment, load, log)
