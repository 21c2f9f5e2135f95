"""Clients that leave, in every way and at every moment: the engine sees it at once, and nothing is left behind.

That nothing is left (charges, requests, tasks, connections) is checked by `serving` at the end of every test.
"""

import asyncio
from collections.abc import Callable

import orjson
import pytest

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.until import until
from tests.wire.client import CHAT, RawClient, call, chat, request
from tests.wire.engine import EVENTS_HEAD, Call, ScriptedEngine, chunk
from tests.wire.house import asked, metric, ready_endpoints, serving
from tests.wire.sse import STREAM, token

NOTICE_S = 0.2  # the contract's bound for the engine to see the close
LONG = {"output_tokens": 20_000}
WAYS: dict[str, Callable[[RawClient], None]] = {
    "closes": RawClient.close,
    "resets": RawClient.reset,
    "half-closes": RawClient.half_close,  # uvicorn, which engines stand on, takes that for leaving too
}
REAL_TIME = Settings(time_scale=1.0)


async def check_departure(engine: SimulatedEngine, left_at: float, phase: str) -> None:
    await until(lambda: engine.facts.departures, lambda: engine.facts)
    (departure,) = engine.facts.departures
    assert departure.phase == phase
    assert departure.at - left_at < NOTICE_S
    assert engine.facts.live == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_an_engine_sees_a_client_leave_before_the_first_token(way: str, is_stream: bool) -> None:
    """S10."""
    async with Cluster(1, REAL_TIME) as cluster, serving(*cluster.urls) as gateway, RawClient.to(gateway.url) as client:
        await cluster.stall(0)
        client.ask(CHAT, chat(stream=is_stream))
        await until(lambda: cluster[0].facts.live)
        left_at = asyncio.get_running_loop().time()
        WAYS[way](client)
        await check_departure(cluster[0], left_at, "waiting")
        assert await metric(gateway, "kvlane_requests_total", outcome="disconnected") == 1


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_sees_a_client_leave_while_it_streams(way: str) -> None:
    """S10."""
    async with Cluster(1, REAL_TIME) as cluster, serving(*cluster.urls) as gateway, RawClient.to(gateway.url) as client:
        client.ask(CHAT, chat(stream=True, sim=LONG))
        await anext(client.pieces(await client.head()))
        left_at = asyncio.get_running_loop().time()
        WAYS[way](client)
        await check_departure(cluster[0], left_at, "decoding")
        assert await metric(gateway, "kvlane_requests_total", outcome="disconnected") == 1


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_sees_a_client_leave_while_it_decodes_a_whole_answer(way: str) -> None:
    """S10."""
    async with Cluster(1, REAL_TIME) as cluster, serving(*cluster.urls) as gateway, RawClient.to(gateway.url) as client:
        client.ask(CHAT, chat(sim=LONG))
        await until(lambda: cluster[0].model.decoding)
        left_at = asyncio.get_running_loop().time()
        WAYS[way](client)
        await check_departure(cluster[0], left_at, "decoding")


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_sees_a_client_leave_that_had_stopped_reading(way: str) -> None:
    """S10: buffers everywhere are full, and the gateway has stopped reading from the engine."""
    gone_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        call.write(EVENTS_HEAD)
        try:
            while True:
                call.write(chunk(token("x" * 60_000)))
                await call.writer.drain()
                sent += 1
        finally:
            gone_at.set_result(asyncio.get_running_loop().time())

    async with (
        ScriptedEngine(script) as engine,
        serving(engine.url) as gateway,
        RawClient.to(gateway.url) as client,
    ):
        client.ask(CHAT, STREAM)
        await client.head()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)
        left_at = asyncio.get_running_loop().time()
        WAYS[way](client)
        async with asyncio.timeout(2):
            assert await gone_at - left_at < NOTICE_S


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "sent",
    [
        request(CHAT, b"", [("Content-Length", "1000")]),
        request(CHAT, b'{"model":', [("Content-Length", "1000")]),
        request(CHAT, b"", [("Transfer-Encoding", "chunked")]) + b'5\r\n{"mo',
        request(CHAT, b"", [("Content-Length", "1000"), ("Expect", "100-continue")]),
    ],
    ids=["no body", "half a body", "half a chunk", "waits to be asked"],
)
async def test_a_client_that_leaves_before_it_has_asked_reaches_no_engine(
    gateway: Gateway, engine: SimulatedEngine, way: str, sent: bytes
) -> None:
    async with RawClient.to(gateway.url) as client:
        client.send(sent)
        await until(lambda: gateway.proxy.active)
        WAYS[way](client)
        await until(lambda: not gateway.proxy.active)
    assert asked(engine) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sent", [b"", b"GET /v1/mod", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"])
