"""The metrics page, read as Prometheus reads it: names, labels, sums; and series that stay bounded (P7)."""

import asyncio
import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway import instruments
from gateway.metrics import E2E_BUCKETS, Metrics
from loadtests.faults import Fault, Kind
from policies.health import State
from policies.record import Outcome, RequestRecord
from policies.scaling import FEW
from tests.fleet_fixtures import CHAT, House, house, prompt
from tests.policies.test_record import RECORD
from tests.redis_server import RedisServer
from tests.until import until

STREAM = replace(RECORD, is_stream=True, ttft_s=0.3, tpot_s=0.02)

PAGE = {
    # name: labels
    "kvlane_requests_total": {"model", "tenant", "outcome", "status"},
    "kvlane_refusals_total": {"code", "tenant"},
    "kvlane_endpoint_requests_total": {"endpoint", "reason"},
    "kvlane_endpoint_failures_total": {"endpoint", "kind"},
    "kvlane_retries_total": {"kind"},
    "kvlane_retries_denied_total": set(),
    "kvlane_ttft_seconds": {"model"},
    "kvlane_tpot_seconds": {"model"},
    "kvlane_request_seconds": {"model"},
    "kvlane_dispatch_seconds": set(),
    "kvlane_limit_refusals_total": {"tenant", "limit"},
    "kvlane_limiter_gateways": set(),
    "kvlane_limiter_lost_total": set(),
    "kvlane_limiter_owed_settlements": set(),
    "kvlane_limiter_up": set(),
    "kvlane_prompt_tokens_total": {"model", "tenant"},
    "kvlane_output_tokens_total": {"model", "tenant"},
    "kvlane_cached_tokens_total": {"source", "model", "tenant"},
    "kvlane_access_log_drops_total": set(),
    "kvlane_redis_up": set(),
    "kvlane_redis_calls_total": set(),
    "kvlane_redis_batches_total": set(),
    "kvlane_redis_failures_total": set(),
    "kvlane_redis_refusals_total": set(),
    "kvlane_redis_timeouts_total": set(),
    "kvlane_traces_total": {"why"},
    "kvlane_trace_drops_total": {"why"},
    "kvlane_prefix_wasted_tokens_total": {"tenant", "finding"},
    "kvlane_weighted_tokens_total": {"model", "tenant"},
    "kvlane_cost_total": {"model", "tenant"},
    "kvlane_accounting_unsaved": set(),
    "kvlane_inflight_requests": {"endpoint"},
    "kvlane_decoding_requests": {"endpoint"},
    "kvlane_pending_prefill_tokens": {"endpoint"},
    "kvlane_pending_prefill_seconds": {"endpoint"},
    "kvlane_pinned_tokens": {"endpoint"},
    "kvlane_index_tokens": {"endpoint"},
    "kvlane_index_units": {"pool"},
    "kvlane_cache_hit_ratio": {"endpoint"},
    "kvlane_cache_forecast_error_ratio": {"endpoint"},
    "kvlane_cache_forecast_off": {"endpoint"},
    "kvlane_kv_events_followed": {"endpoint"},
    "kvlane_kv_events_total": {"endpoint"},
    "kvlane_kv_event_gaps_total": {"endpoint"},
    "kvlane_endpoint_state": {"endpoint", "pool", "state"},
    "kvlane_endpoint_state_changes_total": {"endpoint", "state"},
    "kvlane_endpoint_restarts_total": {"endpoint"},
    "kvlane_endpoint_load_ratio": {"endpoint"},
    "kvlane_engine_running_requests": {"endpoint"},
    "kvlane_engine_waiting_requests": {"endpoint"},
    "kvlane_engine_kv_usage_ratio": {"endpoint"},
    "kvlane_queued_requests": {"pool", "class"},
    "kvlane_predicted_queue_wait_seconds": {"pool", "class"},
    "kvlane_queue_wait_error_seconds": {"pool", "class", "share"},
    "kvlane_pool_saturation_ratio": {"pool"},
    "kvlane_pool_busy_replicas": {"pool"},
    "kvlane_pool_backlog_seconds": {"pool"},
    "kvlane_pool_needed_replicas": {"pool"},
    "kvlane_pool_recommended_replicas": {"pool"},
    "kvlane_slo_target_seconds": {"slo"},
    "kvlane_slo_requests_total": {"pool", "slo", "result"},
    "kvlane_slo_attainment_ratio": {"pool", "slo"},
    "kvlane_queue_wait_seconds": {"class"},
    "kvlane_queue_wait_predicted_seconds": {"class"},
    "kvlane_admission_refusals_total": {"pool", "class", "reason"},
    "kvlane_active_requests": set(),
    "kvlane_loop_lag_seconds": set(),
    "kvlane_tenants": set(),
    "kvlane_api_keys": set(),
    "kvlane_tenants_stale": {"source"},
    "kvlane_tenants_unread": {"source"},
    "kvlane_bookkeeping_failures_total": {"keeper"},
    "kvlane_build_info": {"version"},
}
"""What dashboards and alert rules are written against."""


