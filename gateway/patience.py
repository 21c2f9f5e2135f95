"""patience: time limits that do not take the event loop's own lateness for somebody else's.

A loop looks at its timers before it looks at what was received. So when it was busy for two seconds, a limit of one has
passed, and the answer that has long been there is never seen: a gateway short of CPU would call its engines dead, all
of them at once. Who is waited for here is given as long again as the loop was late, at each look, up to a bound.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LATE_S = 0.02  # an idle loop is late by a millisecond


@asynccontextmanager
async def patience(within_s: float, at_most_s: float) -> AsyncIterator[None]:
    """Limit what is done inside to so many seconds; to `at_most_s` where the loop itself is late.

    Raises:
        TimeoutError: that was not enough.
    """
    loop = asyncio.get_running_loop()
    last = loop.time() + at_most_s
    timer: asyncio.TimerHandle

    def look(due: float) -> None:
        nonlocal timer
        now = loop.time()
        late_s = now - due
        if late_s < LATE_S or now >= last:
            limit.reschedule(now)
        else:
            again = min(now + late_s, last)
            timer = loop.call_at(again, look, again)

    async with asyncio.timeout(None) as limit:
        first = loop.time() + min(within_s, at_most_s)
        timer = loop.call_at(first, look, first)
        try:
            yield
        finally:
            timer.cancel()
