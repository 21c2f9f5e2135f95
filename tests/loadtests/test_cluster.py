"""Cluster: engines that die, come back, hang and leave in the ways of vLLM."""

import asyncio
import socket

import aiohttp
import pytest

from loadtests.cluster import Cluster
from loadtests.settings import Settings
from tests.loadtests.calls import chat, events, post, raw, raw_chat, stream, streamed
from tests.until import until

CHAT = "/v1/chat/completions"
LONG = streamed(max_tokens=10_000)


async def started_at(http: aiohttp.ClientSession, url: str) -> float:
    """Read process_start_time_seconds."""
    async with http.get(f"{url}/metrics") as response:
        page = await response.text()
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith("process_start_time_seconds "))


async def test_engines_have_ports_of_their_own(http: aiohttp.ClientSession) -> None:
    async with Cluster(3, Settings(time_scale=0.0)) as cluster:
        assert len(set(cluster.urls)) == len(cluster) == 3
        await stream(http, cluster[1], streamed())
        assert cluster.engine_calls == [0, 1, 0]


async def test_taken_port_leaves_nothing_open() -> None:
    cluster = Cluster(2, Settings(time_scale=0.0))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster[1].port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            await cluster.__aenter__()
    with pytest.raises(ConnectionRefusedError):
        await raw(cluster[0], b"")


async def test_killed_engine_breaks_its_streams_and_refuses() -> None:
    async with Cluster(1) as cluster:
        reader, writer = await raw(cluster[0], raw_chat(LONG))
        await reader.readuntil(b"data: ")
        await cluster.kill(0)
        assert not (await reader.read()).endswith(b"0\r\n\r\n")
        with pytest.raises(ConnectionRefusedError):
            await raw(cluster[0], b"")
        assert (cluster[0].facts.broken, cluster[0].facts.live) == (1, 0)
        writer.close()


async def test_restarted_engine_is_cold_and_of_another_time(http: aiohttp.ClientSession) -> None:
    async with Cluster(1, Settings(time_scale=0.0)) as cluster:
        url, before = cluster.urls[0], await started_at(http, cluster.urls[0])
        cached = []
        for is_last in (False, False, True):
            if is_last:
                await cluster.restart(0)
            _, answer = await post(http, cluster[0], CHAT, chat("word " * 100))
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        assert cached == [False, True, False]
        assert cluster.urls[0] == url
        assert await started_at(http, url) > before
        assert cluster.engine_calls == [3]


async def test_stalled_and_slow_engines_recover(http: aiohttp.ClientSession) -> None:
    async with Cluster(2, Settings(time_scale=0.01)) as cluster:
        await cluster.stall(0)
        await cluster.slow(1, 10.0)
        assert cluster[1].model.slowdown == 10.0
        waiting = asyncio.create_task(stream(http, cluster[0], streamed()))
        await until(lambda: cluster[0].model.running == 1)
        assert not waiting.done()
        await cluster.clear()
        assert events(await waiting)[-1] == "[DONE]"
        assert cluster[1].model.slowdown == 1.0


# SIGTERM, in the ways of vLLM


async def test_draining_engine_finishes_what_runs_and_refuses_what_comes(http: aiohttp.ClientSession) -> None:
    async with Cluster(1, Settings(time_scale=0.01)) as cluster:
        engine = cluster[0]
        await cluster.stall(0)
        running = asyncio.create_task(stream(http, engine, streamed()))
        await until(lambda: engine.model.running == 1)
        await engine.terminate("finish")
        status, answer = await post(http, engine, CHAT, chat())
        assert (status, answer["error"]["message"]) == (500, "cannot schedule new futures after shutdown")
        async with http.get(f"{engine.url}/health") as response:
            assert response.status == 200
        await cluster.clear()
        assert events(await running)[-1] == "[DONE]"
        await until(lambda: engine.facts.connections == 0)
        with pytest.raises(ConnectionRefusedError):
            await raw(engine, b"")


async def test_aborting_engine_ends_all_as_if_well(http: aiohttp.ClientSession) -> None:
    async with Cluster(1) as cluster:
        engine = cluster[0]
        running = asyncio.create_task(stream(http, engine, LONG))
        whole = asyncio.create_task(post(http, engine, CHAT, chat(max_tokens=10_000)))
        await until(lambda: engine.model.decoding == 2)
        await engine.terminate("abort")
        told = events(await running)
        assert told[-3]["choices"][0]["finish_reason"] == "abort"
        assert told[-2]["usage"]["completion_tokens"] == len(told) - 3
        assert told[-1] == "[DONE]"
        status, answer = await whole
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "abort")
        with pytest.raises(ConnectionRefusedError):
            await raw(engine, b"")


async def test_hanging_engine_refuses_and_keeps_its_streams_open() -> None:
    async with Cluster(1) as cluster:
        engine = cluster[0]
        reader, writer = await raw(engine, raw_chat(LONG))
        await reader.readuntil(b"data: ")
        await engine.terminate("hang")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readuntil(b"[DONE]"), 0.05)
        with pytest.raises(ConnectionRefusedError):
            await raw(engine, b"")
        assert engine.facts.connections == 1
        writer.close()


async def test_dead_core_tells_all_and_goes(http: aiohttp.ClientSession) -> None:
    async with Cluster(1) as cluster:
        engine = cluster[0]
        running = asyncio.create_task(stream(http, engine, LONG))
        await until(lambda: engine.model.decoding == 1)
        await engine.terminate("core")
        error, done = events(await running)[-2:]
        assert (error["error"]["code"], done) == (500, "[DONE]")
        status, _ = await post(http, engine, CHAT, chat())
        assert status == 500
        async with http.get(f"{engine.url}/health") as response:
            assert response.status == 503


async def test_engine_with_a_start_up_delay_is_not_ready_at_first() -> None:
    async with Cluster(1, Settings(startup_delay_s=0.01)) as cluster:
        assert not cluster[0].is_healthy
        await until(lambda: cluster[0].is_healthy)
