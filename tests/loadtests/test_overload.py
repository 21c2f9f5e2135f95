"""Admission in virtual time: each rule does what it says, and everything that came is served or refused."""

from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from loadtests import cli, overload
from loadtests.doors import Admission
from loadtests.experiment import spread
from loadtests.results import Result, Tally, fair_parts, jain
from loadtests.scenario import Objective, Scenario, Stage, load
from loadtests.simulate import Simulation
from loadtests.sweep import Case, run
from loadtests.workloads import BATCH, INTERACTIVE, Job


def small(rate: float = 60.0, seconds: float = 20.0) -> tuple[Scenario, Stage]:
    """Give the overload of two engines, which serve some 37 requests a second, and a short stage of it."""
    scenario = load("overload")
    fleet = scenario.fleet.model_copy(update={"endpoints": 2})
    return scenario.model_copy(update={"fleet": fleet}), Stage(rate=rate, arrivals_s=seconds, warm_up_s=5.0)


def simulated(admission: Admission, limit: float | None = None, **options: object) -> tuple[Simulation, Result]:
    scenario, stage = small()
    simulation = Simulation(scenario, "least_work", seed=1, admission=admission, limit=limit, **options)  # type: ignore[arg-type]
    result = simulation.run(stage)
    assert result is not None
    return simulation, result


@pytest.mark.parametrize("admission", list(Admission))
@pytest.mark.parametrize("gateways", [1, 2])
def test_whoever_comes_is_served_or_refused(admission: Admission, gateways: int) -> None:
    simulation, result = simulated(admission, gateways=gateways, share="shared")
    assert simulation.arrived == simulation.finished + simulation.refused > 1000
    assert simulation.refused >= result.refused >= result.too_long > 0
    for replica in simulation.replicas:
        assert [endpoint.outstanding.requests for endpoint in replica.endpoints] == [0, 0]
        assert all(queue.running == queue.waiting == 0 for queue in replica.queues.values())


def test_without_admission_only_what_is_too_long_is_refused() -> None:
    _, result = simulated(Admission.NONE)
    assert result.refused == result.too_long
    assert result.wait_error_s is None


def test_no_more_are_under_way_than_the_rule_says() -> None:
    scenario, stage = small()
    most = 0

    def watch(seconds: float) -> None:
        nonlocal most
        most = max(most, sum(node.engine.running + node.engine.waiting for node in simulation._nodes))

    simulation = Simulation(scenario, "least_work", admission=Admission.MAX_CONCURRENCY, limit=20.0, on_progress=watch)
    simulation.run(stage)
    assert 30 < most <= 40


def test_where_the_wait_is_bounded_less_is_let_in_than_without() -> None:
    _, tight = simulated(Admission.WAIT_BOUND, 0.03)
    _, loose = simulated(Admission.WAIT_BOUND, 5.0)
    assert tight.refused > loose.refused


def test_the_queue_keeps_what_it_lets_in_within_the_objective() -> None:
    _, none = simulated(Admission.NONE)
    _, flow = simulated(Admission.FLOW)
    assert flow.admitted_slo > 0.9 > none.admitted_slo  # with cold caches, that hold two thirds of all prefixes
    assert flow.wait_s.p99 is not None
    assert 0 < flow.wait_s.p99 < 2.0
    assert flow.wait_error_s is not None
    assert flow.wait_error_s[0] < flow.wait_error_s[1] < 1.5
    assert flow.batch_share > 0.05
    assert flow.batch_ttft_s.p50 is not None
    assert flow.ttft_s.p50 is not None
    assert none.batch_ttft_s.p50 is not None
    assert flow.batch_ttft_s.p50 > 5 * flow.ttft_s.p50  # batch yields: it waits where the others do not
    assert flow.batch_ttft_s.p50 > 3 * none.batch_ttft_s.p50


def test_long_prompts_queue_for_engines_of_their_own() -> None:
    scenario, stage = small(5.0)
    dirty = load("dirty").model_copy(
        update={"fleet": scenario.fleet.model_copy(update={"max_context_tokens": 131_072})}
    )
    simulation = Simulation(dirty, "least_work", long_endpoints=1, admission=Admission.FLOW)
    simulation.run(stage)
    assert len(simulation.replicas[0].queues) == 2
    assert simulation.arrived == simulation.finished + simulation.refused