def families(page: bytes) -> list[Metric]:
    return [family for family in parse(page.decode()) if family.name.startswith("kvlane_")]


def read(metrics: Metrics) -> list[Metric]:
    content_type, page = metrics.page("")
    assert content_type.startswith("text/plain")
    return families(page)


def value(found: Iterable[Metric], name: str, **labels: str) -> float | None:
    """Give the one sample with exactly these labels; None where there is none."""
    for family in found:
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def observed(*records: RequestRecord) -> list[Metric]:
    metrics = Metrics()
    for record in records:
        metrics.observe(record)
    return read(metrics)


# Sums.


def test_a_request_is_counted_once_under_what_it_was() -> None:
    found = observed(RECORD, RECORD, replace(RECORD, status=503, outcome=Outcome.REFUSED, code="server_overloaded"))
    who = {"model": "m", "tenant": "t"}
    assert value(found, "kvlane_requests_total", **who, outcome="ok", status="200") == 2
    assert value(found, "kvlane_requests_total", **who, outcome="refused", status="503") == 1
    assert value(found, "kvlane_refusals_total", code="server_overloaded", tenant="t") == 1
    assert value(found, "kvlane_prompt_tokens_total", **who) == 6
    assert value(found, "kvlane_output_tokens_total", **who) == 4


def test_cached_tokens_are_a_series_only_where_an_engine_tells() -> None:
    labels = {"source": "reported", "model": "m", "tenant": "t"}
    assert value(observed(replace(RECORD, cached_tokens=None)), "kvlane_cached_tokens_total", **labels) is None
    assert value(observed(replace(RECORD, cached_tokens=0)), "kvlane_cached_tokens_total", **labels) == 0
    assert value(observed(RECORD, replace(RECORD, cached_tokens=7)), "kvlane_cached_tokens_total", **labels) == 7


def test_histograms_are_cumulative_and_count_their_bounds_in() -> None:
    found = observed(*(replace(STREAM, e2e_s=seconds) for seconds in (0.01, 0.05, 0.051, 2000.0)))
    buckets = [value(found, "kvlane_request_seconds_bucket", model="m", le=str(float(b))) for b in E2E_BUCKETS]
    assert buckets[:2] == [2, 3]
    assert buckets[-1] == 3
    assert value(found, "kvlane_request_seconds_bucket", model="m", le="+Inf") == 4
    assert value(found, "kvlane_request_seconds_count", model="m") == 4
    assert value(found, "kvlane_request_seconds_sum", model="m") == pytest.approx(2000.111)


def test_a_request_that_was_never_sent_has_no_latency() -> None:
    found = observed(replace(RECORD, tries=0, status=404, outcome=Outcome.CLIENT_ERROR, code="model_not_found"))
    assert not value(found, "kvlane_request_seconds_count", model="m")
    assert not value(found, "kvlane_dispatch_seconds_count")


def test_only_streams_have_times_of_tokens() -> None:
    found = observed(RECORD, STREAM, replace(STREAM, tpot_s=None))
    assert value(found, "kvlane_ttft_seconds_count", model="m") == 2
    assert value(found, "kvlane_tpot_seconds_count", model="m") == 1


