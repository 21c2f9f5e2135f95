"""SpanMaker: one request that has ended becomes its spans, in OpenTelemetry's terms.

    chat llama-3.1-8b                     SERVER    the request: HTTP and GenAI attributes, outcome, usage
      authenticate, receive, limit, tokenize, pool, queue, settle
      choose                              with the event kvlane.choice: who was chosen, why, and who else stood there
      chat llama-3.1-8b at gpu-1          CLIENT    one try; the engine's own spans have it as their parent
        connect, first_byte, first_token, stream

Attributes follow the semantic conventions where there are any (HTTP, GenAI, server.*); ours begin with `kvlane.`. They
say sizes, times and places, and whose request it was by the tenant's name: no prompt, no answer, no key, no address.

Finished spans are built directly: the SDK's tracer would guard each, at a cost, against what cannot happen to them:
being changed by several threads, ended twice, or grown without bound.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import version
from random import Random
from secrets import randbits
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.hops import OF_A_TRY, Attempt, Hop, Hops
from gateway.sections import TracingConfig
from gateway.trace import Trace
from policies.record import Outcome, RequestRecord

Value = str | int | float | bool | list[str] | list[int] | list[float]
Attributes = dict[str, Value]

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}
"""gen_ai.operation.name by route; the others are no operation that the conventions know."""
OWN_STATUS = frozenset((Outcome.FAILED, Outcome.REFUSED, Outcome.CLIENT_ERROR))
UNSET, ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
NO_STATE = TraceState()


class SpanMaker:
    """Makes the spans of requests."""

    def __init__(self, service_name: str) -> None:
        about = {
            "service.name": service_name,
            "service.version": version("kvlane"),
            "service.instance.id": f"{randbits(64):016x}",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": "opentelemetry",
        }
        self._resource = _Named(about)
        self._scope = InstrumentationScope("kvlane", version("kvlane"))
        self._chance = Random(randbits(64))

    def exporter_to(self, config: TracingConfig) -> SpanExporter:
        """Make what sends spans to the configured collector; of its failures metrics tell, and now and then the log."""
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        return OTLPSpanExporter(
            endpoint=config.endpoint,
            headers=config.headers,
            timeout=config.timeout_s,
            compression=Compression.NoCompression,  # collectors are near, and deflating costs more than sending
        )

    def spans_of(self, trace: Trace, hops: Hops, record: RequestRecord, why: str) -> list[ReadableSpan]:
        """Make the spans of a request that has ended; the root first, each parent before its children.

        Args:
            why: It is recorded: sampled, slow or failed.
        """
        return list(_Story(self, trace, hops, record, why).told())

    def span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        attributes: Mapping[str, Value],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = UNSET,
        event: Event | None = None,
    ) -> ReadableSpan:
        """Make one span."""
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            () if event is None else (event,),
            kind=kind,
            status=status,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._scope,
        )

    def new_id(self) -> int:
        """Draw the id of a span that nobody was told of."""
        return self._chance.getrandbits(64) or 1


class _Named(Resource):
    """Who made the spans. The encoder hashes it for each of them, and the SDK's own hash writes JSON each time."""

    def __init__(self, about: Mapping[str, str]) -> None:
        super().__init__(about)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class _Story:
    """The spans of one request, in the making."""

    def __init__(self, maker: SpanMaker, trace: Trace, hops: Hops, record: RequestRecord, why: str) -> None:
        self._maker, self._trace, self._hops, self._record, self._why = maker, trace, hops, record, why
        self._began_ns = int(record.arrived_at * 1e9)
        self._ended_at = trace.arrived_at + record.e2e_s
        self._flags = TraceFlags(TraceFlags.SAMPLED if hops.is_sampled else TraceFlags.DEFAULT)
        state = "" if hops.parent is None else hops.parent.state
        self._state = TraceState.from_header([state]) if state else NO_STATE
        operation = OPERATIONS.get(trace.route)
        self._name = f"{operation} {trace.model}" if operation and trace.model else f"{hops.method} {trace.route}"
        self._operation = operation

    def told(self) -> Iterator[ReadableSpan]:
        """Tell the request, then hop after hop."""
        hops, record = self._hops, self._record
        parent = hops.parent
        above = None if parent is None else self._context(parent.span_id, is_remote=True)
        root = self._context(hops.span_id)
        is_bad = record.outcome is Outcome.FAILED or record.status >= 500
        times = self._ns(self._trace.arrived_at), self._ns(self._ended_at)
        status = ERROR if is_bad else UNSET
        yield self._maker.span(self._name, root, above, times, self._of_root(), kind=SpanKind.SERVER, status=status)
        attempts = iter(hops.attempts)
        number = -1
        within = root
        timed = self._timed()
        broke_in = next((at for at in reversed(range(len(timed))) if timed[at][0] is not Hop.SETTLE), None)
        for at, (hop, began, ended) in enumerate(timed):
            if hop not in OF_A_TRY:
                within = root
            elif hop is Hop.CONNECT:
                attempt, number = next(attempts), number + 1
                last = next((n for n in range(at, len(timed)) if timed[n][0] not in OF_A_TRY), len(timed))
                within = self._context(attempt.span_id)
                yield self._try(attempt, number, within, root, (self._ns(began), self._ns(timed[last - 1][2])))
            attributes: Attributes = {}
            status = UNSET
            if at == broke_in and hop not in OF_A_TRY and record.outcome in OWN_STATUS:
                attributes["error.type"] = record.code or str(record.status)
                status = ERROR
            event = None
            if hop is Hop.CHOOSE or (hop is Hop.QUEUE and at == broke_in):
                event = self._choice(number + 1, began, self._ns(ended))
            if hop is Hop.QUEUE and self._trace.predicted_wait_s is not None:
                attributes["kvlane.predicted_queue_s"] = self._trace.predicted_wait_s
            own, times = self._context(self._maker.new_id()), (self._ns(began), self._ns(ended))
            yield self._maker.span(hop.value, own, within, times, attributes, status=status, event=event)

    def _timed(self) -> list[tuple[Hop, float, float]]:
        """Give each hop with its begin and end; none ends before it begins, whatever clocks have told."""
        noted = self._hops.noted
        timed = []
        at = self._trace.arrived_at
        for n, (hop, began) in enumerate(noted):
            at = max(at, began)
            ended = noted[n + 1][1] if n + 1 < len(noted) else self._ended_at
            timed.append((hop, at, max(at, ended)))
        return timed

    def _ns(self, at: float) -> int:
        """Give Unix nanoseconds for monotonic seconds."""
        return self._began_ns + int((at - self._trace.arrived_at) * 1e9)

    def _context(self, span_id: int, *, is_remote: bool = False) -> SpanContext:
        return SpanContext(self._hops.trace_id, span_id, is_remote, self._flags, self._state)

    def _of_root(self) -> Attributes:
        trace, record = self._trace, self._record
        told: dict[str, Value | None] = {
            "http.request.method": self._hops.method,
            "http.route": None if trace.route == "other" else trace.route,
            "http.response.status_code": record.status or None,
            "error.type": (record.code or str(record.status)) if record.outcome in OWN_STATUS else None,
            "gen_ai.operation.name": self._operation,
            "gen_ai.request.model": record.model or None,
            "gen_ai.usage.input_tokens": (record.prompt_tokens or None) if record.tries else None,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.time_to_first_chunk": record.ttft_s,
            "kvlane.request_id": record.id,
            "kvlane.tenant": record.tenant,
            "kvlane.outcome": record.outcome.value,
            "kvlane.recorded": self._why,
            "kvlane.pool": record.pool,
            "kvlane.endpoint": record.endpoint,
            "kvlane.reason": record.reason,
            "kvlane.tries": record.tries,
            "kvlane.prompt_tokens": trace.prompt_tokens or None,
            "kvlane.predicted_cached_tokens": record.predicted_cached_tokens,
            "kvlane.predicted_queue_s": trace.predicted_wait_s,
        }
        if self._operation is not None and record.tries:
            told["gen_ai.request.stream"] = record.is_stream
        return _known(told)

    def _try(
        self, attempt: Attempt, number: int, context: SpanContext, root: SpanContext, times: tuple[int, int]
    ) -> ReadableSpan:
        endpoint = attempt.choice.endpoint
        host, port = _address_of(endpoint.url)
        told: dict[str, Value | None] = {
            "server.address": host,
            "server.port": port,
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": None if attempt.kind is None else str(attempt.kind.value),
            "gen_ai.request.model": self._record.model or None,
            "http.response.status_code": attempt.status or None,
            "error.type": attempt.failure,
            "kvlane.endpoint": endpoint.name,
            "kvlane.reason": attempt.choice.reason.value,
            "kvlane.predicted_wait_s": attempt.choice.wait_s,
            "kvlane.predicted_cached_tokens": attempt.choice.cached_tokens,
            "kvlane.try": number + 1,
        }
        name = f"{self._name} at {endpoint.name}"
        status = UNSET if attempt.failure is None else ERROR
        return self._maker.span(name, context, root, times, _known(told), kind=SpanKind.CLIENT, status=status)

    def _choice(self, number: int, began: float, at_ns: int) -> Event | None:
        """Tell who was chosen for a try, and why; and, if somebody looked, how all stood a moment before."""
        attempts = self._hops.attempts
        choice = attempts[number].choice if number < len(attempts) else None
        told: dict[str, Value | None] = {}
        if choice is not None:
            told = {
                "kvlane.endpoint": choice.endpoint.name,
                "kvlane.reason": choice.reason.value,
                "kvlane.predicted_wait_s": choice.wait_s,
                "kvlane.predicted_cached_tokens": choice.cached_tokens,
            }
        looked_at, candidates = self._hops.explained.get(number, (began, ()))
        if candidates:
            told |= {
                "kvlane.candidates.age_s": max(0.0, began - looked_at),
                "kvlane.candidates.endpoint": [each.endpoint.name for each in candidates],
                "kvlane.candidates.predicted_wait_s": [round(each.wait_s, 6) for each in candidates],
                "kvlane.candidates.cached_tokens": [each.cached_tokens for each in candidates],
                "kvlane.candidates.cost_s": [round(each.cost_s, 6) for each in candidates],
                "kvlane.candidates.reason": [
                    choice.reason.value if choice is not None and each.endpoint is choice.endpoint else each.reason
                    for each in candidates
                ],
            }
        return Event("kvlane.choice", _known(told), timestamp=at_ns) if told else None


def _known(told: Mapping[str, Value | None]) -> Attributes:
    return {name: value for name, value in told.items() if value is not None}


@lru_cache(maxsize=1024)
def _address_of(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
