"""llama.cpp's server, from any of its three pages that it was started with."""

import orjson

from gateway.engines.adapter import Page, ServedModel
from gateway.engines.llamacpp import Llamacpp
from policies.endpoint import EngineReport
from tests.gateway.engines.pages import answer, capture, page, pages

METRICS = page("/metrics", capture("llama_metrics.txt"), server="llama.cpp")
DISABLED = answer("llama_metrics_disabled.txt", "/metrics")
SLOTS = answer("llama_slots.txt", "/slots")
PROPS = answer("llama_props.txt", "/props")
MODELS = answer("llama_v1_models.txt", "/v1/models")


def read(*answers: Page) -> EngineReport:
    return Llamacpp().read_state(pages(*answers))


def slots(*told: object) -> Page:
    return page("/slots", orjson.dumps(told))


def busy(**changed: object) -> dict[str, object]:
    """Make a slot at work as b11434 shows it."""
    told: dict[str, object] = {
        "id": 0,
        "n_ctx": 2048,
        "speculative": False,
        "is_processing": True,
        "id_task": 264,
        "n_prompt_tokens": 121,
        "n_prompt_tokens_processed": 0,
        "n_prompt_tokens_cache": 0,
        "next_token": [{"has_next_token": True, "n_remain": 60, "n_decoded": 7}],
    }
    return told | changed


IDLE = {"id": 1, "n_ctx": 2048, "speculative": False, "is_processing": False}


def test_reads_the_captured_pages() -> None:
    assert read(METRICS, SLOTS, PROPS) == EngineReport(
        running=0,
        waiting=0,
        kv_usage=0.0,
        kv_capacity_tokens=8192,
        prefix_hit_tokens=622.0,
        prefix_query_tokens=1210.0,
    )


def test_tells_less_without_its_metrics() -> None:
    assert read(DISABLED, SLOTS, PROPS) == EngineReport(running=0, kv_usage=0.0, kv_capacity_tokens=8192)
    assert read(DISABLED, PROPS) == EngineReport(kv_capacity_tokens=8192)
    assert read(METRICS) == EngineReport(running=0, waiting=0, prefix_hit_tokens=622.0, prefix_query_tokens=1210.0)
    loading = answer("llama_health_loading.txt", "/slots")
    assert read(loading) == read() == EngineReport()


def test_usage_is_what_slots_at_work_hold() -> None:
    told = read(slots(busy(), IDLE))
    assert told == EngineReport(running=1, kv_usage=128 / 4096, kv_capacity_tokens=4096)
    idle_with_a_past = IDLE | {"n_prompt_tokens": 2000, "next_token": [{"n_decoded": 48}]}
    assert read(slots(busy(), idle_with_a_past)) == told
    assert read(slots(busy(n_prompt_tokens=2048))).kv_usage == 1.0


def test_reads_slots_of_older_servers() -> None:
    old = {"id": 0, "n_ctx": 2048, "state": 1, "n_prompt_tokens": 100, "next_token": {"n_decoded": 28}}
    assert read(slots(old, {"id": 1, "n_ctx": 2048, "state": 0})) == EngineReport(
        running=1, kv_usage=128 / 4096, kv_capacity_tokens=4096
    )
    untold = slots(busy(n_prompt_tokens=None, next_token=[]))
    assert read(untold).kv_usage is None
    assert read(untold, page("/metrics", b"llamacpp:kv_cache_usage_ratio 0.5\n")).kv_usage == 0.5


def test_without_cached_tokens_the_asked_ones_are_unknown() -> None:
    told = read(page("/metrics", b"llamacpp:prompt_tokens_total 588\n"))
    assert (told.prefix_hit_tokens, told.prefix_query_tokens) == (None, None)


def test_the_limit_is_the_context_of_one_slot() -> None:
    read_models = Llamacpp().read_models
    assert read_models(pages(MODELS)) == (ServedModel("tiny", 2048),)
    old = page("/v1/models", b'{"object":"list","data":[{"id":"m.gguf","meta":{"n_ctx_train":131072}}]}')
    assert read_models(pages(old)) == (ServedModel("m.gguf"),)
    assert read_models(pages(old, PROPS)) == (ServedModel("m.gguf", 2048),)
    assert read_models(pages(PROPS)) == ()


def test_lists_a_model_under_all_its_names() -> None:
    named = page("/v1/models", MODELS.body.replace(b'"aliases":["tiny"]', b'"aliases":["tiny","small",7]'))
    assert Llamacpp().read_models(pages(named)) == (ServedModel("tiny", 2048), ServedModel("small", 2048))


def test_the_marker_drawn_at_the_start_names_the_run() -> None:
    assert Llamacpp().incarnation(pages(PROPS)) == "<__media_gkF38vpX63ELYctY2Iqkc5mgFGPxRz0R__>"
    assert Llamacpp().incarnation(pages(SLOTS)) is None
