"""Deadlines: a client's own, the gateway's, and the waits that they must not cut short."""

import asyncio

import pytest

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.wire.client import CHAT, call, chat
from tests.wire.engine import Call, ScriptedEngine, whole
from tests.wire.house import asked, serving


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", ["x-stainless-read-timeout", "X-Stainless-Timeout"])
async def test_a_clients_own_deadline_is_the_requests(
    gateway: Gateway, engine: SimulatedEngine, name: str, is_stream: bool
) -> None:
    await engine.inject(Fault(Kind.HANG, times=1))
    answer = await call(gateway.url, CHAT, chat(stream=is_stream), [(name, "0.05")])
    assert answer.refusal == (504, "server_error", "upstream_timeout")
    assert len(asked(engine)) == 1
    answer = await call(gateway.url, CHAT, chat(stream=is_stream), [(name, "30")])
    assert answer.status == 200, "the endpoint stays in rotation"


@pytest.mark.parametrize("value", ["nonsense", "0", "-1", "nan", "inf", "1e999", "", "None"])
async def test_nonsense_for_a_deadline_is_none(gateway: Gateway, value: str) -> None:
    assert (await call(gateway.url, CHAT, chat(), [("x-stainless-read-timeout", value)])).status == 200


async def test_an_engine_that_never_answers_is_504_at_the_deadline_and_its_place_is_free() -> None:
    """S7: the leak check of `serving` sees to the place."""
    async with Cluster(1, Settings(time_scale=0)) as cluster:
        for timeouts in ({"first_byte_s": 0.15}, {"deadline_s": 0.15}):
            async with serving(*cluster.urls, timeouts=timeouts) as gateway:
                await cluster[0].inject(Fault(Kind.HANG))
                answer = await call(gateway.url, CHAT, chat())
                assert answer.refusal == (504, "server_error", "upstream_timeout")
                await cluster.clear()
                assert (await call(gateway.url, CHAT, chat())).status == 200


async def test_a_late_first_byte_is_fine_when_configured() -> None:
    """S7: no other timeout of the house, connect and idle among them, ends the wait for it."""

    async def script(call: Call) -> None:
        await asyncio.sleep(0.3)
        call.write(whole(200, b"{}"))

    timeouts = {"connect_s": 0.2, "idle_s": 0.2, "first_byte_s": 5}
    async with ScriptedEngine(script) as engine, serving(engine.url, timeouts=timeouts) as gateway:
        assert (await call(gateway.url, CHAT, chat())).status == 200
