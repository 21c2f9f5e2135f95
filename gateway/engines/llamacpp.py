"""llama.cpp's server, from /slots and /props (on by default) and its metrics page (with --metrics, else 501).

A slot serves one request at a time and holds a context of its own; what all slots hold is the capacity. Usage
is what slots at work hold of it; older servers tell it as a metric. Prefixes are reused token by token, of
the last prompt of a slot only: there are no blocks, so `block_tokens` stays None.

/metrics and /slots wait for the decode batch that is running: seconds, during a long prefill on a CPU.
"""

from collections.abc import Mapping, Sequence

from gateway.engines import figures
from gateway.engines.adapter import Kind, Page, ServedModel
from gateway.engines.exposition import read_metrics, wanted
from gateway.engines.models import LIST_PATH, listed
from policies.endpoint import EngineReport

SLOTS_PATH = "/slots"
PROPS_PATH = "/props"
RUNNING = "llamacpp:requests_processing"
WAITING = "llamacpp:requests_deferred"
USAGE = "llamacpp:kv_cache_usage_ratio"
CACHED = "llamacpp:prompt_tokens_cached_total"
COMPUTED = "llamacpp:prompt_tokens_total"
METRICS = wanted(RUNNING, WAITING, USAGE, CACHED, COMPUTED)


class Llamacpp:
    """How llama.cpp's server is asked and read."""

    kind = Kind.LLAMACPP
    health_path = "/health"
    state_paths: tuple[str, ...] = ("/metrics", SLOTS_PATH, PROPS_PATH)
    model_paths: tuple[str, ...] = (LIST_PATH, PROPS_PATH)
    min_state_interval_s = 2.5
    # A client that left is noticed only after a second in which nothing else was asked of the queue that serves these
    # pages: polling each second would keep its request alive.
    takes_unknown_fields = True
    salted_paths: frozenset[str] = frozenset()
    cuts_output = True

    def read_state(self, pages: Mapping[str, Page]) -> EngineReport:
        """Read load and cache figures."""
        metrics = read_metrics(pages, METRICS)
        slots = _slots(pages)
        props = _props(pages)
        running = metrics.total(RUNNING)
        if running is None and slots:
            running = sum(_is_busy(slot) for slot in slots)
        capacity = figures.total(slot.get("n_ctx") for slot in slots)
        if capacity is None:
            capacity = figures.product(props.get("total_slots"), _slot_tokens(props))
        usage = figures.quotient(figures.total(_held_tokens(slot) for slot in slots), capacity)
        if usage is None:
            usage = metrics.total(USAGE)
        cached = metrics.total(CACHED)
        return EngineReport(
            running=figures.whole(running),
            waiting=figures.whole(metrics.total(WAITING)),
            kv_usage=figures.share(usage),
            kv_capacity_tokens=figures.whole(capacity),
            prefix_hit_tokens=cached,
            prefix_query_tokens=figures.total((cached, metrics.total(COMPUTED))),
        )

    def read_models(self, pages: Mapping[str, Page]) -> tuple[ServedModel, ...]:
        """Read the model under all its names; its limit is the context of one slot."""
        limit = _slot_tokens(_props(pages))
        models: dict[str, ServedModel] = {}
        for name, entry in listed(pages):
            told = figures.whole(figures.fields(entry.get("meta")).get("n_ctx")) or limit
            for alias in (name, *map(figures.text, figures.entries(entry.get("aliases")))):
                if alias is not None:
                    models.setdefault(alias, ServedModel(alias, told))
        return tuple(models.values())

    def incarnation(self, pages: Mapping[str, Page]) -> str | None:
        """Name the run by the marker of media in prompts, drawn at each start since 2026."""
        return figures.text(_props(pages).get("media_marker"))


def _props(pages: Mapping[str, Page]) -> Mapping[str, object]:
    page = pages.get(PROPS_PATH)
    return figures.fields(None if page is None else page.parse_json())


def _slots(pages: Mapping[str, Page]) -> Sequence[Mapping[str, object]]:
    page = pages.get(SLOTS_PATH)
    return [figures.fields(slot) for slot in figures.entries(None if page is None else page.parse_json())]


def _slot_tokens(props: Mapping[str, object]) -> int | None:
    return figures.whole(figures.fields(props.get("default_generation_settings")).get("n_ctx"))


def _is_busy(slot: Mapping[str, object]) -> bool:
    return slot.get("is_processing") is True or slot.get("state") == 1  # the latter until 2024


def _held_tokens(slot: Mapping[str, object]) -> float | None:
    """Give the tokens of the request that a slot works on; what an idle one has left is free to be taken."""
    if not _is_busy(slot):
        return 0.0
    progress = slot.get("next_token")  # one object until 2025, then a list of one
    decoded = figures.fields(next(iter(figures.entries(progress)), progress)).get("n_decoded")
    return figures.total((slot.get("n_prompt_tokens"), decoded))
