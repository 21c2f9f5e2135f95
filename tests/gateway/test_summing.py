"""Pages of several gateways as one: what is a sum is added up, what is not has a label."""

import asyncio
import hashlib
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text
from typer.testing import CliRunner, Result

from gateway.cli import app as kvlane
from gateway.metrics import Metrics
from gateway.summing import ADDED, NoMetricsPage, Sum
from tests.fleet_fixtures import house
from tests.gateway.test_metrics import OPENMETRICS, PAGE, STREAM, value

A, B = f"{10:032x}", f"{11:032x}"
KEY = "admin-secret"
LISTEN = {"admin_key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()], "metrics_need_key": True}


def parse(page: bytes) -> list[Metric]:
    return list(text_string_to_metric_families(page.decode()))  # type: ignore[no-untyped-call]


def page_of(*records: tuple[float, str | None], **gauges: float) -> str:
    """Give the page of a gateway that has served requests with such times to the first token."""
    metrics = Metrics()
    for ttft_s, trace_id in records:
        metrics.observe(replace(STREAM, ttft_s=ttft_s), trace_id)
    for name, told in gauges.items():
        metrics.gauge(name, "A gauge.", ("pool",), lambda told=told: [(("p",), told)])  # type: ignore[misc]
    return metrics.page(OPENMETRICS)[1].decode()


def summed(*pages: str) -> list[Metric]:
    return parse(Sum({f"g{at}:8081": page for at, page in enumerate(pages)}).page())


def test_counters_and_histograms_are_added_up() -> None:
    found = summed(page_of((0.3, None), (1.2, None)), page_of((0.3, None)))
    who = {"model": "m", "tenant": "t"}
    assert value(found, "kvlane_requests_total", **who, outcome="ok", status="200") == 3
    assert value(found, "kvlane_ttft_seconds_count", model="m") == 3
    assert value(found, "kvlane_ttft_seconds_sum", model="m") == pytest.approx(1.8)
    assert value(found, "kvlane_ttft_seconds_bucket", model="m", le="0.35") == 2
    assert value(found, "kvlane_ttft_seconds_bucket", model="m", le="+Inf") == 3


def test_what_only_one_has_is_there() -> None:
    found = summed(page_of(), page_of((0.3, None)))
    assert value(found, "kvlane_ttft_seconds_count", model="m") == 1


def test_of_two_exemplars_the_later_is_kept() -> None:
    early, late = Metrics(), Metrics()
    early.observe(replace(STREAM, arrived_at=1000.0), A)
    late.observe(replace(STREAM, arrived_at=2000.0), B)
    pages = [each.page(OPENMETRICS)[1].decode() for each in (early, late)]
    for order in (pages, pages[::-1], [*pages, page_of((0.3, None))]):
        whole = Sum({str(at): page for at, page in enumerate(order)}).page().decode()
        assert B in whole
        assert A not in whole


def test_gauges_are_added_up_only_where_that_means_something() -> None:
    found = summed(
        page_of(kvlane_pool_needed_replicas=1.5, kvlane_pool_saturation_ratio=0.5),
        page_of(kvlane_pool_needed_replicas=2.0, kvlane_pool_saturation_ratio=0.9),
    )
    assert value(found, "kvlane_pool_needed_replicas", pool="p") == 3.5
    assert value(found, "kvlane_pool_saturation_ratio", pool="p", gateway="g0:8081") == 0.5
    assert value(found, "kvlane_pool_saturation_ratio", pool="p", gateway="g1:8081") == 0.9
    assert value(found, "kvlane_pool_saturation_ratio", pool="p") is None


def test_histograms_of_other_bounds_are_told_for_each_gateway() -> None:
    other = page_of((0.3, None)).replace('le="0.35"', 'le="0.4"')
    found = summed(page_of((0.3, None)), other)
    assert value(found, "kvlane_ttft_seconds_count", model="m", gateway="g0:8081") == 1
    assert value(found, "kvlane_ttft_seconds_count", model="m") is None
    assert value(found, "kvlane_tpot_seconds_count", model="m") == 2


@pytest.mark.parametrize("page", ["", "<html>", "a 1\n", "# TYPE a counter\na{ 1\n# EOF\n", '{"error": {}}'])
def test_what_is_no_page_is_said(page: str) -> None:
    with pytest.raises(NoMetricsPage, match=r"^g1:8081: this is no metrics page: "):
        summed(page_of(), page)


def test_a_sum_of_sums_is_a_sum() -> None:
    one = Sum({"a": page_of((0.3, A)), "b": page_of((0.3, None))}).page().decode()
    found = summed(one, page_of((0.3, B)))
    assert value(found, "kvlane_ttft_seconds_count", model="m") == 3


def test_what_is_added_up_is_there() -> None:
    assert set(PAGE) >= ADDED


# The command.


async def run(*args: str, key: str | None = None) -> Result:
    """Run the command in a thread, while gateways run here."""
    return await asyncio.to_thread(CliRunner().invoke, kvlane, ["metrics", *args], env={"KVLANE_ADMIN_KEY": key})


async def complaint(*args: str, key: str | None = None) -> str:
    result = await run(*args, key=key)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


async def test_the_command_adds_up_gateways_that_run() -> None:
    async with house(1, listen=LISTEN) as one, house(1, listen=LISTEN) as other:
        await one.ask(stream=True)
        await other.ask(stream=True)
        await other.ask(stream=True)
        urls = [one.gateway.admin_url, other.gateway.admin_url]
        found = parse((await run(*urls, key=KEY)).stdout_bytes)
        labels = {"model": "sim", "tenant": "anonymous", "outcome": "ok", "status": "200"}
        assert value(found, "kvlane_requests_total", **labels) == 3
        assert value(found, "kvlane_ttft_seconds_count", model="sim") == 3
        for url in urls:
            up = {"endpoint": "e0", "pool": "default", "state": "ready", "gateway": url.partition("://")[2]}
            assert value(found, "kvlane_endpoint_state", **up) == 1
        text = (await run(*urls, "--text", key=KEY)).stdout
        assert value(parse_text(text), "kvlane_ttft_seconds_count", model="sim") == 3
        assert "admin key" in await complaint(*urls)
        assert "twice" in await complaint(urls[0], urls[0] + "/", key=KEY)


async def test_all_gateways_or_none() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text=page_of((0.3, None)))

    app = web.Application()
    app.router.add_get("/metrics", page)
    async with TestServer(app) as good, TestServer(web.Application()) as other:
        assert (await run(str(good.make_url("/")))).exit_code == 0
        assert "answers 404" in await complaint(str(good.make_url("/")), str(other.make_url("/")))
        gone = str(other.make_url("/"))
    assert gone.partition("://")[2].rstrip("/") in await complaint(gone)


async def test_an_address_that_is_none_is_said() -> None:
    assert await complaint("gateway:8081") == ("kvlane: an admin listener is at http://host:port, not 'gateway:8081'")
