"""The admin pages about tenants: what was used, and how they stand."""

import asyncio
import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.accountpages import LOOKS_AT_ONCE, AccountPages, BadQuestion, LimitState, Question, as_csv, safe_cell
from gateway.accounts import Keeper
from gateway.metrics import Metrics
from gateway.tenancy import AnonymousConfig, TenantConfig
from gateway.tenants import Tenant, Tenants
from gateway.usagestore import Kept, Memory, StoreError
from loadtests.settings import Settings
from policies.accounts import DAY_S
from policies.record import Outcome
from policies.statement import Row, Usage
from policies.tariff import Tariff
from tests.fleet_fixtures import CHAT, House, house, leave, prompt
from tests.policies.test_accounts import NOON, SERVED
from tests.until import until

TODAY = date(2027, 1, 31)
HASH = hashlib.sha256(b"kvl-secret").hexdigest()
REFUSED = replace(SERVED, outcome=Outcome.REFUSED, code="insufficient_quota", tries=0)


class Away(Memory):
    """A place that cannot be read."""

    async def read(self, day: str) -> Kept:
        raise StoreError("redis is away")


def configs() -> list[TenantConfig]:
    keys = [
        {"name": "new", "sha256": [HASH], "prefix": "kvl-abcd", "last4": "wxyz"},
        {"name": "old", "sha256": ["0" * 64], "expires_at": "2027-01-01T00:00:00Z"},
    ]
    a = {"name": "a", "models": ["m"], "weight": 2, "service_class": "batch", "keys": keys}
    return [TenantConfig.model_validate(a), TenantConfig(name="b", key_sha256=("1" * 64,))]


async def look(tenant: Tenant) -> Sequence[LimitState] | None:
    states = {"a": [LimitState("tokens_per_minute", 1000, 400, 36.0)], "b": []}
    return states.get(tenant.name)


def strange(tenant: Tenant) -> list[str]:
    return sorted(tenant.models)


def keeper(store: Memory | None = None) -> Keeper:
    tariff = Tariff.of(input_price=1, output_price=2)
    return Keeper(store or Memory(400), lambda tenant, model: tariff, Metrics(), lambda: NOON, 400)


def client(keeper: Keeper) -> "TestClient[web.Request, web.Application]":
    tenants = Tenants(configs(), AnonymousConfig())
    return serving(AccountPages(keeper, tenants, configs, look, Counter(a=3).__getitem__, strange, lambda: NOON))


def serving(pages: AccountPages) -> "TestClient[web.Request, web.Application]":
    app = web.Application()
    app.router.add_routes(pages.routes())
    return TestClient(TestServer(app))


async def get(keeper: Keeper, path: str, status: int = 200) -> Any:
    async with client(keeper) as pages:
        answer = await pages.get(path)
        assert answer.status == status
        return await answer.json() if answer.content_type == "application/json" else await answer.text()


def used() -> Keeper:
    """Give accounts of two tenants, two models and two months."""
    one = keeper()
    for record in (SERVED, REFUSED, replace(SERVED, tenant="b", model="n")):
        one.note(replace(record, tenant="a") if record.tenant == "t" else record)
    one.note(replace(SERVED, tenant="a", arrived_at=NOON - 31 * DAY_S))
    return one


# Usage.


async def test_usage_is_of_this_month_so_far_by_day() -> None:
    found = await get(used(), "/admin/usage")
    assert (found["from"], found["to"], found["by"]) == ("2027-01-01", "2027-01-31", "day")
    assert [(row["period"], row["tenant"], row["model"]) for row in found["rows"]] == [
        ("2027-01-31", "a", "m"),
        ("2027-01-31", "b", "n"),
    ]
    assert found["rows"][0] == {
        "period": "2027-01-31",
        "tenant": "a",
        "model": "m",
        "requests": 2,
        "served": 1,
        "failed": 0,
        "disconnected": 0,
        "client_errors": 0,
        "refused": 1,
        "prompt_tokens": 1000,
        "cached_tokens": 600,
        "uncached_tokens": 400,
        "output_tokens": 50,
        "weighted_tokens": 1050,
        "cost_micros": 500,
        "engine_s": 2.0,
        "refusals": {"insufficient_quota": 1},
    }
    assert (found["total"]["requests"], found["total"]["refusals"]) == (3, {"insufficient_quota": 1})


