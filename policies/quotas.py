"""Quotas: what a tenant may have, and what a request takes of it. Pure: between a configuration and the `Ledger`.

A tenant has quotas over all models, and may have others for a model besides; a request takes of all that it falls
under. Before it runs its size is an estimate (`Tariff.amounts` of the prompt and of the output that is set aside), and
`takes` says what is reserved; when it is over `finals` says what it came to.

tokens   are weighted (`tariff.py`). What is reserved takes nothing for cached: nobody knows yet.
limits   never hold back a request for ever because of what is set aside for its output: if its prompt is within the
         whole of a limit, the reservation is cut to it. What the answer comes to beyond is charged in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from policies import bucket
from policies.ledger import Kind, Take
from policies.tariff import NANO, Amounts


class Unit(Enum):
    """What a quota counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    SLOTS = "slots"
    COST = "cost"

    def __init__(self, name: str) -> None:
        self.place = Amounts._fields.index(name) if name in Amounts._fields else None
        """Among amounts; None where each request comes to one."""


@dataclass(frozen=True)
class Quota:
    """One limit. What requests ask of it again and again is worked out once."""

    name: str
    """As the configuration calls it: `tokens_per_minute`."""
    kind: Kind
    unit: Unit
    limit: int
    """Per minute, per day or month, or at a time."""
    burst: int = 0
    """Of rates: how many may come at once."""
    model: str = ""
    """The only one that it is about; empty: all together."""

    @property
    def is_budget(self) -> bool:
        """Whether it is for a day or a month."""
        return self.kind.is_budget

    @cached_property
    def key(self) -> str:
        """Name it among its tenant's limits, as the ledger does; a rate that has changed is another one.

        What is kept of a rate is time, and a debt of minutes at the old rate would be one of minutes at the new one.
        """
        name = f"{self.kind.letter}:{self.unit.value}" + (f"@{self.limit}" if self.kind.is_rate else "")
        return f"{name}:{self.model}" if self.model else name

    @cached_property
    def burst_us(self) -> int:
        """Give the burst of a rate as the ledger counts it."""
        return bucket.burst_us(self.burst, self.limit)

    def told(self, amount: int) -> float:
        """Give an amount as people are told it: costs in whole money."""
        return amount / NANO if self.unit is Unit.COST else amount

    def of(self, amounts: Amounts) -> int:
        """Give what a request comes to in this unit."""
        place = self.unit.place
        return 1 if place is None else amounts[place]

    def take(self, estimate: Amounts, kept: Amounts, parts: int = 1) -> Take:
        """Say what a request takes of it.

        Args:
            estimate: What it may come to.
            kept: What stays charged of it if nobody ever tells what it came to.
            parts: Gateways that have to do with a part of the limit each, because they cannot ask each other.
        """
        least, amount = self.of(kept), self.of(estimate)
        return self._one if least == amount == parts == 1 else self._take(least, amount, parts)

    @cached_property
    def _one(self) -> Take:
        """What each request takes of requests and slots."""
        return self._take(1, 1, 1)

    def _take(self, least: int, amount: int, parts: int) -> Take:
        kind, limit = self.kind, self.limit
        most = (self.burst if kind.is_rate else limit) // parts or 1
        if least <= most < amount:
            amount = most
        if not kind.is_rate:
            return Take(self.key, kind, amount, least, most)
        amount_us = parts * bucket.amount_us(amount, limit)
        kept_us = amount_us if least == amount else parts * bucket.amount_us(least, limit)
        return Take(self.key, kind, amount_us, kept_us, self.burst_us)

    def final(self, amounts: Amounts, parts: int = 1) -> int:
        """Say what it came to, as the ledger counts it; below 0 is what another was charged too much.

        Budgets have that back. Rates have had it from time: whoever saved it up could use it all in one moment.
        """
        amount = self.of(amounts)
        if not self.kind.is_rate:
            return amount
        return self._one.amount if amount == parts == 1 else parts * bucket.amount_us(max(0, amount), self.limit)

    def counted(self, amount: int, parts: int = 1) -> int:
        """Say in its own unit what the ledger calls so much."""
        return bucket.tokens_in(amount // parts, self.limit) if self.kind.is_rate else amount

    def left(self, remaining: int, parts: int = 1) -> int:
        """Say in its own unit what the ledger says is left."""
        left = self.counted(remaining, parts)
        return min(self.burst, left) if self.kind.is_rate else left  # the bucket is a little longer


def takes(quotas: Sequence[Quota], estimate: Amounts, kept: Amounts, parts: int = 1) -> list[Take]:
    """Say what a request takes of each."""
    return [quota.take(estimate, kept, parts) for quota in quotas]


def finals(quotas: Sequence[Quota], amounts: Amounts, parts: int = 1) -> list[int]:
    """Say what it came to in each."""
    return [quota.final(amounts, parts) for quota in quotas]
