"""Real engines close idle connections after five seconds: no client ever notices."""

import asyncio

import pytest

from tests.engines.house import CHAT, ask, before, chat, counted
from tests.engines.real import RealEngine

pytestmark = pytest.mark.engines

PAUSES_S = (4.98, 4.995, 5.0, 5.01)  # uvicorn and cpp-httplib close after 5


async def test_a_connection_that_the_engine_has_closed_costs_no_request(
    vllm_up: RealEngine, llama_up: RealEngine
) -> None:
    """Keep connections for longer than the engines do, and for as long: the first is an operator's mistake."""

    async def alternate(engine: RealEngine, idle_s: float) -> None:
        async with before(engine, connections={"idle_s": idle_s}) as gateway:
            for pause_s in (*PAUSES_S, 0):
                answer = await ask(gateway, CHAT, chat(max_tokens=2))
                assert answer.status == 200
                await asyncio.sleep(pause_s)
            assert await counted(gateway, "kvlane_endpoint_failures_total") == 0
            assert await counted(gateway, "kvlane_endpoint_requests_total") == len(PAUSES_S) + 1

    async with asyncio.TaskGroup() as group:
        for engine in (vllm_up, llama_up):
            for idle_s in (5.0, 30.0):
                group.create_task(alternate(engine, idle_s))
