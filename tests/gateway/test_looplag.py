"""LoopLag: what it measures is told as a distribution."""

import asyncio

from gateway.instruments import Distribution
from gateway.looplag import LoopLag
from tests.until import until

EVERY_S = 0.001


class Steps:
    """A clock that is asked before and after each sleep, and goes on by what it is given; then it stands."""

    def __init__(self, *steps: float) -> None:
        self.now = 0.0
        self._steps = iter(steps)

    def __call__(self) -> float:
        self.now += next(self._steps, EVERY_S)
        return self.now


async def test_lateness_is_what_a_sleep_took_too_long_and_never_below_zero() -> None:
    seen = Distribution((0.01, 0.1, 1.0))
    lag = LoopLag(Steps(0.0, EVERY_S + 0.05, 0.0, EVERY_S / 2, 0.0, EVERY_S + 3.0), seen, EVERY_S)
    watching = asyncio.create_task(lag.watch())
    await until(lambda: sum(seen.counts) >= 3, "measured")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert seen.counts[1:] == [1, 0, 1]
    assert seen.counts[0] >= 1
    assert seen.sum > 3.05 - 1e-9
