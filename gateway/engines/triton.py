"""Triton with the TensorRT-LLM backend, behind its OpenAI frontend, the one face of it that clients can use.

The frontend has the server's metrics at /metrics and its readiness at /health/ready (KServe's
/v2/health/ready is on another port). Where the metrics are only on Triton's own port, 8002, `metrics_url`
names it; the page is read wherever it came from. Its figures are two seconds old at most.

Prefix hits are told by no page.
"""

from collections.abc import Mapping

from gateway.engines import figures
from gateway.engines.adapter import Kind, Page, ServedModel
from gateway.engines.exposition import Exposition, read_metrics, wanted
from gateway.engines.models import LIST_PATH, read_list
from policies.endpoint import EngineReport

REQUESTS = "nv_trt_llm_request_metrics"
BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
PENDING = "nv_inference_pending_request_count"
METRICS = wanted(REQUESTS, BLOCKS, PENDING)


class Triton:
    """How Triton is asked and read."""

    kind = Kind.TRITON
    health_path = "/health/ready"
    state_paths: tuple[str, ...] = ("/metrics",)
    model_paths: tuple[str, ...] = (LIST_PATH,)
    min_state_interval_s = 0.0
    takes_unknown_fields = False  # its schemas say extra="forbid"
    salted_paths: frozenset[str] = frozenset()
    cuts_output = False

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and cache figures.

        `active` counts scheduled and waiting requests together; `waiting` is told by newer versions only.
        """
        metrics = read_metrics(pages, METRICS)
        active = _total(metrics, REQUESTS, "request_type", "active")
        scheduled = _total(metrics, REQUESTS, "request_type", "scheduled")
        waiting = _total(metrics, REQUESTS, "request_type", "waiting")
        if waiting is None and active is not None and scheduled is not None:
            waiting = max(0.0, active - scheduled)
        if waiting is None:
            waiting = metrics.total(PENDING)
        running = active if scheduled is None else scheduled
        blocks, used = _blocks(metrics, "max"), _blocks(metrics, "used")
        fraction = figures.mean(_values(metrics, BLOCKS, "kv_cache_block_type", "fraction"))
        block_tokens = next(iter(_values(metrics, BLOCKS, "kv_cache_block_type", "tokens_per")), None)
        return EngineReport(
            running=figures.whole(running),
            waiting=figures.whole(waiting),
            kv_usage=figures.share(figures.quotient(used, blocks) if fraction is None else fraction),
            kv_capacity_tokens=figures.whole(figures.product(blocks, block_tokens)),
            block_tokens=figures.whole(block_tokens),
        )

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read the names; limits are in each model's own configuration, which no page shows."""
        return read_list(pages)

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Tell nothing: Triton shows neither a start time nor anything drawn at the start."""
        return None


def _values(metrics: Exposition, name: str, label: str, value: str) -> list[float]:
    """Give the values of the series, one a model and version, that a label picks out."""
    return [sample.value for sample in metrics.samples(name) if sample.labels.get(label) == value]


def _total(metrics: Exposition, name: str, label: str, value: str) -> float | None:
    return figures.total(_values(metrics, name, label, value))


def _blocks(metrics: Exposition, kind: str) -> float | None:
    return _total(metrics, BLOCKS, "kv_cache_block_type", kind)
