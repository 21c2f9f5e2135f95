"""vLLM's pages of 0.32, and what older versions called the same."""

import re

from gateway.engines.adapter import ServedModel
from gateway.engines.vllm import Vllm
from policies.endpoint import EngineReport
from tests.gateway.engines.pages import answer, capture, page, pages

METRICS = capture("vllm_metrics.txt")
IDLE = EngineReport(
    running=0,
    waiting=0,
    kv_usage=0.0,
    kv_capacity_tokens=131072,
    block_tokens=32,
    is_asleep=False,
    prefix_hit_tokens=544.0,
    prefix_query_tokens=1255.0,
)


def read(body: bytes) -> EngineReport:
    return Vllm().read_state(pages(page("/metrics", body)))


def without(name: bytes, body: bytes = METRICS) -> bytes:
    """Strike a metric out of a page."""
    return re.sub(rb"(?m)^%b[{ ].*\n" % re.escape(name), b"", body)


def test_reads_the_captured_page() -> None:
    assert read(METRICS) == IDLE


def test_reads_the_names_of_0_8() -> None:
    old = METRICS.replace(b"vllm:kv_cache_usage_perc{", b"vllm:gpu_cache_usage_perc{")
    old = old.replace(b"vllm:prefix_cache_", b"vllm:gpu_prefix_cache_")
    old = re.sub(rb'kv_cache_size_tokens="[0-9]*",', b"", old)
    assert b"vllm:kv_cache_usage_perc{" not in old
    assert read(old) == IDLE


def test_believes_the_new_name_where_both_are() -> None:
    both = METRICS + b'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:gpu_prefix_cache_hits_total{engine="0"} 1\n'
    assert read(both) == IDLE


def test_missing_is_not_zero() -> None:
    empty = EngineReport()
    assert read(b"") == read(b"# nothing\n") == Vllm().read_state({}) == empty
    assert Vllm().read_state(pages(page("/metrics", METRICS, status=503))) == empty
    assert read(without(b"vllm:num_requests_waiting")).waiting is None
    assert read(without(b"vllm:kv_cache_usage_perc")).kv_usage is None
    assert read(without(b"vllm:prefix_cache_hits_total")).prefix_hit_tokens is None
    headless = read(without(b"vllm:cache_config_info"))
    assert (headless.kv_capacity_tokens, headless.block_tokens) == (None, None)


def test_adds_up_the_ranks_of_data_parallel_engines() -> None:
    info = 'vllm:cache_config_info{{block_size="16",engine="{}",kv_cache_size_tokens="None",num_gpu_blocks="{}"}} 1.0\n'
    body = (
        'vllm:num_requests_running{model_name="m",engine="0"} 3.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 5.0\n'
        'vllm:num_requests_waiting{engine="0"} 0.0\nvllm:num_requests_waiting{engine="1"} 2.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
        'vllm:prefix_cache_hits_total{engine="0"} 10.0\nvllm:prefix_cache_hits_total{engine="1"} 20.0\n'
        'vllm:prefix_cache_queries_total{engine="0"} 1e2\nvllm:prefix_cache_queries_total{engine="1"} 2e2\n'
    )
    body += info.format(0, 100) + info.format(1, 100)
    assert read(body.encode()) == EngineReport(
        running=8,
        waiting=2,
        kv_usage=0.5,
        kv_capacity_tokens=3200,
        block_tokens=16,
        prefix_hit_tokens=30.0,
        prefix_query_tokens=300.0,
    )


def test_sees_that_an_engine_sleeps() -> None:
    awake = b'sleep_state="awake"} 1.0'
    assert awake in METRICS
    assert read(METRICS.replace(awake, b'sleep_state="awake"} 0.0')).is_asleep
    assert read(without(b"vllm:engine_sleep_state")).is_asleep is None


def test_a_rank_that_does_not_tell_makes_the_sum_untold() -> None:
    body = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} NaN\n'
    assert read(body) == EngineReport()


def test_reads_models_limits_and_adapters() -> None:
    listed = answer("vllm_models.txt", "/v1/models")
    (tiny,) = Vllm().read_models(pages(listed))
    assert (tiny.id, tiny.max_context_tokens, tiny.parent) == ("tiny", 2048, None)
    assert tiny.root is not None
    assert tiny.root.endswith("models/tiny")
    with_lora = listed.body.replace(
        b'"data":[',
        b'"data":[{"id":"law","object":"model","owned_by":"vllm","root":"/adapters/law","parent":"tiny"},',
    )
    assert Vllm().read_models(pages(page("/v1/models", with_lora))) == (
        ServedModel("law", None, "tiny", "/adapters/law"),
        tiny,
    )


def test_a_restart_is_another_incarnation() -> None:
    first = Vllm().incarnation(pages(page("/metrics", METRICS)))
    again = METRICS.replace(
        b"process_start_time_seconds 1.79596630401e+09", b"process_start_time_seconds 1.7959663051e+09"
    )
    assert first == "1795966304.01"
    assert Vllm().incarnation(pages(page("/metrics", again))) == "1795966305.10"
    assert Vllm().incarnation(pages(page("/metrics", without(b"process_start_time_seconds")))) is None
