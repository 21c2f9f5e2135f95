"""Every kind has an adapter, and none of them raises."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines import llamacpp, sglang, tgi, triton, trtllm, vllm
from gateway.engines.adapter import Adapter, Kind, Page
from gateway.engines.catalog import ADAPTERS
from gateway.engines.detect import DETECT_PATHS, detect
from gateway.routes import ENGINE_ROUTES
from tests.gateway.engines.garbage import ANYTHING, UNTIMED
from tests.gateway.engines.pages import answer, capture, page

PATHS = sorted({path for adapter in ADAPTERS.values() for path in (*adapter.state_paths, *adapter.model_paths)})
NAMES = sorted(
    name
    for module in (llamacpp, sglang, tgi, triton, trtllm, vllm)
    for name in vars(module).values()
    if isinstance(name, str) and name.startswith(("vllm:", "sglang:", "trtllm_", "nv_", "llamacpp:", "tgi_"))
)
LABELS = st.dictionaries(
    st.sampled_from(
        ["engine", "dp_rank", "priority", "request_type", "kv_cache_block_type", "block_size", "num_gpu_blocks"]
    ),
    st.sampled_from(["", "0", "1", "max", "used", "fraction", "tokens_per", "active", "scheduled", "None", "16"]),
    max_size=3,
)
LINES = st.builds(
    lambda name, labels, value: f"{name}{{{','.join(labels)}}} {value}\n",
    st.sampled_from(NAMES),
    LABELS.map(lambda labels: [f'{key}="{value}"' for key, value in labels.items()]),
    st.floats(width=32) | st.integers(-2, 100),
)
FIELDS = st.sampled_from(
    (
        *("data", "id", "owned_by", "meta", "n_ctx", "aliases", "max_model_len", "parent", "model_id", "loads"),
        *("num_reqs", "num_running_reqs", "kvCacheStats", "next_token", "is_processing", "random_seed"),
        *("default_generation_settings", "media_marker"),
    )
)
SHAPES = st.recursive(
    ANYTHING, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12
)
BODIES = (
    st.binary(max_size=60)
    | st.lists(LINES, max_size=12).map(lambda lines: "".join(lines).encode())
    | SHAPES.map(lambda value: orjson.dumps(value, default=str) if _fits(value) else b"")
)
ASKED = st.dictionaries(
    st.sampled_from(PATHS), st.tuples(st.sampled_from([200, 200, 200, 404, 501, 503]), BODIES), max_size=4
).map(lambda told: {path: Page(path, status, body, {}) for path, (status, body) in told.items()})


def _fits(value: object) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:  # numbers beyond 64 bits and lone surrogates
        return False
    return True


def test_every_kind_has_its_adapter() -> None:
    assert list(ADAPTERS) == list(Kind)
    assert [adapter.kind for adapter in ADAPTERS.values()] == list(Kind)
    assert {kind: adapter.takes_unknown_fields for kind, adapter in ADAPTERS.items()} == {
        Kind.VLLM: True,
        Kind.SGLANG: True,
        Kind.TRTLLM: False,
        Kind.TRITON: False,
        Kind.LLAMACPP: True,
        Kind.TGI: True,
    }


def test_detects_by_pages_that_are_asked_anyway() -> None:
    assert set(DETECT_PATHS) <= set(PATHS)


@UNTIMED
@given(st.sampled_from(list(ADAPTERS.values())), ASKED)
def test_no_adapter_raises_and_every_figure_is_in_its_range(adapter: Adapter, asked: dict[str, Page]) -> None:
    told = adapter.read_state(asked)
    for figure in (told.running, told.waiting, told.kv_capacity_tokens, told.block_tokens):
        assert figure is None or figure >= 0
    assert told.kv_usage is None or 0 <= told.kv_usage <= 1
    assert told.prefix_hit_tokens is None or told.prefix_hit_tokens >= 0
    for model in adapter.read_models(asked):
        assert model.id
        assert model.max_context_tokens is None or model.max_context_tokens >= 0
    adapter.incarnation(asked)
    detect(asked)


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=lambda adapter: adapter.kind.value)
def test_a_page_cut_anywhere_breaks_nothing(adapter: Adapter) -> None:
    whole = [
        *(page("/metrics", capture(name)) for name in ("sglang_metrics.txt", "triton_metrics.txt", "tgi_metrics.txt")),
        page("/prometheus/metrics", capture("trtllm_prometheus_metrics.txt")),
        page("/metrics", capture("trtllm_iteration_metrics.json")),
        *(answer(f"llama_{name}.txt", f"/{name}") for name in ("slots", "props")),
        answer("llama_v1_models.txt", "/v1/models"),
        answer("vllm_models.txt", "/v1/models"),
    ]
    for each in whole:
        for end in range(0, len(each.body), 97):
            cut = {each.path: Page(each.path, 200, each.body[:end], each.headers)}
            adapter.read_state(cut)
            adapter.read_models(cut)
            adapter.incarnation(cut)
            detect(cut)


def test_only_routes_whose_bodies_an_engine_salts_are_told_as_such() -> None:
    salted = {kind: adapter.salted_paths for kind, adapter in ADAPTERS.items()}
    assert all(path in ENGINE_ROUTES for paths in salted.values() for path in paths)
    assert {kind for kind, paths in salted.items() if "/v1/chat/completions" in paths} == {
        Kind.VLLM,
        Kind.SGLANG,
        Kind.TRTLLM,
    }
    assert not any("/v1/messages" in paths for paths in salted.values())
