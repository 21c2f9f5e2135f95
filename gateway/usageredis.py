"""Usage in Redis, where all gateways add to the same sums.

    kvlane:1:usage:2027-01-31   a hash
        TENANT \\t MODEL \\t NAME -> count
        \\t GATEWAY -> the number of its last batch

One script adds a batch and notes its number, at once: a batch that Redis has added although no answer came is known by
its number when it comes again. The number is noted first, so that a Redis which is full refuses before it has counted
anything. One key a call, so that a cluster may keep each day where it likes.

What Redis loses when a replica takes over is lost. Days expire by themselves. What cannot be added when the gateway
stops is written down, where there is a directory for that, and added by whoever starts next.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gateway.rediswire import Answer, LineDown, Part, Script
from gateway.usagespool import found_in, leave
from gateway.usagestore import Batch, Kept, StoreError
from policies.accounts import DAY_S, Sums

log = logging.getLogger(__name__)

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

    def __init__(self, line: Asks, gateway: str, days: int, spool: Path | None = None) -> None:
        """Use a line that others open and close.

        Args:
            line: To Redis.
            gateway: Names this process, and none that ever was.
            days: How long a day is kept after it was last added to.
            spool: A directory for what is left at the end; gateways may share it.
        """
        self._line = line
        self._name = gateway
        self._spool = spool
        self._has_looked = spool is None
        """Whether what others left is added."""
        self._keep_s = days * DAY_S

    async def open(self) -> None:
        """Begin; a Redis that is away now may come."""

    async def add(self, batch: Batch) -> None:
        """Add a batch, once."""
        await self._add(batch, self._name)

    async def read(self, day: str) -> Kept:
        """Give a day, and the number of the last of this gateway's batches in it."""
        try:
            answer = await self._line.ask("HGETALL", PREFIX + day)
        except LineDown as error:
            raise StoreError(str(error)) from error
        return await asyncio.to_thread(self._kept, answer)  # a thousand sums take some 10 ms

    async def tend(self) -> None:
        """Add what gateways have left that could not; budgets are with the limits."""
        if self._has_looked or self._spool is None:
            return
        try:
            for left in await asyncio.to_thread(found_in, self._spool):
                for batch in left.batches:
                    await self._add(batch, left.gateway)
                await asyncio.to_thread(left.file.unlink, missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self._spool}: {error.strerror or error}") from error
        self._has_looked = True

    async def close(self, unsaved: Sequence[Batch] = ()) -> bool:
        """Write down what is unsaved; leave the line to others."""
        if not unsaved or self._spool is None:
            return not unsaved
        try:
            await asyncio.to_thread(leave, self._spool, self._name, unsaved)
        except OSError as error:
            log.error("accounting: %s cannot be written: %s", self._spool, error.strerror or error)
            return False
        return True

    async def _add(self, batch: Batch, gateway: str) -> None:
        increments = [
            part
            for (tenant, model), counts in batch.sums.items()
            for name, count in counts.items()
            for part in (TAB.join((tenant, model, name)), count)
        ]
        try:
            await self._line.script(ADD, [PREFIX + batch.day], [TAB + gateway, batch.number, self._keep_s, *increments])
        except LineDown as error:
            raise StoreError(str(error)) from error

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
            elif field == TAB + self._name:
                number = int(count)
        return Kept(sums, number)
