"""Lines to a Redis, opened and looked after for tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from random import Random

import pytest

from gateway.redisline import Line, Servers
from gateway.rediswire import LineDown, Script
from tests.until import PATIENCE_S, until

RETRY_S = 0.02  # 0.5 s, scaled
ECHO = Script("return {KEYS[1], ARGV[1], 42}")
COUNT = Script("return redis.call('INCRBY', KEYS[1], ARGV[1])")


@asynccontextmanager
async def open_line(*urls: str, timeout_s: float = 0.1, **settings: object) -> AsyncIterator[Line]:
    """Open a line, and see at its end that nothing of it is left."""
    changes: list[bool] = []
    before = asyncio.all_tasks()
    servers = Servers(urls, timeout_s=timeout_s, retry_s=RETRY_S, **settings)  # type: ignore[arg-type]
    line = Line(servers, chance=Random(1), on_change=changes.append)
    await line.start()
    try:
        yield line
    finally:
        await line.close()
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}
    assert changes == [bool(at % 2) for at in range(len(changes))], "down and up take turns"


async def is_failing(asked: Awaitable[object]) -> str:
    with pytest.raises(LineDown) as caught:
        await asked
    return str(caught.value)


async def is_up(line: Line) -> None:
    await until(lambda: line.is_up, "the line is up")


async def is_resuming(line: Line) -> None:
    """Wait until a lost connection is noticed; a new one takes some turns of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while "resuming" not in repr(line):  # noqa: ASYNC110  # every turn counts
            await asyncio.sleep(0)


async def settled(line: Line) -> None:
    """Let so much time pass since the last try to connect that the next may begin at once."""
    now = time.monotonic()
    await until(lambda: time.monotonic() > now + 2 * RETRY_S, "time passes")
