"""Patience: time limits that do not take the event loop's own lateness for somebody else's.

A loop looks at its timers before it looks at what was received. So when it was busy for two seconds, a limit of one has
passed, and the answer that has long been there is never seen: a gateway short of CPU would call its engines dead, all
of them at once. Who is waited for here is given as long again as the loop was late, at each look, up to a bound.
"""

import asyncio
from types import TracebackType
from typing import Self

LATE_S = 0.02  # an idle loop is late by a millisecond


class Patience:
    """Limits what is done inside to so many seconds; to `at_most_s` where the loop itself is late.

    async with Patience(2.0, at_most_s=30.0):  # TimeoutError where that was not enough
        …
    """

    __slots__ = ("_due", "_last", "_limit", "_loop", "_timer")

    def __init__(self, within_s: float, at_most_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._last = now + at_most_s
        self._due = now + min(within_s, at_most_s)
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_at(self._due, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._limit.__aexit__(kind, error, trace)

    def _look(self) -> None:
        now = self._loop.time()
        late_s = now - self._due
        if late_s < LATE_S or now >= self._last:
            self._timer = None
            self._limit.reschedule(now)
        else:
            self._due = min(now + late_s, self._last)
            self._timer = self._loop.call_at(self._due, self._look)
