"""Pings: comments that keep a stream alive while nothing is known of its answer."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.client import ClientAnswer


@contextmanager
def pinged(client: ClientAnswer, every_s: float, lines: Callable[[], bytes]) -> Iterator[None]:
    """Send a client a comment so often, until the block is left; `lines` gives the headers that go before the first."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def ping() -> None:
        client.ping(lines())
        timers[:] = [loop.call_later(every_s, ping)]

    timers.append(loop.call_later(every_s, ping))
    try:
        yield
    finally:
        timers[0].cancel()
