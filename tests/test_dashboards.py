"""What is written against the metrics page: the Grafana dashboard, the alert rules and the autoscalers' queries.

Every expression is parsed, and every metric and label in it is one that a real page has (`PAGE`: test_metrics sees
to that). Where Prometheus' own promtool is installed, it checks the rules and tries them on made-up series.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.engines.answers import Verdict
from gateway.metrics import Metrics
from policies.health import State
from policies.record import Outcome
from tests.gateway.test_metrics import PAGE

CONFIG = Path(__file__).parent.parent / "config"
DASHBOARD: dict[str, Any] = json.loads((CONFIG / "grafana/kvlane.json").read_text())
GROUPS: list[dict[str, Any]] = yaml.safe_load((CONFIG / "alerts/kvlane.yaml").read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
SCRAPED = frozenset(("job", "instance"))  # what Prometheus puts on every series
HISTOGRAMS = frozenset(family.name for family in Metrics().collect() if family.type == "histogram")
PROMTOOL = shutil.which("promtool")

VALUES = {
    "state": {state.value for state in State},
    "outcome": {outcome.value for outcome in Outcome},
    "kind": {*(verdict.value for verdict in Verdict), "connect", "cut", "stalled", "deadline", "files"},
    "result": {"met", "missed"},
    "source": {"reported", "predicted"},
    "job": {"kvlane"},
}
"""What labels that have a few values may be compared with."""


def known_series() -> dict[str, frozenset[str]]:
    """Give every series of a page by name, with its labels as Prometheus has them."""
    series = {"up": SCRAPED}
    for name, labels in PAGE.items():
        own = frozenset(labels) | SCRAPED
        if name in HISTOGRAMS:
            series |= {f"{name}_bucket": own | {"le"}, f"{name}_count": own, f"{name}_sum": own}
        else:
            series[name] = own
    for family in text_string_to_metric_families(Metrics().page("")[1].decode()):
        if family.name.startswith("process_"):
            series |= {sample.name: frozenset(sample.labels) | SCRAPED for sample in family.samples}
    return series


SERIES = known_series()


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_queries() -> Iterator[tuple[str, str, str]]:
    """Give each query of the dashboard: where it is, what it asks, and how its series are called."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"]


def scaler_queries() -> Iterator[str]:
    for trigger in yaml.safe_load((CONFIG / "kubernetes/keda.yaml").read_text())["spec"]["triggers"]:
        yield trigger["metadata"]["query"]
    hpa = yaml.safe_load((CONFIG / "kubernetes/hpa.yaml").read_text())
    for metric in hpa["spec"]["metrics"]:
        wanted = metric["external"]["metric"]
        matchers = ",".join(f'{name}="{value}"' for name, value in wanted["selector"]["matchLabels"].items())
        yield f"{wanted['name']}{{{matchers}}}"


def parse(expression: str) -> promql.Expr:
    """Parse an expression, with Grafana's variables as it would fill them in."""
    parsed: promql.Expr = promql.parse(expression.replace("$__rate_interval", "1m").replace("$", ""))
    return parsed


def labels_of(expr: object) -> frozenset[str]:
    """Give the labels of what an expression yields; fails where it names what is not there."""
    match expr:
        case promql.VectorSelector():
            assert expr.name in SERIES, f"there is no {expr.name}"
            for matcher in expr.matchers.matchers:
                assert matcher.name in SERIES[expr.name], f"{expr.name} has no label {matcher.name}"
                known = VALUES.get(matcher.name)
                if known is not None and expr.name != "kvlane_tenants_stale":
                    assert set(matcher.value.split("|")) <= known, f"{matcher.name} is never {matcher.value}"
            return SERIES[expr.name]
        case promql.MatrixSelector():
            return labels_of(expr.vector_selector)
        case promql.Call():
            found = frozenset[str]().union(*map(labels_of, expr.args))
            if expr.func.name == "histogram_quantile":
                assert "le" in found, "quantiles need buckets"
                return found - {"le"}
            return found
        case promql.AggregateExpr():
            within = labels_of(expr.expr)
            if expr.modifier is None:
                return within if str(expr.op) in ("topk", "bottomk") else frozenset()
            assert expr.modifier.type == promql.AggModifierType.By, "say what stays"
            assert set(expr.modifier.labels) <= within, f"{expr.modifier.labels} of {sorted(within)}"
            return frozenset(expr.modifier.labels)
        case promql.BinaryExpr():
            left, right = labels_of(expr.lhs), labels_of(expr.rhs)
            matching = expr.modifier.matching if expr.modifier is not None else None
            if matching is not None:
                assert set(matching.labels) <= left & right
            elif left and right:
                assert left == right, f"{sorted(left)} never match {sorted(right)}"
            return left or right
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return labels_of(expr.expr)
        case promql.NumberLiteral() | promql.StringLiteral():
            return frozenset()
    raise AssertionError(f"unknown expression {expr!r}")


