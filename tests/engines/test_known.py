"""What the gateway finds out about real engines: kind, models, limits, load, caches."""

import asyncio
import re

import pytest

from gateway.app import Gateway
from gateway.config import Kind
from policies.endpoint import EngineReport
from policies.health import State
from tests.engines.house import CHAT, ask, before, chat, endless, endpoints, until
from tests.engines.real import BLOCK, CONTEXT, NAME, SEQUENCES, SLOTS, RealEngine
from tests.wire.client import get

pytestmark = pytest.mark.engines

KINDS = {"vllm": Kind.VLLM, "llama.cpp": Kind.LLAMACPP}
AT_ONCE = {"vllm": SEQUENCES, "slow llama.cpp": SLOTS}


async def test_is_recognised_and_tells_its_models_and_limit(engine: RealEngine, gateway: Gateway) -> None:
    (member,) = gateway.fleet.members()
    await until(lambda: member.endpoint.models)
    assert member.kind is KINDS[engine.name]
    assert member.endpoint.health.state is State.READY
    assert member.endpoint.models == {NAME}
    assert member.endpoint.max_context_tokens == CONTEXT
    (listed,) = (await get(gateway.url, "/v1/models")).json["data"]
    assert (listed["id"], listed["owned_by"], listed["max_model_len"]) == (NAME, "kvlane", CONTEXT)


async def test_an_idle_engine_reports_no_load_and_its_true_capacity(engine: RealEngine, gateway: Gateway) -> None:
    (endpoint,) = endpoints(gateway)
    await until(lambda: endpoint.report.running == 0, lambda: endpoint.report)
    report = endpoint.report
    assert (report.running, report.waiting, report.kv_usage) == (0, 0, 0)
    assert report.kv_capacity_tokens == await capacity_of(engine)
    assert report.block_tokens == (BLOCK if engine.name == "vllm" else None)
    assert report.prefix_query_tokens is not None
    assert report.prefix_hit_tokens is not None


async def capacity_of(engine: RealEngine) -> int:
    """Read it where an operator would look."""
    if engine.name == "vllm":
        page = (await get(engine.url, "/metrics")).body.decode()
        blocks = re.search(r'num_gpu_blocks="(\d+)"', page)
        assert blocks is not None
        return int(blocks[1]) * BLOCK
    return sum(slot["n_ctx"] for slot in await engine.page("/slots"))


async def test_figures_follow_the_load_and_go_back(busy: RealEngine) -> None:
    async with before(busy) as gateway:
        (endpoint,) = endpoints(gateway)
        extra, at_once = 3, AT_ONCE[busy.name]
        clients = [
            asyncio.create_task(ask(gateway, CHAT, endless(f"{at}", stream=True))) for at in range(at_once + extra)
        ]
        await until(
            lambda: (endpoint.report.running, endpoint.report.waiting) == (at_once, extra) and endpoint.report.kv_usage,
            lambda: (endpoint.report, endpoint.outstanding),
        )
        assert endpoint.outstanding.requests == at_once + extra
        assert 0 < (endpoint.report.kv_usage or 0) <= 1
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await until(lambda: is_idle(endpoint.report), lambda: endpoint.report)
        assert endpoint.outstanding.requests == 0


def is_idle(report: EngineReport) -> bool:
    return (report.running, report.waiting, report.kv_usage) == (0, 0, 0)


async def test_hits_in_the_prefix_cache_are_seen(engine: RealEngine, gateway: Gateway) -> None:
    (endpoint,) = endpoints(gateway)
    body = chat("A story that nobody has told before. " * 20, max_tokens=2)
    asked, hits = figures(endpoint.report)
    prompt_tokens = (await ask(gateway, CHAT, body)).json["usage"]["prompt_tokens"]
    await until(lambda: figures(endpoint.report)[0] == asked + prompt_tokens, lambda: endpoint.report)
    asked, hits = figures(endpoint.report)
    await ask(gateway, CHAT, body)
    await until(lambda: figures(endpoint.report)[0] == asked + prompt_tokens, lambda: endpoint.report)
    assert prompt_tokens - BLOCK <= figures(endpoint.report)[1] - hits < prompt_tokens


def figures(report: EngineReport) -> tuple[float, float]:
    """Give the tokens that were looked for in the cache, and found."""
    assert report.prefix_query_tokens is not None
    assert report.prefix_hit_tokens is not None
    return report.prefix_query_tokens, report.prefix_hit_tokens


async def test_the_metrics_page_says_what_the_engine_says(engine: RealEngine, gateway: Gateway) -> None:
    (endpoint,) = endpoints(gateway)
    await until(lambda: endpoint.report.running == 0)
    page = (await get(gateway.admin_url, "/metrics")).body.decode()
    assert 'kvlane_endpoint_state{endpoint="E0",pool="default",state="ready"} 1.0' in page
    for name in ("running_requests", "waiting_requests", "kv_usage_ratio"):
        assert f'kvlane_engine_{name}{{endpoint="E0"}} 0.0' in page
