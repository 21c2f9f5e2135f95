"""SGLang: the live source, the metrics page, and what old engines have instead."""

import re

import orjson

from gateway.engines.adapter import ServedModel
from gateway.engines.sglang import LOADS_PATH, Sglang
from policies.endpoint import EngineReport
from tests.gateway.engines.pages import capture, page, pages

METRICS = capture("sglang_metrics.txt")
LABELS = b'{engine_type="unified",model_name="Qwen/Qwen3-32B",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
GAUGES = EngineReport(
    running=37,
    waiting=4,
    kv_usage=0.71,
    kv_capacity_tokens=476822,
    block_tokens=1,
    prefix_hit_tokens=4980123.0,
    prefix_query_tokens=8249020.0,
)


def rank(number: int, **changed: object) -> dict[str, object]:
    """Make one rank of /v1/loads."""
    told: dict[str, object] = {
        "dp_rank": number,
        "num_running_reqs": 10 + number,
        "num_waiting_reqs": number,
        "num_waiting_uncached_tokens": 900,
        "num_used_tokens": 1000,
        "num_total_tokens": 1900,
        "max_total_num_tokens": 4000,
        "max_running_requests": 256,
        "token_usage": 0.25 * (number + 1),
        "gen_throughput": 812.5,
        "cache_hit_rate": 0.5,
        "utilization": -1,
    }
    return told | changed


def loads(*ranks: object) -> bytes:
    return orjson.dumps({"timestamp": "2026-11-29T15:33:52Z", "version": "0.5.23", "loads": ranks})


def read(metrics: bytes | None = None, loads: bytes | None = None, get_load: bytes | None = None) -> EngineReport:
    told = ((LOADS_PATH, loads), ("/metrics", metrics), ("/get_load", get_load))
    return Sglang().read_state(pages(*(page(path, body) for path, body in told if body is not None)))


def test_reads_the_metrics_page_alone() -> None:
    assert read(METRICS) == GAUGES


def test_reads_a_page_of_old_engines_with_one_label() -> None:
    assert read(METRICS.replace(LABELS, b'{model_name="Qwen/Qwen3-32B"}')) == GAUGES


def test_believes_the_live_source_before_lagging_gauges() -> None:
    assert read(METRICS, loads(rank(0))) == EngineReport(
        running=10,
        waiting=0,
        kv_usage=0.25,
        kv_capacity_tokens=4000,
        block_tokens=1,
        prefix_hit_tokens=4980123.0,
        prefix_query_tokens=8249020.0,
    )


def test_adds_up_the_ranks_of_the_live_source() -> None:
    assert read(loads=loads(rank(0), rank(1))) == EngineReport(
        running=21, waiting=1, kv_usage=0.375, kv_capacity_tokens=8000
    )


def test_gauges_stand_in_for_what_a_rank_does_not_tell() -> None:
    told = read(METRICS, loads(rank(0), rank(1, num_running_reqs=None, token_usage="full")))
    assert (told.running, told.waiting, told.kv_usage, told.kv_capacity_tokens) == (37, 1, 0.71, 8000)


def test_reads_get_load_of_older_engines() -> None:
    one, other = b'{"dp_rank":0,"num_reqs":7,"num_waiting_reqs":2}', b'{"dp_rank":1,"num_reqs":1,"num_waiting_reqs":0}'
    old = b"[%b,%b]" % (one, other)
    assert read(get_load=old) == EngineReport(running=6, waiting=2)
    assert read(get_load=b'[{"dp_rank":0,"num_reqs":7}]') == EngineReport()


def test_data_parallel_ranks_add_up_and_tensor_parallel_ones_do_not() -> None:
    body = "".join(
        f'sglang:{name}{{dp_rank="{dp}",tp_rank="{tp}"}} {value}\n'
        for name, values in (("num_running_reqs", (3, 5)), ("token_usage", (0.25, 0.5)), ("num_queue_reqs", (1, 0)))
        for dp, value in enumerate(values)
        for tp in range(4)
    )
    assert read(body.encode()) == EngineReport(running=8, waiting=1, kv_usage=0.375)


def test_the_series_without_a_priority_is_the_total() -> None:
    total = b'sglang:num_running_reqs{priority=""} 5\n'
    parts = b'sglang:num_running_reqs{priority="0"} 3\nsglang:num_running_reqs{priority="9"} 2\n'
    assert read(total + parts).running == read(parts + total).running == read(parts).running == 5


def test_requests_waiting_for_a_grammar_wait_too() -> None:
    assert read(re.sub(rb"(?m)^(sglang:num_grammar_queue_reqs\S+) 0.0", rb"\1 3.0", METRICS)).waiting == 7
    assert read(b"sglang:num_grammar_queue_reqs 3.0\n").waiting is None


def test_missing_is_not_zero() -> None:
    assert read() == read(b"") == read(b"", b"<html>") == read(loads=b'{"loads":[]}') == EngineReport()


def test_reads_models_and_finds_the_limit_where_the_list_has_none() -> None:
    base = b'{"id":"q","owned_by":"sglang","root":"q","parent":null,"max_model_len":40960}'
    new = b'{"object":"list","data":[%b,{"id":"q:a","parent":"q"}]}' % base
    old = b'{"object":"list","data":[{"id":"q","object":"model","owned_by":"sglang","root":"q"}]}'
    info = page("/server_info", b'{"model_path":"q","context_length":8192,"random_seed":42}')
    unset = page("/server_info", b'{"model_path":"q","context_length":null}')
    read_models = Sglang().read_models
    assert read_models(pages(page("/v1/models", new))) == (
        ServedModel("q", 40960, root="q"),
        ServedModel("q:a", None, "q"),
    )
    assert read_models(pages(page("/v1/models", old))) == (ServedModel("q", root="q"),)
    assert read_models(pages(page("/v1/models", old), info)) == (ServedModel("q", 8192, root="q"),)
    assert read_models(pages(page("/v1/models", old), unset, page("/metrics", METRICS))) == (
        ServedModel("q", 40960, root="q"),
    )


def test_the_seed_drawn_at_the_start_names_the_run() -> None:
    incarnation = Sglang().incarnation
    assert incarnation(pages(page("/server_info", b'{"random_seed":0}'))) == "seed 0"
    assert incarnation(pages(page("/metrics", METRICS))) is None
    assert incarnation(pages(page("/metrics", b"process_start_time_seconds 5\n"))) is None