def test_a_request_without_a_model_is_none() -> None:
    found = observed(replace(RECORD, model="", status=401, outcome=Outcome.CLIENT_ERROR, tries=0, tenant="unknown"))
    labels = {"model": "none", "tenant": "unknown", "outcome": "client_error", "status": "401"}
    assert value(found, "kvlane_requests_total", **labels) == 1


def test_what_needs_no_labels_is_there_from_the_start() -> None:
    found = read(Metrics())
    assert value(found, "kvlane_retries_denied_total") == 0
    assert value(found, "kvlane_access_log_drops_total") == 0


def test_labels_may_hold_anything() -> None:
    found = observed(replace(RECORD, model='a"b\\c\nd é'))
    assert value(found, "kvlane_prompt_tokens_total", model='a"b\\c\nd é', tenant="t") == 3


def test_a_gauge_is_read_when_somebody_asks() -> None:
    metrics = Metrics()
    now = [1.0]
    metrics.gauge("kvlane_x", "X.", (), lambda: [((), now[0])])
    assert value(read(metrics), "kvlane_x") == 1.0
    now[0] = 2.0
    assert value(read(metrics), "kvlane_x") == 2.0


def test_a_scraper_that_prefers_openmetrics_gets_it() -> None:
    metrics = Metrics()
    metrics.observe(STREAM)
    content_type, page = metrics.page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    found = {family.name for family in parse_openmetrics(page.decode())}  # type: ignore[no-untyped-call]
    assert found >= {"kvlane_requests", "kvlane_ttft_seconds"}


# Exemplars.

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def exemplars(metrics: Metrics) -> dict[str, list[tuple[str, float]]]:
    """Give, by metric, the trace and the value of each exemplar on the page."""
    page = metrics.page(OPENMETRICS)[1].decode()
    found: dict[str, list[tuple[str, float]]] = {}
    for family in parse_openmetrics(page):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.exemplar is not None:
                assert sample.name == family.name + "_bucket"
                assert sample.exemplar.value <= float(sample.labels["le"])
                found.setdefault(family.name, []).append((sample.exemplar.labels["trace_id"], sample.exemplar.value))
    return found


def test_latencies_link_to_the_traces_that_are_recorded() -> None:
    metrics = Metrics()
    metrics.observe(STREAM, TRACE_ID)
    assert exemplars(metrics) == {
        "kvlane_ttft_seconds": [(TRACE_ID, STREAM.ttft_s)],
        "kvlane_tpot_seconds": [(TRACE_ID, STREAM.tpot_s)],
        "kvlane_request_seconds": [(TRACE_ID, STREAM.e2e_s)],
        "kvlane_dispatch_seconds": [(TRACE_ID, STREAM.queue_s)],
    }
    assert "trace_id" not in metrics.page("")[1].decode()


def test_what_has_no_trace_leaves_no_exemplar_and_takes_none_away() -> None:
    metrics = Metrics()
    metrics.observe(STREAM)
    assert exemplars(metrics) == {}
    metrics.observe(STREAM, TRACE_ID)
    metrics.observe(STREAM)
    assert exemplars(metrics)["kvlane_ttft_seconds"] == [(TRACE_ID, STREAM.ttft_s)]


def test_each_bucket_has_the_last_exemplar_and_no_more() -> None:
    metrics = Metrics()
    for at in range(100):
        metrics.observe(replace(STREAM, ttft_s=0.3 + at % 2), f"{at:032x}")
    assert exemplars(metrics)["kvlane_ttft_seconds"] == [(f"{98:032x}", 0.3), (f"{99:032x}", 1.3)]


