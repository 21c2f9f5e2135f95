"""GET /admin/overview: what the dashboard shows, bounded, and without a word of anybody's prompt."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.accountpages import LimitState
from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.looplag import LoopLag
from gateway.metrics import Metrics
from gateway.overview import (
    MAX_CHARS,
    MAX_PREFIXES,
    MAX_REASONS,
    MAX_TENANTS,
    Overview,
    cut,
    known,
    ranked,
    share,
)
from gateway.tenants import Tenant, Tenants
from policies.flow import Flow
from tests.fleet_fixtures import CHAT, House, Reply, house

KEY = "tenant-secret"
SYSTEM = "You are the assistant of the harbour office. " * 60
LIMITS = {"requests_per_minute": 60, "tokens_per_day": 1_000_000}
TENANT = {"name": "team-a", "key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()], "limits": LIMITS}


class Idle:
    """Serves nobody."""

    active = 0
    in_flight: Mapping[str, int] = {}


async def nothing(tenant: Tenant) -> Sequence[LimitState]:
    """Say that a tenant has no limits."""
    return ()


async def ask(whole: House, question: str, *, stream: bool = False) -> Reply:
    """Ask under the system prompt."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "sim", "max_tokens": 4, "stream": stream, "messages": messages}
    return await whole.post(CHAT, body, headers={"authorization": f"Bearer {KEY}"})


async def overview(whole: House) -> dict[str, Any]:
    """Read it as it is now, whoever has asked a moment ago."""
    whole.gateway.overview.history.read()
    feed: dict[str, Any] = orjson.loads(orjson.dumps(await whole.gateway.overview.content()))  # as a client has it
    return feed


async def test_an_endpoint_has_not_failed_where_it_was_full_or_the_client_wrong() -> None:
    async with house(1, tenants=[TENANT]) as whole:
        for kind in ("connect", "cut", "stalled", "broken", "client", "over_length", "busy", "deadline", "files"):
            whole.gateway.metrics.endpoint_failures.add(("e0", kind))
        assert [each["failures"] for each in (await overview(whole))["endpoints"]] == [4]


async def test_a_request_is_seen_in_every_part() -> None:
    async with house(1, tenants=[TENANT]) as whole:
        for question in ("When is high water?", "Which berth is free?"):
            assert (await ask(whole, question, stream=True)).status == 200
        await whole.rests()
        feed = await overview(whole)
        assert feed["points"]["served_per_s"][-1] > 0
        assert feed["points"]["ttft_s"]["p50"][-1] is not None
        assert sum(each["tries"] for each in feed["endpoints"]) == 2
        assert [(each["name"], each["state"]) for each in feed["endpoints"]] == [("e0", "ready")]
        (pool,) = feed["pools"]
        assert (pool["name"], pool["endpoints"], pool["ready"], pool["waiting"]) == ("default", 1, 1, 0)
        (tenant,) = feed["tenants"]
        assert (tenant["name"], tenant["requests"], tenant["refused"], tenant["in_flight"]) == ("team-a", 2, 0, 0)
        assert tenant["hit_ratio"] > 0.2
        assert [each["name"] for each in tenant["limits"]] == list(LIMITS)
        (prefix,) = feed["prefixes"]
        assert 64 <= prefix["tokens"] <= 1024
        assert prefix["homes"] == ["e0"]


async def test_the_page_is_made_once_a_second_at_most() -> None:
    now = 1000.0
    metrics = Metrics()
    fleet = Fleet(lambda: now)
    gate = Gate(fleet, metrics, lambda: now, classes=(), flow=Flow(), smoothing_s=0, is_open=True)
    lag = LoopLag(lambda: now, metrics.loop_lag.distribution(()))
    overview = Overview(metrics, fleet, gate, Tenants(), nothing, lambda: now, Idle(), lag, wall=lambda: now)
    app = web.Application()
    app.router.add_routes(overview.routes())
    async with TestClient(TestServer(app)) as client:
        answers = []
        for now in (1000.0, 1000.9, 1001.0):  # noqa: B007  # the clocks read it
            answer = await client.get("/admin/overview")
            assert (answer.status, answer.content_type) == (200, "application/json")
            assert answer.headers["cache-control"] == "no-store"
            answers.append((await answer.json())["at"])
    assert answers == [1000.0, 1000.0, 1001.0]


