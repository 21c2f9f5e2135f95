"""The admin listener's pages about tenants: what they have used, and how they stand.

    GET /admin/usage?from=2027-01-01&to=2027-01-31&tenant=…&model=…&by=day|month|total&format=json|csv
    GET /admin/tenants

Both days are included, and UTC's. Without them it is this month so far. A parameter that is none is refused: whoever
mistypes `tenant` must not be given everybody's sums as if they were that tenant's.
"""

import asyncio
import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Any, Protocol

import orjson
from aiohttp import web

from gateway.accounts import Keeper
from gateway.errors import error_body
from gateway.keys import Entry, entries
from gateway.tenancy import TenantConfig
from gateway.tenants import Tenant, Tenants
from gateway.usagestore import StoreError
from policies.accounts import Counts, Sums, added, days_between
from policies.bucket import SECOND_US
from policies.ledger import Allowance
from policies.quotas import Quota
from policies.statement import By, Row, Usage, rows

PARAMETERS = ("from", "to", "tenant", "model", "by", "format")
FORMATS = ("json", "csv")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
LOOKS_AT_ONCE = 20  # some ms of a Redis that all requests wait for: a thousand looks at once would pass its timeout
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # some take wide ones too
"""What a cell begins with that spreadsheets compute."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """How a limit of a tenant stands."""

    name: str
    limit: int | float
    remaining: int | float
    reset_s: float
    """Until all of it is there again; 0: now, or (of requests in parallel) whenever one ends."""

    @classmethod
    def of(cls, quota: Quota, allowance: Allowance) -> "LimitState":
        """Word how the ledger says that a limit stands."""
        return cls(
            f"{quota.name}:{quota.model}" if quota.model else quota.name,
            quota.told(quota.limit),
            quota.told(quota.left(allowance.remaining)),
            allowance.reset_us / SECOND_US,
        )


class Look(Protocol):
    """Look at a tenant's limits, without taking anything."""

    async def __call__(self, tenant: Tenant) -> Sequence[LimitState] | None:
        """Give how they stand now; None where that cannot be known, as where there is no limit there are none."""


class BadQuestion(Exception):
    """A parameter is wrong; the message is one line."""


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody asks about usage."""

    first: date
    last: date
    tenant: str | None
    model: str | None
    by: By
    format: str

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], today: date, most_days: int) -> "Question":
        """Read the parameters of a request.

        Raises:
            BadQuestion: one of them is wrong.
        """
        parameters: dict[str, str] = {}
        for name, value in pairs:
            if name not in PARAMETERS:
                raise BadQuestion(f"there is no parameter {name[:50]!r}: there are {', '.join(PARAMETERS)}")
            if name in parameters:
                raise BadQuestion(f"{name} is there twice")
            parameters[name] = value
        last = day_of("to", parameters["to"]) if "to" in parameters else None
        first = day_of("from", parameters["from"]) if "from" in parameters else (last or today).replace(day=1)
        last = last or max(first, today)
        if last < first:
            raise BadQuestion(f"to must not be before from: {last} is before {first}")
        if (last - first).days >= most_days:
            raise BadQuestion(f"{first} to {last} is {(last - first).days + 1} days; {most_days} are kept")
        chosen_format = parameters.get("format", "json")
        if chosen_format not in FORMATS:
            raise BadQuestion(f"format must be json or csv, is {chosen_format[:50]!r}")
        try:
            by = By(parameters.get("by", "day"))
        except ValueError:
            raise BadQuestion(f"by must be day, month or total, is {parameters['by'][:50]!r}") from None
        return cls(first, last, parameters.get("tenant"), parameters.get("model"), by, chosen_format)


class AccountPages:
    """What an operator asks about tenants."""

    def __init__(
        self,
        keeper: Keeper,
        tenants: Tenants,
        configs: Callable[[], Iterable[TenantConfig]],
        look: Look,
        in_flight: Callable[[str], int],
        unknown_models: Callable[[Tenant], Sequence[str] | None],
        wall: Callable[[], float],
    ) -> None:
        """Make the pages.

        Args:
            keeper: Of what was used.
            tenants: As requests are told whose they are.
            configs: Gives the sections of the configuration that tenants have, as they are now: their keys.
            look: At limits.
            in_flight: How many requests a tenant has in this gateway, by its name.
            unknown_models: Gives the models that a tenant's section names and that are none; None: nobody can say yet.
            wall: Seconds since 1970.
        """
        self._keeper = keeper
        self._tenants = tenants
        self._configs = configs
        self._look = look
        self._in_flight = in_flight
        self._unknown_models = unknown_models
        self._wall = wall

    def routes(self) -> list[web.RouteDef]:
        """Give the pages with their paths."""
        return [web.get("/admin/usage", self._usage), web.get("/admin/tenants", self._all)]

    # Usage.

    async def _usage(self, request: web.Request) -> web.Response:
        try:
            question = Question.of(request.query.items(), date.fromisoformat(self._keeper.today), self._keeper.days)
            days = await self._keeper.usage(days_between(question.first, question.last))
        except BadQuestion as problem:
            return refusal(400, str(problem), "invalid_request_error", "invalid_field")
        except StoreError as error:
            return refusal(503, f"usage cannot be read: {error}", "server_error", "usage_unavailable")
        return await asyncio.to_thread(answer, question, days)  # a year of a hundred tenants takes a second

    # Tenants.

    async def _all(self, request: web.Request) -> web.Response:
        today = date.fromisoformat(self._keeper.today)
        trouble, days = "", None
        try:
            days = await self._keeper.usage(days_between(today.replace(day=1), today))
        except StoreError as error:
            trouble = f"usage cannot be read: {error}"
        keys: dict[str, list[Entry]] = {}
        for entry in entries(self._configs()):
            keys.setdefault(entry.tenant, []).append(entry)
        tenants = list(self._tenants)
        states: list[Sequence[LimitState] | None] = []
        for at in range(0, len(tenants), LOOKS_AT_ONCE):
            states += await asyncio.gather(*map(self._look, tenants[at : at + LOOKS_AT_ONCE]))
        described = [
            {
                **self._describe(tenant, keys.get(tenant.name, ())),
                "limits": limits and [asdict(each) for each in limits],
            }
            for tenant, limits in zip(tenants, states, strict=True)
        ]
        return await asyncio.to_thread(list_of, described, days, trouble)

    def _describe(self, tenant: Tenant, keys: Iterable[Entry]) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._wall(), UTC)
        return {
            "name": tenant.name,
            "service_class": tenant.service_class,
            "weight": tenant.weight,
            "models": sorted(tenant.models),
            "unknown_models": self._unknown_models(tenant),
            "keys": [described(entry, now) for entry in keys],
            "in_flight": self._in_flight(tenant.name),
        }


def answer(question: Question, days: Iterable[tuple[str, Sums]]) -> web.Response:
    """Answer a question about usage."""
    total = f"{question.first}/{question.last}"
    found = rows(days, question.by, total, tenant=question.tenant, model=question.model)
    if question.format == "csv":
        name = f"kvlane-usage-{question.first}-{question.last}.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return web.Response(text=as_csv(found), content_type="text/csv", charset="utf-8", headers=headers)
    return reply(
        {
            "from": question.first.isoformat(),
            "to": question.last.isoformat(),
            "by": question.by.value,
            "rows": [
                {"period": row.period, "tenant": row.tenant, "model": row.model, **told(row.usage)} for row in found
            ],
            "total": told(Usage(added(row.usage.counts for row in found))),
        }
    )


def list_of(
    tenants: Iterable[Mapping[str, Any]], days: Sequence[tuple[str, Sums]] | None, trouble: str
) -> web.Response:
    """List tenants with what they have used; `days` are this month's up to today, None: nobody knows."""
    today, month = ({}, {}) if days is None else (by_tenant(days[-1:]), by_tenant(days))
    missing = None if days is None else ()
    used = [
        {**tenant, "today": today.get(tenant["name"], missing), "month": month.get(tenant["name"], missing)}
        for tenant in tenants
    ]
    return reply({"usage_trouble": trouble, "tenants": used})


