"""Ledger: the limits of all tenants, in this process. `gateway/limiter.lua` is the same in Redis, rule by rule.

    reserve -> refused: nothing is taken, of no limit
            -> GRANTED -----------------------------> settle: what was really used is charged
                       -> SWEPT (its lease expired) -> settle: the same, late
                                                    -> renew: GRANTED again, it does run
                                                    -> forgotten, an hour after its lease

reserve  Before a request runs, takes are made of all limits that it falls under: all of them, or none. What it will
         use is not known yet, so the amounts are estimates.
settle   When it is over, however it ended, the difference between estimate and truth is charged or given back. More
         than was estimated leaves a bucket in debt, and is right. A second settlement changes nothing, nor does a
         second reservation under the same id: both may be sent again when an answer got lost.
lease    A grant lives until it is settled or its lease expires, which whoever runs it renews. A gateway that is killed
         renews nothing: its slots are free then, and of its charges stays what each take says (`kept`): that much
         was surely used.
sweep    Happens at the beginning of each call, for at most SWEEP grants: one call never pays for thousands.

kinds    RATE is a bucket (`bucket.py`): amounts are microseconds. PARALLEL is a number of slots that grants hold.
         DAY and MONTH are budgets: what is used and reserved within the period of UTC. A budget's settlement counts
         in the period of the reservation, and is void when that has gone by.

clock    `now_us` is microseconds since 1970 and may jump. Forward: buckets refill, leases expire. Backward: a tenant
         has a clock of its own, `now + ahead`, that stands still instead, so that nobody is locked out for as long as
         the jump was. Periods go by `now`: one that is not the one stored begins at 0.

Never happens: a refusal that takes something; more than burst + T within any time T, counting what is taken less what
is given back; a bucket fuller than full; a slot that is lost, or freed twice; a charge in a period of another grant.

What is given back within T may have been taken before it, while the bucket refilled: who reserves far too much for
long has that much ready for a second burst. What is really used since a bucket was full stays under burst + T.

Memory: a tenant that has had no grants, full buckets and unused budgets for an hour is dropped (not at once: a clock
that was wrong for a moment should not cost others their state). Each reservation looks at LOOKS tenants for that, so
that they go faster than they come. A grant that is settled leaves a stale entry among the dues, which goes when it
would be due, or when stale ones are the most.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from policies import bucket

REMEMBER_US = bucket.HOUR_US  # longer than answers come late, and than clocks are wrong
SWEEP = 64  # grants swept by one call
SLOT_WAIT_US = bucket.SECOND_US  # nobody knows when a slot will be free: ask again soon
LOOKS = 2  # one would keep up with the tenants that come, two get ahead of them
SPARE = 64  # dues of grants that are settled; beyond it no more than half of all


class Kind(Enum):
    """What a limit limits; the value is its letter in Redis."""

    RATE = "r"
    PARALLEL = "p"
    DAY = "d"
    MONTH = "m"

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.is_rate = letter == "r"
        self.is_parallel = letter == "p"
        self.is_budget = letter in "dm"
        """Whether it counts within a period."""

    def end_us(self, now_us: int) -> int:
        """Say when the period of a budget ends."""
        return bucket.month_end_us(now_us) if self.letter == "m" else bucket.day_end_us(now_us)


class Take(NamedTuple):
    """What a request takes of one limit. Each is taken once by a request."""

    name: str
    """The limit, unique within its tenant; its kind's letter comes first: `d:tokens`, `d:tokens:llama`."""
    kind: Kind
    amount: int
    """Microseconds of a rate (`bucket.amount_us`), slots (one), or whole tokens of a budget."""
    kept: int
    """What of it stays charged when nobody settles; up to `amount`. Slots are always freed."""
    most: int
    """The limit: a rate's burst in microseconds (`bucket.burst_us`), slots, or the budget."""

    def wait_us(self, level: int, now_us: int) -> int | None:
        """Say how long until it passes, where so much of the limit is taken that it does not; None: never."""
        if self.amount > self.most:
            return None
        if self.kind.is_rate:
            return bucket.wait_us(level, self.amount, self.most)
        return SLOT_WAIT_US if self.kind.is_parallel else self.kind.end_us(now_us) - now_us

    def allowance(self, level: int, left_us: int, wait_us: int | None) -> "Allowance":
        """Say what its limit allows where so much is taken, and so much is left of its period."""
        remaining = self.most - level
        return Allowance(remaining if remaining > 0 else 0, level if self.kind.is_rate else left_us, wait_us)


class Allowance(NamedTuple):
    """What a limit still allows, after what was taken if anything was."""

    remaining: int
    """Microseconds of a rate (`bucket.tokens_in`), slots, or tokens."""
    reset_us: int
    """Until a bucket is full, or a period ends; 0 for slots."""
    wait_us: int | None
    """0: passed. Else until the amount would pass, if nobody else comes; None: never, it is more than the limit."""

    @property
    def is_refused(self) -> bool:
        """Whether this limit refused."""
        return self.wait_us != 0


