"""Usage in Redis, where all gateways add to the same sums.

    kvlane:1:usage:2027-01-31   a hash
        TENANT \\t MODEL \\t NAME -> count
        \\t GATEWAY -> the number of its last batch

One script adds a batch and notes its number, at once: a batch that Redis has added although no answer came is known by
its number when it comes again. The number is noted first, so that a Redis which is full refuses before it has counted
anything. One key a call, so that a cluster may keep each day where it likes.

What Redis loses when a replica takes over is lost. Days expire by themselves.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.rediswire import Answer, LineDown, Part, Script
from gateway.usagestore import Batch, Kept, StoreError
from policies.accounts import DAY_S, Sums

PREFIX = "kvlane:1:usage:"
TAB = "\t"  # in no tenant's name and in no count's; a model's may have what it likes
ADD = Script(
    """
if tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0') >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
for at = 4, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 1
"""
)


class Asks(Protocol):
    """The line to Redis."""

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Answer:
        """Run a script."""

    async def ask(self, *command: Part) -> Answer:
        """Run a command."""


class UsageInRedis:
    """The days in Redis."""

    every_s = 5.0

    def __init__(self, line: Asks, gateway: str, days: int) -> None:
        """Use a line that others open and close.

        Args:
            line: To Redis.
            gateway: Names this process, and none that ever was.
            days: How long a day is kept after it was last added to.
        """
        self._line = line
        self._me = TAB + gateway
        self._keep_s = days * DAY_S

    async def open(self) -> None:
        """Begin; a Redis that is away now may come."""

    async def add(self, batch: Batch) -> None:
        """Add a batch, once."""
        increments = [
            part
            for (tenant, model), counts in batch.sums.items()
            for name, count in counts.items()
            for part in (TAB.join((tenant, model, name)), count)
        ]
        try:
            await self._line.script(ADD, [PREFIX + batch.day], [self._me, batch.number, self._keep_s, *increments])
        except LineDown as error:
            raise StoreError(str(error)) from error

    async def read(self, day: str) -> Kept:
        """Give a day, and the number of the last of this gateway's batches in it."""
        try:
            answer = await self._line.ask("HGETALL", PREFIX + day)
        except LineDown as error:
            raise StoreError(str(error)) from error
        return await asyncio.to_thread(self._kept, answer)  # a thousand sums take some 10 ms

    async def tend(self) -> None:
        """There is nothing else: budgets are with the limits."""

    async def close(self) -> None:
        """Leave the line to others."""

    def _kept(self, answer: Answer) -> Kept:
        """Read a day's hash."""
        assert isinstance(answer, list)
        words = [word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in answer]
        sums: Sums = {}
        number = 0
        for field, count in zip(words[::2], words[1::2], strict=True):
            tenant, _, rest = field.partition(TAB)
            model, _, name = rest.rpartition(TAB)
            if tenant:
                sums.setdefault((tenant, model), {})[name] = int(count)
            elif field == self._me:
                number = int(count)
        return Kept(sums, number)
