"""Every instrument of the program, with unit and labels. The only place that creates instruments.

They are read when somebody scrapes, and prometheus_client renders the page: in OpenMetrics' format, with exemplars, for
who asks for that. Gauges are not kept: they are read from the objects they describe, at scrape time. A page of some
hundred tenants takes 30 ms to render, which would be felt in every stream: so it is read on the loop, metric by metric
(all of one in the same instant), and rendered off it.

Labels are bounded: endpoints, pools and tenants by the configuration, models by the fleet, the rest by enums; what a
client makes up becomes `other`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.instruments import MAX_SERIES, Cell, Counter, Gauge, Histogram, Labels, Seen
from policies.record import Outcome, RequestRecord

TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160)
TPOT_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600, 1800)
QUEUE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
OVERHEAD_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
LAG_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class Metrics:
    """All instruments."""

    def __init__(self) -> None:
        self._instruments: list[Counter | Histogram | Gauge] = []
        self._requesters: dict[tuple[str, str], _Requester] = {}
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        request_labels = ("model", "tenant", "outcome", "status")
        self.requests = self._counter("kvlane_requests_total", "Requests that have ended.", request_labels)
        self.refusals = self._counter("kvlane_refusals_total", "Requests refused by the gateway.", ("code", "tenant"))
        self.endpoint_requests = self._counter(
            "kvlane_endpoint_requests_total", "Tries sent to an endpoint.", ("endpoint", "reason")
        )
        self.endpoint_failures = self._counter(
            "kvlane_endpoint_failures_total",
            "Tries without a good answer: the endpoint's fault are connect, cut, stalled, broken (5xx), but not "
            "busy (429, 503), client and over_length (4xx), deadline, files.",
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
        self.queue_wait = self._histogram(
            "kvlane_queue_wait_seconds", "Of requests that had to wait for room.", ("class",), QUEUE_BUCKETS
        )
        self.queue_wait_predicted = self._histogram(
            "kvlane_queue_wait_predicted_seconds",
            "Of the same requests, as predicted when they came.",
            ("class",),
            QUEUE_BUCKETS,
        )
        self.loop_lag = self._histogram(
            "kvlane_loop_lag_seconds",
            "How late the event loop was, asked twice a second: what every stream's chunks suffer.",
            (),
            LAG_BUCKETS,
        )
        self.admission_refusals = self._counter(
            "kvlane_admission_refusals_total",
            "Requests told no for want of room: queue_full, queue_wait, deadline, shed, expired.",
            ("pool", "class", "reason"),
        )
        self.limit_refusals = self._counter(
            "kvlane_limit_refusals_total", "Requests that a tenant's own limit did not let pass.", ("tenant", "limit")
        )
        self.settlements_lost = self._counter(
            "kvlane_limiter_lost_total", "Settlements that Redis will never hear of: it was away for too long.", ()
        )
        self.prompt_tokens = self._counter(
            "kvlane_prompt_tokens_total", "Prompt tokens of answered requests.", ("model", "tenant")
        )
        self.output_tokens = self._counter(
            "kvlane_output_tokens_total",
            "Output tokens of answered requests, counted here where engines do not tell.",
            ("model", "tenant"),
        )
        self.cached_tokens = self._counter(
            "kvlane_cached_tokens_total",
            "Prompt tokens found in a KV cache: reported by engines, and predicted here.",
            ("source", "model", "tenant"),
        )
        self.prefix_waste = self._counter(
            "kvlane_prefix_wasted_tokens_total",
            "Constant prompt tokens computed again because of what varies before them, estimated: see kvlane doctor.",
            ("tenant", "finding"),
        )
        self.book_faults = self._counter(
            "kvlane_bookkeeping_failures_total",
            "Times that a fault of ours kept a finished request out of one of the books; the log has it.",
            ("keeper",),
        )
        self.log_drops = self._counter("kvlane_access_log_drops_total", "Access log lines dropped.", ())
        self.traces = self._counter(
            "kvlane_traces_total",
            "Requests whose spans are recorded: sampled, or at their end slow or failed.",
            ("why",),
        )
        self.trace_drops = self._counter(
            "kvlane_trace_drops_total",
            "Recorded requests whose spans were lost: too many waited (queue), or the collector took none (export).",
            ("why",),
        )

    def _counter(self, name: str, documentation: str, labels: Labels) -> Counter:
        counter = Counter(name, documentation, labels)
        if not labels:
            counter.cell(())
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

    def observe(self, record: RequestRecord, trace_id: str | None = None, *, has_waited: bool = False) -> None:
        """Count one finished request.

        Args:
            record: Of it; its model is empty, or one that the fleet knows.
            trace_id: Of its trace, if that is recorded: latencies of it link there.
            has_waited: Whether it was let in after a wait: the door has counted that, and it links there too.
        """
        whose = self._requesters.get((record.model, record.tenant))
        if whose is None:
            whose = _Requester(self, record.model or "none", record.tenant)
            if len(self._requesters) < MAX_SERIES:
                self._requesters[(record.model, record.tenant)] = whose
        seen = None if trace_id is None else Seen(trace_id, record.arrived_at + record.e2e_s)
        whose.ended(record, seen)
        if seen is not None and has_waited:
            of_class = (record.service_class or "",)
            for waits, wait_s in (
                (self.queue_wait, record.waited_s),
                (self.queue_wait_predicted, record.predicted_wait_s),
            ):
                if wait_s is not None:
                    waits.distribution(of_class).link(wait_s, seen)

    def collect(self) -> Iterator[Metric]:
        """Give all series of ours, metric by metric."""
        for instrument in self._instruments:
            yield instrument.collect()

    def page(self, accept: str) -> tuple[str, bytes]:
        """Render all there is, the process's own figures included, in the format that the scraper prefers.

        Returns:
            The content type and the page.
        """
        return self._rendered([*self.collect()], accept)

    async def page_off_loop(self, accept: str) -> tuple[str, bytes]:
        """Do the same without holding up the loop."""
        families = []
        for family in self.collect():
            families.append(family)
            await asyncio.sleep(0)
        return await asyncio.to_thread(self._rendered, families, accept)

    def _rendered(self, families: list[Metric], accept: str) -> tuple[str, bytes]:
        try:
            encoder, content_type = choose_encoder(accept)
        except TypeError:  # a version that is no number: 1.0.x
            encoder, content_type = choose_encoder("")
        return content_type, encoder(_Families([*families, *self._process.collect()]))


class _Families(Collector):
    """What was read."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Give it to whoever renders it."""
        return self._families


