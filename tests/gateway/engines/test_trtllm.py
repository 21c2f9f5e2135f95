"""trtllm-serve: its Prometheus page, what older ones lack, and the list that drains."""

import re

from gateway.engines.adapter import ServedModel
from gateway.engines.trtllm import Trtllm
from policies.endpoint import EngineReport
from tests.gateway.engines.pages import capture, page, pages

METRICS = capture("trtllm_prometheus_metrics.txt")
BUSY = EngineReport(
    running=22,
    waiting=3,
    kv_usage=0.64,
    kv_capacity_tokens=199648,
    block_tokens=32,
    prefix_hit_tokens=1466211.0,
    prefix_query_tokens=3120113.0,
)


def read(body: bytes, path: str = "/prometheus/metrics") -> EngineReport:
    return Trtllm().read_state(pages(page(path, body)))


def without(*names: bytes) -> bytes:
    """Strike metrics out of the page."""
    return re.sub(rb"(?m)^(%b)[{ ].*\n" % b"|".join(names), b"", METRICS)


def test_reads_the_page() -> None:
    assert read(METRICS) == BUSY


def test_never_asks_by_itself_for_the_page_that_drains() -> None:
    assert Trtllm().state_paths == ("/prometheus/metrics",)
    assert not Trtllm().takes_unknown_fields


def test_reads_the_last_iteration_where_that_page_is_configured() -> None:
    one = capture("trtllm_iteration_metrics.json")
    told = EngineReport(running=22, waiting=3, kv_usage=3993 / 6239, kv_capacity_tokens=199648, block_tokens=32)
    assert read(one, "http://10.0.0.1:8000/metrics") == told
    assert read(b'[{"numActiveRequests":1},' + one[1:], "/metrics") == told
    assert read(b"[]") == read(b'[{"iter":1}]') == read(b"[7]") == EngineReport()


def test_a_version_with_histograms_only_tells_nothing() -> None:
    assert read(re.sub(rb"(?m)^trtllm_(num|kv|prompt).*\n", b"", METRICS)) == EngineReport()


def test_works_out_usage_and_block_size_from_what_else_there_is() -> None:
    told = read(without(b"trtllm_kv_cache_utilization", b"trtllm_kv_cache_tokens_per_block"))
    assert (told.kv_usage, told.block_tokens, told.kv_capacity_tokens) == (3993 / 6239, 32, 199648)
    bare = read(without(b"trtllm_kv_cache_tokens_per_block", b"trtllm_kv_cache_config_info"))
    assert (bare.block_tokens, bare.kv_capacity_tokens) == (None, None)


def test_counts_whole_blocks_where_tokens_are_not_counted() -> None:
    told = read(without(b"trtllm_prompt_cached_tokens_total"))
    assert (told.prefix_hit_tokens, told.prefix_query_tokens) == (88120 * 32.0, 187133 * 32.0)


def test_reads_names_without_limits_and_the_start_time_where_it_is_told() -> None:
    listed = page("/v1/models", b'{"object":"list","data":[{"id":"llama","owned_by":"tensorrt_llm","created":1}]}')
    assert Trtllm().read_models(pages(listed)) == (ServedModel("llama"),)
    assert Trtllm().incarnation(pages(page("/prometheus/metrics", METRICS))) is None
    started = METRICS + b"process_start_time_seconds 1.5e9\n"
    assert Trtllm().incarnation(pages(page("/prometheus/metrics", started))) == "1500000000.00"
