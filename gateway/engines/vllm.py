"""vLLM, V1 engine (0.8 and later), from its always-on metrics page.

One series an engine core (label `engine`: the data-parallel rank): counts and capacity add up, usage is the
mean. Until 0.9 the cache metrics were called `gpu_*`; 0.9 to 0.11 have both.

What the figures mean: usage counts blocks of live requests only, so it is 0 on an idle engine with a full
prefix cache. Gauges move when the API process handles the output of a step: during a long prefill they are
stale and low.
"""

from collections.abc import Mapping

from gateway.engines import figures
from gateway.engines.adapter import Kind, Page, ServedModel
from gateway.engines.exposition import Exposition, read_metrics, start_time, wanted
from gateway.engines.models import LIST_PATH, read_list
from policies.endpoint import EngineReport

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP_STATE = "vllm:engine_sleep_state"
METRICS = wanted(RUNNING, WAITING, *USAGE, *HITS, *QUERIES, CACHE_CONFIG, SLEEP_STATE)


class Vllm:
    """How vLLM is asked and read."""

    kind = Kind.VLLM
    health_path = "/health"  # says that the engine core lives; a wedged GPU, a pause and a drain show 200 too
    state_paths: tuple[str, ...] = ("/metrics",)
    model_paths: tuple[str, ...] = (LIST_PATH,)
    min_state_interval_s = 0.0
    takes_unknown_fields = True
    salted_paths = frozenset(
        (
            *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
            *("/v1/embeddings", "/v1/rerank", "/v1/score", "/classify", "/pooling"),
        )
    )
    """All but Anthropic's and audio: what it makes of those bodies has no salt."""
    cuts_output = False

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and cache figures."""
        metrics = read_metrics(pages, METRICS)
        return EngineReport(
            running=figures.whole(metrics.total(RUNNING)),
            waiting=figures.whole(metrics.total(WAITING)),
            kv_usage=metrics.mean(*USAGE),
            kv_capacity_tokens=_capacity_tokens(metrics),
            block_tokens=_block_tokens(metrics),
            is_asleep=_is_asleep(metrics),
            prefix_hit_tokens=metrics.total(*HITS),
            prefix_query_tokens=metrics.total(*QUERIES),
        )

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read base models and, with a `parent`, LoRA adapters."""
        return read_list(pages)

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Name the run by the process's start time; not told with --api-server-count over 1."""
        return start_time(pages)


def _is_asleep(metrics: Exposition) -> bool | None:
    """Whether any rank sleeps; older versions do not tell."""
    awake = [sample.value for sample in metrics.samples(SLEEP_STATE) if sample.labels.get("sleep_state") == "awake"]
    return min(awake) < 1 if awake else None


def _capacity_tokens(metrics: Exposition) -> int | None:
    """Add up the caches of all ranks; before 0.2x the page told blocks only."""
    return figures.whole(
        figures.total(
            figures.amount(labels.get("kv_cache_size_tokens"))
            or figures.product(labels.get("num_gpu_blocks"), labels.get("block_size"))
            for labels in (sample.labels for sample in metrics.samples(CACHE_CONFIG))
        )
    )


def _block_tokens(metrics: Exposition) -> int | None:
    for sample in metrics.samples(CACHE_CONFIG):
        return figures.whole(sample.labels.get("block_size"))
    return None
