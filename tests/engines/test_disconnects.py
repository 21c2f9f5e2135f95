"""A client that goes away takes its request off the engine, wherever that has got to.

llama.cpp sees that a client has left when it writes a token to it. Before the first token, and for answers that are not
streamed, it looks only after a second in which nothing else has moved in its queue: every token of another stream and
every reading of /metrics or /slots begins that second anew. So here it is asked seldom, by these tests and the gateway.
"""

import asyncio
from urllib.parse import urlsplit

import orjson
import pytest

from gateway.app import Gateway
from tests.engines.house import CHAT, before, counted, endless
from tests.engines.real import SEQUENCES, SLOTS, RealEngine
from tests.wire.client import RawClient

pytestmark = pytest.mark.engines

SEEN_S = 1.0
UNSEEN_S = 6.0
SELDOM_S = 1.5
SELDOM = {"timeout_s": 30, "state_interval_s": 60}
LONG_PROMPT = "word " * 400  # of two tokens; on the slow engine, seconds of prefill
BATCH_S = 30.0  # of a prefill is not left before it is done: 512 tokens or more


async def is_left(gateway: Gateway, clients: int = 1) -> None:
    """Make sure that the gateway took it for what it was."""
    assert await counted(gateway, "kvlane_requests_total", outcome="disconnected") == clients
    assert await counted(gateway, "kvlane_endpoint_failures_total") == 0


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_stream_ends_when_its_client_leaves(busy: RealEngine, how: str) -> None:
    async with before(busy) as gateway:
        client = await open_stream(gateway)
        await busy.comes_to(1)
        client.close() if how == "close" else client.reset()
        await busy.comes_to(0, within_s=SEEN_S)
        await is_left(gateway)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_an_answer_that_is_not_streamed_ends_when_its_client_leaves(busy: RealEngine, how: str) -> None:
    async with before(busy, health=SELDOM) as gateway, RawClient.to(gateway.url) as client:
        client.ask(CHAT, orjson.dumps(endless()))
        await busy.comes_to(1)
        client.close() if how == "close" else client.reset()
        if busy.name == "vllm":
            await busy.comes_to(0, within_s=SEEN_S)
        else:
            await busy.comes_to(0, within_s=UNSEEN_S, every_s=SELDOM_S)
        await is_left(gateway)


async def test_a_request_that_waits_in_vllm_is_taken_back(vllm_up: RealEngine) -> None:
    async with before(vllm_up) as gateway:
        holders = await asyncio.gather(*(open_stream(gateway) for _ in range(SEQUENCES)))
        async with RawClient.to(gateway.url) as waiter:
            waiter.ask(CHAT, orjson.dumps(endless(stream=True)))
            await vllm_up.comes_to(SEQUENCES, 1)
            waiter.close()
            await vllm_up.comes_to(SEQUENCES, within_s=SEEN_S)
        for holder in holders:
            holder.close()
        await vllm_up.comes_to(0, within_s=SEEN_S)
        await is_left(gateway, SEQUENCES + 1)


async def test_a_request_that_waits_in_llamacpp_ends_with_its_first_token(slow_up: RealEngine) -> None:
    async with before(slow_up, health=SELDOM) as gateway:
        holders = await asyncio.gather(*(open_stream(gateway) for _ in range(SLOTS)))
        async with RawClient.to(gateway.url) as waiter:
            waiter.ask(CHAT, orjson.dumps(endless(stream=True)))
            await slow_up.comes_to(SLOTS, 1)
            waiter.close()
            holders.pop().close()
            await slow_up.comes_to(SLOTS - 1, within_s=UNSEEN_S, every_s=SELDOM_S)
        for holder in holders:
            holder.close()
        await slow_up.comes_to(0, within_s=SEEN_S)
        await is_left(gateway, SLOTS + 1)


async def open_client(gateway: Gateway) -> RawClient:
    place = urlsplit(gateway.url)
    return RawClient(*await asyncio.open_connection(place.hostname, place.port))


async def open_stream(gateway: Gateway) -> RawClient:
    """Ask for an endless stream, and read its beginning."""
    client = await open_client(gateway)
    client.ask(CHAT, orjson.dumps(endless(stream=True)))
    await anext(client.pieces(await client.head()))
    return client


async def test_a_client_that_leaves_during_the_prefill_ends_it(slow_up: RealEngine) -> None:
    async with before(slow_up, health=SELDOM) as gateway:
        async with RawClient.to(gateway.url) as client:
            client.ask(CHAT, orjson.dumps(endless(LONG_PROMPT, stream=True)))
            await asyncio.sleep(0.5)  # into the prefill: nothing tells, since /metrics waits for the batch
        await slow_up.comes_to(0, within_s=BATCH_S, every_s=SELDOM_S)
        await is_left(gateway)
