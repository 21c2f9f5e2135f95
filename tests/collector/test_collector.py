"""What a collector takes of `kvlane serve` and passes on: every span, with its parent, attributes and events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from tests.collector.rotel import LOOK_EVERY_S, PATIENCE_S, Rotel
from tests.fleet_fixtures import FAST
from tests.gateway_process import GatewayProcess
from tests.otlp import Backend, attributes_of, backend, lineage
from tests.until import until
from tests.wire.client import CHAT, Answer, call, chat, get
from tests.wire.house import asked

pytestmark = pytest.mark.collector

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = (("traceparent", f"00-{TRACE}-{CLIENT}-01"), ("tracestate", "vendor=some:value"))
BEFORE = ("authenticate", "receive", "limit", "tokenize", "pool", "choose")
"""The hops before a request's first try."""
LOST = b'kvlane_trace_drops_total{why="export"} 1.0\n'


@dataclass(frozen=True)
class Whole:
    """Engines, the gateway, the collector, and where its spans end."""

    cluster: Cluster
    gateway: GatewayProcess
    collector: Rotel
    there: Backend

    async def ask(self, *, stream: bool = False) -> Answer:
        """Send a request that its client traces already."""
        return await call(self.gateway.url, CHAT, chat(stream=stream, sim={"output_tokens": 5}), TRACED)

    async def arrive(self, roots: int = 1) -> list[Span]:
        """Wait for the spans of so many requests; a request's come in one batch."""

        def arrived() -> int:
            return sum(span.kind == Span.SPAN_KIND_SERVER for span in self.there.spans)

        await until(lambda: arrived() >= roots, f"the spans of {roots} requests", PATIENCE_S)
        assert arrived() == roots
        return self.there.spans


@asynccontextmanager
async def whole(directory: Path, engines: int = 1, **tracing: object) -> AsyncIterator[Whole]:
    """Run all of it; the gateway, the collector as processes."""
    async with (
        backend() as there,
        Rotel.running(there.url, directory) as collector,
        Cluster(engines, FAST) as cluster,
        GatewayProcess.serving(
            directory, cluster.urls, tracing={"endpoint": collector.url, "ratio": 0.0, **tracing}
        ) as gateway,
    ):
        await comes(gateway.url, "/readyz", lambda answer: answer.status == 200)
        yield Whole(cluster, gateway, collector, there)


