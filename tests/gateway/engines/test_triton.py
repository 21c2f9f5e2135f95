"""Triton: one metric with many types, wherever its page was read."""

import re

from gateway.engines.adapter import ServedModel
from gateway.engines.triton import Triton
from policies.endpoint import EngineReport
from tests.gateway.engines.pages import capture, page, pages

METRICS = capture("triton_metrics.txt")
BUSY = EngineReport(running=22, waiting=3, kv_usage=0.64, kv_capacity_tokens=399296, block_tokens=64)


def read(body: bytes, path: str = "/metrics") -> EngineReport:
    return Triton().read_state(pages(page(path, body)))


def without(*types: bytes) -> bytes:
    """Strike series out of the page by their type."""
    return re.sub(rb'(?m)^.*type="(%b)".*\n' % b"|".join(types), b"", METRICS)


def test_reads_the_page_whatever_port_it_came_from() -> None:
    assert read(METRICS) == read(METRICS, "http://10.0.0.1:8002/metrics") == BUSY


def test_older_versions_tell_no_waiting_and_no_fraction() -> None:
    told = read(without(b"waiting", b"fraction"))
    assert (told.running, told.waiting, told.kv_usage) == (22, 3, 3993 / 6239)


def test_active_stands_in_for_scheduled_and_pending_for_waiting() -> None:
    told = read(without(b"waiting", b"scheduled"))
    assert (told.running, told.waiting) == (25, 3)


def test_missing_is_not_zero() -> None:
    assert read(b"") == Triton().read_state({}) == EngineReport()
    assert read(b'nv_inference_pending_request_count{model="m"} 2\n') == EngineReport(waiting=2)


def test_reads_the_models_of_the_frontend() -> None:
    listed = page(
        "/v1/models", b'{"object":"list","data":[{"id":"tensorrt_llm","owned_by":"Triton Inference Server"}]}'
    )
    assert Triton().read_models(pages(listed)) == (ServedModel("tensorrt_llm"),)
    assert Triton().incarnation(pages(listed)) is None
