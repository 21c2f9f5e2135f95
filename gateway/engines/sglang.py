"""SGLang, from /v1/loads (live, always on) and its metrics page (with --enable-metrics).

The gauges of the metrics page move once in 40 decode steps (--decode-log-interval), so /v1/loads is believed
first; block size and prefix counters are on the metrics page alone. Engines older than /v1/loads (2025) have
the metrics page, or /get_load, whose counts are read where it is polled (`metrics_url`): it is not asked by
itself, because today's versions log a warning at each call.

With --enable-metrics-for-all-schedulers every tensor- and pipeline-parallel rank reports the same requests:
of those the largest counts, and only data-parallel ranks add up. With priority scheduling the series with an
empty `priority` is the total of the others.
"""

from collections.abc import Mapping, Sequence

from gateway.engines import figures
from gateway.engines.adapter import Kind, Page, ServedModel
from gateway.engines.exposition import Exposition, read_metrics, wanted
from gateway.engines.models import LIST_PATH, read_list
from policies.endpoint import EngineReport

LOADS_PATH = "/v1/loads?include=core"
INFO_PATH = "/server_info"
RUNNING = "sglang:num_running_reqs"
WAITING = "sglang:num_queue_reqs"
WAITING_FOR_GRAMMAR = "sglang:num_grammar_queue_reqs"
USAGE = "sglang:token_usage"
CAPACITY = "sglang:max_total_num_tokens"
PAGE_SIZE = "sglang:page_size"
CACHED = "sglang:cached_tokens_total"
PROMPTS = "sglang:prompt_tokens_total"
CONTEXT = "sglang:context_len"
METRICS = wanted(RUNNING, WAITING, WAITING_FOR_GRAMMAR, USAGE, CAPACITY, PAGE_SIZE, CACHED, PROMPTS)
LIMIT = wanted(CONTEXT)


class Sglang:
    """How SGLang is asked and read."""

    kind = Kind.SGLANG
    health_path = "/health"  # in every version; makes a token when idle and answers after 1 s at the earliest
    state_paths: tuple[str, ...] = (LOADS_PATH, "/metrics")
    model_paths: tuple[str, ...] = (LIST_PATH, INFO_PATH)
    min_state_interval_s = 0.0
    takes_unknown_fields = True
    salted_paths = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses"))
    cuts_output = False

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and cache figures: live ones where there are any, gauges for the rest."""
        metrics = read_metrics(pages, METRICS)
        report = _read_loads(pages)
        if report.running is None:
            report.running = figures.whole(figures.total(_by_rank(metrics, RUNNING)))
        if report.waiting is None:
            report.waiting = _waiting(metrics)
        if report.kv_usage is None:
            report.kv_usage = figures.mean(_by_rank(metrics, USAGE))
        if report.kv_capacity_tokens is None:
            report.kv_capacity_tokens = figures.whole(figures.total(_by_rank(metrics, CAPACITY)))
        report.block_tokens = next((figures.whole(size) for size in _by_rank(metrics, PAGE_SIZE)), None)
        report.prefix_hit_tokens = metrics.total(CACHED)
        report.prefix_query_tokens = metrics.total(PROMPTS)
        return report

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read base models and LoRA adapters; older lists hold no limits, other pages may."""
        limit = figures.whole(_server_info(pages).get("context_length")) or figures.whole(
            next(iter(_by_rank(read_metrics(pages, LIMIT), CONTEXT)), None)
        )
        return read_list(pages, limit)

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Name the run by its seed, drawn anew at each start unless the operator sets one.

        By nothing else: a second source would look like a second run whenever the first page is not asked. The
        metrics page, shared by several processes, has no start time anyway.
        """
        seed = figures.whole(_server_info(pages).get("random_seed"))
        return None if seed is None else f"seed {seed}"


def _server_info(pages: Mapping[str, Page]) -> Mapping[str, object]:
    page = pages.get(INFO_PATH)
    return figures.fields(None if page is None else page.parse_json())


def _read_loads(pages: Mapping[str, Page]) -> EngineReport:
    """Read /v1/loads, `{"loads": [one a rank]}`, or /get_load, `[one a rank]`, whose `num_reqs` has both."""
    for page in pages.values():
        answer = page.parse_json()
        ranks = [figures.fields(rank) for rank in figures.entries(figures.fields(answer).get("loads"))]
        if ranks:
            return EngineReport(
                running=figures.whole(figures.total(rank.get("num_running_reqs") for rank in ranks)),
                waiting=figures.whole(figures.total(rank.get("num_waiting_reqs") for rank in ranks)),
                kv_usage=figures.mean(rank.get("token_usage") for rank in ranks),
                kv_capacity_tokens=figures.whole(figures.total(rank.get("max_total_num_tokens") for rank in ranks)),
            )
        ranks = [figures.fields(rank) for rank in figures.entries(answer)]
        requests = figures.total(rank.get("num_reqs") for rank in ranks)
        waiting = figures.total(rank.get("num_waiting_reqs") for rank in ranks)
        if requests is not None and waiting is not None:
            return EngineReport(running=figures.whole(max(0.0, requests - waiting)), waiting=int(waiting))
    return EngineReport()


def _waiting(metrics: Exposition) -> int | None:
    """Count the queue, and beside it the requests whose grammar is still being compiled."""
    queued = _by_rank(metrics, WAITING)
    return figures.whole(figures.total([*queued, *_by_rank(metrics, WAITING_FOR_GRAMMAR)])) if queued else None


def _by_rank(metrics: Exposition, name: str) -> Sequence[float]:
    """Give one value a data-parallel rank."""
    samples = metrics.samples(name)
    totals = [sample for sample in samples if not sample.labels.get("priority")]
    if totals:
        ranks: dict[str, float] = {}
        for sample in totals:
            rank = sample.labels.get("dp_rank", "")
            ranks[rank] = max(ranks.get(rank, sample.value), sample.value)
        return list(ranks.values())
    return [sample.value for sample in samples]
