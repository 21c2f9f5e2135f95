"""Text Generation Inference 3, from its always-on metrics page and /info.

It tells neither cache nor prefix hits: usage is the token budget that the current batch takes of the largest
it could have. Gauges move when the batch changes, and the batch is 0 when idle.
"""

from collections.abc import Mapping

from gateway.engines import figures
from gateway.engines.adapter import Kind, Page, ServedModel
from gateway.engines.exposition import read_metrics, wanted
from policies.endpoint import EngineReport

INFO_PATH = "/info"
RUNNING = "tgi_batch_current_size"
WAITING = "tgi_queue_size"
BATCH_TOKENS = "tgi_batch_current_max_tokens"
CAPACITY = "tgi_batch_max_total_tokens"
METRICS = wanted(RUNNING, WAITING, BATCH_TOKENS, CAPACITY)


class Tgi:
    """How TGI is asked and read."""

    kind = Kind.TGI
    health_path = "/health"
    state_paths: tuple[str, ...] = ("/metrics",)
    model_paths: tuple[str, ...] = (INFO_PATH,)
    min_state_interval_s = 0.0
    takes_unknown_fields = True
    salted_paths: frozenset[str] = frozenset()
    cuts_output = False

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and budget figures."""
        metrics = read_metrics(pages, METRICS)
        capacity = metrics.total(CAPACITY)
        return EngineReport(
            running=figures.whole(metrics.total(RUNNING)),
            waiting=figures.whole(metrics.total(WAITING)),
            kv_usage=figures.share(figures.quotient(metrics.total(BATCH_TOKENS), capacity)),
            kv_capacity_tokens=figures.whole(capacity),
        )

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read the one model; its limit is prompt plus output, as `max_total_tokens` is."""
        page = pages.get(INFO_PATH)
        info = figures.fields(None if page is None else page.parse_json())
        name = figures.text(info.get("model_id"))
        return () if name is None else (ServedModel(name, figures.whole(info.get("max_total_tokens"))),)

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Tell nothing: TGI shows neither a start time nor anything drawn at the start."""
        return None