# The dashboard.


@pytest.mark.parametrize(("where", "expr", "legend"), list(dashboard_queries()), ids=lambda value: str(value)[:40])
def test_the_dashboard_asks_for_what_there_is(where: str, expr: str, legend: str) -> None:
    found = labels_of(parse(expr))
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= found, where
    unnamed = found - set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert not unnamed - SCRAPED, f"{where}: series that differ by {unnamed} have one name"


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert DASHBOARD["uid"] == "kvlane"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, f"{panel['title']} lies over another"
        assert max(x for x, _ in cells) < 24
        places |= cells


def test_panels_say_which_source_and_unit_they_have() -> None:
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
        if panel["type"] != "state-timeline":
            assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF"[: len(panel["targets"])])


def test_every_variable_is_declared_and_used() -> None:
    declared = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
    assert used == set(declared)
    for variable in declared.values():
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert asked is not None
            assert asked[2] in SERIES[asked[1]]


def test_the_dashboard_shows_what_matters() -> None:
    shown = " ".join(expr for _, expr, _ in dashboard_queries())
    for name in (
        "kvlane_cached_tokens_total",
        "kvlane_ttft_seconds_bucket",
        "kvlane_tpot_seconds_bucket",
        "kvlane_queue_wait_seconds_bucket",
        "kvlane_queue_wait_predicted_seconds_bucket",
        "kvlane_endpoint_state",
        "kvlane_pending_prefill_seconds",
        "kvlane_limit_refusals_total",
        "kvlane_refusals_total",
        "kvlane_pool_saturation_ratio",
        "kvlane_loop_lag_seconds_bucket",
        "kvlane_pool_needed_replicas",
    ):
        assert name in shown, name


# The alert rules.


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert re.fullmatch(r"Kvlane[A-Z]\w+", name)
    found = labels_of(parse(rule["expr"]))
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    told = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= found
    assert len(rule["annotations"]["description"]) > 100, "it says what to look at"
    is_of_one_event = "increase(" in rule["expr"] and rule["expr"].endswith("> 0")
    assert ("for" in rule) is not is_of_one_event, "what is lost is lost at once; all else must last"


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_names_metrics_and_other_alerts_that_there_are(name: str) -> None:
    told = " ".join(ALERTS[name]["annotations"].values())
    assert set(re.findall(r"Kvlane[A-Z]\w+", told)) <= set(ALERTS)
    assert set(re.findall(r"\b(?:kvlane|process)_\w+", told)) <= set(SERIES)


def test_alerts_have_names_of_their_own() -> None:
    assert len(ALERTS) == sum(len(group["rules"]) for group in GROUPS)


# The autoscalers.


@pytest.mark.parametrize("query", list(scaler_queries()))
def test_an_autoscaler_asks_for_what_there_is(query: str) -> None:
    labels_of(parse(query))


# With promtool.

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")


def promtool(*words: str) -> None:
    assert PROMTOOL is not None
    ran = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", str(CONFIG / "alerts/kvlane.yaml"))