async def comes(url: str, path: str, holds: Callable[[Answer], bool]) -> None:
    """Wait until a page is as it shall be."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(await get(url, path)):  # noqa: ASYNC110  # it is another process's
            await asyncio.sleep(LOOK_EVERY_S)


async def test_every_span_of_a_stream_arrives_in_its_place(tmp_path: Path) -> None:
    async with whole(tmp_path) as found:
        assert (await found.ask(stream=True)).status == 200
        spans = await found.arrive()
        (seen,) = [seen for seen in asked(found.cluster[0]) if seen.target == CHAT]
    attempt = "chat sim at e0"
    assert lineage(spans) == [
        ("chat sim", None),
        *((hop, "chat sim") for hop in BEFORE),
        (attempt, "chat sim"),
        *((hop, attempt) for hop in ("connect", "first_byte", "first_token", "stream")),
        ("settle", "chat sim"),
    ]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {span.trace_state for span in spans} == {"vendor=some:value"}
    assert spans[0].parent_span_id.hex() == CLIENT
    told = {name.lower(): value for name, value in seen.headers}["traceparent"]
    assert told == f"00-{TRACE}-{spans[7].span_id.hex()}-01"
    root, last = spans[0], spans[-1]
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in spans)
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano <= last.end_time_unix_nano for span in spans)


async def test_it_is_said_who_made_the_spans(tmp_path: Path) -> None:
    async with whole(tmp_path, service_name="kvlane-eu") as found:
        await found.ask()
        await found.arrive()
    (sent,) = found.there.resources
    (scope,) = sent.scope_spans
    said = attributes_of(sent.resource.attributes)
    assert said.pop("service.instance.id")
    assert said == {
        "service.name": "kvlane-eu",
        "service.version": version("kvlane"),
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
    }
    assert (scope.scope.name, scope.scope.version) == ("kvlane", version("kvlane"))


async def test_attributes_arrive_with_their_types(tmp_path: Path) -> None:
    async with whole(tmp_path) as found:
        answer = await found.ask(stream=True)
        spans = await found.arrive()
    root, choose, attempt = (attributes_of(spans[at].attributes) for at in (0, 6, 7))
    (event,) = spans[6].events
    assert isinstance(root.pop("gen_ai.response.time_to_first_chunk"), float)
    assert root == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "sim",
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 17,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "kvlane.request_id": answer.head["x-request-id"],
        "kvlane.tenant": "anonymous",
        "kvlane.outcome": "ok",
        "kvlane.recorded": "sampled",
        "kvlane.pool": "default",
        "kvlane.endpoint": "e0",
        "kvlane.reason": "least_work",
        "kvlane.tries": 1,
        "kvlane.prompt_tokens": int(answer.head["x-kvlane-prompt-tokens"]),
        "kvlane.predicted_cached_tokens": 0,
        "kvlane.predicted_queue_s": 0.0,
    }
    chosen = {
        "kvlane.endpoint": "e0",
        "kvlane.reason": "least_work",
        "kvlane.predicted_wait_s": attempt["kvlane.predicted_wait_s"],
        "kvlane.predicted_cached_tokens": 0,
    }
    assert attempt == chosen | {
        "server.address": "127.0.0.1",
        "server.port": found.cluster[0].port,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "sim",
        "kvlane.try": 1,
    }
    assert (choose, event.name) == ({}, "kvlane.choice")
    candidates = attributes_of(event.attributes)
    assert chosen.items() <= candidates.items()
    assert candidates["kvlane.candidates.endpoint"] == ["e0"]
    assert candidates["kvlane.candidates.cached_tokens"] == [0]
    assert [type(each) for each in candidates["kvlane.candidates.cost_s"]] == [float]


async def test_tries_that_failed_arrive_as_errors_and_so_does_their_request(tmp_path: Path) -> None:
    async with whole(tmp_path, engines=2) as found:
        for engine in found.cluster:
            await engine.inject(Fault(Kind.STATUS, status=503, times=1))
        assert (await found.ask()).status == 503
        spans = await found.arrive()
    bad = {span.name: attributes_of(span.attributes) for span in spans if span.status.code == Status.STATUS_CODE_ERROR}
    tries = [span.name for span in spans if span.kind == Span.SPAN_KIND_CLIENT]
    assert sorted(tries) == ["chat sim at e0", "chat sim at e1"]
    assert [bad[name]["kvlane.try"] for name in tries] == [1, 2]
    assert [(bad[name]["error.type"], bad[name]["http.response.status_code"]) for name in tries] == [("busy", 503)] * 2
    assert lineage(spans) == [
        ("chat sim", None),
        *((hop, "chat sim") for hop in BEFORE),
        *(pair for name in tries for pair in tried(name)),
        ("settle", "chat sim"),
    ]
    assert set(bad) == {"chat sim", *tries, "choose"}
    assert bad["chat sim"]["http.response.status_code"] == 503


def tried(name: str) -> list[tuple[str, str]]:
    """Give a try that came to no answer, and the choice after it."""
    return [(name, "chat sim"), ("connect", name), ("first_byte", name), ("choose", "chat sim")]


async def test_a_collector_that_went_costs_spans_and_one_that_came_back_takes_the_next(tmp_path: Path) -> None:
    async with whole(tmp_path, timeout_s=0.5) as found:
        await found.ask()
        await found.arrive(1)
        await found.collector.stop()
        assert (await found.ask()).status == 200
        await comes(found.gateway.admin_url, "/metrics", lambda page: LOST in page.body)
        await found.collector.start()
        assert (await found.ask()).status == 200
        await found.arrive(2)
