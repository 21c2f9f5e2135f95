"""Every instrument of the program, with unit and labels. The only place that creates instruments.

The hot path writes to plain dictionaries (0.1 us where prometheus_client's own counters cost ten times that); a
collector reads them when somebody scrapes, and prometheus_client renders the page. Gauges are not kept: they are read
from the objects they describe, at scrape time.

Labels are bounded: endpoints, pools and tenants by the configuration, models by the fleet, the rest by enums; what a
client makes up becomes `other`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from policies.record import RequestRecord

MAX_SERIES = 2000  # per instrument: beyond it everything new is counted as `other`
TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160)
TPOT_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600, 1800)
OVERHEAD_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)

Labels = tuple[str, ...]


class Counter:
    """A sum by labels."""

    def __init__(self, name: str, documentation: str, labels: Labels) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add to the series with these label values."""
        values = self.values
        if labels in values:
            values[labels] += amount
        else:
            if len(values) >= MAX_SERIES:
                labels = ("other",) * len(self.labels)
            values[labels] = values.get(labels, 0) + amount

    def collect(self) -> Metric:
        """Give the series as prometheus_client renders them."""
        family = CounterMetricFamily(self.name.removesuffix("_total"), self.documentation, labels=self.labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """A distribution by labels."""

    def __init__(self, name: str, documentation: str, labels: Labels, buckets: tuple[float, ...]) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self._buckets = buckets
        self._names = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self.series: dict[Labels, list[float]] = {}
        """By labels: a count per bucket, and last the sum."""

    def observe(self, labels: Labels, value: float) -> None:
        """Count one value."""
        counts = self.series.get(labels)
        if counts is None:
            if len(self.series) >= MAX_SERIES:
                labels = ("other",) * len(self.labels)
            counts = self.series.setdefault(labels, [0.0] * (len(self._buckets) + 2))
        counts[bisect_left(self._buckets, value)] += 1
        counts[-1] += value

    def collect(self) -> Metric:
        """Give the series as prometheus_client renders them."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, counts in self.series.items():
            total = 0.0
            buckets: list[tuple[str, float]] = []
            for name, count in zip(self._names, counts[:-1], strict=True):
                total += count
                buckets.append((name, total))
            family.add_metric(labels, buckets, counts[-1])
        return family


class Gauge:
    """Values that are read when somebody asks."""

    def __init__(
        self, name: str, documentation: str, labels: Labels, read: Callable[[], Iterable[tuple[Labels, float]]]
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self._read = read

    def collect(self) -> Metric:
        """Read, and give the series as prometheus_client renders them."""
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        return family


class Metrics:
    """All instruments."""

    def __init__(self) -> None:
        self._instruments: list[Counter | Histogram | Gauge] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        request_labels = ("model", "tenant", "outcome", "status")
        self.requests = self._counter("kvlane_requests_total", "Requests that have ended.", request_labels)
        self.refusals = self._counter("kvlane_refusals_total", "Requests refused by the gateway.", ("code",))
        self.endpoint_requests = self._counter(
            "kvlane_endpoint_requests_total", "Tries sent to an endpoint.", ("endpoint", "reason")
        )
        self.endpoint_failures = self._counter(
            "kvlane_endpoint_failures_total",
            "Tries that an endpoint did not serve: busy (429, 503), broken (5xx), unreachable, cut, stalled.",
            ("endpoint", "kind"),
        )
        self.retries = self._counter("kvlane_retries_total", "Further tries on another endpoint.", ("kind",))
        self.retries_denied = self._counter(
            "kvlane_retries_denied_total", "Retries that the retry budget did not allow.", ()
        )
        self.ttft = self._histogram(
            "kvlane_ttft_seconds", "From arrival to the first token, streams.", ("model",), TTFT_BUCKETS
        )
        self.tpot = self._histogram(
            "kvlane_tpot_seconds", "Per output token after the first, streams.", ("model",), TPOT_BUCKETS
        )
        self.e2e = self._histogram("kvlane_request_seconds", "From arrival to the last byte.", ("model",), E2E_BUCKETS)
        self.dispatch = self._histogram(
            "kvlane_dispatch_seconds", "From arrival to the first try.", (), OVERHEAD_BUCKETS
        )
        self.prompt_tokens = self._counter(
            "kvlane_prompt_tokens_total", "Prompt tokens of answered requests.", ("model", "tenant")
        )
        self.output_tokens = self._counter(
            "kvlane_output_tokens_total", "Output tokens, where engines tell.", ("model", "tenant")
        )
        self.cached_tokens = self._counter(
            "kvlane_cached_tokens_total", "Prompt tokens found in a KV cache.", ("source", "model", "tenant")
        )
        self.log_drops = self._counter("kvlane_access_log_drops_total", "Access log lines dropped.", ())

    def _counter(self, name: str, documentation: str, labels: Labels) -> Counter:
        counter = Counter(name, documentation, labels)
        if not labels:
            counter.values[()] = 0.0
        self._instruments.append(counter)
        return counter

    def _histogram(self, name: str, documentation: str, labels: Labels, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, documentation, labels, buckets)
        self._instruments.append(histogram)
        return histogram

    def gauge(
        self,
        name: str,
        documentation: str,
        labels: Labels,
        read: Callable[[], Iterable[tuple[Labels, float]]],
    ) -> None:
        """Let a value be read at scrape time."""
        self._instruments.append(Gauge(name, documentation, labels, read))

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request. `record.model` is empty, or one that the fleet knows."""
        model = (record.model or "none",)
        whose = (*model, record.tenant)
        self.requests.add((*whose, record.outcome.value, str(record.status)))
        if record.code is not None:
            self.refusals.add((record.code,))
        if not record.tries:
            return
        self.e2e.observe(model, record.e2e_s)
        self.dispatch.observe((), record.queue_s)
        if record.ttft_s is not None:
            self.ttft.observe(model, record.ttft_s)
        if record.tpot_s is not None:
            self.tpot.observe(model, record.tpot_s)
        if record.status == 200:
            self.prompt_tokens.add(whose, record.prompt_tokens)
            if record.output_tokens is not None:
                self.output_tokens.add(whose, record.output_tokens)
            if record.cached_tokens is not None:
                self.cached_tokens.add(("reported", *whose), record.cached_tokens)

    def collect(self) -> Iterator[Metric]:
        """Give all series; prometheus_client calls it at each scrape."""
        for instrument in self._instruments:
            yield instrument.collect()

    def page(self, accept: str) -> tuple[str, bytes]:
        """Render all there is, the process's own figures included, in the format that the scraper prefers.

        Returns:
            The content type and the page.
        """
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)
