"""LoopLag: how late the event loop is."""

import asyncio
from collections.abc import Callable

from gateway.instruments import Distribution

EVERY_S = 0.5


class LoopLag:
    """Sleeps, and sees how much longer it took."""

    def __init__(self, clock: Callable[[], float], seen: Distribution, every_s: float = EVERY_S) -> None:
        self._clock = clock
        self._seen = seen
        self._every_s = every_s
        self.last_s = 0.0

    async def watch(self) -> None:
        """Measure, until cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(self._every_s)
            self.last_s = max(0.0, self._clock() - before - self._every_s)
            self._seen.observe(self.last_s)
