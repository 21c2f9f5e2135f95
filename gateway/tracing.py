"""Tracing: which requests are recorded, and the way of their spans to a collector.

    begin    at the head: whose trace is it, and is it sampled? By `ratio`, or as the client's traceparent says. Its
             engines are told, so that they record their part of the same requests
    explain  how the endpoints stand for a choice: of sampled requests alone, since it costs as much as the choice
    end      kept are the sampled ones, and whatever turned out slow or failed: nobody can know that at the head
    a thread makes spans of what is kept and sends them in batches

The loop pays for a few tuples a request, and for one append where it is kept. What the thread cannot keep up with, and
what the collector does not take, is dropped and counted: no request ever waits for its spans. The thread lets the loop
go before it after each request and sends small batches, since both hold the same lock (the GIL) while they compute.

Without an endpoint nothing of this happens, and OpenTelemetry is not even imported.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING

from aiohttp.web_request import BaseRequest

from gateway.hops import Hops
from gateway.metrics import Metrics
from gateway.sections import TracingConfig
from gateway.trace import Trace
from gateway.tracecontext import parent_of
from policies.endpoint import Endpoint
from policies.explained import Candidate
from policies.pools import Standing
from policies.record import Outcome, RequestRecord
from policies.request import InferenceRequest

if TYPE_CHECKING:  # imported where it is used, and only if it is
    from opentelemetry.sdk.trace.export import SpanExporter

    from gateway.spans import SpanMaker

log = logging.getLogger(__name__)

FLUSH_S = 1.0
BATCH = 16  # requests, some 200 spans, 4 ms to encode: more in one go would keep the loop waiting
CLOSE_S = 3.0  # for what is left at the end
TOKEN_S = 0.05  # a token of an answer that comes whole may take so long: none is slow for being long
COMPLAIN_EVERY_S = 60.0
LOW_64 = (1 << 64) - 1

Explain = Callable[[InferenceRequest, Standing, Container[Endpoint]], Sequence[Candidate]]
Kept = tuple[Trace, Hops, RequestRecord, str]
"""A request that is recorded, and why."""


class Tracing:
    """Decides what is recorded, and sends it.

    Args:
        chance: Draws ids.
        explain: Says how endpoints stand for a request.
    """

    def __init__(self, config: TracingConfig, metrics: Metrics, chance: Random, explain: Explain) -> None:
        self._config = config
        self._metrics = metrics
        self._chance = chance
        self._explain = explain
        self._is_on = config.endpoint is not None
        self._bound = int(config.ratio * (1 << 64))  # of the low half of the id, as OpenTelemetry's own samplers do
        self._slow_s = float("inf") if config.slow_s is None else config.slow_s
        self._pending: deque[Kept] = deque()  # the loop appends, the thread takes: each one step, so no lock
        self._wake = threading.Event()
        self._is_closing = False
        self._complained_at = float("-inf")
        self._thread: threading.Thread | None = None
        self.exporter: SpanExporter | None = None
        """Where spans go: made of the configuration when there are some, if nobody has put another here."""

    # What the proxy asks.

    def begin(self, request: BaseRequest, arrived_at: float) -> Hops | None:
        """Begin to record where a request's time goes; None where nothing is traced."""
        if not self._is_on:
            return None
        parent = parent_of(request.headers) if self._config.honors_clients else None
        if parent is not None:
            trace_id, is_sampled = parent.trace_id, parent.is_sampled
        else:
            trace_id = self._chance.getrandbits(128) or 1  # 0 is no trace
            is_sampled = trace_id & LOW_64 < self._bound
        return Hops(parent, trace_id, request.method, arrived_at, self._chance, is_sampled=is_sampled)

    def explain(
        self, hops: Hops | None, request: InferenceRequest, standing: Standing, tried: Container[Endpoint]
    ) -> None:
        """Note how the endpoints stand for the choice that comes next, if somebody will read it."""
        if hops is not None and hops.is_sampled:
            hops.explain(self._explain(request, standing, tried))

    def end(self, trace: Trace, record: RequestRecord) -> str | None:
        """Keep a request that has ended, or forget it.

        Returns:
            The id of its trace, if its spans are kept.
        """
        hops = trace.hops
        why = None if hops is None else self._why(hops, record)
        if hops is None or why is None:
            return None
        self._metrics.traces.add((why,))
        if len(self._pending) >= self._config.max_queued:
            self._metrics.trace_drops.add(("queue",))
            return None
        self._pending.append((trace, hops, record, why))
        if len(self._pending) == BATCH:
            self._wake.set()
        return f"{hops.trace_id:032x}"

    def _why(self, hops: Hops, record: RequestRecord) -> str | None:
        if record.outcome is Outcome.FAILED:
            return "failed"
        took_s = record.ttft_s
        if took_s is None:
            took_s = record.e2e_s - TOKEN_S * (record.output_tokens or 0)
        if took_s >= self._slow_s:
            return "slow"
        return "sampled" if hops.is_sampled else None

    # The thread.

    def start(self) -> None:
        """Begin to send."""
        if self._is_on:
            self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Send what is left, for a moment, and stop."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_S)
            if self._thread.is_alive() and self.exporter is not None:
                self.exporter.shutdown()  # it waits for a collector that is not there

    def _run(self) -> None:
        from gateway.spans import SpanMaker  # takes a quarter of a second, in which the gateway serves already

        maker = SpanMaker(self._config.service_name)
        while not self._is_closing:
            self._wake.wait(FLUSH_S)
            self._wake.clear()
            self._send(maker, float("inf"))
        self._send(maker, monotonic() + CLOSE_S)

    def _send(self, maker: "SpanMaker", until: float) -> None:
        """Send all that is pending, as long as there is time."""
        pending = self._pending
        while pending:
            batch = [pending.popleft() for _ in range(min(BATCH, len(pending)))]
            if monotonic() >= until or not self._is_taken(batch, maker):
                self._metrics.trace_drops.add(("export",), len(batch))

    def _is_taken(self, batch: Sequence[Kept], maker: "SpanMaker") -> bool:
        try:
            if self.exporter is None:
                self.exporter = maker.exporter_to(self._config)
            spans = []
            for kept in batch:
                spans += maker.spans_of(*kept)
                sleep(0)  # lets the loop go before
            is_taken = self.exporter.export(spans).name == "SUCCESS"
        except Exception:
            log.exception("spans could not be made or sent")
            return False
        if not is_taken and monotonic() - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = monotonic()
            log.warning("the collector at %s takes no spans", self._config.endpoint)
        return is_taken
