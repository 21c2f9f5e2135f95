"""Limiter: reserve what a request may come to before it runs, and settle what it came to after.

    reserve -> Grant -- settle / refund, once --> what was really used is charged
            -> LimitReached, BudgetSpent: nothing was taken

With Redis all gateways share one ledger (`limiter.lua`): one call to reserve, one to settle. Without it the ledger of
this process does (`policies/ledger.py`), rule by rule the same.

settle   Never waits, so that every way out can do it, cancelled ones too: what Redis has to be told goes into a queue
         of its own, in order, and stays there while Redis is away. Telling it twice does no harm, grants have names.
lease    A grant lives LEASE_S unless it is renewed, which is done for all that run, every RENEW_S: a gateway that is
         killed frees its slots, a long stream keeps its own.
away     While Redis does not answer, each tenant is treated as its `on_redis_error` says: `local` counts here, with
         this gateway's part of the limit: the limit over the number of gateways that lived when Redis was last heard.
         A budget counts from what was left of it then. What is used meanwhile is charged to the budgets later.
         A reservation whose answer never came may have been made: it is given back as soon as Redis hears.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import count

from gateway.allowed import lines_of, refusal_of
from gateway.errors import Overloaded
from gateway.metrics import Metrics
from gateway.redisline import Line
from gateway.rediswire import LineDown, Part, Refusal, Script
from gateway.tenancy import LimitsConfig
from gateway.tenants import Tenant
from policies.bucket import SECOND_US
from policies.ledger import Allowance, Kind, Ledger, Take
from policies.quotas import MICROS, NOTHING, Amounts, Quota, Unit, finals, takes

log = logging.getLogger(__name__)

LEASE_S = 25.0  # a gateway that was killed frees its slots within half a minute
RENEW_S = 8.0  # a third of it: two renewals may fail
PRESENCE_S = 5.0
GONE_S = 20.0  # a gateway that has not been heard for so long is gone
LOCAL_LEASE_US = 10**15  # thirty years: within a process nobody is cut off from its grants
FORCED = 1 << 52  # a limit that nothing reaches: for what was used already
MAX_OWED = 100_000
SENT_AT_ONCE = 500
RENEWED_AT_ONCE = 1000
CLOSING_S = 1.0
MAX_REMEMBERED = 10_000  # tenants

LIMITER = Script(files("gateway").joinpath("limiter.lua").read_text(encoding="utf-8"))
PRESENCE = Script("""
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])
""")
GATEWAYS_KEY = "kvlane:1:gateways"


class Grant:
    """What one request has reserved; settled once, whatever happens."""

    __slots__ = ("_settle", "id", "lines", "parts", "quotas", "takes", "tenant")

    def __init__(
        self,
        settle: "Callable[[Grant, Amounts], None] | None",
        *,
        tenant: str = "",
        id: str = "",
        quotas: Sequence[Quota] = (),
        takes: Sequence[Take] = (),
        allowances: Sequence[Allowance] = (),
        parts: int = 1,
    ) -> None:
        self._settle = settle
        self.tenant = tenant
        self.id = id
        self.quotas = quotas
        self.takes = takes
        self.lines = lines_of(quotas, allowances, parts)
        """x-ratelimit headers."""
        self.parts = parts

    def settle(self, amounts: Amounts) -> None:
        """Charge what it came to, and free its slot; the first time only."""
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(self, amounts)

    def refund(self) -> None:
        """Give all of it back."""
        self.settle(NOTHING)


FREE = Grant(None)
"""Of who has no limits."""


class Limiter:
    """The limits of all tenants.

    Args:
        line: To the Redis that gateways share; None: this process counts alone.
        wall_us: The time, in microseconds since 1970.
    """

    def __init__(self, metrics: Metrics, wall_us: Callable[[], int], line: Line | None = None) -> None:
        self._metrics = metrics
        self._wall_us = wall_us
        self._line = line
        self.ledger = Ledger()
        """What is counted here: all, or what is let in while Redis is away."""
        self._prefix, self._numbers = secrets.token_hex(6), count()
        self._quotas: OrderedDict[tuple[str, str], tuple[Tenant, tuple[Quota, ...]]] = OrderedDict()
        self._left: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Of budgets, as Redis last said: by tenant and name."""
        self._running: dict[str, dict[str, Grant]] = {}
        self._owed: deque[tuple[str, tuple[Part, ...]]] = deque()
        self._has_owed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.gateways = 1
        """That live, this one included, as Redis last said."""

    # Life.

    def start(self) -> None:
        """Begin to tell Redis what it has to know."""
        if self._line is not None:
            self._tasks = [
                asyncio.create_task(work, name=name)
                for work, name in (
                    (self._send_owed(), "settlements"),
                    (self._renew(), "renewal of grants"),
                    (self._be_present(), "presence"),
                )
            ]

    async def close(self) -> None:
        """Tell what is left to tell, for a moment, and stop."""
        if self._line is not None and self._owed and self._line.is_up:
            await asyncio.wait([asyncio.ensure_future(self._flush())], timeout=CLOSING_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Requests.

    async def reserve(self, tenant: Tenant, model: str, estimate: Amounts, kept: Amounts) -> Grant:
        """Reserve what a request may come to.

        Args:
            model: By its own name.
            estimate: What it may come to.
            kept: What stays charged of it if nobody ever tells what it came to.

        Raises:
            LimitReached, BudgetSpent: a limit does not let it pass.
            Overloaded: the limits cannot be known, and this tenant is not let in then.
        """
        quotas = self.quotas_of(tenant, model)
        if not quotas:
            return FREE
        id = f"{self._prefix}{next(self._numbers):x}"
        if self._line is not None:
            wanted = takes(quotas, estimate, kept)
            allowances = await self._ask(tenant.name, id, wanted)
            if allowances is not None:
                self._remember(tenant.name, quotas, allowances)
                return self._granted(tenant.name, id, quotas, wanted, allowances)
            if tenant.on_redis_error == "open":
                return FREE
            if tenant.on_redis_error == "closed":
                raise Overloaded("the limits of this key cannot be known now: the gateway's Redis does not answer")
        parts = self.gateways if self._line is not None else 1
        wanted = takes(quotas, estimate, kept, parts)
        if self._line is not None:
            wanted = [self._as_left(tenant.name, take, parts) for take in wanted]
        allowances = self.ledger.reserve(tenant.name, id, LOCAL_LEASE_US, wanted, self._wall_us())
        return self._granted(tenant.name, id, quotas, wanted, allowances, parts, is_local=True)

    async def look(self, tenant: Tenant) -> list[tuple[Quota, Allowance]]:
        """Say what a tenant's limits allow now, those of models included; what cannot be known is left out."""
        quotas = list(self.quotas_of(tenant, ""))
        for model in tenant.limits_by_model:
            quotas += _of_model(tenant, model)
        nothing = [Take(quota.field, quota.kind, 0, 0, quota.take(NOTHING, NOTHING).most) for quota in quotas]
        id = f"{self._prefix}{next(self._numbers):x}"
        allowances: Sequence[Allowance] | None
        if self._line is None:
            allowances = self.ledger.reserve(tenant.name, id, LOCAL_LEASE_US, nothing, self._wall_us())
            self.ledger.settle(tenant.name, id, [0] * len(nothing), self._wall_us())
        else:
            allowances = await self._ask(tenant.name, id, nothing)
            if allowances is not None:
                self._owe(tenant.name, ("settle", 0, id, *[0] * len(nothing)))
        return [] if allowances is None else list(zip(quotas, allowances, strict=True))

    def quotas_of(self, tenant: Tenant, model: str) -> tuple[Quota, ...]:
        """Give the limits that a request of a tenant falls under."""
        known = self._quotas.get((tenant.name, model))
        if known is None or known[0] is not tenant:
            quotas = (*quotas_in(tenant.limits), *_of_model(tenant, model))
            known = self._quotas[tenant.name, model] = tenant, quotas
            if len(self._quotas) > MAX_REMEMBERED:
                self._quotas.popitem(last=False)
        return known[1]

    # State, for gauges.

    @property
    def owed(self) -> int:
        """Count what Redis has not been told yet."""
        return len(self._owed)

    @property
    def running(self) -> int:
        """Count the grants that are kept alive in Redis."""
        return sum(map(len, self._running.values()))

    @property
    def is_up(self) -> bool | None:
        """Whether Redis answers; None: there is none."""
        return None if self._line is None else self._line.is_up

    # Inside.

    def _granted(
        self,
        tenant: str,
        id: str,
        quotas: Sequence[Quota],
        wanted: Sequence[Take],
        allowances: Sequence[Allowance],
        parts: int = 1,
        *,
        is_local: bool = False,
    ) -> Grant:
        """Make a grant of an answer.

        Raises:
            LimitReached, BudgetSpent: it is none.
        """
        refusal = refusal_of(tenant, quotas, wanted, allowances, parts)
        if refusal is not None:
            self._metrics.limit_refusals.add((tenant, refusal.quota.name))
            raise refusal.error
        grant = Grant(
            self._settle_here if is_local else self._settle_there,
            tenant=tenant,
            id=id,
            quotas=quotas,
            takes=wanted,
            allowances=allowances,
            parts=parts,
        )
        if not is_local:
            self._running.setdefault(tenant, {})[id] = grant
        return grant

    async def _ask(self, tenant: str, id: str, wanted: Sequence[Take]) -> list[Allowance] | None:
        """Reserve in Redis; None where it does not answer."""
        assert self._line is not None
        if not self._line.is_up:
            return None
        args: list[Part] = ["reserve", 0, id, round(LEASE_S * SECOND_US)]
        for take in wanted:
            args += (take.name, take.amount, take.kept, take.most)
        try:
            answer = await self._line.script(LIMITER, _keys(tenant), args)
        except asyncio.CancelledError:
            self._owe(tenant, ("settle", 0, id, *[0] * len(wanted)))
            raise
        except (LineDown, Refusal) as error:
            if isinstance(error, Refusal):
                log.warning("Redis refuses the limits' script: %s", error)
            self._owe(tenant, ("settle", 0, id, *[0] * len(wanted)))
            return None
        numbers = answer if isinstance(answer, list) else []
        return [
            Allowance(int(left), int(reset), None if wait == -1 else int(wait))
            for left, reset, wait in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        ]

    def _settle_here(self, grant: Grant, amounts: Amounts) -> None:
        self.ledger.settle(grant.tenant, grant.id, finals(grant.quotas, amounts, grant.parts), self._wall_us())
        if self._line is None:
            return
        budgets = [quota for quota in grant.quotas if quota.kind in (Kind.DAY, Kind.MONTH) and quota.of(amounts)]
        if budgets:  # it was used, whether there was room or not
            args: list[Part] = ["reserve", 0, grant.id, SECOND_US]
            for quota in budgets:
                used = quota.of(amounts)
                args += (f"{quota.kind.value}:{quota.field}", used, used, FORCED)
            self._owe(grant.tenant, tuple(args))
            self._owe(grant.tenant, ("settle", 0, grant.id, *(quota.of(amounts) for quota in budgets)))

    def _settle_there(self, grant: Grant, amounts: Amounts) -> None:
        grants = self._running[grant.tenant]
        del grants[grant.id]
        if not grants:
            del self._running[grant.tenant]
        self._owe(grant.tenant, ("settle", 0, grant.id, *finals(grant.quotas, amounts)))

    def _owe(self, tenant: str, args: tuple[Part, ...]) -> None:
        """Tell Redis, when it listens."""
        if len(self._owed) >= MAX_OWED:
            self._owed.popleft()
            self._metrics.settlements_lost.add(())
        self._owed.append((tenant, args))
        self._has_owed.set()

    def _remember(self, tenant: str, quotas: Sequence[Quota], allowances: Sequence[Allowance]) -> None:
        """Keep what is left of budgets, for when Redis does not say it."""
        for quota, allowance in zip(quotas, allowances, strict=True):
            if quota.kind in (Kind.DAY, Kind.MONTH):
                self._left[tenant, f"{quota.kind.value}:{quota.field}"] = allowance.remaining
                if len(self._left) > MAX_REMEMBERED:
                    self._left.popitem(last=False)

    def _as_left(self, tenant: str, take: Take, parts: int) -> Take:
        """Let a budget be what was left of it when Redis was last heard."""
        left = self._left.get((tenant, take.name))
        if left is None:
            return take
        return Take(take.field, take.kind, take.amount, take.kept, left // parts)

    # What goes on beside requests.

    async def _send_owed(self) -> None:
        assert self._line is not None
        while True:
            await self._has_owed.wait()
            self._has_owed.clear()
            if not await self._flush():
                await asyncio.sleep(0.5)
                self._has_owed.set()

    async def _flush(self) -> bool:
        """Tell Redis what is owed; say whether it heard all of it."""
        assert self._line is not None
        while self._owed:
            if not self._line.is_up:
                return False
            batch = [self._owed.popleft() for _ in range(min(SENT_AT_ONCE, len(self._owed)))]
            answers = await asyncio.gather(
                *(self._line.script(LIMITER, _keys(tenant), args) for tenant, args in batch), return_exceptions=True
            )
            unheard = [each for each, answer in zip(batch, answers, strict=True) if isinstance(answer, LineDown)]
            self._owed.extendleft(reversed(unheard))
            if unheard:
                return False
        return True

    async def _renew(self) -> None:
        """Keep alive what runs."""
        assert self._line is not None
        while True:
            await asyncio.sleep(RENEW_S)
            for tenant, grants in list(self._running.items()):
                ids = list(grants)
                for at in range(0, len(ids), RENEWED_AT_ONCE):
                    args = ("renew", 0, round(LEASE_S * SECOND_US), *ids[at : at + RENEWED_AT_ONCE])
                    await self._try(LIMITER, _keys(tenant), args)

    async def _be_present(self) -> None:
        """Say that this gateway lives, and hear how many do."""
        while True:
            living = await self._try(PRESENCE, (GATEWAYS_KEY,), (self._prefix, GONE_S))
            if isinstance(living, int):
                self.gateways = max(1, living)
            await asyncio.sleep(PRESENCE_S)

    async def _try(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> object:
        assert self._line is not None
        try:
            return await self._line.script(script, keys, args)
        except (LineDown, Refusal):
            return None


def quotas_in(limits: LimitsConfig, model: str = "") -> list[Quota]:
    """Give what a section of the configuration limits; for one model, if it is named."""
    found = []
    for unit, rate, burst in (
        (Unit.REQUESTS, limits.requests_per_minute, limits.burst_requests),
        (Unit.TOKENS, limits.tokens_per_minute, limits.burst_tokens),
    ):
        if rate is not None:
            found.append(Quota(f"{unit.value}_per_minute", Kind.RATE, unit, rate, burst or rate, model))
    if limits.parallel is not None:
        found.append(Quota("parallel", Kind.PARALLEL, Unit.SLOTS, limits.parallel, model=model))
    for name, kind, unit, budget in (
        ("tokens_per_day", Kind.DAY, Unit.TOKENS, limits.tokens_per_day),
        ("tokens_per_month", Kind.MONTH, Unit.TOKENS, limits.tokens_per_month),
        ("cost_per_day", Kind.DAY, Unit.COST, limits.cost_per_day),
        ("cost_per_month", Kind.MONTH, Unit.COST, limits.cost_per_month),
    ):
        if budget is not None:
            found.append(Quota(name, kind, unit, round(budget * (MICROS if unit is Unit.COST else 1)), model=model))
    return found


def _of_model(tenant: Tenant, model: str) -> list[Quota]:
    limits = tenant.limits_by_model.get(model)
    return [] if limits is None else quotas_in(limits, model)


def _keys(tenant: str) -> tuple[str, str]:
    return f"kvlane:1:{{{tenant}}}:state", f"kvlane:1:{{{tenant}}}:due"