def test_waits_that_were_counted_at_the_door_link_there_too() -> None:
    metrics = Metrics()
    waited = replace(STREAM, service_class="batch", waited_s=0.3, predicted_wait_s=7.0)
    metrics.queue_wait.distribution(("batch",)).observe(0.3)
    metrics.queue_wait_predicted.distribution(("batch",)).observe(7.0)
    metrics.observe(waited, TRACE_ID)
    assert not exemplars(metrics).keys() & {"kvlane_queue_wait_seconds"}, "it did not wait"
    metrics.observe(waited, has_waited=True)
    assert not exemplars(metrics).keys() & {"kvlane_queue_wait_seconds"}, "nobody could look"
    metrics.observe(waited, TRACE_ID, has_waited=True)
    found = exemplars(metrics)
    assert found["kvlane_queue_wait_seconds"] == [(TRACE_ID, 0.3)]
    assert found["kvlane_queue_wait_predicted_seconds"] == [(TRACE_ID, 7.0)]
    assert value(read(metrics), "kvlane_queue_wait_seconds_count", **{"class": "batch"}) == 1, "to link is not to count"


def test_an_exemplar_says_when_it_was() -> None:
    metrics = Metrics()
    metrics.observe(replace(STREAM, arrived_at=1_800_000_000.0, e2e_s=2.5), TRACE_ID)
    page = metrics.page(OPENMETRICS)[1].decode()
    assert f'# {{trace_id="{TRACE_ID}"}} {STREAM.ttft_s} 1800000002.5' in page


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "text/plain; version=1.é", "\x00", ",;="]
)
def test_a_scraper_that_asks_for_nonsense_gets_the_plain_page(accept: str) -> None:
    content_type, page = Metrics().page(accept)
    assert content_type.startswith("text/plain")
    assert families(page)


async def test_a_large_page_does_not_hold_up_the_loop() -> None:
    """Between any two metrics others get their turn, and what they change meanwhile does no harm."""
    metrics = Metrics()
    for at in range(50):
        metrics.observe(replace(STREAM, tenant=f"t{at}"))
    page = asyncio.create_task(metrics.page_off_loop(""))
    turns = 0
    while not page.done():
        metrics.observe(replace(STREAM, tenant=f"late{turns % 100}"))
        turns += 1
        await asyncio.sleep(0)
    assert turns > len([*metrics.collect()])
    found = families((await page)[1])
    assert value(found, "kvlane_prompt_tokens_total", model="m", tenant="t49") == RECORD.prompt_tokens


# Bounds.


