"""until: wait for what must come soon, and say how things stand if it never does."""

import asyncio
from collections.abc import Callable

PATIENCE_S = 30.0  # for what takes milliseconds on an idle machine: a test that hangs is a test that fails
TICK_S = 0.002


async def until(
    condition: Callable[[], object], what: str | Callable[[], object] = "", within_s: float = PATIENCE_S
) -> None:
    """Wait until something holds, which nobody is told of.

    Args:
        what: Is waited for; or gives how things stand.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + within_s
    while not condition():
        assert loop.time() < ends_at, f"still not, after {within_s:g} s: {what() if callable(what) else what}"
        await asyncio.sleep(TICK_S)