@pytest.mark.parametrize(
    ("query", "periods"),
    [
        ("from=2026-12-31&tenant=a", ["2026-12-31", "2027-01-31"]),
        ("from=2026-12-31&tenant=a&by=month", ["2026-12", "2027-01"]),
        ("from=2026-12-31&tenant=a&by=total", ["2026-12-31/2027-01-31"]),
        ("to=2026-12-31", ["2026-12-31"]),
        ("model=n", ["2027-01-31"]),
        ("tenant=nobody", []),
        ("from=2027-02-01", []),
    ],
)
async def test_usage_is_of_what_is_asked_for(query: str, periods: list[str]) -> None:
    assert [row["period"] for row in (await get(used(), f"/admin/usage?{query}"))["rows"]] == periods


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("tenent=a", "there is no parameter 'tenent': there are from, to, tenant, model, by, format"),
        ("tenant=a&tenant=b", "tenant is there twice"),
        ("from=yesterday", "from must be a day like 2027-01-31, is 'yesterday'"),
        ("to=2027-02-30", "to must be a day like 2027-01-31, is '2027-02-30'"),
        ("from=2027-W05-1", "from must be a day like 2027-01-31, is '2027-W05-1'"),
        ("from=2027-01-02&to=2027-01-01", "to must not be before from: 2027-01-01 is before 2027-01-02"),
        ("from=2020-01-01&to=2027-01-01", "2020-01-01 to 2027-01-01 is 2558 days; 400 are kept"),
        ("by=week", "by must be day, month or total, is 'week'"),
        ("format=xml", "format must be json or csv, is 'xml'"),
    ],
)
async def test_a_question_that_makes_no_sense_is_told_why(query: str, message: str) -> None:
    found = await get(keeper(), f"/admin/usage?{query}", 400)
    assert found["error"]["message"] == message
    assert found["error"]["type"] == "invalid_request_error"


def test_as_many_days_as_are_kept_may_be_asked_for() -> None:
    assert Question.of([("from", "2027-01-30")], TODAY, 2).last == TODAY
    with pytest.raises(BadQuestion, match="is 3 days; 2 are kept"):
        Question.of([("from", "2027-01-29")], TODAY, 2)


async def test_usage_that_cannot_be_read_is_no_fault_of_ours() -> None:
    found = await get(keeper(Away(400)), "/admin/usage", 503)
    assert found["error"]["message"] == "usage cannot be read: redis is away"


# CSV.


async def test_csv_has_the_same_figures() -> None:
    one = used()
    rows = list(csv.DictReader(io.StringIO(await get(one, "/admin/usage?format=csv"))))
    told = (await get(one, "/admin/usage"))["rows"]
    assert rows[0].pop("refusals") == "insufficient_quota:1"
    told[0].pop("refusals")
    assert rows[0] == {name: str(value) for name, value in told[0].items()}
    assert len(rows) == len(told)


async def test_csv_of_nothing_has_its_columns() -> None:
    text = await get(keeper(), "/admin/usage?format=csv")
    assert text.startswith("period,tenant,model,requests,served,")
    assert text.endswith(",refusals\r\n")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_names_do_not_become_formulas(name: str) -> None:
    row = Row("2027-01", name, name, Usage({f"refused:{name}": 1}))
    ((_, tenant, model, *_, refusals),) = list(csv.reader(io.StringIO(as_csv([row]), newline="")))[1:]
    assert (tenant, model, refusals) == (f"'{name}", f"'{name}", f"'{name}:1")


def test_other_names_stay_as_they_are() -> None:
    assert [safe_cell(name) for name in ("a-b", "", 'a"b,c', "org/model@1")] == ["a-b", "", 'a"b,c', "org/model@1"]
    assert list(csv.reader(io.StringIO(as_csv([Row("d", "t", 'a"b,c\nd', Usage({}))]), newline="")))[1][2] == 'a"b,c\nd'


# Tenants.


async def test_tenants_are_told_with_their_limits_and_what_they_have_used() -> None:
    found = await get(used(), "/admin/tenants")
    assert found["usage_trouble"] == ""
    a, b, anonymous = found["tenants"]
    today, month = a.pop("today"), a.pop("month")
    assert a == {
        "name": "a",
        "service_class": "batch",
        "weight": 2.0,
        "models": ["m"],
        "keys": [
            {"name": "new", "shown": "kvl-abcd…wxyz", "state": "active", "expires_at": None},
            {"name": "old", "shown": None, "state": "expired", "expires_at": "2027-01-01T00:00:00+00:00"},
        ],
        "unknown_models": ["m"],
        "in_flight": 3,
        "limits": [{"name": "tokens_per_minute", "limit": 1000, "remaining": 400, "reset_s": 36.0}],
    }
    assert [(row["model"], row["requests"]) for row in today] == [("m", 2)]
    assert today == month
    assert (b["limits"], anonymous["limits"]) == ([], None)
    assert (b["keys"], b["in_flight"]) == ([{"name": None, "shown": None, "state": "active", "expires_at": None}], 0)
    assert (anonymous["name"], anonymous["keys"], anonymous["in_flight"]) == ("anonymous", [], 0)


async def test_no_page_holds_a_hash_or_a_part_of_one() -> None:
    async with client(used()) as pages:
        text = await (await pages.get("/admin/tenants")).text()
    for digest in (HASH, "0" * 64, "1" * 64):
        assert digest[:8] not in text


