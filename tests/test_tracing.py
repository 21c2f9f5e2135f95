"""One request through gateway and simulated engines, told span by span; what its engine is told; and what is kept."""

import asyncio
import hashlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.fleet_fixtures import CHAT, FAST, House, house, leave, prompt
from tests.otlp import attributes_of, backend, lineage
from tests.until import until
from tests.wire.house import asked

ROOT = Path(__file__).parent.parent
NOWHERE = "http://127.0.0.1:9"  # never asked: the tests take the spans themselves
ALL: dict[str, Any] = {"endpoint": NOWHERE, "ratio": 1.0}
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-00"
KEY, TEXT = "sk-4f1dThisIsTheKey9c", "Zanzibarian tourmaline"
TENANT = {"name": "acme", "key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}
BEARER = {"authorization": f"Bearer {KEY}"}
SLOW = Settings(time_scale=1.0)


class Told:
    """What the spans say, once the gateway has stopped."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans, in the order in which they came."""
        return list(self.exporter.get_finished_spans())

    @property
    def roots(self) -> list[ReadableSpan]:
        """The requests."""
        return [span for span in self.spans if span.kind is SpanKind.SERVER]

    @property
    def root(self) -> ReadableSpan:
        """The one request."""
        (root,) = self.roots
        return root

    def named(self, name: str) -> ReadableSpan:
        """Give the one span of a name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    @property
    def tries(self) -> list[ReadableSpan]:
        """The tries at engines."""
        return [span for span in self.spans if span.kind is SpanKind.CLIENT]

    def tree(self) -> str:
        """Draw the one request: indented, `!` before the type of an error."""
        lines: list[str] = []

        def draw(span: ReadableSpan, depth: int) -> None:
            bad = span.status.status_code is StatusCode.ERROR
            lines.append("  " * depth + span.name + (f" ! {told(span, 'error.type')}" if bad else ""))
            for child in self.spans:
                if child.parent is not None and child.parent.span_id == span.context.span_id:
                    draw(child, depth + 1)

        draw(self.root, 0)
        assert len(lines) == len(self.spans), "a span hangs in the air"
        return "\n".join(lines)


def told(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes.get(name)


def choice(span: ReadableSpan) -> dict[str, Any]:
    (event,) = span.events
    assert event.name == "kvlane.choice"
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in (event.attributes or {}).items()
    }


@asynccontextmanager
async def traced(
    count: int = 1, settings: Settings = FAST, *, tracing: dict[str, Any] = ALL, **sections: Any
) -> AsyncIterator[tuple[House, Told]]:
    """Run engines and a gateway whose spans are all told at the end."""
    spans = Told()
    async with house(count, settings, tracing=tracing, **sections) as whole:
        whole.gateway.tracing.exporter = spans.exporter
        yield whole, spans


def headers_at(engine: SimulatedEngine) -> list[dict[str, str]]:
    """Give the headers of the requests that an engine got."""
    return [{name.lower(): value for name, value in seen.headers} for seen in asked(engine)]


BEFORE = """\
chat sim
  authenticate
  receive
  limit
  tokenize
  pool
  choose"""


async def test_a_plain_request_is_told_hop_by_hop() -> None:
    async with traced() as (whole, spans):
        await whole.ask(TEXT, tokens=5)
    assert (
        spans.tree()
        == f"""{BEFORE}
  chat sim at e0
    connect
    first_byte
    stream
  settle"""
    )
    root = spans.root
    assert told(root, "gen_ai.operation.name") == "chat"
    assert told(root, "gen_ai.request.model") == "sim"
    assert told(root, "gen_ai.usage.output_tokens") == 5
    assert told(root, "gen_ai.usage.input_tokens") > 0
    assert (told(root, "http.request.method"), told(root, "http.route")) == ("POST", CHAT)
    assert (told(root, "http.response.status_code"), told(root, "kvlane.outcome")) == (200, "ok")
    assert (told(root, "kvlane.tenant"), told(root, "kvlane.tries")) == ("anonymous", 1)
    assert root.resource.attributes["service.name"] == "kvlane"


async def test_a_stream_has_a_first_token_as_well() -> None:
    async with traced() as (whole, spans):
        await whole.ask(stream=True)
    assert (
        spans.tree()
        == f"""{BEFORE}
  chat sim at e0
    connect
    first_byte
    first_token
    stream
  settle"""
    )
    assert told(spans.root, "gen_ai.request.stream") is True
    assert told(spans.root, "gen_ai.response.time_to_first_chunk") >= 0


async def test_hops_follow_on_each_other_without_a_gap() -> None:
    async with traced() as (whole, spans):
        await whole.ask(stream=True)
    root = spans.root
    hops = [span for span in spans.spans if span.kind is SpanKind.INTERNAL]
    for one, next_one in pairwise(hops):
        assert one.start_time is not None
        assert one.end_time is not None
        assert next_one.start_time is not None
        assert one.start_time <= one.end_time
        assert abs(next_one.start_time - one.end_time) <= 1000  # rounding
    assert abs(hops[0].start_time - root.start_time) <= 1000  # type: ignore[operator]
    assert abs(hops[-1].end_time - root.end_time) <= 1000  # type: ignore[operator]


async def test_a_retry_is_a_second_try_with_a_choice_of_its_own() -> None:
    async with traced(2) as (whole, spans):
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.STATUS, status=503, times=1))
        await whole.ask()
    first, second = spans.tries
    assert (told(first, "error.type"), told(first, "http.response.status_code")) == ("busy", 503)
    names = [told(first, "kvlane.endpoint"), told(second, "kvlane.endpoint")]
    assert sorted(names) == ["e0", "e1"]
    *chosen, nobody = [choice(span) for span in spans.spans if span.name in ("choose", "queue")]
    assert [event["kvlane.endpoint"] for event in chosen] == names
    assert chosen[1]["kvlane.candidates.endpoint"] == (names[1], names[0])
    assert chosen[1]["kvlane.candidates.reason"] == ("least_loaded", "tried")
    assert "kvlane.endpoint" not in nobody
    assert nobody["kvlane.candidates.reason"] == ("tried", "tried")


async def test_a_try_that_failed_is_followed_by_one_that_serves() -> None:
    async with traced(2, policy="round_robin") as (whole, spans):
        await whole.cluster[0].inject(Fault(Kind.RESET, times=1))
        await whole.ask()
        await whole.ask()
    (root,) = [root for root in spans.roots if told(root, "kvlane.tries") == 2]
    assert told(root, "kvlane.outcome") == "ok"
    assert root.status.status_code is StatusCode.UNSET
    one, other = [
        span for span in spans.tries if span.parent is not None and span.parent.span_id == root.context.span_id
    ]
    assert (told(one, "error.type"), one.status.status_code) == ("cut", StatusCode.ERROR)
    assert (told(other, "kvlane.endpoint"), other.status.status_code) == ("e1", StatusCode.UNSET)


async def test_a_refusal_is_told_where_it_happened() -> None:
    tenants = [{**TENANT, "limits": {"requests_per_minute": 1}}]
    async with traced(tenants=tenants) as (whole, spans):
        assert (await whole.post(CHAT, prompt(TEXT), headers=BEARER)).status == 200
        assert (await whole.post(CHAT, prompt(TEXT), headers=BEARER)).status == 429
    spans.exporter = only(spans, spans.roots[1])
    code = told(spans.root, "error.type")
    assert (
        spans.tree()
        == f"""chat sim
  authenticate
  receive
  limit ! {code}
  settle"""
    )
    assert (told(spans.root, "kvlane.outcome"), told(spans.root, "kvlane.tenant")) == ("refused", "acme")
    assert told(spans.root, "gen_ai.usage.input_tokens") is None


def only(spans: Told, root: ReadableSpan) -> InMemorySpanExporter:
    """Keep the spans of one trace."""
    kept = InMemorySpanExporter()
    kept.export([span for span in spans.spans if span.context.trace_id == root.context.trace_id])
    return kept


async def test_nobody_is_told_by_the_head() -> None:
    async with traced(tenants=[TENANT]) as (whole, spans):
        assert (await whole.post(CHAT, prompt(TEXT), headers={"authorization": "Bearer no"})).status == 401
    assert spans.tree() == f"POST {CHAT}\n  authenticate ! invalid_api_key\n  settle"


async def test_an_unknown_path_has_no_name_of_the_clients_making() -> None:
    async with traced() as (whole, spans):
        await whole.post(f"/v1/{TEXT.split()[0]}", {})
    assert spans.tree() == "POST other\n  authenticate ! not_found\n  settle"
    assert told(spans.root, "http.route") is None


async def test_a_request_that_waits_is_in_the_queue_and_then_chosen_for() -> None:
    async with traced(settings=SLOW, admission={"max_inflight": 1}) as (whole, spans):
        first = asyncio.create_task(whole.ask(tokens=8))
        await until(lambda: whole.in_flight == [1], "the first is sent")
        await whole.ask(tokens=1)
        await first
    spans.exporter = only(spans, next(root for root in spans.roots if in_queue(spans, root)))
    assert spans.tree() == BEFORE.replace("choose", "queue\n  choose") + (
        "\n  chat sim at e0\n    connect\n    first_byte\n    stream\n  settle"
    )
    queue, event = spans.named("queue"), choice(spans.named("choose"))
    assert told(queue, "kvlane.predicted_queue_s") >= 0
    assert (event["kvlane.reason"], event["kvlane.candidates.reason"]) == ("room", ("room",))
    assert event["kvlane.candidates.age_s"] > 0


def in_queue(spans: Told, root: ReadableSpan) -> bool:
    return any(span.name == "queue" and span.context.trace_id == root.context.trace_id for span in spans.spans)


async def test_a_client_that_leaves_the_queue_is_told_as_gone() -> None:
    async with traced(settings=SLOW, admission={"max_inflight": 1}) as (whole, spans):
        first = asyncio.create_task(whole.ask(tokens=8))
        await until(lambda: whole.in_flight == [1], "the first is sent")
        second = asyncio.create_task(whole.ask())
        await until(lambda: whole.gateway.proxy.active == 2, "the second has come")
        await until(lambda: any(queue.waiting for queue in whole.gateway.gate.queues.values()), "it waits")
        await leave([second])
        await first
    spans.exporter = only(spans, next(root for root in spans.roots if told(root, "kvlane.outcome") == "disconnected"))
    assert spans.tree() == BEFORE.replace("choose", "queue") + "\n  settle"
    assert told(spans.root, "http.response.status_code") == 499


async def test_a_client_that_leaves_a_stream_ends_it_there() -> None:
    async with traced(settings=SLOW) as (whole, spans):
        task = asyncio.create_task(whole.ask(tokens=10_000, stream=True))
        await until(lambda: whole.endpoints[0].outstanding.decoding, "a token came")
        await leave([task])
        await until(lambda: not whole.gateway.proxy.active, "the gateway knows")
    assert spans.tree().splitlines()[-6:] == [
        "  chat sim at e0",
        "    connect",
        "    first_byte",
        "    first_token",
        "    stream",
        "  settle",
    ]
    assert (told(spans.root, "kvlane.outcome"), spans.root.status.status_code) == ("disconnected", StatusCode.UNSET)


async def test_a_stream_that_breaks_is_told_at_the_try_and_at_the_request() -> None:
    async with traced() as (whole, spans):
        await whole.cluster[0].inject(Fault(Kind.CLOSE_AFTER, after=3, times=1))
        await whole.ask(tokens=9, stream=True)
    lines = spans.tree().splitlines()
    assert lines[0] == "chat sim ! stream_broken"
    assert lines[7] == "  chat sim at e0 ! cut"


async def test_a_request_that_no_engine_serves_has_failed() -> None:
    async with traced() as (whole, spans):
        await whole.cluster[0].inject(Fault(Kind.STATUS, status=500, times=1))
        assert (await whole.ask()).status == 500
    lines = spans.tree().splitlines()
    assert (lines[0], lines[7]) == ("chat sim ! 500", "  chat sim at e0 ! broken")
    assert told(spans.root, "kvlane.outcome") == "failed"


async def test_the_choice_is_explained_by_wait_cache_and_cost() -> None:
    async with traced(3, policy="least_work") as (whole, spans):
        text = " ".join([TEXT] * 400)
        await whole.ask(text)
        await whole.ask(text)
    events = [choice(span) for span in spans.spans if span.name == "choose"]
    first, second = events
    assert set(first["kvlane.candidates.cached_tokens"]) == {0}
    assert second["kvlane.candidates.endpoint"][0] == second["kvlane.endpoint"] == first["kvlane.endpoint"]
    assert second["kvlane.candidates.cached_tokens"][0] > 500
    assert second["kvlane.candidates.reason"] == ("prefix", "able", "able")
    assert list(second["kvlane.candidates.cost_s"]) == sorted(second["kvlane.candidates.cost_s"])
    assert len(second["kvlane.candidates.predicted_wait_s"]) == 3


# Whose trace it is, and what its engine is told.


async def test_the_engine_is_told_of_the_try_as_its_parent() -> None:
    async with traced() as (whole, spans):
        await whole.ask()
        (seen,) = headers_at(whole.cluster[0])
    (attempt,) = spans.tries
    trace_id, span_id = format_trace_id(attempt.context.trace_id), format_span_id(attempt.context.span_id)
    assert seen["traceparent"] == f"00-{trace_id}-{span_id}-01"


async def test_each_try_is_a_parent_of_its_own() -> None:
    async with traced(2) as (whole, spans):
        for engine in whole.cluster:
            await engine.inject(Fault(Kind.STATUS, status=503, times=1))
        await whole.ask()
        seen = [headers["traceparent"].split("-")[2] for engine in whole.cluster for headers in headers_at(engine)]
    assert sorted(seen) == sorted(format_span_id(span.context.span_id) for span in spans.tries)


async def test_a_clients_trace_goes_on() -> None:
    async with traced(tracing={**ALL, "ratio": 0}) as (whole, spans):
        headers = {"traceparent": PARENT, "tracestate": "vendor=some:value,other@vendor=1"}
        await whole.post(CHAT, prompt(TEXT), headers=headers)
        (seen,) = headers_at(whole.cluster[0])
    assert spans.root.parent is not None
    assert (format_trace_id(spans.root.context.trace_id), format_span_id(spans.root.parent.span_id)) == (
        TRACE_ID,
        SPAN_ID,
    )
    assert seen["traceparent"].startswith(f"00-{TRACE_ID}-")
    assert seen["traceparent"].endswith("-01")
    assert SPAN_ID not in seen["traceparent"]
    assert seen["tracestate"] == headers["tracestate"]


async def test_a_client_that_records_nothing_is_not_recorded() -> None:
    async with traced() as (whole, spans):
        await whole.post(CHAT, prompt(TEXT), headers={"traceparent": UNSAMPLED})
        (seen,) = headers_at(whole.cluster[0])
    assert spans.spans == []
    assert seen["traceparent"].startswith(f"00-{TRACE_ID}-")
    assert seen["traceparent"].endswith("-00")


async def test_strangers_decide_nothing_where_they_are_not_honored() -> None:
    async with traced(tracing={**ALL, "ratio": 0, "honors_clients": False}) as (whole, spans):
        await whole.post(CHAT, prompt(TEXT), headers={"traceparent": PARENT, "tracestate": "a=b"})
        (seen,) = headers_at(whole.cluster[0])
    assert spans.spans == []
    assert TRACE_ID not in seen["traceparent"]
    assert "tracestate" not in seen


@pytest.mark.parametrize(
    "parent", [PARENT.upper(), PARENT + "-x", f"00-{'0' * 32}-{SPAN_ID}-01", "ff" + PARENT[2:], "x" * 9000, "\x7f", ""]
)
async def test_a_hostile_traceparent_is_as_none(parent: str) -> None:
    async with traced(listen={"max_header_bytes": 16384}) as (whole, spans):
        headers = {"traceparent": parent, "tracestate": "a=b"} if parent != "\x7f" else {"traceparent": "é" * 55}
        assert (await whole.post(CHAT, prompt(TEXT), headers=headers)).status == 200
        (seen,) = headers_at(whole.cluster[0])
    assert spans.root.parent is None
    assert seen["traceparent"].startswith(f"00-{format_trace_id(spans.root.context.trace_id)}-")
    assert "tracestate" not in seen


async def test_without_tracing_a_clients_trace_passes_as_it_came() -> None:
    async with house(1) as whole:
        await whole.post(CHAT, prompt(TEXT), headers={"traceparent": PARENT, "tracestate": "a=b"})
        (seen,) = headers_at(whole.cluster[0])
    assert (seen["traceparent"], seen["tracestate"]) == (PARENT, "a=b")


# What is kept.


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
async def test_so_many_are_sampled_as_the_ratio_says(ratio: float) -> None:
    """N=400, any seed: within five standard deviations of the ratio; and the engine is told the same."""
    async with traced(tracing={**ALL, "ratio": ratio}) as (whole, spans):
        for _ in range(40):
            await asyncio.gather(*(whole.ask(tokens=1) for _ in range(10)))
        flags = [headers["traceparent"][-2:] for headers in headers_at(whole.cluster[0])]
        assert await whole.metric("kvlane_traces_total", why="sampled") == flags.count("01")
    assert flags.count("01") == len(spans.roots)
    assert abs(len(spans.roots) - 400 * ratio) <= 5 * (400 * ratio * (1 - ratio)) ** 0.5


async def test_what_fails_is_kept_though_it_was_not_sampled() -> None:
    async with traced(tracing={**ALL, "ratio": 0}) as (whole, spans):
        await whole.ask()
        await whole.cluster[0].inject(Fault(Kind.STATUS, status=500, times=1))
        await whole.ask()
        assert await whole.metric("kvlane_traces_total", why="failed") == 1
    assert (told(spans.root, "kvlane.recorded"), told(spans.root, "kvlane.outcome")) == ("failed", "failed")
    event = choice(next(span for span in spans.spans if span.name == "choose"))
    assert event["kvlane.endpoint"] == "e0"
    assert "kvlane.candidates.endpoint" not in event  # nobody looked


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_slow_is_kept_though_it_was_not_sampled(stream: bool) -> None:
    async with traced(tracing={**ALL, "ratio": 0, "slow_s": 0.3}) as (whole, spans):
        await whole.ask(stream=stream)
        await whole.cluster[0].inject(Fault(Kind.HANG, times=1))
        late = asyncio.create_task(whole.ask(stream=stream, timeout_s=0.5))
        await asyncio.gather(late, return_exceptions=True)
    assert told(spans.root, "kvlane.recorded") == "slow"


async def test_neither_key_nor_prompt_stands_in_a_span() -> None:
    async with traced(tenants=[TENANT]) as (whole, spans):
        carriers = {**BEARER, "cookie": KEY, "tracestate": "a=b", "traceparent": PARENT}
        await whole.post(CHAT, prompt(TEXT, user=TEXT), headers=carriers)
        await whole.post(f"{CHAT}?key={KEY}", prompt(TEXT, stream=True), headers=BEARER)
        await whole.post(CHAT, {"model": TEXT, "messages": []}, headers=BEARER)
        await whole.post(f"/v1/{TEXT.split()[0]}", {}, headers=BEARER)
    said = "".join(span.to_json() for span in spans.spans)
    assert "acme" in said
    for word in (KEY, *TEXT.split()):
        assert word not in said


class Broken(SpanExporter):
    """A collector that takes nothing."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.FAILURE


async def test_what_the_collector_does_not_take_is_counted() -> None:
    async with house(1, tracing=ALL) as whole:
        whole.gateway.tracing.exporter = Broken()
        await whole.ask()
        metrics = whole.gateway.metrics
    assert metrics.trace_drops.cells[("export",)] == [1.0]


class Stuck(SpanExporter):
    """A collector that does not answer until it is let go."""

    def __init__(self) -> None:
        self.is_asked, self.go_on = threading.Event(), threading.Event()
        self.roots = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.is_asked.set()
        assert self.go_on.wait(10)
        self.roots += sum(span.kind is SpanKind.SERVER for span in spans)
        return SpanExportResult.SUCCESS


async def test_more_than_may_wait_is_dropped_and_counted_and_no_request_waits() -> None:
    stuck = Stuck()
    async with house(1, tracing={**ALL, "max_queued": 2}) as whole:
        whole.gateway.tracing.exporter = stuck
        await whole.ask()
        await until(stuck.is_asked.is_set, "the first is being sent")
        for _ in range(5):
            await whole.ask()
        assert await whole.metric("kvlane_trace_drops_total", why="queue") == 3
        stuck.go_on.set()
    assert stuck.roots == 3


async def test_a_collector_takes_the_spans_over_otlp() -> None:
    async with backend() as there:
        tracing = {"endpoint": there.url, "ratio": 1, "headers": {"authorization": "Bearer t"}}
        async with house(1, tracing={**tracing, "service_name": "kvlane-eu"}) as whole:
            await whole.ask(stream=True)
    assert [headers["authorization"] for headers in there.headers] == ["Bearer t"]
    (sent,) = there.resources
    assert attributes_of(sent.resource.attributes)["service.name"] == "kvlane-eu"
    assert lineage(there.spans) == [
        ("chat sim", None),
        *((hop, "chat sim") for hop in ("authenticate", "receive", "limit", "tokenize", "pool", "choose")),
        ("chat sim at e0", "chat sim"),
        *((hop, "chat sim at e0") for hop in ("connect", "first_byte", "first_token", "stream")),
        ("settle", "chat sim"),
    ]
    (event,) = there.spans[6].events
    assert event.name == "kvlane.choice"


async def test_a_collector_that_is_not_there_costs_spans_and_nothing_else() -> None:
    tracing = {"endpoint": NOWHERE, "ratio": 1, "timeout_s": 0.2}
    async with house(1, tracing=tracing) as whole:
        for _ in range(3):
            assert (await whole.ask()).status == 200
        metrics = whole.gateway.metrics
    assert metrics.trace_drops.cells[("export",)] == [3.0]


def test_without_tracing_its_library_is_not_even_loaded() -> None:
    script = "import sys, gateway.cli; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