TRIED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    # alert: series on which it fires within 8 hours, and such on which it must not
    "KvlaneGatewayDown": ({'up{job="kvlane"}': "0x480"}, {'up{job="kvlane"}': "1x480"}),
    "KvlanePoolDown": (
        {'kvlane_endpoint_state{endpoint="a",pool="p",state="ready"}': "0x480"},
        {
            'kvlane_endpoint_state{endpoint="a",pool="p",state="ready"}': "0x480",
            'kvlane_endpoint_state{endpoint="b",pool="p",state="ready"}': "1x480",
        },
    ),
    "KvlaneEndpointDown": (
        {
            'kvlane_endpoint_state{endpoint="a",pool="p",state="ready"}': "0x480",
            'kvlane_endpoint_state{endpoint="a",pool="p",state="draining"}': "0x480",
        },
        {
            'kvlane_endpoint_state{endpoint="a",pool="p",state="ready",instance="1"}': "0x480",  # one sees it not
            'kvlane_endpoint_state{endpoint="a",pool="p",state="ready",instance="2"}': "1x480",
            'kvlane_endpoint_state{endpoint="b",pool="p",state="ready"}': "0x480",  # it goes
            'kvlane_endpoint_state{endpoint="b",pool="p",state="draining"}': "1x480",
        },
    ),
    "KvlaneEndpointFlapping": (
        {'kvlane_endpoint_state_changes_total{endpoint="a",state="ejected"}': "0+1x480"},
        {'kvlane_endpoint_state_changes_total{endpoint="a",state="ejected"}': "0x470 1x10"},
    ),
    "KvlaneEndpointFailing": (
        {
            'kvlane_endpoint_failures_total{endpoint="a",kind="cut"}': "0+10x480",
            'kvlane_endpoint_requests_total{endpoint="a",reason="prefix"}': "0+100x480",
        },
        {
            'kvlane_endpoint_failures_total{endpoint="a",kind="busy"}': "0+90x480",
            'kvlane_endpoint_failures_total{endpoint="a",kind="client"}': "0+90x480",
            'kvlane_endpoint_requests_total{endpoint="a",reason="prefix"}': "0+100x480",
        },
    ),
    "KvlaneRequestsFail": (
        {
            'kvlane_requests_total{outcome="ok"}': "0+95x480",
            'kvlane_requests_total{outcome="failed"}': "0+5x480",
        },
        {
            'kvlane_requests_total{outcome="ok"}': "0+100x480",
            'kvlane_requests_total{outcome="client_error"}': "0+100x480",
            'kvlane_requests_total{outcome="failed"}': "0x480",
        },
    ),
    "KvlaneRetryBudgetSpent": (
        {"kvlane_retries_denied_total": "0+5x480"},
        {"kvlane_retries_denied_total": "7x480"},
    ),
    "KvlaneHitRateOffForecast": (
        {'kvlane_cache_forecast_off{endpoint="a"}': "1x480"},
        {'kvlane_cache_forecast_off{endpoint="a"}': "0x480"},
    ),
    "KvlaneKvEventsLost": (
        {'kvlane_kv_event_gaps_total{endpoint="a"}': "0+1x480"},
        {'kvlane_kv_event_gaps_total{endpoint="a"}': "5x480"},
    ),
    "KvlaneSloBurnsFast": (
        {
            'kvlane_slo_requests_total{pool="p",slo="ttft",result="missed"}': "0+8x480",
            'kvlane_slo_requests_total{pool="p",slo="ttft",result="met"}': "0+2x480",
        },
        {  # it was bad for an hour, and is over
            'kvlane_slo_requests_total{pool="p",slo="ttft",result="missed"}': "0+9x420 3780+0x60",
            'kvlane_slo_requests_total{pool="p",slo="ttft",result="met"}': "0+1x420 420+9x60",
        },
    ),
    "KvlaneSloBurnsSlowly": (
        {
            'kvlane_slo_requests_total{pool="p",slo="tpot",result="missed"}': "0+4x480",
            'kvlane_slo_requests_total{pool="p",slo="tpot",result="met"}': "0+6x480",
        },
        {
            'kvlane_slo_requests_total{pool="p",slo="tpot",result="missed"}': "0+1x480",
            'kvlane_slo_requests_total{pool="p",slo="tpot",result="met"}': "0+9x480",
        },
    ),
    "KvlaneQueueGrows": (
        {'kvlane_queued_requests{pool="p",class="c"}': "0+1x480"},
        {'kvlane_queued_requests{pool="p",class="c"}': "500x480"},
    ),
    "KvlaneRefusesForWantOfRoom": (
        {'kvlane_admission_refusals_total{pool="p",class="c",reason="shed"}': "0+60x480"},
        {'kvlane_admission_refusals_total{pool="p",class="c",reason="shed"}': "0+1x480"},
    ),
    "KvlanePoolSaturated": (
        {'kvlane_pool_saturation_ratio{pool="p"}': "1.2x480"},
        {'kvlane_pool_saturation_ratio{pool="p"}': "0.9x480"},
    ),
    "KvlaneScalingNotFollowed": (
        {
            'kvlane_pool_recommended_replicas{pool="p"}': "3x480",
            'kvlane_endpoint_state{endpoint="a",pool="p",state="ready"}': "1x480",
        },
        {
            'kvlane_pool_recommended_replicas{pool="p"}': "1x480",
            'kvlane_endpoint_state{endpoint="a",pool="p",state="ready"}': "1x480",
        },
    ),
    "KvlaneLimiterDown": ({'kvlane_limiter_up{instance="1"}': "0x480"}, {'kvlane_limiter_up{instance="1"}': "1x480"}),
    "KvlaneRedisSlow": (
        {'kvlane_redis_timeouts_total{instance="1"}': "0+1x480"},
        {'kvlane_redis_timeouts_total{instance="1"}': "9x480"},
    ),
    "KvlaneSettlementsLost": ({"kvlane_limiter_lost_total": "0x478 3x2"}, {"kvlane_limiter_lost_total": "3x480"}),
    "KvlaneTenantsStale": (
        {'kvlane_tenants_stale{instance="1",source="redis"}': "1x480"},
        {'kvlane_tenants_stale{instance="1",source="redis"}': "0x476 1x4"},
    ),
    "KvlaneTenantsUnread": (
        {'kvlane_tenants_unread{instance="1",source="tenants_in_redis"}': "1x480"},
        {'kvlane_tenants_unread{instance="1",source="tenants_in_redis"}': "1x477 0x3"},
    ),
    "KvlaneUsageUnsaved": ({"kvlane_accounting_unsaved": "1x480"}, {"kvlane_accounting_unsaved": "0x480"}),
    "KvlaneBooksIncomplete": (
        {'kvlane_bookkeeping_failures_total{keeper="doctor"}': "0x478 1x2"},
        {'kvlane_bookkeeping_failures_total{keeper="doctor"}': "4x480"},
    ),
    "KvlaneAccessLogDrops": (
        {"kvlane_access_log_drops_total": "0x478 1x2"},
        {"kvlane_access_log_drops_total": "4x480"},
    ),
    "KvlaneTracesDropped": (
        {'kvlane_trace_drops_total{why="queue"}': "0x478 1x2"},
        {'kvlane_trace_drops_total{why="queue"}': "4x480"},
    ),
    "KvlaneLoopLag": (
        {
            'kvlane_loop_lag_seconds_bucket{instance="1",le="0.05"}': "0+50x480",
            'kvlane_loop_lag_seconds_bucket{instance="1",le="0.1"}': "0+100x480",
            'kvlane_loop_lag_seconds_bucket{instance="1",le="+Inf"}': "0+100x480",
        },
        {
            'kvlane_loop_lag_seconds_bucket{instance="1",le="0.05"}': "0+100x480",
            'kvlane_loop_lag_seconds_bucket{instance="1",le="0.1"}': "0+100x480",
            'kvlane_loop_lag_seconds_bucket{instance="1",le="+Inf"}': "0+100x480",
        },
    ),
    "KvlaneFilesRunOut": (
        {'process_open_fds{job="kvlane"}': "900x480", 'process_max_fds{job="kvlane"}': "1000x480"},
        {'process_open_fds{job="kvlane"}': "500x480", 'process_max_fds{job="kvlane"}': "1000x480"},
    ),
}


def test_every_alert_is_tried() -> None:
    assert set(TRIED) == set(ALERTS)


@needs_promtool
def test_alerts_fire_when_they_should_and_not_else(tmp_path: Path) -> None:
    tests = []
    for name, (bad, good) in TRIED.items():
        for series, fires in ((bad, True), (good, False)):
            firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
            tests.append(
                {
                    "name": f"{name} {'fires' if fires else 'is silent'}",
                    "interval": "1m",
                    "input_series": [{"series": key, "values": values} for key, values in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": firing,
                            "eval_time": "8h",
                            "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                        }
                    ],
                }
            )
    file = tmp_path / "test.yaml"
    rules = str(CONFIG / "alerts/kvlane.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": "5m", "tests": tests}))
    promtool("test", "rules", str(file))
