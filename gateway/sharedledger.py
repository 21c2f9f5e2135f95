"""SharedLedger: the limits of all tenants in Redis, one ledger for all gateways (`limiter.lua`).

To reserve is one call that is waited for, and answered within the line's timeout or not at all. All else is told
without waiting, so that every way out of a request can do it: what Redis has to hear goes into a queue of its own, in
order, and stays there while Redis is away. Telling it twice does no harm, grants have names. A reservation whose answer
never came may have been made, so it is given back as soon as Redis hears.

A grant lives LEASE_S unless it is renewed, which is done for all that run, every RENEW_S: a gateway that is killed
frees its slots, a long stream keeps its own. Each gateway says every PRESENCE_S that it lives, and hears how many do.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from importlib.resources import files

from gateway.redisline import Line
from gateway.rediswire import Answer, LineDown, Part, Refused, Script
from policies.bucket import SECOND_US
from policies.ledger import Allowance, Take

LEASE_S = 25.0  # a gateway that was killed frees its slots within half a minute
RENEW_S = 8.0  # a third of it: two renewals may fail
PRESENCE_S = 5.0
GONE_S = 20  # a gateway that has not been heard for so long is gone
FORCED = 1 << 60  # a limit that nothing reaches: for what was used already
MAX_OWED = 100_000
SENT_AT_ONCE = 50  # some 5 ms of Redis: reservations wait behind them, and no longer than the timeout
RENEWED_AT_ONCE = 1000
AGAIN_S = 0.5  # while Redis is away
CLOSING_S = 1.0

LIMITER = Script(files("gateway").joinpath("limiter.lua").read_text(encoding="utf-8"))
PRESENCE = Script("""
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])
""")
GATEWAYS_KEY = "kvlane:1:gateways"


class SharedLedger:
    """The ledger in Redis.

    Args:
        name: Of this gateway, and of no other.
        on_lost: Called for each settlement that Redis will never hear of: too many were waiting.
    """

    def __init__(self, line: Line, name: str, on_lost: Callable[[], None]) -> None:
        self._line = line
        self._name = name
        self._on_lost = on_lost
        self._running: dict[str, dict[str, Sequence[Take]]] = {}
        self._owed: deque[tuple[str, tuple[Part, ...]]] = deque()
        self._has_owed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.gateways = 1
        """That live, this one included, as Redis last said."""

    def __repr__(self) -> str:
        running = sum(map(len, self._running.values()))
        return f"<SharedLedger {running} grants, {self.owed} owed, {self.gateways} gateways>"

    @property
    def is_up(self) -> bool:
        """Whether Redis answers."""
        return self._line.is_up

    @property
    def owed(self) -> int:
        """Count what Redis has not been told yet."""
        return len(self._owed)

    # Life.

    def start(self) -> None:
        """Begin to tell Redis what it has to know."""
        self._tasks = [
            asyncio.create_task(work, name=name)
            for work, name in (
                (self._tell_owed(), "settlements"),
                (self._renew(), "renewal of grants"),
                (self._be_present(), "presence"),
            )
        ]

    async def close(self) -> None:
        """Tell what is left to tell, for a moment, and stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._owed and self._tasks:
            telling = asyncio.create_task(self._flush(), name="last settlements")
            await asyncio.wait([telling], timeout=CLOSING_S)
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    # Grants.

    async def reserve(self, tenant: str, grant: str, takes: Sequence[Take]) -> list[Allowance] | None:
        """Take all takes, or none; give what each limit allows then. None: Redis does not answer."""
        if not self._line.is_up:
            return None
        args: list[Part] = ["reserve", 0, grant, round(LEASE_S * SECOND_US)]
        for take in takes:
            args += (take.name, take.amount, take.kept, take.most)
        try:
            answer = await self._line.script(LIMITER, keys_of(tenant), args)
        except asyncio.CancelledError:
            self._give_back(tenant, grant, takes)
            raise
        except LineDown:
            self._give_back(tenant, grant, takes)
            return None
        return _allowances(answer)

    def run(self, tenant: str, grant: str, takes: Sequence[Take]) -> None:
        """Keep a grant alive until it is settled."""
        self._running.setdefault(tenant, {})[grant] = takes

    def settle(self, tenant: str, grant: str, finals: Sequence[int]) -> None:
        """Charge what was really used, in the order of the takes."""
        grants = self._running.get(tenant)
        if grants is not None:
            grants.pop(grant, None)
            if not grants:
                del self._running[tenant]
        self._owe(tenant, ("settle", 0, grant, *finals))

    def charge(self, tenant: str, grant: str, used: Sequence[tuple[str, int]]) -> None:
        """Charge what was used already, by names of limits, whether there is room for it or not."""
        if not any(amount for _, amount in used):
            return
        args: list[Part] = ["reserve", 0, grant, SECOND_US]
        for name, amount in used:
            args += (name, amount, amount, FORCED)
        self._owe(tenant, tuple(args))
        self._owe(tenant, ("settle", 0, grant, *(amount for _, amount in used)))

    # Inside.

    def _give_back(self, tenant: str, grant: str, takes: Sequence[Take]) -> None:
        self._owe(tenant, ("settle", 0, grant, *[0] * len(takes)))

    def _owe(self, tenant: str, args: tuple[Part, ...]) -> None:
        """Tell Redis, when it listens."""
        if len(self._owed) >= MAX_OWED:
            self._owed.popleft()
            self._on_lost()
        self._owed.append((tenant, args))
        self._has_owed.set()

    async def _tell_owed(self) -> None:
        while True:
            await self._has_owed.wait()
            self._has_owed.clear()
            if not await self._flush():
                await asyncio.sleep(AGAIN_S)
                self._has_owed.set()

    async def _flush(self) -> bool:
        """Tell Redis what is owed; say whether it heard all of it. Nothing is forgotten before it is heard."""
        while self._owed:
            if not self._line.is_up:
                return False
            batch = [self._owed[at] for at in range(min(SENT_AT_ONCE, len(self._owed)))]
            answers = await asyncio.gather(
                *(self._line.script(LIMITER, keys_of(tenant), args) for tenant, args in batch), return_exceptions=True
            )
            for answer in answers:
                if isinstance(answer, LineDown) and not isinstance(answer, Refused):  # those behind it are told again
                    return False
                self._owed.popleft()
        return True

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            for tenant, grants in list(self._running.items()):
                ids = list(grants)
                for at in range(0, len(ids), RENEWED_AT_ONCE):
                    await self._renew_some(tenant, ids[at : at + RENEWED_AT_ONCE])

    async def _renew_some(self, tenant: str, ids: Sequence[str]) -> None:
        """Renew grants; what Redis has forgotten, since it was restarted empty, is reserved anew, room or not."""
        answer = await self._try(LIMITER, keys_of(tenant), ("renew", 0, round(LEASE_S * SECOND_US), *ids))
        running = self._running.get(tenant, {})
        for id, is_known in zip(ids, answer if isinstance(answer, list) else (), strict=False):
            if not is_known and id in running:
                args: list[Part] = ["reserve", 0, id, round(LEASE_S * SECOND_US)]
                for take in running[id]:
                    args += (take.name, take.amount, take.kept, FORCED)
                self._owe(tenant, tuple(args))

    async def _be_present(self) -> None:
        while True:
            living = await self._try(PRESENCE, (GATEWAYS_KEY,), (self._name, GONE_S))
            if isinstance(living, int):
                self.gateways = max(1, living)
            await asyncio.sleep(PRESENCE_S)

    async def _try(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Answer:
        try:
            return await self._line.script(script, keys, args)
        except LineDown:
            return None


def keys_of(tenant: str) -> tuple[str, str]:
    """Name what is kept of a tenant; in a cluster the braces keep it together."""
    return f"kvlane:1:{{{tenant}}}:state", f"kvlane:1:{{{tenant}}}:due"


def _allowances(answer: Answer) -> list[Allowance]:
    """Read three numbers for each limit."""
    assert isinstance(answer, list)
    numbers = [number for number in answer if isinstance(number, int)]
    return [
        Allowance(left, reset_us, None if wait_us == -1 else wait_us)
        for left, reset_us, wait_us in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    ]
