"""TensorRT-LLM's own server, trtllm-serve, from /prometheus/metrics (with `return_perf_metrics: true`).

Its /metrics is another thing: a JSON list of what happened in each iteration since the last call. Reading
drains it, so it has one consumer, and a gateway that polled it by itself would take it from the operator's
dashboard. It is never asked unless the operator points `metrics_url` at it; then the last iteration is read.
Versions before 2026 export histograms only: everything stays None, and the gateway's own books are all there
is.
"""

from collections.abc import Mapping

from gateway.engines import figures
from gateway.engines.adapter import Kind, Page, ServedModel
from gateway.engines.exposition import Exposition, read_metrics, start_time, wanted
from gateway.engines.models import LIST_PATH, read_list
from policies.endpoint import EngineReport

RUNNING = "trtllm_num_requests_running"
WAITING = "trtllm_num_requests_waiting"
USAGE = "trtllm_kv_cache_utilization"
BLOCKS = "trtllm_kv_cache_max_blocks"
USED_BLOCKS = "trtllm_kv_cache_used_blocks"
BLOCK_TOKENS = "trtllm_kv_cache_tokens_per_block"
CONFIG = "trtllm_kv_cache_config_info"
CACHED = "trtllm_prompt_cached_tokens_total"
PROMPTS = "trtllm_prompt_tokens_total"
REUSED_BLOCKS = "trtllm_kv_cache_reused_blocks_total"
MISSED_BLOCKS = "trtllm_kv_cache_missed_blocks_total"
METRICS = wanted(
    *(RUNNING, WAITING, USAGE, BLOCKS, USED_BLOCKS, BLOCK_TOKENS, CONFIG),
    *(CACHED, PROMPTS, REUSED_BLOCKS, MISSED_BLOCKS),
)


class Trtllm:
    """How trtllm-serve is asked and read."""

    kind = Kind.TRTLLM
    health_path = "/health"
    state_paths: tuple[str, ...] = ("/prometheus/metrics",)
    model_paths: tuple[str, ...] = (LIST_PATH,)
    min_state_interval_s = 0.0
    takes_unknown_fields = False
    salted_paths = frozenset(("/v1/chat/completions",))
    cuts_output = False

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and cache figures."""
        metrics = read_metrics(pages, METRICS)
        if not metrics:
            return _read_iterations(pages)
        block_tokens = _block_tokens(metrics)
        hits, queries = _prefix_tokens(metrics, block_tokens)
        usage = metrics.mean(USAGE)
        if usage is None:
            usage = figures.share(figures.quotient(metrics.total(USED_BLOCKS), metrics.total(BLOCKS)))
        return EngineReport(
            running=figures.whole(metrics.total(RUNNING)),
            waiting=figures.whole(metrics.total(WAITING)),
            kv_usage=usage,
            kv_capacity_tokens=figures.whole(figures.product(metrics.total(BLOCKS), block_tokens)),
            block_tokens=block_tokens,
            prefix_hit_tokens=hits,
            prefix_query_tokens=queries,
        )

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read the names; no page tells a limit, so it has to be configured."""
        return read_list(pages)

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Name the run by the process's start time, where the page has one."""
        return start_time(pages)


def _block_tokens(metrics: Exposition) -> int | None:
    for sample in metrics.samples(BLOCK_TOKENS):
        return figures.whole(sample.value)
    for sample in metrics.samples(CONFIG):
        return figures.whole(sample.labels.get("page_size"))
    return None


def _prefix_tokens(metrics: Exposition, block_tokens: int | None) -> tuple[float | None, float | None]:
    """Give hit and asked tokens, exact where the page counts tokens, else whole blocks."""
    hits, queries = metrics.total(CACHED), metrics.total(PROMPTS)
    if hits is not None and queries is not None:
        return hits, queries
    reused = metrics.total(REUSED_BLOCKS)
    asked = figures.total((reused, metrics.total(MISSED_BLOCKS)))
    return figures.product(reused, block_tokens), figures.product(asked, block_tokens)


def _read_iterations(pages: Mapping[str, Page]) -> EngineReport:
    """Read the newest of a list of iterations."""
    for page in pages.values():
        for entry in reversed(figures.entries(page.parse_json())):
            iteration = figures.fields(entry)
            cache = figures.fields(iteration.get("kvCacheStats"))
            block_tokens = figures.whole(cache.get("tokensPerBlock"))
            usage = figures.quotient(cache.get("usedNumBlocks"), cache.get("maxNumBlocks"))
            return EngineReport(
                running=figures.whole(iteration.get("numActiveRequests")),
                waiting=figures.whole(iteration.get("numQueuedRequests")),
                kv_usage=figures.share(usage),
                kv_capacity_tokens=figures.whole(figures.product(cache.get("maxNumBlocks"), block_tokens)),
                block_tokens=block_tokens,
            )
    return EngineReport()