def test_series_beyond_the_bound_become_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """R = 500 models of 500 tenants, where 50 series are allowed; none of the counts is lost."""
    monkeypatch.setattr(instruments, "MAX_SERIES", 50)
    metrics = Metrics()
    for at in range(500):
        metrics.observe(replace(STREAM, model=f"m{at}", tenant=f"t{at}", endpoint=f"e{at}"))
        metrics.endpoint_requests.add((f"e{at}", "turn"))
    found = read(metrics)
    for family in found:
        series = {tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le")) for sample in family.samples}
        assert len(series) <= 51, family.name
    total = sum(s.value for family in found for s in family.samples if s.name == "kvlane_requests_total")
    assert total == 500
    others = {"model": "other", "tenant": "other", "outcome": "other", "status": "other"}
    assert value(found, "kvlane_requests_total", **others) == 450
    assert value(found, "kvlane_ttft_seconds_count", model="other") == 450


async def series_of(whole: House) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    page = (await whole.get("/metrics", admin=True)).body
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def test_p7_what_clients_make_up_makes_no_series() -> None:
    """1,000 random paths, models, tenants and request ids: the page has no more series than after ten."""
    tenants = [{"name": "a", "key_sha256": [hashlib.sha256(b"key").hexdigest()]}]
    key = {"authorization": "Bearer key"}

    async with house(2, tenants=tenants, policy="round_robin") as whole:

        async def invent(at: int) -> None:
            await whole.get(f"/v1/{at}")
            await whole.get(f"/v1/models/m{at}")
            await whole.get(f"/v1/responses/resp_{at}")
            await whole.post("/v1/completions", {"model": f"m{at}", "prompt": "x"}, headers=key)
            await whole.post("/v1/completions", {"model": "sim", "prompt": "x"}, headers={"x-api-key": f"key{at}"})
            headers = {
                **key,
                "x-request-id": f"id{at}",
                "x-kvlane-class": f"class{at}",
                "traceparent": f"00-{at + 1:032x}-{at + 1:016x}-01",
                "user-agent": f"agent{at}",
            }
            body = {
                "model": "sim",
                "prompt": "x",
                "user": f"u{at}",
                "service_tier": f"tier{at}",
                "prompt_cache_key": f"session{at}",
                "sim": {"output_tokens": 2},
            }
            assert (await whole.post("/v1/completions", body, headers=headers)).status == 200

        for at in range(10):
            await invent(at)
        before = await series_of(whole)
        places = asyncio.Semaphore(16)

        async def one(at: int) -> None:
            async with places:
                await invent(at)

        await asyncio.gather(*(one(at) for at in range(10, 1000)))
        after = await series_of(whole)
        made_up = {(name, labels) for name, labels in after - before if name.removesuffix("_bucket") == name}
        assert not made_up
        assert "m77" not in str(after)


# The page of a gateway that runs.


async def test_the_page_has_every_metric_with_its_labels_and_nothing_else() -> None:
    models = [{"name": "sim", "prices": {"input": 1, "output": 1}}]
    async with house(2, endpoint={"kv_events": "auto"}, models=models) as whole:
        await whole.ask(stream=True)
        await whole.ask(model="nobody")
        whole.gateway.metrics.endpoint_failures.add(("e0", "cut"))
        whole.gateway.metrics.retries.add(("cut",))
        whole.gateway.metrics.book_faults.add(("doctor",))
        whole.gateway.metrics.prefix_waste.add(("anonymous", "time"))
        whole.gateway.metrics.admission_refusals.add(("default", "batch", "shed"))
        whole.gateway.metrics.limit_refusals.add(("a", "parallel"))
        whole.gateway.metrics.traces.add(("slow",))
        whole.gateway.metrics.trace_drops.add(("queue",))
        whole.gateway.metrics.queue_wait.distribution(("batch",)).observe(1.0)
        whole.gateway.metrics.queue_wait_predicted.distribution(("batch",)).observe(1.0)
        for _ in range(FEW):
            whole.gateway.scaling.note(replace(STREAM, pool="default"))
        whole.gateway.scaling.look()
        page = (await whole.get("/metrics", admin=True)).body.decode()
        seen: dict[str, set[str]] = {}
        for family in parse(page):
            if not family.name.startswith("kvlane_"):
                assert family.name.startswith(("process_", "python_"))
                continue
            assert family.documentation, family.name
            name = family.name + ("_total" if family.type == "counter" else "")
            seen[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert seen == PAGE
        assert not any("quantile" in labels for labels in seen.values()), "Prometheus keeps that label for summaries"
        if (promtool := shutil.which("promtool")) is not None:
            command = [promtool, "check", "metrics"]
            ran = await asyncio.to_thread(subprocess.run, command, input=page, capture_output=True, text=True)
            assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


async def test_gauges_tell_how_the_fleet_stands() -> None:
    async with house(2) as whole:
        states = ["starting", "ready", "suspect", "ejected", "draining"]
        for at in range(2):
            told = [
                await whole.metric("kvlane_endpoint_state", endpoint=f"e{at}", pool="default", state=state)
                for state in states
            ]
            assert told == [0, 1, 0, 0, 0]
        assert await whole.metric("kvlane_build_info") == 1
        assert await whole.metric("kvlane_engine_kv_usage_ratio", endpoint="e0") == 0


async def test_how_redis_does_is_told(redis_server: RedisServer) -> None:
    async with house(1, redis={"url": redis_server.url}, anonymous={"limits": {"parallel": 5}}) as whole:

        async def told(name: str) -> float:
            return await whole.metric(f"kvlane_redis_{name}")

        before = await told("calls_total")
        await whole.ask()
        assert await told("up") == 1
        assert await told("calls_total") > before
        assert await told("batches_total") > 0
        assert await told("timeouts_total") == await told("failures_total") == 0
        with redis_server.frozen():
            await whole.ask()
            assert await told("up") == 0
            assert await told("timeouts_total") == 1
            assert await told("failures_total") >= 1


async def test_what_an_engine_reports_is_counted_as_it_reports_it() -> None:
    async with house(1) as whole:
        usage = (await whole.ask("hello", tokens=7)).json["usage"]
        who = {"model": "sim", "tenant": "anonymous"}
        assert await whole.metric("kvlane_prompt_tokens_total", **who) == usage["prompt_tokens"]
        assert await whole.metric("kvlane_output_tokens_total", **who) == usage["completion_tokens"] == 7
        assert await whole.metric("kvlane_requests_total", **who, outcome="ok", status="200") == 1


async def test_what_becomes_of_engines_is_counted() -> None:
    async with house(2) as whole:

        async def came(state: State) -> list[float]:
            return [
                await whole.metric("kvlane_endpoint_state_changes_total", endpoint=f"e{at}", state=state.value)
                for at in range(2)
            ]

        assert await came(State.READY) == [1, 1]
        assert await came(State.EJECTED) == [0, 0]
        await whole.cluster[0].inject(Fault(Kind.BLACK_HOLE))
        await until(lambda: whole.states[0] is State.EJECTED, "ejected")
        first, second = whole.gateway.fleet.members()
        await until(lambda: first.entered[State.EJECTED], "seen")
        assert await came(State.EJECTED) == [1, 0]
        await whole.cluster.clear()
        await whole.is_ready(0)
        await whole.restart(1)
        await until(lambda: second.restarts, "seen to have restarted")
        assert await whole.metric("kvlane_endpoint_restarts_total", endpoint="e1") == 1
        assert await whole.metric("kvlane_endpoint_restarts_total", endpoint="e0") == 0
        await until(lambda: set(whole.states) == {State.READY}, "ready")


async def test_who_waits_is_counted_as_predicted_and_as_it_was() -> None:
    async with house(1, admission={"max_inflight": 1}) as whole:
        await asyncio.gather(*(whole.ask() for _ in range(8)))
        waited = await whole.metric("kvlane_queue_wait_seconds_count", **{"class": "interactive"})
        assert waited > 0
        assert await whole.metric("kvlane_queue_wait_predicted_seconds_count") == waited


async def test_a_wait_links_to_the_trace_of_who_waited() -> None:
    """Each in the bucket in which the door has counted it, so that the two agree to the last digit."""
    tracing = {"endpoint": "http://127.0.0.1:9", "ratio": 1, "timeout_s": 0.1}
    async with house(1, admission={"max_inflight": 1}, tracing=tracing) as whole:
        whole.gateway.tracing.exporter = InMemorySpanExporter()
        assert {reply.status for reply in await asyncio.gather(*(whole.ask() for _ in range(8)))} == {200}
        await whole.rests()
        (waits,) = whole.gateway.metrics.queue_wait.series.values()
        assert waits.exemplars
        assert {at for at, count in enumerate(waits.counts) if count} == waits.exemplars.keys()
        assert "kvlane_queue_wait_predicted_seconds" in exemplars(whole.gateway.metrics)


async def test_a_page_in_openmetrics_links_to_the_traces_that_are_kept() -> None:
    other = f"{1:032x}"
    async with house(1, tracing={"endpoint": "http://127.0.0.1:9", "ratio": 0, "timeout_s": 0.1}) as whole:
        whole.gateway.tracing.exporter = InMemorySpanExporter()
        for trace_id, flags in ((TRACE_ID, "01"), (other, "00")):
            headers = {"traceparent": f"00-{trace_id}-{1:016x}-{flags}"}
            body = prompt("hello", stream=True)
            assert (await whole.post(CHAT, body, headers=headers)).status == 200
        await whole.rests()
        async with whole.session.get(whole.gateway.admin_url + "/metrics", headers={"accept": OPENMETRICS}) as response:
            assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
            page = await response.text()
        parsed = {family.name for family in parse_openmetrics(page)}  # type: ignore[no-untyped-call]
        assert parsed >= {name.removesuffix("_total") for name in PAGE}
        assert {trace for told in exemplars(whole.gateway.metrics).values() for trace, _ in told} == {TRACE_ID}
        assert other not in page
