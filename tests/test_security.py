"""Tricks that somebody with a key, or without one, may play on limits, accounts, other tenants and engines.

What was tried, and where it is shown:

    keys guessed, timed, odd, doubled        gateway/test_tenants.py, test_tenants.py; how much a wrong key costs: here
    paths to control routes of engines       wire/test_control.py; by members of a body: here
    smuggled requests                        wire/test_errors.py, wire/test_connections.py; what reaches an engine: here
    headers of others' making                wire/test_headers.py, test_responses.py
    the admin listener                       gateway/test_guard.py; with a tenant's key: here
    keys and prompts in logs and pages       test_privacy.py
    hits and caches of others                gateway/test_trace.py, gateway/test_salt.py, policies/test_own.py
    limits evaded by naming things otherwise: here; by size, by leaving early, by forged usage  test_evasion.py
"""

import asyncio
import base64
import re
from itertools import pairwise

import orjson
import pytest

from gateway.accountpages import safe_cell
from gateway.openai import parse
from gateway.routes import ENGINE_ROUTES
from gateway.tenancy import TenantConfig
from tests.budgeted import KEY, PLAIN, RESPONSES, budgeted, spent
from tests.wire.client import CHAT, Answer, RawClient, call, chat, get, request
from tests.wire.engine import ScriptedEngine, says
from tests.wire.house import metric, serving, tenant

# Wrong keys.


async def test_hundreds_of_guesses_leave_nothing_behind() -> None:
    """No wait, no lock, no list of who failed: a wrong key costs a hash, and is remembered nowhere."""
    async with budgeted(says(PLAIN)) as (gateway, engine):
        async with RawClient.to(gateway.url) as client:
            for at in range(300):
                client.ask(
                    "/v1/models", b"", [("X-Api-Key", f"guess-{at}"), ("X-Request-Id", f"id-{at}")], method="GET"
                )
                assert (await client.answer()).status == 401
        page = (await get(gateway.admin_url, "/metrics")).body
        assert b"guess" not in page
        assert await metric(gateway, "kvlane_requests_total", tenant="unknown") == 300
        assert len(re.findall(rb'kvlane_requests_total\{[^}]*tenant="unknown"', page)) == 1
        assert len(gateway.limiter.ledger) == 0
        assert engine.calls == []


@pytest.mark.parametrize("headers", [[("X-Api-Key", "")], [("Api-Key", "")], [("X-Api-Key", ""), ("Api-Key", "x")]])
async def test_an_empty_key_is_not_no_key(headers: list[tuple[str, str]]) -> None:
    async with (
        ScriptedEngine(says(PLAIN)) as engine,
        serving(engine.url, tenants=[tenant("a")], anonymous={}) as gateway,
    ):
        assert (await call(gateway.url, CHAT, chat(), headers)).status == 401
        assert (await call(gateway.url, CHAT, chat())).status == 200


async def test_two_different_keys_of_a_kind_are_nobodys() -> None:
    async with budgeted(says(PLAIN)) as (gateway, _):
        two = [("X-Api-Key", "a's key"), ("X-Api-Key", "b's key")]
        assert (await call(gateway.url, CHAT, chat(), two)).status == 401


# The admin listener.


@pytest.mark.parametrize(
    "path", ["/ui", "/admin/overview", "/admin/usage", "/admin/tenants", "/admin/endpoints", "/metrics"]
)
@pytest.mark.parametrize("way", ["bearer", "basic", "x-api-key"])
async def test_a_tenants_key_opens_no_admin_page(path: str, way: str) -> None:
    word = base64.b64encode(b"admin:a's key").decode()
    presented = {"bearer": ("Authorization", "Bearer a's key"), "basic": ("Authorization", f"Basic {word}")}
    header = presented.get(way, ("X-Api-Key", "a's key"))
    listen = {"admin_key_sha256": ["1" * 64], "metrics_need_key": True}
    async with (
        ScriptedEngine(says(PLAIN)) as engine,
        serving(engine.url, tenants=[tenant("a")], listen=listen, ready=1) as gateway,
    ):
        answer = await get(gateway.admin_url, path, [header])
        assert answer.refusal == (401, "authentication_error", "invalid_api_key")
        assert (await get(gateway.url, path, KEY)).status == 404


# What reaches an engine.

SMUGGLED = {
    "two lengths": b"Content-Length: 0\r\n",
    "a length and chunks": b"Transfer-Encoding: chunked\r\n",
    "a folded line": b"X-A: 1\r\n X-Data-Parallel-Rank: 1\r\n",
    "a bare CR": b"X-A: 1\rX-Data-Parallel-Rank: 1\r\n",
    "a bare LF": b"X-A: 1\nX-Data-Parallel-Rank: 1\r\n",
    "a NUL": b"X-A: 1\x00\r\n",
    "two hosts": b"Host: engine\r\n",
    "a vertical tab": b"Transfer-Encoding:\x0bchunked\r\n",
}


