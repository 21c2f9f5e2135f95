"""Patience: what the loop was late is not held against whoever is waited for."""

import asyncio
import time

import pytest

from gateway.patience import Patience


async def test_what_takes_too_long_ends_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with Patience(0.05, 60):
            await asyncio.Event().wait()
    assert 0.04 <= time.monotonic() - began < 20  # timers are of whole milliseconds


async def test_what_is_done_in_time_is_left_alone_after() -> None:
    async with Patience(0.01, 0.01):
        pass
    await asyncio.sleep(0.05)


async def test_what_was_there_while_the_loop_was_busy_is_seen() -> None:
    arrived = asyncio.Event()
    async with Patience(0.05, 60):
        asyncio.get_running_loop().call_later(0.1, arrived.set)
        time.sleep(0.2)  # noqa: ASYNC251
        await arrived.wait()


async def test_a_loop_that_is_always_late_waits_no_longer_than_the_bound() -> None:
    began = time.monotonic()

    async def hog() -> None:
        while True:
            time.sleep(0.2)  # noqa: ASYNC251
            await asyncio.sleep(0)

    busy = asyncio.create_task(hog())
    with pytest.raises(TimeoutError):
        async with Patience(0.05, 0.3):
            await asyncio.Event().wait()
    assert time.monotonic() - began >= 0.29
    busy.cancel()


async def test_being_cancelled_is_no_timeout() -> None:
    async def wait() -> None:
        async with Patience(60, 60):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
