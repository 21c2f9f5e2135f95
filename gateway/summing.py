"""The metrics pages of several gateways as one.

    counter, histogram  added up, series by series; of two exemplars the later is kept
    gauge               added up where that means something (ADDED), else one series for each gateway, with a label

Prometheus needs none of this: it scrapes each gateway, and `sum by (…)` does the rest. This is for who looks at a fleet
without it. prometheus_client's own way to sum the pages of several processes has no exemplars.

All pages are in OpenMetrics' format. A histogram whose bounds differ from page to page, as between two versions, is not
added up but told for each gateway.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

ADDED = frozenset(
    (
        "kvlane_active_requests",
        "kvlane_decoding_requests",
        "kvlane_inflight_requests",
        "kvlane_limiter_owed_settlements",
        "kvlane_pending_prefill_seconds",
        "kvlane_pending_prefill_tokens",
        "kvlane_pinned_tokens",
        "kvlane_pool_backlog_seconds",
        "kvlane_pool_busy_replicas",
        "kvlane_pool_needed_replicas",
        "kvlane_queued_requests",
    )
)
"""Gauges of what each gateway has for itself. What is said of the engines, or of the process, is not to be added."""

GATEWAY = "gateway"
SUMS = ("counter", "histogram")

Key = tuple[str, tuple[tuple[str, str], ...]]


class NoMetricsPage(ValueError):
    """What a gateway gave is no page in OpenMetrics' format."""


class Sum(Collector):
    """Several pages, added up.

    Args:
        pages: By the name of the gateway.

    Raises:
        NoMetricsPage: one is none; the message names the gateway.
    """

    def __init__(self, pages: Mapping[str, str]) -> None:
        found: dict[str, dict[str, Metric]] = {}
        for gateway, page in pages.items():
            try:
                for family in _parsed(page):
                    found.setdefault(family.name, {})[gateway] = family
            except (ValueError, IndexError, KeyError) as error:  # the parser is made for good pages
                raise NoMetricsPage(f"{gateway}: this is no metrics page: {error}") from error
        self._families = [_one(families) for families in found.values()]

    def collect(self) -> Iterable[Metric]:
        """Give the sum, as a page is rendered from it."""
        return self._families

    def page(self, *, is_openmetrics: bool = True) -> bytes:
        """Render it: with exemplars, or in the older format that has none."""
        render = openmetrics.generate_latest if is_openmetrics else exposition.generate_latest
        return bytes(render(self))


def _parsed(page: str) -> Iterable[Metric]:
    parse: Any = text_string_to_metric_families
    yield from parse(page)


def _one(families: Mapping[str, Metric]) -> Metric:
    """Bring together what the gateways say of one metric."""
    first = next(iter(families.values()))
    whole = Metric(first.name, first.documentation, first.type)
    types = {family.type for family in families.values()}
    bounds = {frozenset(_bounds(family)) for family in families.values()}
    if len(types) == 1 and (first.type in SUMS or first.name in ADDED) and len(bounds - {frozenset()}) <= 1:
        whole.samples = _added(families.values())
    else:
        whole.samples = [
            sample._replace(labels={**sample.labels, GATEWAY: gateway})
            for gateway, family in families.items()
            for sample in family.samples
        ]
    return whole


def _added(families: Iterable[Metric]) -> list[Sample]:
    sums: dict[Key, Sample] = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            known = sums.get(key)
            if known is not None:
                later = _later(known.exemplar, sample.exemplar)
                sample = sample._replace(value=known.value + sample.value, exemplar=later)
            sums[key] = sample
    return list(sums.values())


def _later(one: Exemplar | None, other: Exemplar | None) -> Exemplar | None:
    return max(
        (each for each in (one, other) if each is not None), key=lambda each: each.timestamp or 0.0, default=None
    )


def _bounds(family: Metric) -> Iterable[str]:
    return (sample.labels["le"] for sample in family.samples if "le" in sample.labels)