def test_fair_parts_leave_nobody_short_who_asks_for_less() -> None:
    assert fair_parts({"a": 1, "b": 10, "c": 20}, 15.0) == [("a", 1.0), ("b", 7.0), ("c", 7.0)]
    assert fair_parts({"a": 1, "b": 2}, 3.0) == [("a", 1.0), ("b", 2.0)]


def test_jains_index_is_one_where_all_have_alike() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1.0
    assert jain([3.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain([]) == 1.0


def test_batch_may_begin_late_and_is_counted_apart() -> None:
    tally = Tally(Objective())
    batch = Job(0.0, "t", 100, 11, (), 16, 100, None, BATCH)
    small = batch._replace(service_class=INTERACTIVE)
    for job, ttft_s in ((batch, 50.0), (small, 50.0), (small, 1.0)):
        tally.arrive(job)
        tally.wait(job, ttft_s, ttft_s - 0.25)
        tally.finish(job, 60, ttft_s, ttft_s + 0.1)
    tally.arrive(batch)
    tally.refuse()
    result = tally.result(policy="p", seed=0, gateways=1, share="own", rate=1.0, counted_s=1.0, output_tokens_per_s=0.0)
    assert (tally.good, tally.bad, result.admitted_slo) == (2, 2, 2 / 3)
    assert result.batch_share == pytest.approx(1 / 3, rel=1e-6)
    assert result.batch_refused_share == 0.5
    assert (result.normal_ttft_s.p99, result.batch_ttft_s.p99) == (50.0, 50.0)
    assert (result.wait_error_s, result.batch_wait_error_s) == ((0.25, 0.25), (0.25, 0.25))
    assert result.jain == result.jain_share == 1.0


def test_predictions_are_held_against_waits_that_ended_while_others_came() -> None:
    tally = Tally(Objective(), arrivals_s=60.0)
    batch = Job(20.0, "t", 100, 11, (), 16, 100, None, BATCH)
    for wait_s, predicted_s in ((30.0, 35.0), (30.0, 45.0), (45.0, 30.0)):
        tally.wait(batch, wait_s, predicted_s)
    assert (tally.batch_wait_s, tally.batch_wait_error_s) == ([30.0], [5.0])


def test_the_table_has_a_row_for_each_rule_and_rate() -> None:
    scenario, stage = small(seconds=8.0)
    scenario = scenario.model_copy(update={"stages": (stage,)})
    findings = [
        run(Case(scenario, "least_work", 1, rate=rate, admission=rule))
        for rate in (20.0, 40.0)
        for rule in (Admission.NONE, Admission.FLOW)
    ]
    out = StringIO()
    Console(file=out, width=120).print(overload.rules_table(findings))
    rows = [line.split()[:2] for line in out.getvalue().splitlines() if line[:2] in ("20", "40")]
    assert rows == [["20", "none"], ["20", "flow"], ["40", "none"], ["40", "flow"]]


def test_the_command_writes_what_each_rule_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, stage = small(seconds=7.0)
    monkeypatch.setattr(overload, "load", lambda name: scenario.model_copy(update={"stages": (stage,)}))
    monkeypatch.setattr(overload, "CAPACITY", 10.0)
    monkeypatch.setattr("loadtests.bars.CAPACITY", 10.0)
    file = tmp_path / "overload.json"
    result = CliRunner().invoke(cli.app, spread(["overload", "--seed", "1", "--json", str(file)]))
    assert result.exit_code == 0, result.output
    runs = orjson.loads(file.read_bytes())
    assert [each["admission"] for each in runs] == [rule.value for rule in Admission] * 3


def test_the_queue_is_refused_where_it_cannot_know_what_engines_hold() -> None:
    words = ["simulate", "tenants", "--admission", "flow", "--share", "events"]
    result = CliRunner().invoke(cli.app, spread(words))
    assert result.exit_code == 2