def by_tenant(days: Iterable[tuple[str, Sums]]) -> dict[str, list[dict[str, Any]]]:
    """Give what each tenant has used of each model."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows(days, By.TOTAL, ""):
        found.setdefault(row.tenant, []).append({"model": row.model, **told(row.usage)})
    return found


def described(entry: Entry, now: datetime) -> dict[str, Any]:
    """Say of a key what people know it by: never a hash, nor a part of one."""
    key = entry.key
    return {
        "name": key.name,
        "shown": f"{key.prefix}…{key.last4}" if key.prefix and key.last4 else None,
        "state": entry.state(now),
        "expires_at": None if key.expires_at is None else key.expires_at.isoformat(),
    }


def told(usage: Usage) -> dict[str, Any]:
    """Give every figure."""
    return {**usage.figures(), "refusals": usage.refusals}


def as_csv(found: Sequence[Row]) -> str:
    """Write rows for a spreadsheet: the same columns always, and nothing that it would compute."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    empty: Counts = {}
    writer.writerow(["period", "tenant", "model", *Usage(empty).figures(), "refusals"])
    for row in found:
        refusals = " ".join(f"{code}:{count}" for code, count in row.usage.refusals.items())
        names = (row.period, row.tenant, row.model)
        writer.writerow([*map(safe_cell, names), *row.usage.figures().values(), safe_cell(refusals)])
    return text.getvalue()


def safe_cell(text: str) -> str:
    """Keep a spreadsheet from taking text for a formula."""
    return f"'{text}" if text.startswith(FORMULA) or text.lstrip().startswith(FORMULA) else text


def day_of(name: str, words: str) -> date:
    """Read a day.

    Raises:
        BadQuestion: it is none.
    """
    try:
        if DATE.fullmatch(words):
            return date.fromisoformat(words)
    except ValueError:
        pass
    raise BadQuestion(f"{name} must be a day like 2027-01-31, is {words[:50]!r}")


def reply(content: object) -> web.Response:
    """Answer with JSON."""
    return web.Response(body=orjson.dumps(content), content_type="application/json")


def refusal(status: int, message: str, type_: str, code: str) -> web.Response:
    """Say no in the shape that every error has."""
    return web.Response(status=status, body=error_body(message, type_, None, code), content_type="application/json")
