"""Cluster: simulated engines in this process, for tests."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings


class Cluster:
    """N engines, each on a port of its own.

        async with Cluster(3, Settings(time_scale=0.1)) as cluster:
            await cluster[0].inject(Fault(Kind.RESET, times=1))

    Args:
        base_port: Of the first engine; 0 lets the kernel choose all.
    """

    def __init__(self, count: int, settings: Settings | None = None, base_port: int = 0) -> None:
        settings = settings or Settings()
        self.engines = [
            SimulatedEngine(replace(settings, seed=settings.seed + at), base_port and base_port + at)
            for at in range(count)
        ]

    async def __aenter__(self) -> "Cluster":
        async with AsyncExitStack() as stack:
            for engine in self.engines:
                await engine.start()
                stack.push_async_callback(engine.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def __getitem__(self, at: int) -> SimulatedEngine:
        return self.engines[at]

    def __iter__(self) -> Iterator[SimulatedEngine]:
        return iter(self.engines)

    def __len__(self) -> int:
        return len(self.engines)

    @property
    def urls(self) -> list[str]:
        """Where the engines are, without a path."""
        return [engine.url for engine in self.engines]

    @property
    def engine_calls(self) -> list[int]:
        """Engine calls seen by each engine."""
        return [engine.facts.engine_calls for engine in self.engines]

    async def kill(self, at: int) -> None:
        """End an engine as by kill -9."""
        await self.engines[at].kill()

    async def restart(self, at: int) -> None:
        """Bring an engine back on its port: a cold cache, a new process_start_time_seconds."""
        await self.engines[at].restart()

    async def stall(self, at: int) -> None:
        """Let an engine make no token any more, until `clear`; health and metrics answer."""
        await self.engines[at].inject(Fault(Kind.STALL))

    async def slow(self, at: int, factor: float) -> None:
        """Let each iteration of an engine take `factor` times as long, until `clear`."""
        await self.engines[at].inject(Fault(Kind.SLOW, factor=factor))

    async def clear(self) -> None:
        """End all faults everywhere."""
        for engine in self.engines:
            await engine.clear()