async def test_this_month_is_more_than_today() -> None:
    one = used()
    one.note(replace(SERVED, tenant="a", arrived_at=NOON - DAY_S))
    a = (await get(one, "/admin/tenants"))["tenants"][0]
    assert (a["today"][0]["served"], a["month"][0]["served"]) == (1, 2)


async def test_tenants_are_told_where_usage_cannot_be_read() -> None:
    found = await get(keeper(Away(400)), "/admin/tenants")
    assert found["usage_trouble"] == "usage cannot be read: redis is away"
    assert [(tenant["today"], tenant["month"]) for tenant in found["tenants"]] == [(None, None)] * 3
    assert found["tenants"][0]["limits"]


async def test_a_thousand_tenants_are_not_looked_at_all_at_once() -> None:
    looking = most = 0

    async def slow(tenant: Tenant) -> Sequence[LimitState]:
        nonlocal looking, most
        looking += 1
        most = max(most, looking)
        await asyncio.sleep(0)
        looking -= 1
        return [LimitState("parallel", int(tenant.name[1:]), 1, 0.0)]

    many = [TenantConfig(name=f"t{at}") for at in range(1000)]
    pages = AccountPages(keeper(), Tenants(many), lambda: many, slow, Counter[str]().__getitem__, strange, lambda: NOON)
    async with serving(pages) as asked:
        listed = (await (await asked.get("/admin/tenants")).json())["tenants"]
    assert [each["limits"][0]["limit"] for each in listed] == list(range(1000))
    assert most == LOOKS_AT_ONCE


# The whole.


async def usage(whole: House) -> dict[tuple[str, str], dict[str, Any]]:
    answer = await whole.get("/admin/usage?by=total", admin=True)
    assert answer.status == 200
    return {(row["tenant"], row["model"]): row for row in answer.json["rows"]}


async def test_a_gateway_accounts_for_what_engines_say_they_did() -> None:
    models = [{"name": "sim", "prices": {"input": 1, "cached": 0, "output": 10}}]
    async with house(1, models=models) as whole:
        replies = [await whole.ask(f"tell me {at}", tokens=5) for at in range(3)]
        await whole.ask(stream=True, tokens=7, stream_options={"include_usage": True})
        await whole.ask(model="nobody")
        await whole.rests()
        found = await usage(whole)
        row = found["anonymous", "sim"]
        assert (row["served"], row["requests"], row["output_tokens"]) == (4, 4, 3 * 5 + 7)
        prompts = sum(reply.json["usage"]["prompt_tokens"] for reply in replies)
        assert row["prompt_tokens"] > prompts
        assert row["cost_micros"] == row["uncached_tokens"] + 10 * row["output_tokens"]
        assert found["anonymous", "none"]["client_errors"] == 1
        assert await whole.metric("kvlane_weighted_tokens_total") == row["prompt_tokens"] + row["output_tokens"]


async def test_a_gateway_keeps_its_accounts_over_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    accounting = {"path": str(tmp_path_factory.mktemp("accounts"))}
    for served in (1, 2):
        async with house(1, accounting=accounting) as whole:
            await whole.ask()
            assert (await usage(whole))["anonymous", "sim"]["served"] == served


async def test_requests_are_counted_while_they_run_for_whom_they_are() -> None:
    async def in_flight(whole: House) -> list[int]:
        listed = await whole.get("/admin/tenants", admin=True)
        return [tenant["in_flight"] for tenant in listed.json["tenants"]]

    tenants = [{"name": "a", "key_sha256": [HASH]}]
    async with house(1, Settings(time_scale=1.0), tenants=tenants, anonymous={}) as whole:
        headers = {"authorization": "Bearer kvl-secret"}
        clients = [
            asyncio.create_task(whole.post(CHAT, prompt("hello", tokens=1000), headers=headers)) for _ in range(2)
        ]
        clients.append(asyncio.create_task(whole.ask(tokens=1000)))
        await until(lambda: whole.gateway.proxy.active == 3, "all are being served")
        assert (await whole.post(CHAT, prompt("hello"), headers={"authorization": "Bearer wrong"})).status == 401
        assert await in_flight(whole) == [2, 1]
        await leave(clients)
        await whole.rests()
        assert await in_flight(whole) == [0, 0]
        assert not whole.gateway.proxy.in_flight


async def test_the_pages_stand_behind_the_guard() -> None:
    key = hashlib.sha256(b"admin").hexdigest()
    async with house(1, listen={"admin_key_sha256": [key]}) as whole, aiohttp.ClientSession() as session:
        for path in ("/admin/usage", "/admin/tenants"):
            assert (await whole.get(path, admin=True)).status == 401
            headers = {"authorization": "Bearer admin"}
            async with session.get(whole.gateway.admin_url + path, headers=headers) as answer:
                assert answer.status == 200
