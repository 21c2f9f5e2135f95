"""The admin listener: what operators see, on a port of its own."""

import asyncio
from typing import Any

import pytest

from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from policies.health import State
from tests.fleet_fixtures import House, house, leave
from tests.until import until


async def endpoints(whole: House) -> list[dict[str, Any]]:
    answer = await whole.get("/admin/endpoints", admin=True)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    found: list[dict[str, Any]] = answer.json["endpoints"]
    return found


async def test_every_endpoint_is_described() -> None:
    async with house(2) as whole:
        await whole.ask()
        first, second = await endpoints(whole)
        assert first["leases_total"] + second["leases_total"] == 1
        age_s = first["engine"].pop("age_s")
        assert 0 <= age_s < 60
        assert first == {
            "name": "e0",
            "url": whole.cluster.urls[0],
            "pool": "default",
            "kind": "vllm",
            "state": "ready",
            "trouble": "",
            "cooling_s": 0.0,
            "models": ["sim"],
            "max_context_tokens": 32_768,
            "inflight_requests": 0,
            "pending_prefill_tokens": 0,
            "decoding": 0,
            "leases_total": first["leases_total"],
            "engine": first["engine"],
        }
        assert first["engine"]["running"] == first["engine"]["waiting"] == 0
        assert first["engine"]["kv_capacity_tokens"] == 400_000
        assert first["engine"]["block_tokens"] == 16


async def test_an_engine_that_never_answered_tells_nothing() -> None:
    async with house(1, waits=False) as whole:
        await whole.cluster[0].inject(Fault(Kind.BLACK_HOLE))
        (found,) = await endpoints(whole)
        assert (found["kind"], found["state"], found["models"]) == (None, "starting", [])
        assert set(found["engine"].values()) == {None}
        await whole.cluster.clear()


async def test_requests_in_flight_are_told() -> None:
    async with house(1, Settings(time_scale=1.0)) as whole:
        await whole.cluster.stall(0)
        waiting = [asyncio.create_task(whole.ask(f"unique {at}", stream=True)) for at in range(3)]
        await until(lambda: whole.in_flight == [3], "three in flight")
        (found,) = await endpoints(whole)
        assert (found["inflight_requests"], found["decoding"]) == (3, 0)
        assert found["pending_prefill_tokens"] > 0
        await leave(waiting)
        await whole.rests()
        (found,) = await endpoints(whole)
        assert (found["inflight_requests"], found["pending_prefill_tokens"], found["decoding"]) == (0, 0, 0)


async def test_an_engine_that_asked_to_be_left_alone_is_told_as_cooling() -> None:
    async with house(1) as whole:
        await whole.cluster[0].inject(Fault(Kind.STATUS, times=1, status=429, retry_after_s=30))
        await whole.ask()
        (found,) = await endpoints(whole)
        assert 20 < found["cooling_s"] <= 30
        assert whole.states == [State.READY]


async def test_the_admin_listener_lives_by_itself() -> None:
    async with house(1) as whole:
        assert (await whole.get("/healthz", admin=True)).status == 200


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/chat/completions", "/admin", "/readyz", "/admin/endpoints/x"])
async def test_anything_else_is_not_found_in_the_shape_of_all_errors(path: str) -> None:
    async with house(1) as whole:
        answer = await whole.get(path, admin=True)
        assert answer.status == 404
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        assert answer.json["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/metrics", "/admin/endpoints", "/admin", "/ui"])
async def test_nothing_of_it_is_on_the_port_of_the_api(path: str) -> None:
    async with house(1) as whole:
        answer = await whole.get(path)
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