async def test_nothing_tells_what_a_prompt_says() -> None:
    async with house(1) as whole:
        for _ in range(2):
            await ask(whole, "what is the secret?")
        await whole.rests()
        feed = await overview(whole)
        text = json.dumps(feed)
        assert "harbour" not in text
        (prefix,) = feed["prefixes"]
        assert len(prefix["mark"]) == 12
        (last,) = [each.last for hot in whole.gateway.overview.history.hot.values() for each in hot.top(1, 0.0)]
        assert prefix["mark"] not in f"{last:016x}"  # which has no key: prompts could be tried against it


async def test_refusals_are_told_by_what_was_behind() -> None:
    tenant = {**TENANT, "limits": {"requests_per_minute": 1}}
    async with house(1, tenants=[tenant]) as whole:
        assert (await ask(whole, "one")).status == 200
        assert (await ask(whole, "two")).status == 429
        await whole.rests()
        feed = await overview(whole)
        assert feed["refusals"] == {
            "codes": [{"code": "rate_limit_exceeded", "count": 1}],
            "overload": [],
            "limits": [{"limit": "requests_per_minute", "count": 1}],
        }
        assert feed["tenants"][0]["refused"] == 1


async def test_before_anybody_asks_everything_is_there_and_empty() -> None:
    async with house(1) as whole:
        feed = await whole.gateway.overview.content()
        assert feed["points"]["at"] == []
        assert feed["now"]["ttft_s"] is None
        assert (feed["tenants"], feed["prefixes"], feed["refusals"]["codes"]) == ([], [], [])


async def test_the_page_is_bounded_whatever_there_is() -> None:
    async with house(1) as whole:
        metrics = whole.gateway.metrics
        for at in range(3000):
            metrics.requests.add(("m" * 300, f"{at}" * 300, "ok", "200"))
            metrics.refusals.add((f"code {at}", "t"))
        feed = await overview(whole)
        assert len(feed["tenants"]) == MAX_TENANTS
        assert feed["tenants_active"] > MAX_TENANTS
        assert len(feed["refusals"]["codes"]) == MAX_REASONS
        assert max(len(each["name"]) for each in feed["tenants"]) == MAX_CHARS
        assert len(feed["prefixes"]) <= MAX_PREFIXES
        assert len(json.dumps(feed)) < 100_000


async def test_names_are_text_and_left_as_they_are() -> None:
    async with house(1) as whole:
        whole.gateway.metrics.requests.add(("m", "<script>alert(1)</script>", "ok", "200"))
        feed = await overview(whole)
        assert feed["tenants"][0]["name"] == "<script>alert(1)</script>"
        answer = await whole.get("/admin/overview", admin=True)
        assert answer.headers["content-type"] == "application/json"


def test_figures_are_what_json_can_hold() -> None:
    assert [known(value) for value in (None, float("nan"), 0.123456, 7, 0.0)] == [None, None, 0.1235, 7, 0.0]
    assert [share(1, 4), share(5, 4), share(1, 0), share(0, None)] == [0.25, 1.0, None, None]


def test_the_largest_counts_come_first_and_equal_ones_by_name() -> None:
    assert ranked({"b": 1.0, "a": 1.0, "c": 2.0}, "code") == [
        {"code": "c", "count": 2},
        {"code": "a", "count": 1},
        {"code": "b", "count": 1},
    ]


def test_a_long_name_is_cut() -> None:
    assert cut("a" * 1000) == "a" * (MAX_CHARS - 1) + "…"
