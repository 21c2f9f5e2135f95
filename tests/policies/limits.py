"""Cases of limits, told as what happens when: one table for the ledger in process and for the script in Redis.

Seconds here, where the ledger has microseconds: a rate of one token a second reads as tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from policies import bucket
from policies.bucket import SECOND_US
from policies.ledger import Allowance, Kind, Take

TENANT = "acme"
LEASE_S = 30
NOON_US = (datetime.fromisoformat("2028-02-28T12:00Z") - bucket.EPOCH).days * bucket.DAY_US + 12 * bucket.HOUR_US
"""When cases begin; the next day is a 29th, and the month's last."""
DAY_S, HOUR_S = 86_400, 3_600


class Limits(Protocol):
    """What keeps limits: `Ledger`, or the script with a connection."""

    def reserve(
        self, tenant: str, grant: str, ttl_us: int, takes: Sequence[Take], now_us: int
    ) -> tuple[Allowance, ...]: ...

    def settle(self, tenant: str, grant: str, finals: Sequence[int], now_us: int) -> bool: ...

    def renew(self, tenant: str, grants: Sequence[str], ttl_us: int, now_us: int) -> tuple[bool, ...]: ...


def are_granted(allowances: Iterable[Allowance]) -> bool:
    """Whether a reservation was granted that got this answer."""
    return not any(allowance.is_refused for allowance in allowances)


def rate(tokens: int, kept: int = 0, burst: int = 60, field: str = "tokens") -> Take:
    return Take(f"r:{field}", Kind.RATE, tokens * SECOND_US, kept * SECOND_US, burst * SECOND_US)


def slot(most: int = 1, field: str = "slots") -> Take:
    return Take(f"p:{field}", Kind.PARALLEL, 1, 0, most)


def daily(tokens: int, kept: int = 0, most: int = 100) -> Take:
    return Take("d:budget", Kind.DAY, tokens, kept, most)


def monthly(tokens: int, kept: int = 0, most: int = 100) -> Take:
    return Take("m:budget", Kind.MONTH, tokens, kept, most)


@dataclass(frozen=True)
class Reserve:
    """A reservation, and of each limit what remains, its reset and its wait, in seconds where they are times."""

    at_s: int
    grant: str
    takes: tuple[Take, ...]
    gives: tuple[tuple[int, int, int | None], ...]

    def run(self, limits: Limits) -> None:
        gives = tuple(
            Allowance(
                remaining * (SECOND_US if take.kind is Kind.RATE else 1),
                reset_s * SECOND_US,
                None if wait_s is None else wait_s * SECOND_US,
            )
            for take, (remaining, reset_s, wait_s) in zip(self.takes, self.gives, strict=True)
        )
        now_us = NOON_US + self.at_s * SECOND_US
        assert limits.reserve(TENANT, self.grant, LEASE_S * SECOND_US, self.takes, now_us) == gives, self


@dataclass(frozen=True)
class Settle:
    """A settlement; rates in seconds. Finals of slots are any."""

    at_s: int
    grant: str
    finals: tuple[int, ...]
    kinds: str = "r"
    is_known: bool = True

    def run(self, limits: Limits) -> None:
        finals = [
            final * (SECOND_US if kind == "r" else 1) for kind, final in zip(self.kinds, self.finals, strict=True)
        ]
        now_us = NOON_US + self.at_s * SECOND_US
        assert limits.settle(TENANT, self.grant, finals, now_us) == self.is_known, self


@dataclass(frozen=True)
class Renew:
    """A renewal of leases."""

    at_s: int
    grants: tuple[str, ...]
    are_known: tuple[bool, ...] = (True,)

    def run(self, limits: Limits) -> None:
        now_us = NOON_US + self.at_s * SECOND_US
        assert limits.renew(TENANT, self.grants, LEASE_S * SECOND_US, now_us) == self.are_known, self


Step = Reserve | Settle | Renew