Budgets = Mapping[str, Mapping[str, Sequence[int]]]
"""Tenant -> name of a budget -> when its period ends (microseconds since 1970), what is used. Plain, as JSON is."""


@dataclass(slots=True)
class _Charge:
    """What a grant has taken of one limit."""

    name: str
    kind: Kind
    amount: int
    kept: int
    end_us: int
    """Of its period; 0 where there is none."""


@dataclass(slots=True)
class _Grant:
    """A reservation that is not settled."""

    charges: Sequence[_Charge]
    due_us: int
    """When its lease expires; once swept, when it is forgotten. By the tenant's clock."""
    is_live: bool = True


@dataclass(slots=True)
class _Account:
    """All of one tenant. `clock_us` is the tenant's clock, `now_us` the world's."""

    ahead_us: int = 0
    """How far the tenant's clock is ahead of the world's."""
    seen_us: int = 0
    """The tenant's clock at the last change."""
    tats: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    used: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of budgets: the period's end, and what is used and reserved in it."""
    grants: dict[str, _Grant] = field(default_factory=dict)
    dues: list[tuple[int, str]] = field(default_factory=list)
    """Heap of when grants are due, some stale."""

    def enter(self, now_us: int) -> int:
        """Begin a call: mind the clock, sweep; give the tenant's clock."""
        clock_us = now_us + self.ahead_us
        if clock_us < self.seen_us:
            self.ahead_us += self.seen_us - clock_us
            clock_us = self.seen_us
        if self.dues and self.dues[0][0] <= clock_us:
            self._sweep(clock_us)
        return clock_us

    def is_idle(self, now_us: int) -> bool:
        """Whether nothing would be lost with it, though the clock went back by REMEMBER_US."""
        clock_us = max(now_us + self.ahead_us, self.seen_us) - REMEMBER_US
        for tat_us in self.tats.values():
            if tat_us > clock_us:
                return False
        for end_us, used in self.used.values():
            if used and end_us > now_us - REMEMBER_US:
                return False
        return all(grant.due_us + REMEMBER_US * grant.is_live <= clock_us for grant in self.grants.values())

    # Limits. The level is what is taken of one: microseconds, slots, tokens.

    def level(self, charge: _Charge, clock_us: int) -> int | None:
        """Say what is taken of a charge's limit; None: nothing is known of a budget, in the charge's period."""
        name, kind = charge.name, charge.kind
        if kind.is_rate:
            return bucket.level_us(self.tats.get(name, 0), clock_us)
        if kind.is_parallel:
            return self.held.get(name, 0)
        known_end_us, used = self.used.get(name, (0, 0))
        return used if known_end_us == charge.end_us else None

    def _set_level(self, charge: _Charge, clock_us: int, level: int) -> None:
        name, kind = charge.name, charge.kind
        if kind.is_budget:
            self.used[name] = charge.end_us, level if level > 0 else 0
            return
        levels, base = (self.tats, clock_us) if kind.is_rate else (self.held, 0)
        if level > 0:
            levels[name] = base + level
        else:
            levels.pop(name, None)

    # Grants.

    def grant(self, name: str, ttl_us: int, charges: Sequence[_Charge], levels: Sequence[int], clock_us: int) -> None:
        """Take all charges under one name; so much is taken of their limits then."""
        for charge, level in zip(charges, levels, strict=True):
            self._set_level(charge, clock_us, level)
        self.grants[name] = _Grant(charges, 0)
        self._lease(name, clock_us + ttl_us)
        self.seen_us = clock_us

    def settle(self, name: str, finals: Sequence[int], clock_us: int) -> bool:
        """Charge what was really used, and forget the grant."""
        grant = self.grants.pop(name, None)
        if grant is None:
            return False
        for charge, final in zip(grant.charges, finals, strict=True):
            if not charge.kind.is_parallel:
                self._correct(charge, final, clock_us)
            elif grant.is_live:
                self._hold(charge, -1, clock_us)
        self.seen_us = clock_us
        return True

    def renew(self, name: str, ttl_us: int, clock_us: int) -> bool:
        """Let a grant live on, or again."""
        grant = self.grants.get(name)
        if grant is None:
            return False
        if not grant.is_live:
            grant.is_live = True
            for charge in grant.charges:
                if charge.kind.is_parallel:
                    self._hold(charge, 1, clock_us)
        self._lease(name, clock_us + ttl_us)
        self.seen_us = clock_us
        return True

    def _lease(self, name: str, due_us: int) -> None:
        self.grants[name].due_us = due_us
        heappush(self.dues, (due_us, name))
        if len(self.dues) > SPARE + 2 * len(self.grants):
            self.dues = [(grant.due_us, name) for name, grant in self.grants.items()]
            heapify(self.dues)

    def _sweep(self, clock_us: int) -> None:
        swept = 0
        while self.dues and self.dues[0][0] <= clock_us and swept < SWEEP:
            due_us, name = heappop(self.dues)
            grant = self.grants.get(name)
            if grant is None or grant.due_us != due_us:
                continue
            swept += 1
            self.seen_us = clock_us
            if grant.is_live:
                grant.is_live = False
                for charge in grant.charges:
                    if charge.kind.is_parallel:
                        self._hold(charge, -1, clock_us)
                    else:
                        self._correct(charge, charge.kept, clock_us)
                due_us += REMEMBER_US
            if due_us <= clock_us:
                del self.grants[name]
            else:
                self._lease(name, due_us)

    def _hold(self, charge: _Charge, sign: int, clock_us: int) -> None:
        """Hold slots, or free them."""
        self._set_level(charge, clock_us, self.held.get(charge.name, 0) + sign * charge.amount)

    def _correct(self, charge: _Charge, final: int, clock_us: int) -> None:
        """Charge an amount in place of what is charged. Not of slots: those are held or not."""
        delta = final - charge.amount
        if not delta:
            return
        charge.amount = final
        level = self.level(charge, clock_us)
        if level is not None:
            self._set_level(charge, clock_us, level + delta)