class _Requester:
    """The series of one model and tenant, looked up once."""

    __slots__ = (
        "_cached",
        "_dispatch",
        "_e2e",
        "_metrics",
        "_model",
        "_output",
        "_predicted",
        "_prompt",
        "_requests",
        "_tenant",
        "_tpot",
        "_ttft",
    )

    def __init__(self, metrics: Metrics, model: str, tenant: str) -> None:
        self._metrics = metrics
        self._model = model
        self._tenant = tenant
        self._requests: dict[tuple[Outcome, int], Cell] = {}
        self._prompt = metrics.prompt_tokens.cell((model, tenant))
        self._output = metrics.output_tokens.cell((model, tenant))
        self._cached: Cell | None = None
        self._predicted: Cell | None = None
        self._ttft = metrics.ttft.distribution((model,))
        self._tpot = metrics.tpot.distribution((model,))
        self._e2e = metrics.e2e.distribution((model,))
        self._dispatch = metrics.dispatch.distribution(())

    def ended(self, record: RequestRecord, seen: Seen | None) -> None:
        """Count one request."""
        how = (record.outcome, record.status)
        cell = self._requests.get(how)
        if cell is None:
            labels = (self._model, self._tenant, record.outcome.value, str(record.status))
            cell = self._requests[how] = self._metrics.requests.cell(labels)
        cell[0] += 1
        if record.code is not None and record.status != 200:  # a stream that broke was no refusal
            self._metrics.refusals.add((record.code, self._tenant))
        if not record.tries:
            return
        self._e2e.observe(record.e2e_s, seen)
        self._dispatch.observe(record.queue_s, seen)
        if record.ttft_s is not None:
            self._ttft.observe(record.ttft_s, seen)
        if record.tpot_s is not None:
            self._tpot.observe(record.tpot_s, seen)
        if record.status == 200:
            self._prompt[0] += record.prompt_tokens
            if record.output_tokens is not None:
                self._output[0] += record.output_tokens
            if record.predicted_cached_tokens is not None:
                if self._predicted is None:
                    self._predicted = self._metrics.cached_tokens.cell(("predicted", self._model, self._tenant))
                self._predicted[0] += record.predicted_cached_tokens
            if record.cached_tokens is not None:
                if self._cached is None:  # a series of zeros would say that nothing is cached where nothing is told
                    self._cached = self._metrics.cached_tokens.cell(("reported", self._model, self._tenant))
                self._cached[0] += record.cached_tokens