TO_MIDNIGHT = DAY_S // 2
TO_MARCH = DAY_S // 2 + DAY_S

CASES: dict[str, tuple[Step, ...]] = {
    "a bucket lets its burst pass and then what the rate brings": (
        Reserve(0, "a", (rate(60),), ((0, 60, 0),)),
        Reserve(0, "b", (rate(1),), ((0, 60, 1),)),
        Reserve(9, "c", (rate(10),), ((9, 51, 1),)),
        Reserve(10, "d", (rate(10),), ((0, 60, 0),)),
        Reserve(500, "e", (rate(0),), ((60, 0, 0),)),
    ),
    "more than the limit never passes": (
        Reserve(0, "a", (rate(61), slot(0), daily(101)), ((60, 0, None), (0, 0, None), (100, TO_MIDNIGHT, None))),
        Reserve(0, "b", (rate(60), slot(1), daily(100)), ((0, 60, 0), (0, 0, 0), (0, TO_MIDNIGHT, 0))),
    ),
    "a refusal takes nothing of any limit": (
        Reserve(0, "a", (slot(),), ((0, 0, 0),)),
        Reserve(0, "b", (rate(5), slot(), daily(5)), ((60, 0, 0), (0, 0, 1), (100, TO_MIDNIGHT, 0))),
        Settle(0, "b", (0, 0, 0), "rpd", False),
        Reserve(0, "c", (rate(5), daily(5)), ((55, 5, 0), (95, TO_MIDNIGHT, 0))),
    ),
    "what was not used is given back, once": (
        Reserve(0, "a", (rate(50), daily(50)), ((10, 50, 0), (50, TO_MIDNIGHT, 0))),
        Settle(0, "a", (20, 20), "rd"),
        Settle(0, "a", (0, 0), "rd", False),
        Reserve(0, "b", (rate(0), daily(0)), ((40, 20, 0), (80, TO_MIDNIGHT, 0))),
    ),
    "a bucket is never fuller than full": (
        Reserve(0, "a", (rate(50),), ((10, 50, 0),)),
        Settle(40, "a", (0,)),
        Reserve(40, "b", (rate(61),), ((60, 0, None),)),
        Reserve(40, "c", (rate(60),), ((0, 60, 0),)),
    ),
    "what was used beyond the estimate is a debt": (
        Reserve(0, "a", (rate(10), daily(10)), ((50, 10, 0), (90, TO_MIDNIGHT, 0))),
        Settle(5, "a", (100, 130), "rd"),
        Reserve(5, "b", (rate(1), daily(0)), ((0, 95, 36), (0, TO_MIDNIGHT - 5, TO_MIDNIGHT - 5))),
        Reserve(41, "c", (rate(1),), ((0, 60, 0),)),
    ),
    "a debt begins when it is found, not in the past": (
        Reserve(0, "a", (rate(1),), ((59, 1, 0),)),
        Settle(20, "a", (11,)),
        Reserve(20, "b", (rate(0),), ((50, 10, 0),)),
    ),
    "a slot is free when its grant is settled": (
        Reserve(0, "a", (slot(2),), ((1, 0, 0),)),
        Reserve(0, "b", (slot(2),), ((0, 0, 0),)),
        Reserve(1, "c", (slot(2),), ((0, 0, 1),)),
        Settle(1, "a", (7,), "p"),
        Reserve(1, "c", (slot(2),), ((0, 0, 0),)),
    ),
    "slots are counted by their scope": (
        Reserve(0, "a", (slot(), slot(field="slots:llama")), ((0, 0, 0), (0, 0, 0))),
        Reserve(0, "b", (slot(2), slot(field="slots:qwen")), ((0, 0, 0), (0, 0, 0))),
        Reserve(0, "c", (slot(3), slot(field="slots:qwen")), ((1, 0, 0), (0, 0, 1))),
    ),
    "a lease that nobody renews frees its slot, and of its charges stays what is kept": (
        Reserve(0, "a", (rate(50, 40), slot(), daily(50, 7)), ((10, 50, 0), (0, 0, 0), (50, TO_MIDNIGHT, 0))),
        Reserve(29, "b", (slot(),), ((0, 0, 1),)),
        Reserve(30, "b", (rate(0), slot(), daily(0)), ((50, 10, 0), (0, 0, 0), (93, TO_MIDNIGHT - 30, 0))),
    ),
    "a lease that is renewed keeps its slot": (
        Reserve(0, "a", (slot(),), ((0, 0, 0),)),
        Renew(20, ("a", "nobody"), (True, False)),
        Renew(49, ("a",)),
        Reserve(78, "b", (slot(),), ((0, 0, 1),)),
        Reserve(79, "b", (slot(),), ((0, 0, 0),)),
    ),
    "a late settlement charges what the sweep did not, and once": (
        Reserve(0, "a", (rate(50, 5), slot(), daily(50, 5)), ((10, 50, 0), (0, 0, 0), (50, TO_MIDNIGHT, 0))),
        Reserve(35, "b", (slot(),), ((0, 0, 0),)),
        Settle(35, "a", (15, 0, 15), "rpd"),
        Settle(35, "a", (15, 0, 15), "rpd", False),
        Reserve(35, "c", (rate(0), slot(), daily(0)), ((50, 10, 0), (0, 0, 1), (85, TO_MIDNIGHT - 35, 0))),
    ),
    "a grant that was swept and does run has its slot again, beyond the limit": (
        Reserve(0, "a", (slot(), daily(50, 5)), ((0, 0, 0), (50, TO_MIDNIGHT, 0))),
        Reserve(30, "b", (slot(),), ((0, 0, 0),)),
        Renew(31, ("a",)),
        Settle(32, "b", (0,), "p"),
        Reserve(32, "c", (slot(), daily(0)), ((0, 0, 1), (95, TO_MIDNIGHT - 32, 0))),
        Settle(33, "a", (0, 20), "pd"),
        Reserve(33, "c", (slot(), daily(0)), ((0, 0, 0), (80, TO_MIDNIGHT - 33, 0))),
    ),
    "what was swept is remembered for an hour after its lease": (
        Reserve(0, "a", (slot(),), ((0, 0, 0),)),
        Reserve(0, "b", (slot(2),), ((0, 0, 0),)),
        Settle(HOUR_S + 29, "a", (0,), "p"),
        Settle(HOUR_S + 30, "b", (0,), "p", False),
        Renew(HOUR_S + 30, ("a", "b"), (False, False)),
    ),
    "a grant that was swept late is forgotten no later": (
        Reserve(0, "a", (slot(), daily(9, 3)), ((0, 0, 0), (91, TO_MIDNIGHT, 0))),
        Settle(HOUR_S + 30, "a", (0, 0), "pd", False),
        Reserve(HOUR_S + 30, "b", (slot(), daily(0)), ((0, 0, 0), (97, TO_MIDNIGHT - HOUR_S - 30, 0))),
    ),
    "the same reservation again takes nothing, and passes": (
        Reserve(0, "a", (rate(60), slot()), ((0, 60, 0), (0, 0, 0))),
        Reserve(1, "a", (rate(60), slot()), ((1, 59, 0), (0, 0, 0))),
        Settle(1, "a", (0, 0), "rp"),
        Reserve(1, "b", (rate(60), slot()), ((0, 60, 0), (0, 0, 0))),
    ),
    "a budget begins anew with its period": (
        Reserve(0, "a", (daily(60), monthly(60, 60)), ((40, TO_MIDNIGHT, 0), (40, TO_MARCH, 0))),
        Reserve(1, "b", (daily(60),), ((40, TO_MIDNIGHT - 1, TO_MIDNIGHT - 1),)),
        Reserve(1, "b", (monthly(60),), ((40, TO_MARCH - 1, TO_MARCH - 1),)),
        Reserve(TO_MIDNIGHT, "c", (daily(60), monthly(40)), ((40, DAY_S, 0), (0, DAY_S, 0))),
        Reserve(TO_MARCH, "d", (daily(60), monthly(60)), ((40, DAY_S, 0), (40, 31 * DAY_S, 0))),
    ),
    "a settlement counts in the period of its reservation only": (
        Reserve(TO_MIDNIGHT - 1, "a", (daily(50), monthly(50)), ((50, 1, 0), (50, DAY_S + 1, 0))),
        Reserve(TO_MIDNIGHT, "b", (daily(30), monthly(30)), ((70, DAY_S, 0), (20, DAY_S, 0))),
        Settle(TO_MIDNIGHT + 1, "a", (0, 0), "dm"),
        Reserve(TO_MIDNIGHT + 1, "c", (daily(0), monthly(0)), ((70, DAY_S - 1, 0), (70, DAY_S - 1, 0))),
    ),
    "what a budget of a new day has not seen is not settled either": (
        Reserve(TO_MIDNIGHT - 1, "a", (daily(50),), ((50, 1, 0),)),
        Settle(TO_MIDNIGHT, "a", (99,), "d"),
        Reserve(TO_MIDNIGHT, "b", (daily(0),), ((100, DAY_S, 0),)),
    ),
    "a clock that jumps back locks nobody out, nor lets more pass": (
        Reserve(3600, "a", (rate(60), slot()), ((0, 60, 0), (0, 0, 0))),
        Reserve(0, "b", (rate(1),), ((0, 60, 1),)),
        Reserve(1, "b", (rate(1),), ((0, 60, 0),)),
        Renew(29, ("a",)),
        Reserve(59, "c", (slot(),), ((0, 0, 0),)),
    ),
    "refusals alone notice a clock that jumps back, and again": (
        Reserve(1000, "a", (rate(60),), ((0, 60, 0),)),
        Reserve(500, "b", (rate(20),), ((0, 60, 20),)),
        Reserve(510, "b", (rate(20),), ((10, 50, 10),)),
        Reserve(100, "b", (rate(20),), ((0, 60, 20),)),
        Reserve(120, "b", (rate(20),), ((0, 60, 0),)),
    ),
    "a clock that jumps ahead fills buckets and ends leases, no more": (
        Reserve(0, "a", (rate(60), slot()), ((0, 60, 0), (0, 0, 0))),
        Reserve(10**6, "b", (rate(60), slot()), ((0, 60, 0), (0, 0, 0))),
    ),
    "a budget is that of the day it is, back over midnight too": (
        Reserve(TO_MIDNIGHT + 5, "a", (daily(100),), ((0, DAY_S - 5, 0),)),
        Reserve(TO_MIDNIGHT - 5, "b", (daily(1),), ((99, 5, 0),)),
        Settle(TO_MIDNIGHT - 4, "a", (0,), "d"),
        Reserve(TO_MIDNIGHT - 3, "c", (daily(0),), ((99, 3, 0),)),
    ),
    "a budget outlives a clock that jumps back within its day": (
        Reserve(HOUR_S * 6, "a", (daily(100, 100),), ((0, HOUR_S * 6, 0),)),
        Renew(HOUR_S, ("a",)),
        Reserve(HOUR_S * 12 - 1, "b", (daily(1),), ((0, 1, 1),)),
    ),
    "a limit may change while it is in use": (
        Reserve(0, "a", (rate(60), slot(9), daily(90)), ((0, 60, 0), (8, 0, 0), (10, TO_MIDNIGHT, 0))),
        Reserve(
            0,
            "b",
            (rate(9, burst=10), slot(1), daily(1, most=80)),
            ((0, 60, 59), (0, 0, 1), (0, TO_MIDNIGHT, TO_MIDNIGHT)),
        ),
        Reserve(0, "b", (rate(9, burst=70), slot(2)), ((1, 69, 0), (0, 0, 0))),
    ),
}