async def test_a_client_that_leaves_within_its_head_is_no_request(gateway: Gateway, way: str, sent: bytes) -> None:
    async with RawClient.to(gateway.url) as client:
        client.send(sent)
        await client.flush()
        WAYS[way](client)
        if way != "resets":
            assert await client.rest() == b""
    assert await metric(gateway, "kvlane_requests_total") is None


@pytest.mark.parametrize("way", WAYS)
async def test_requests_in_line_behind_the_one_that_is_left_are_not_sent(way: str) -> None:
    async with Cluster(1, REAL_TIME) as cluster, serving(*cluster.urls) as gateway, RawClient.to(gateway.url) as client:
        await cluster.stall(0)
        client.send(request(CHAT, STREAM) * 3)
        await until(lambda: cluster[0].facts.live)
        left_at = asyncio.get_running_loop().time()
        WAYS[way](client)
        await check_departure(cluster[0], left_at, "waiting")
        assert len(asked(cluster[0])) == 1


async def test_a_client_that_leaves_while_its_request_is_tried_elsewhere_leaves_nothing() -> None:
    """The first engine refuses, the second hangs."""
    async with Cluster(2, REAL_TIME) as cluster, serving(*cluster.urls, policy="round_robin") as gateway:
        await cluster[0].inject(Fault(Kind.STATUS, status=503))
        await cluster[1].inject(Fault(Kind.HANG))
        async with RawClient.to(gateway.url) as client:
            client.ask(CHAT, STREAM)
            await until(lambda: asked(cluster[1]))
        await until(lambda: cluster[1].facts.departures)


async def test_many_clients_that_leave_at_once_leave_nothing() -> None:
    """S10, and in every phase: some wait, some stream, some have just asked."""
    async with Cluster(2, Settings(time_scale=0.2, max_num_seqs=8)) as cluster, serving(*cluster.urls) as gateway:

        async def visit(at: int) -> None:
            async with RawClient.to(gateway.url) as client:
                client.ask(CHAT, chat(f"{at} " * 300, stream=at % 3 > 0, sim={"output_tokens": 200 + at}))
                if at % 2:
                    await anext(client.pieces(await client.head()))
                else:
                    await asyncio.sleep(at / 1000)
                list(WAYS.values())[at % 2](client)

        await asyncio.gather(*(visit(at) for at in range(60)))
        await until(lambda: not any(engine.facts.live for engine in cluster))
        assert await metric(gateway, "kvlane_requests_total", outcome="disconnected")


async def test_clients_that_leave_say_nothing_about_the_engine(gateway: Gateway, engine: SimulatedEngine) -> None:
    """C11: whatever their own timeouts are."""
    await engine.inject(Fault(Kind.HANG))
    for at in range(20):
        async with RawClient.to(gateway.url) as client:
            client.ask(CHAT, chat(stream=at % 2 == 0))
            await until(lambda: gateway.proxy.active)
        await until(lambda: not gateway.proxy.active)
    await engine.clear()
    assert ready_endpoints(gateway) == ["E0"]
    assert await metric(gateway, "kvlane_endpoint_failures_total") is None
    assert (await call(gateway.url, CHAT, chat())).status == 200


async def test_an_answer_that_crosses_its_clients_leaving_ends_once(gateway: Gateway) -> None:
    """Grant and cancel in the same tick, in whichever order the loop has them."""
    for at in range(30):
        async with RawClient.to(gateway.url) as client:
            client.ask(CHAT, orjson.dumps({"model": "sim", "messages": [], "max_tokens": 1, "stream": at % 2 == 0}))
            for _ in range(at % 10):
                await asyncio.sleep(0)
    await until(lambda: not gateway.proxy.active)
    assert (await call(gateway.url, CHAT, chat())).status == 200
