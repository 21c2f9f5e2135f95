"""Backend: where spans end that are sent by OTLP over HTTP, and what they say."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


@dataclass
class Backend:
    """What has come."""

    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each batch, with lower-case names."""
    resources: list[ResourceSpans] = field(default_factory=list)
    """Whose spans, over all batches."""

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order in which they came."""
        return [span for each in self.resources for scope in each.scope_spans for span in scope.spans]

    async def take(self, request: web.Request) -> web.Response:
        """Take a batch."""
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.resources.extend(ExportTraceServiceRequest.FromString(await request.read()).resource_spans)
        return web.Response(content_type="application/x-protobuf")


@asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    """Run one, on a port of its own."""
    found = Backend()
    app = web.Application()
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        found.url = f"http://{host}:{port}"
        yield found
    finally:
        await runner.cleanup()


def lineage(spans: Iterable[Span]) -> list[tuple[str, str | None]]:
    """Give each span's name and that of its parent, None where that is nobody here."""
    names = {span.span_id: span.name for span in spans}
    return [(span.name, names.get(span.parent_span_id)) for span in spans]


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Read attributes."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, which) if which is not None else None
