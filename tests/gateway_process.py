"""GatewayProcess: the gateway as an operator runs it, in a process of its own, for tests of memory and signals."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.fleet_fixtures import SECTIONS
from tests.until import PATIENCE_S
from tests.wire.house import who_calls

START_S = 30.0  # of patience; what it may take is another matter
LISTENS = re.compile(r"API on (http://\S+), admin on (http://[^\s,]+)")
RESET_PEAK = "5"  # proc(5): resets the peak resident set size


async def command(*args: str) -> asyncio.subprocess.Process:
    """Start `kvlane` with arguments, as its console script does."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def run(*args: str) -> tuple[int, str, str]:
    """Run `kvlane` to its end; give exit status, output and complaints."""
    process = await command(*args)
    try:
        out, err = await asyncio.wait_for(process.communicate(), START_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@dataclass
class GatewayProcess:
    """A running gateway."""

    process: asyncio.subprocess.Process
    url: str = ""
    admin_url: str = ""
    log: list[str] = field(default_factory=list)
    """What it wrote to stderr."""
    _reader: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def serving(
        cls, directory: Path, urls: Sequence[str], *, models: Sequence[dict[str, Any]] = (), **sections: Any
    ) -> AsyncIterator["GatewayProcess"]:
        """Run a gateway before engines; kill it at the end, if it still runs.

        Args:
            directory: For the configuration file.
            urls: Of the engines, which are called e0, e1, …
            models: What is known of models.
            sections: Of the configuration, over those of `SECTIONS`.
        """
        document = {**sections, **{name: SECTIONS[name] | sections.get(name, {}) for name in SECTIONS}}
        document["pools"] = [{"endpoints": [{"name": f"e{at}", "url": url} for at, url in enumerate(urls)]}]
        document["models"] = list(models)
        document = who_calls(document)
        file = directory / "kvlane.yaml"
        file.write_text(yaml.safe_dump(document))
        gateway = cls(await command("serve", str(file)))
        try:
            await asyncio.wait_for(gateway._read_until_it_listens(), START_S)
            gateway._reader = asyncio.create_task(gateway._read_on())
            yield gateway
        finally:
            await gateway._end()

    async def _read_until_it_listens(self) -> None:
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.log.append(line)
            if found := LISTENS.search(line):
                self.url, self.admin_url = found.groups()
                return
        raise AssertionError("it ended: " + "".join(self.log))

    async def _read_on(self) -> None:
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.log.append(line)

    async def _end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self._reader is not None:
            await self._reader
        if self.process.stdout is not None:
            await self.process.stdout.read()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def exit_status(self, within_s: float = PATIENCE_S) -> int:
        """Wait for its end; give the exit status."""
        status = await asyncio.wait_for(self.process.wait(), within_s)
        if self._reader is not None:
            await self._reader
        return status

    @property
    def has_traceback(self) -> bool:
        """Whether it wrote one."""
        return any("Traceback" in line for line in self.log)

    # /proc.

    @property
    def rss_bytes(self) -> int:
        """Memory that is resident now."""
        return self._status("VmRSS")

    @property
    def peak_bytes(self) -> int:
        """The most that was ever resident, since the last `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> int:
        """Begin a new peak; give what is resident now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text(RESET_PEAK)
        return self.rss_bytes

    @property
    def cpu_s(self) -> float:
        """Processor time used so far, by itself and for it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def starved_s(self) -> float:
        """Time that its main thread was ready to run, and the machine had no core for it."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"/proc does not tell {name}")
