"""Limiter: reserve what a request may come to before it runs, and settle what it came to after.

    reserve -> Grant -- settle, once --> what was really used is charged
            -> LimitReached, BudgetSpent: nothing was taken

With Redis all gateways share one ledger (`sharedledger.py`). Without it the ledger of this process does
(`policies/ledger.py`), rule by rule the same. While Redis does not answer, each tenant is treated as its
`on_redis_error` says: `open` lets all pass, `closed` none. `local` counts here, with this gateway's part of the limit,
which is the limit over the number of gateways that lived when Redis was last heard; a budget counts from what was left
of it then, and what is used of it meanwhile is charged later.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from gateway.allowed import lines_of, refusal_of
from gateway.errors import Overloaded
from gateway.metrics import Metrics
from gateway.redisline import Line
from gateway.sharedledger import SharedLedger
from gateway.tenants import Tenant
from policies.ledger import Allowance, Ledger, Take
from policies.quotas import Quota, finals, takes
from policies.tariff import NOTHING, Amounts

LEASE_US = 10**15  # of what is counted here, thirty years: within a process nobody is cut off from its grants
MAX_REMEMBERED = 10_000


class Grant:
    """What one request has reserved; settled once, whatever happens.

    Args:
        settle: Called with what it came to; None: it has no limits.
        lines: x-ratelimit headers.
    """

    __slots__ = ("_settle", "lines")

    def __init__(self, settle: Callable[[Amounts], None] | None, lines: bytes) -> None:
        self._settle = settle
        self.lines = lines

    def settle(self, amounts: Amounts) -> None:
        """Charge what it came to, and free its slot; the first time only."""
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(amounts)


FREE = Grant(None, b"")


class Limiter:
    """The limits of all tenants.

    Args:
        line: To the Redis that gateways share; None: this process counts alone.
        wall_us: The time, in microseconds since 1970.
    """

    def __init__(self, metrics: Metrics, wall_us: Callable[[], int], line: Line | None = None) -> None:
        self._metrics = metrics
        self._wall_us = wall_us
        self.ledger = Ledger()
        """What is counted here: all, or what is let in while Redis is away."""
        self._prefix, self._numbers = secrets.token_hex(6), count()
        self.shared: SharedLedger | None = None
        if line is not None:
            self.shared = SharedLedger(line, self._prefix, lambda: metrics.settlements_lost.add(()))
        self._quotas: OrderedDict[tuple[str, str], tuple[Tenant, tuple[Quota, ...]]] = OrderedDict()
        self._left: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Of budgets, as Redis last said: by tenant and name."""

    def start(self) -> None:
        """Begin to tell Redis what it has to know."""
        if self.shared is not None:
            self.shared.start()

    async def close(self) -> None:
        """Tell what is left to tell, for a moment, and stop."""
        if self.shared is not None:
            await self.shared.close()

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
        id = self._new_id()
        shared = self.shared
        if shared is not None:
            wanted = takes(quotas, estimate, kept)
            allowances = await shared.reserve(tenant.name, id, wanted)
            if allowances is not None:
                self._remember(tenant.name, wanted, allowances)
                lines = self._passed(tenant, quotas, wanted, allowances)
                shared.run(tenant.name, id, wanted)
                return Grant(lambda amounts: shared.settle(tenant.name, id, finals(quotas, amounts)), lines)
            if tenant.on_redis_error == "open":
                return FREE
            if tenant.on_redis_error == "closed":
                raise Overloaded("the limits of this key cannot be known now: the gateway's Redis does not answer")
        return self._reserve_here(tenant, quotas, id, estimate, kept)

    async def look(self, tenant: Tenant) -> list[tuple[Quota, Allowance]] | None:
        """Say what a tenant's limits allow now, those of single models included; None while it cannot be known."""
        quotas = [*tenant.limits.quotas()]
        for model, limits in tenant.limits_by_model.items():
            quotas += limits.quotas(model)
        if not quotas:
            return []
        nothing = [take._replace(amount=0, kept=0) for take in takes(quotas, NOTHING, NOTHING)]
        id = self._new_id()
        allowances: Sequence[Allowance] | None
        if self.shared is None:
            allowances = self.ledger.reserve(tenant.name, id, LEASE_US, nothing, self._wall_us())
            self.ledger.settle(tenant.name, id, [0] * len(nothing), self._wall_us())
        else:
            allowances = await self.shared.reserve(tenant.name, id, nothing)
            if allowances is not None:
                self.shared.settle(tenant.name, id, [0] * len(nothing))
        return None if allowances is None else list(zip(quotas, allowances, strict=True))

    # Over a restart, without Redis.

    def budgets(self) -> dict[str, object]:
        """Give what budgets have used, as JSON can hold it."""
        return dict(self.ledger.budgets(self._wall_us()))

    def restore(self, budgets: dict[str, Any]) -> None:
        """Take what `budgets` gave before a restart; once."""
        self.ledger.restore(budgets, self._wall_us())

    # Inside.

    def _new_id(self) -> str:
        return f"{self._prefix}{next(self._numbers):x}"

    def quotas_of(self, tenant: Tenant, model: str) -> tuple[Quota, ...]:
        """Give the limits that a request of a tenant falls under."""
        known = self._quotas.get((tenant.name, model))
        if known is None or known[0] is not tenant:
            quotas = tenant.limits.quotas()
            if model in tenant.limits_by_model:
                quotas += tenant.limits_by_model[model].quotas(model)
            known = self._quotas[tenant.name, model] = tenant, tuple(quotas)
            if len(self._quotas) > MAX_REMEMBERED:
                self._quotas.popitem(last=False)
        return known[1]

    def _reserve_here(
        self, tenant: Tenant, quotas: Sequence[Quota], id: str, estimate: Amounts, kept: Amounts
    ) -> Grant:
        parts = 1 if self.shared is None else self.shared.gateways
        wanted = takes(quotas, estimate, kept, parts)
        if self.shared is not None:
            wanted = [self._as_left(tenant.name, take, parts) for take in wanted]
        allowances = self.ledger.reserve(tenant.name, id, LEASE_US, wanted, self._wall_us())
        lines = self._passed(tenant, quotas, wanted, allowances, parts)

        def settle(amounts: Amounts) -> None:
            self.ledger.settle(tenant.name, id, finals(quotas, amounts, parts), self._wall_us())
            if self.shared is not None:
                budgets = [(quota, take) for quota, take in zip(quotas, wanted, strict=True) if quota.is_budget]
                self.shared.charge(tenant.name, id, [(take.name, quota.of(amounts)) for quota, take in budgets])

        return Grant(settle, lines)

    def _passed(
        self,
        tenant: Tenant,
        quotas: Sequence[Quota],
        wanted: Sequence[Take],
        allowances: Sequence[Allowance],
        parts: int = 1,
    ) -> bytes:
        """Make sure that all limits let a request pass; give the headers that say what is left.

        Raises:
            LimitReached, BudgetSpent: one does not.
        """
        refused = refusal_of(tenant.name, quotas, wanted, allowances, parts)
        if refused is not None:
            self._metrics.limit_refusals.add((tenant.name, refused.quota.name))
            raise refused.error
        return lines_of(quotas, allowances, parts)

    def _remember(self, tenant: str, wanted: Sequence[Take], allowances: Sequence[Allowance]) -> None:
        """Keep what is left of budgets, for when Redis does not say it."""
        for take, allowance in zip(wanted, allowances, strict=True):
            if take.kind.is_budget:
                self._left[tenant, take.name] = allowance.remaining
                if len(self._left) > MAX_REMEMBERED:
                    self._left.popitem(last=False)

    def _as_left(self, tenant: str, take: Take, parts: int) -> Take:
        """Let a budget be what was left of it when Redis was last heard."""
        left = self._left.get((tenant, take.name))
        return take if left is None else take._replace(most=left // parts)
