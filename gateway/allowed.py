"""What limits say to a client: the x-ratelimit headers of an answer, and the refusal in words.

Of several limits of a kind the one that leaves the least is told. Durations are written as Go does: `12ms`, `1s`,
`6m0s`. A budget that is spent, and a request that is larger than its limit, are not to be tried again: the client is
told so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import BudgetSpent, GatewayError, LimitReached
from policies.bucket import HOUR_US, MINUTE_US, SECOND_US, whole_ms
from policies.ledger import Allowance, Take
from policies.quotas import Quota, Unit
from policies.tariff import NANO

TOLD = {Unit.REQUESTS: "requests", Unit.TOKENS: "tokens"}
"""In headers, by these names."""

WORDS = {
    "requests_per_minute": "{} requests a minute",
    "tokens_per_minute": "{} tokens a minute",
    "parallel": "{} requests at a time",
    "tokens_per_day": "{} tokens a day",
    "tokens_per_month": "{} tokens a month",
    "cost_per_day": "a cost of {} a day",
    "cost_per_month": "a cost of {} a month",
}


def lines_of(quotas: Sequence[Quota], allowances: Sequence[Allowance], parts: int = 1) -> bytes:
    """Give the headers that say what limits allow."""
    lines = ""
    for unit, name in TOLD.items():
        least: tuple[int, Quota, int] | None = None
        for at, quota in enumerate(quotas):
            if quota.unit is unit and quota.kind.is_rate:
                allowance = allowances[at]
                left = quota.left(allowance.remaining, parts)
                if least is None or left < least[0]:
                    least = left, quota, allowance.reset_us
        if least is not None:
            left, quota, reset_us = least
            lines += (
                f"x-ratelimit-limit-{name}: {quota.limit}\r\nx-ratelimit-remaining-{name}: {left}\r\n"
                f"x-ratelimit-reset-{name}: {duration(reset_us)}\r\n"
            )
    return lines.encode()


@dataclass(frozen=True, slots=True)
class Refused:
    """A limit that does not let a request pass."""

    quota: Quota
    error: GatewayError


def refusal_of(
    tenant: str, quotas: Sequence[Quota], takes: Sequence[Take], allowances: Sequence[Allowance], parts: int = 1
) -> Refused | None:
    """Say which limit refuses, and for how long: the one that does so longest. None: none does."""
    refusing = [
        (float("inf") if allowance.wait_us is None else allowance.wait_us, at)
        for at, allowance in enumerate(allowances)
        if allowance.is_refused
    ]
    if not refusing:
        return None
    wait_us, at = max(refusing)
    quota, take, allowance = quotas[at], takes[at], allowances[at]
    told = money(quota.limit) if quota.unit is Unit.COST else f"{quota.limit:,}"
    what = WORDS[quota.name].format(told) + (f" of the model {quota.model!r}" if quota.model else "")
    words = f"tenant {tenant} may have {what} (a limit of this gateway, {quota.name})"
    if quota.kind.is_rate:
        needed = quota.counted(take.amount, parts)
        if allowance.wait_us is None:
            words += f"; this request needs about {needed:,}, and no more than {quota.burst // parts:,} pass at once"
        elif quota.unit is Unit.REQUESTS and quota.burst != quota.limit:
            words += f"; no more than {quota.burst // parts:,} pass at once"
        elif quota.unit is Unit.TOKENS:
            words += f"; this request needs about {needed:,}, {quota.left(allowance.remaining, parts):,} are left"
    if quota.is_budget:
        write = money if quota.unit is Unit.COST else "{:,}".format
        words += f"; this request may need {write(take.amount)}, {write(allowance.remaining)} are left"
        words += f"; it begins anew in {span(allowance.reset_us)}"
    lines = lines_of(quotas, allowances, parts)
    retry_after_s = None if wait_us == float("inf") else wait_us / SECOND_US
    if quota.is_budget:
        return Refused(quota, BudgetSpent(words, lines=lines))
    return Refused(quota, LimitReached(words, lines=lines, retry_after_s=retry_after_s))


def money(nanos: int) -> str:
    """Write a cost with two decimals, or as many as it has."""
    whole, part = divmod(nanos, NANO)
    return f"{whole:,}.{f'{part:09}'.rstrip('0'):0<2}"


def duration(us: int) -> str:
    """Write a time as Go does: 12ms, 1.5s, 6m0s, 1h0m3s."""
    ms = whole_ms(us)
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    seconds = f"{ms / 1000:g}s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def span(us: int) -> str:
    """Write a long time for people."""
    minutes = -(-us // MINUTE_US)
    if us < HOUR_US:
        return f"{minutes} minute{'s' * (minutes != 1)}"
    days, hours = divmod(-(-us // HOUR_US), 24)
    parts = [f"{count} {name}{'s' * (count != 1)}" for count, name in ((days, "day"), (hours, "hour")) if count]
    return " and ".join(parts)
