"""The metrics page, read as Prometheus reads it: names, labels, sums; and series that stay bounded (P7)."""

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway import metrics as instruments
from gateway.metrics import E2E_BUCKETS, Metrics
from policies.record import Outcome, RequestRecord
from tests.fleet_fixtures import House, house
from tests.policies.test_record import RECORD

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
    "kvlane_limit_refusals_total": set(),
    "kvlane_limiter_gateways": set(),
    "kvlane_limiter_lost_total": set(),
    "kvlane_limiter_owed_settlements": set(),
    "kvlane_limiter_up": set(),
    "kvlane_prompt_tokens_total": {"model", "tenant"},
    "kvlane_output_tokens_total": {"model", "tenant"},
    "kvlane_cached_tokens_total": {"source", "model", "tenant"},
    "kvlane_access_log_drops_total": set(),
    "kvlane_prefix_wasted_tokens_total": {"tenant", "finding"},
    "kvlane_weighted_tokens_total": {"model", "tenant"},
    "kvlane_cost_total": {"model", "tenant"},
    "kvlane_accounting_unsaved": set(),
    "kvlane_inflight_requests": {"endpoint"},
    "kvlane_pending_prefill_tokens": {"endpoint"},
    "kvlane_pending_prefill_seconds": {"endpoint"},
    "kvlane_pinned_tokens": {"endpoint"},
    "kvlane_index_tokens": {"endpoint"},
    "kvlane_cache_hit_ratio": {"endpoint"},
    "kvlane_cache_forecast_error_ratio": {"endpoint"},
    "kvlane_cache_forecast_off": {"endpoint"},
    "kvlane_kv_events_followed": {"endpoint"},
    "kvlane_kv_events_total": {"endpoint"},
    "kvlane_kv_event_gaps_total": {"endpoint"},
    "kvlane_endpoint_state": {"endpoint", "pool", "state"},
    "kvlane_engine_running_requests": {"endpoint"},
    "kvlane_engine_waiting_requests": {"endpoint"},
    "kvlane_engine_kv_usage_ratio": {"endpoint"},
    "kvlane_queued_requests": {"pool", "class"},
    "kvlane_predicted_queue_wait_seconds": {"pool", "class"},
    "kvlane_queue_wait_error_seconds": {"pool", "quantile"},
    "kvlane_pool_saturation_ratio": {"pool"},
    "kvlane_queue_wait_seconds": {"class"},
    "kvlane_admission_refusals_total": {"pool", "class", "reason"},
    "kvlane_active_requests": set(),
    "kvlane_loop_lag_seconds": set(),
    "kvlane_tenants": set(),
    "kvlane_api_keys": set(),
    "kvlane_tenants_stale": {"source"},
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
            headers = {**key, "x-request-id": f"id{at}"}
            body = {"model": "sim", "prompt": "x", "user": f"u{at}", "sim": {"output_tokens": 2}}
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
        whole.gateway.metrics.prefix_waste.add(("anonymous", "time"))
        whole.gateway.metrics.admission_refusals.add(("default", "batch", "shed"))
        whole.gateway.metrics.queue_wait.distribution(("batch",)).observe(1.0)
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


async def test_what_an_engine_reports_is_counted_as_it_reports_it() -> None:
    async with house(1) as whole:
        usage = (await whole.ask("hello", tokens=7)).json["usage"]
        who = {"model": "sim", "tenant": "anonymous"}
        assert await whole.metric("kvlane_prompt_tokens_total", **who) == usage["prompt_tokens"]
        assert await whole.metric("kvlane_output_tokens_total", **who) == usage["completion_tokens"] == 7
        assert await whole.metric("kvlane_requests_total", **who, outcome="ok", status="200") == 1