class Ledger:
    """The limits of all tenants. Names of grants are unique within their tenant."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    def __repr__(self) -> str:
        grants = sum(len(account.grants) for account in self._accounts.values())
        return f"<Ledger {len(self)} tenants, {grants} grants>"

    def reserve(
        self, tenant: str, grant: str, ttl_us: int, takes: Sequence[Take], now_us: int
    ) -> tuple[Allowance, ...]:
        """Take all takes, or none where a limit refuses.

        Returns:
            What each limit allows afterwards, in the order of the takes.
        """
        account = self._account(tenant)
        clock_us = account.enter(now_us)
        is_new = passes = grant not in account.grants
        charges, levels, waits_us = [], [], []
        for take in takes:
            name, kind, amount, kept, most = take
            charge = _Charge(name, kind, amount, kept, kind.end_us(now_us) if kind.is_budget else 0)
            level = account.level(charge, clock_us) or 0
            wait_us: int | None = 0
            if is_new and level + amount > most:
                wait_us, passes = take.wait_us(level, now_us), False
            charges.append(charge)
            levels.append(level)
            waits_us.append(wait_us)
        if passes:
            levels = [level + charge.amount for level, charge in zip(levels, charges, strict=True)]
            account.grant(grant, ttl_us, charges, levels, clock_us)
        self._look(now_us)
        return tuple(
            [
                take.allowance(level, charge.end_us - now_us if charge.end_us else 0, wait_us)
                for take, charge, level, wait_us in zip(takes, charges, levels, waits_us, strict=True)
            ]
        )

    def settle(self, tenant: str, grant: str, finals: Sequence[int], now_us: int) -> bool:
        """Charge what was really used, in the order of the takes; what is said of slots is ignored.

        Returns:
            Whether the grant was known: not settled yet, nor forgotten.
        """
        account = self._accounts.get(tenant)
        return account is not None and account.settle(grant, finals, account.enter(now_us))

    def renew(self, tenant: str, grants: Sequence[str], ttl_us: int, now_us: int) -> tuple[bool, ...]:
        """Let grants live on for so long; one that was swept has its slots again, whether there is room or not.

        Returns:
            Of each, whether it was known.
        """
        account = self._accounts.get(tenant)
        if account is None:
            return (False,) * len(grants)
        clock_us = account.enter(now_us)
        return tuple(account.renew(grant, ttl_us, clock_us) for grant in grants)

    # Over a restart.

    def budgets(self, now_us: int) -> dict[str, dict[str, list[int]]]:
        """Give what is used of budgets, as plain data for `restore`; of grants that run, what they keep."""
        plain: dict[str, dict[str, list[int]]] = {}
        for tenant, account in self._accounts.items():
            used = {name: [end_us, count] for name, (end_us, count) in account.used.items() if end_us > now_us}
            for grant in account.grants.values():
                for charge in grant.charges:
                    if charge.name in used and used[charge.name][0] == charge.end_us:
                        used[charge.name][1] -= charge.amount - charge.kept
            if used:
                plain[tenant] = used
        return plain

    def restore(self, budgets: Budgets, now_us: int) -> None:
        """Add what `budgets` gave before a restart to what has been used since; once. Periods gone by are left out."""
        for tenant, used in budgets.items():
            for name, (end_us, count) in used.items():
                if end_us > now_us:
                    account = self._account(tenant)
                    known_end_us, known = account.used.get(name, (0, 0))
                    account.used[name] = end_us, count + (known if known_end_us == end_us else 0)

    # Tenants.

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        return account

    def _look(self, now_us: int) -> None:
        """Drop those that are idle, of the next few."""
        for _ in range(min(LOOKS, len(self))):
            tenant = next(iter(self._accounts))
            if self._accounts[tenant].is_idle(now_us):
                del self._accounts[tenant]
            else:
                self._accounts.move_to_end(tenant)