@pytest.mark.parametrize("line", SMUGGLED.values(), ids=SMUGGLED)
async def test_a_head_that_can_be_read_in_two_ways_reaches_no_engine(line: bytes) -> None:
    async with budgeted(says(PLAIN)) as (gateway, engine):
        data = request(CHAT, chat(), [*KEY, ("Connection", "close")]).replace(b"\r\n", b"\r\n" + line, 1)
        async with RawClient.to(gateway.url) as client:
            client.send(data + request("/sleep"))
            assert re.findall(rb"HTTP/1.[01] (\d+)", await client.rest()) == [b"400"]
        assert engine.calls == []


STEERING = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_block_ids": [1, 2]},
    "disaggregated_params": {"request_type": "generation_only", "ctx_request_id": 1},
    "bootstrap_host": "10.0.0.1",
    "bootstrap_port": 22,
    "bootstrap_room": 7,
    "disagg_prefill_dp_rank": 1,
    "rid": "somebody-else's",
    "session_params": {"id": "somebody-else's"},
    "lora_path": "/etc",
    "lora_request": {"lora_name": "x", "lora_int_id": 1, "lora_path": "/etc"},
    "lora": [{"id": 0, "scale": 1}],
    "id_slot": 3,
    "priority": -9,
    "data_parallel_rank": 1,
    "routed_dp_rank": 1,
}


@pytest.mark.parametrize("name", STEERING)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", RESPONSES, "/v1/messages"])
async def test_no_member_reaches_past_the_gateway(name: str, path: str) -> None:
    """To the blocks of others in a cache, to another host, another adapter, another's request or session."""
    call_ = parse(ENGINE_ROUTES[path], "application/json", chat(**{name: STEERING[name], "stays": 1}))
    sent = b"".join(call_.body_for_engine(chat(**{name: STEERING[name], "stays": 1}), takes_unknown_fields=True))
    assert orjson.loads(sent) == orjson.loads(chat(stays=1))


async def test_nobody_can_guess_the_id_that_another_request_will_have() -> None:
    """Engines refuse an id that runs already, or end both: who knew the next one could take it first."""
    async with budgeted(says(PLAIN)) as (gateway, _):
        ids = [(await call(gateway.url, CHAT, chat(), KEY)).head["x-request-id"] for _ in range(4)]
        words = [id.removeprefix("req_") for id in ids]
        assert len({word[:4] for word in words}) > 1
        assert all(len(word) >= 16 for word in words)
        assert len({int(b, 16) - int(a, 16) for a, b in pairwise(words)}) == 3


async def test_the_same_id_twice_is_charged_twice() -> None:
    async with budgeted(says(PLAIN)) as (gateway, engine):
        mine = [*KEY, ("X-Request-Id", "mine")]
        await asyncio.gather(*(call(gateway.url, CHAT, chat(), mine) for _ in range(4)))
        assert await spent(gateway) == 4 * 15
        assert len(engine.calls) == 4


# Names.


@pytest.mark.parametrize("name", ["other", "unknown", "anonymous", "a\n", "a b", "{a}", "a}", "ä", "а", "", "a" * 101])
def test_no_tenant_can_be_called_what_means_somebody_else(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        TenantConfig.model_validate({"name": name})


async def test_tenants_that_are_named_alike_share_nothing() -> None:
    names = ("a", "a:b", "a:state", "A", "a/b", "a.b")
    tenants = [tenant(name, limits={"requests_per_minute": 1}) for name in names]
    async with ScriptedEngine(says(PLAIN)) as engine, serving(engine.url, tenants=tenants) as gateway:
        for status in (200, 429):
            answers: list[Answer] = [
                await call(gateway.url, CHAT, chat(), [("Authorization", f"Bearer {name}'s key")]) for name in names
            ]
            assert [answer.status for answer in answers] == [status] * len(names)


async def test_a_limit_of_a_model_holds_by_whatever_name_it_is_called() -> None:
    a = tenant("a", limits_by_model={"sim": {"requests_per_minute": 1}})
    models = [{"name": "sim", "aliases": ["nick", "name"]}]
    async with ScriptedEngine(says(PLAIN)) as engine, serving(engine.url, tenants=[a], models=models) as gateway:
        answers = [await call(gateway.url, CHAT, chat(model=name), KEY) for name in ("nick", "name", "sim", "SIM")]
        assert [answer.status for answer in answers] == [200, 429, 429, 404]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", " =1", "＝1", "＠x"])
def test_a_spreadsheet_computes_no_name(text: str) -> None:
    assert safe_cell(text) == "'" + text
