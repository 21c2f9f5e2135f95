"""What engines serve beside the API (sleep, weights, caches, adapters) is nowhere to be found through the gateway."""

import re

import pytest

from gateway.app import Gateway
from loadtests.server import SimulatedEngine
from tests.wire.client import RawClient, call, chat, request
from tests.wire.house import asked

CONTROLS = (
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/pause",
    "/resume",
    "/is_paused",
    "/collective_rpc",
    "/update_weights",
    "/init_weight_transfer_engine",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/abort_requests",
    "/start_profile",
    "/stop_profile",
    "/server_info",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/kv_event_sources",
    "/flush_cache",
    "/get_server_info",
    "/get_model_info",
    "/update_weights_from_disk",
    "/release_memory_occupation",
    "/abort_request",
    "/health",
    "/health_generate",
    "/ping",
    "/load",
    "/version",
    "/metrics",
    "/invocations",
    "/generate",
    "/inference/v1/generate",
    "/v1/chat/completions/render",
    "/docs",
    "/openapi.json",
    "/slots/0",
    "/props",
    "/lora-adapters",
    "/sim/faults",
)
TRICKS = (
    "//sleep",
    "/./sleep",
    "/v1/../sleep",
    "/v1//chat/completions",
    "//v1/chat/completions",
    "/v1/./chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions/../../sleep",
    "/v1/chat/completions/../../../sleep",
    "/v1/chat/completions/%2e%2e/%2e%2e/sleep",
    "/v1/%2e%2e/sleep",
    "/v1/%2E%2E%2Fsleep",
    "/v1/..%2fsleep",
    "/v1/..%5csleep",
    "/v1/..\\sleep",
    "/v1/%252e%252e/sleep",
    "/v1/..;/sleep",
    "/%73leep",
    "/sleep%00",
    "/sleep%2f",
    "/sleep?level=1",
    "/sleep?/v1/chat/completions",
    "/sleep#/v1/chat/completions",
    "/v1/chat/completions#/../../sleep",
    "/v1/chat/completions;/../../sleep",
    "/v1/chat%2Fcompletions",
    "/V1/CHAT/COMPLETIONS",
    "/v1/chat/completions%20",
    "/v1/chat/completions%0d%0a",
    "/v1/responses/../../sleep",
    "/v1/responses/%2e%2e/%2e%2e/sleep",
    "/v1/responses/resp_1/../../../sleep",
    "/v1/responses/resp_1/cancel/../../../../sleep",
    "/v1/responses/..%2f..%2fsleep",
    "/v1/responses/resp_1%2f..%2f..%2f..%2fsleep",
    "/v1/responses/resp_1/sleep",
    "http://engine/sleep",
    "http://127.0.0.1:8000/sleep",
    "http://gateway@engine/sleep",
    "https://engine/v1/../sleep",
)


async def check_is_nowhere(gateway: Gateway, engine: SimulatedEngine, method: str, target: str) -> None:
    answer = await call(gateway.url, target, chat() if method == "POST" else b"", method=method)
    assert answer.refusal == (404, "invalid_request_error", "not_found"), target
    assert "x-request-id" in answer.head
    assert asked(engine) == []


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_control_routes_are_nowhere(gateway: Gateway, engine: SimulatedEngine, method: str) -> None:
    for path in CONTROLS:
        await check_is_nowhere(gateway, engine, method, path)


@pytest.mark.parametrize("target", TRICKS)
async def test_no_spelling_of_a_path_leads_to_one(gateway: Gateway, engine: SimulatedEngine, target: str) -> None:
    for method in ("POST", "GET"):
        await check_is_nowhere(gateway, engine, method, target)


@pytest.mark.parametrize("target", ["/v1/models/../../sleep", "/v1/models/%2e%2e/%2e%2e/sleep", "/v1/models//sleep"])
async def test_a_path_below_models_is_a_model_that_is_not_there(
    gateway: Gateway, engine: SimulatedEngine, target: str
) -> None:
    answer = await call(gateway.url, target, method="GET")
    assert answer.refusal == (404, "invalid_request_error", "model_not_found")
    assert asked(engine) == []


@pytest.mark.parametrize("query", ["?a=/../../sleep", "?", "?a=b&c=%20d", "?a?b#c"])
async def test_a_query_goes_with_its_path_and_changes_no_route(
    gateway: Gateway, engine: SimulatedEngine, query: str
) -> None:
    answer = await call(gateway.url, "/v1/chat/completions" + query, chat())
    assert answer.status == 200
    assert [seen.target for seen in asked(engine)] == ["/v1/chat/completions" + query]


@pytest.mark.parametrize(
    "start",
    [b"CONNECT engine:8000 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"TRACE / HTTP/1.1", b"PURGE /sleep HTTP/1.1"],
)
async def test_other_methods_lead_nowhere(client: RawClient, engine: SimulatedEngine, start: bytes) -> None:
    client.send(start + b"\r\nHost: gateway\r\n\r\n")
    answer = await client.answer()
    assert 400 <= answer.status < 500
    assert answer.error["type"] == "invalid_request_error"
    assert asked(engine) == []


async def test_a_key_opens_no_control_route(engine: SimulatedEngine, gateway: Gateway) -> None:
    answer = await call(gateway.url, "/sleep", b"", [("Authorization", "Bearer sk-admin"), ("X-Api-Key", "admin")])
    assert answer.refusal == (404, "invalid_request_error", "not_found")
    assert asked(engine) == []


async def test_a_body_that_looks_like_a_request_is_never_one(client: RawClient, engine: SimulatedEngine) -> None:
    """A refusal leaves a body unread: what comes behind it must still not be taken for a request."""
    hidden = request("/v1/chat/completions", chat())
    client.send(request("/sleep", hidden) + request("/healthz", headers=[("Connection", "close")], method="GET"))
    statuses = re.findall(rb"HTTP/1.1 (\d+)", await client.rest())
    assert statuses in ([b"404"], [b"404", b"200"])
    assert asked(engine) == []
