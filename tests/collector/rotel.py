"""Rotel: the collector's process, on a port that stays the same over restarts."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.brought import BENCH, environment
from tests.ports import free_port

VERSION = "0.0.1a15"
PATIENCE_S = 20.0  # for what takes a tenth of a second on an idle machine
LOOK_EVERY_S = 0.02


def program() -> Path:
    """Bring the collector, once."""
    python = environment(BENCH / "collector" / f"rotel-{VERSION}", f"rotel=={VERSION}")
    (found,) = python.parent.parent.glob("lib/python*/site-packages/rotel/rotel-agent")
    return found


@dataclass
class Rotel:
    """One collector.

    Args:
        passes_to: Where it sends what it has taken.
        directory: For its log and its process's number.
    """

    passes_to: str
    directory: Path
    port: int = field(default_factory=free_port)
    grpc_port: int = field(default_factory=free_port)
    _process: Process | None = None

    @property
    def url(self) -> str:
        """Where it takes OTLP over HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @classmethod
    @asynccontextmanager
    async def running(cls, passes_to: str, directory: Path) -> AsyncIterator["Rotel"]:
        """Run one until the end of the block, or until it is stopped."""
        collector = cls(passes_to, directory)
        try:
            await collector.start()
            yield collector
        finally:
            await collector.stop()

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        options = {
            "--pid-file": self.directory / "rotel.pid",
            "--log-file": self.directory / "rotel.log",
            "--otlp-http-endpoint": f"127.0.0.1:{self.port}",
            "--otlp-grpc-endpoint": f"127.0.0.1:{self.grpc_port}",
            "--exporter": "otlp",
            "--otlp-exporter-endpoint": self.passes_to,
            "--otlp-exporter-protocol": "http",
            "--otlp-exporter-compression": "none",
        }
        words = [str(word) for option in options.items() for word in option]
        with (self.directory / "rotel.out").open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(program(), "start", *words, stdout=out, stderr=out)
        async with asyncio.timeout(PATIENCE_S):
            while not await self._listens():
                assert self._process.returncode is None, (self.directory / "rotel.out").read_text()
                await asyncio.sleep(LOOK_EVERY_S)

    async def stop(self) -> None:
        """End it as an init system does: what it has taken it passes on first."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), PATIENCE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True
