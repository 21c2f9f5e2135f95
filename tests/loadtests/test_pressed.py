"""Overload over HTTP beside virtual time: the same jobs, counted alike, and each is answered or refused."""

import asyncio
from dataclasses import asdict
from io import StringIO
from typing import Any

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.config import build
from gateway.sections import Admission as AdmissionSection
from loadtests import cli, pressed
from loadtests.client import Outcome
from loadtests.crowd import OVERLOADED, TOO_LONG, Crowd, press, rendered, tenants_section, token_ids
from loadtests.doors import Admission
from loadtests.drive import Target
from loadtests.experiment import spread
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.pressed import (
    FLEET,
    LADDER,
    Cell,
    admission_section,
    capacity,
    doubts,
    in_virtual_time,
    jobs_of,
    summed,
    table,
)
from loadtests.results import Tally
from loadtests.scenario import Lengths, Objective, Overload, Scenario, Stage, load
from loadtests.settings import Settings
from loadtests.simulate import Simulation
from loadtests.workloads import BATCH, INTERACTIVE, Job
from policies.tickets import CLASSES
from tests.fleet_fixtures import house
from tests.ports import free_ports

WITHIN_S = 60.0
SEED = 0
OVER_HTTP = [Admission.NONE, Admission.MAX_CONCURRENCY, Admission.FLOW]
STAGE = Stage(rate=50.0, arrivals_s=0.8, warm_up_s=0.2)
SERVED = Job(1.0, "t", 100, 3, tuple(range(6)), 48, 100, None, INTERACTIVE)


def small() -> Scenario:
    """Give the overload with short prompts and answers, and a tenth of the prompts too long."""
    scenario = load("overload")
    workload = scenario.workload
    assert isinstance(workload, Overload)
    systems = workload.singles.systems.model_copy(update={"tokens": Lengths(mean=400, sigma=0.3, least=200, most=800)})
    answers = Lengths(mean=4, sigma=0.3, least=2, most=8)
    singles = workload.singles.model_copy(update={"systems": systems, "output": answers})
    changed = workload.model_copy(update={"singles": singles, "long_share": 0.1})
    return scenario.model_copy(update={"fleet": FLEET, "workload": changed})


def outcome(**facts: object) -> Outcome:
    return Outcome(10.0, **facts)  # type: ignore[arg-type]


def test_blocks_are_equal_where_the_jobs_are_and_nowhere_else() -> None:
    seen: dict[int, tuple[int, ...]] = {}
    for job in jobs_of(small(), SEED, STAGE):
        ids = token_ids(job)
        assert len(ids) == job.prompt_tokens
        for at, block in enumerate(job.blocks[: job.prompt_tokens // BLOCK_TOKENS]):
            tokens = tuple(ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS])
            assert seen.setdefault(block, tokens) == tokens
    assert len(set(seen.values())) == len(seen) > 300


def test_virtual_time_meets_the_same_jobs() -> None:
    simulation = Simulation(small(), "least_work", seed=7)
    simulation.run(STAGE)
    assert simulation.arrived == len(jobs_of(small(), 7, STAGE))


def test_the_capacity_is_the_best_that_the_default_does_at_any_rate() -> None:
    stage = Stage(rate=1.0, arrivals_s=20.0, warm_up_s=5.0)
    scenario = load("overload").model_copy(update={"fleet": FLEET, "stages": (stage,)})
    found = capacity(scenario, 1)
    for rate in (2.0, 2.0 * LADDER**5):
        at_rate = in_virtual_time(scenario, Admission.FLOW, 1, stage.model_copy(update={"rate": rate}))
        assert found >= at_rate.goodput_per_s > 0


def test_a_request_names_its_caller_and_class_and_not_how_long_its_answer_will_be() -> None:
    head, _, body = rendered(Target(url="http://h:1"), SERVED._replace(service_class=BATCH)).partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /v1/completions HTTP/1.1"
    assert {b"authorization: Bearer key-of-t", b"x-kvlane-class: batch"} <= set(head.split(b"\r\n"))
    asked = orjson.loads(body)
    assert asked["prompt"] == token_ids(SERVED)
    assert asked["max_tokens"] == 2048
    assert asked["sim"] == {"output_tokens": 3}


def test_the_gateway_knows_every_caller_by_its_key_and_the_classes_as_virtual_time_does() -> None:
    jobs = jobs_of(small(), SEED, STAGE)
    pools = [{"name": "default", "endpoints": [{"url": "http://127.0.0.1:1"}]}]
    sections = {"admission": admission_section(Admission.FLOW), "tenants": tenants_section(jobs)}
    config = build({"pools": pools, **sections}, "test", {})
    assert {tenant.name for tenant in config.tenants} == {job.tenant for job in jobs}
    shown = [
        {**each.model_dump(), "crowded_wait_s": each.crowded_wait_s or float("inf")}
        for each in config.admission.classes
    ]
    assert shown == [asdict(each) for each in CLASSES]
    assert not AdmissionSection.model_validate(admission_section(Admission.NONE)).enabled
    with pytest.raises(ValueError, match="wait_bound"):
        admission_section(Admission.WAIT_BOUND)


def test_every_end_of_a_request_is_counted_once() -> None:
    crowd = Crowd(Tally(Objective()))
    served = {"status": 200, "first_at": 10.5, "last_at": 10.6, "cached_tokens": 48}
    ends = [
        outcome(**served, queue_s=0.004, predicted_queue_s=0.0),  # let in at once
        outcome(**served, queue_s=0.3, predicted_queue_s=0.1),
        outcome(**served),  # of a gateway where nobody waits
        outcome(status=OVERLOADED, error="status 503"),
        outcome(status=TOO_LONG, error="status 400"),
        outcome(error="connect"),
        outcome(status=200, error="error event", first_at=10.5),
        outcome(status=200),
    ]
    for end in ends:
        crowd.arrive(SERVED, is_counted=True)
        crowd.end(SERVED, end, is_counted=True)
    crowd.arrive(SERVED, is_counted=True)
    crowd.turn_away(is_counted=True)
    crowd.arrive(SERVED, is_counted=False)
    crowd.end(SERVED, ends[0], is_counted=False)
    result = summed(crowd, 0, STAGE)
    assert crowd.came == crowd.ended.total() == len(ends) + 2
    assert crowd.failed == {"connect": 1, "error event": 1, "no token": 1}
    assert (result.requests, result.refused, result.too_long, crowd.tally.good) == (len(ends) + 1, 6, 1, 3)
    assert crowd.tally.wait_s == [0.0, 0.3]
    assert result.wait_error_s == pytest.approx((0.2, 0.2))


@pytest.mark.parametrize("rule", OVER_HTTP)
async def test_whoever_comes_over_http_is_served_or_refused(rule: Admission) -> None:
    jobs = jobs_of(small(), SEED, STAGE)
    settings = Settings(profile=FLEET.profile, max_context_tokens=FLEET.max_context_tokens)
    sections: dict[str, Any] = {"admission": admission_section(rule), "tenants": tenants_section(jobs)}
    most_open = 4 if rule is Admission.MAX_CONCURRENCY else None
    async with (
        asyncio.timeout(WITHIN_S),
        house(2, settings, policy="least_work", endpoint={"profile": FLEET.profile}, **sections) as found,
    ):
        target = Target(url=found.gateway.url)
        crowd = await press(target, jobs, Objective(), warm_up_s=STAGE.warm_up_s, most_open=most_open)
    tally = crowd.tally
    assert crowd.came == crowd.ended.total() == len(jobs)
    assert crowd.open == 0
    assert crowd.failed == {}
    assert tally.requests == len(tally.ttft_s) + tally.refused == sum(job.at >= STAGE.warm_up_s for job in jobs)
    assert len(crowd.late_s) <= crowd.came
    assert crowd.ended["served"] > 0
    if rule is not Admission.MAX_CONCURRENCY:  # there the gateway does not see them all
        assert crowd.ended["too long"] == sum(job.prompt_tokens > FLEET.max_context_tokens for job in jobs) > 0
    if rule is Admission.NONE:
        assert crowd.ended["refused"] == 0


def test_the_table_has_both_ways_and_fits() -> None:
    stage = STAGE.model_copy(update={"arrivals_s": 4.0})
    cells = [
        Cell(3.0, rule, is_http, in_virtual_time(small(), rule, 1, stage), 0.002 if is_http else None)
        for rule in Admission
        for is_http in (True, False)
    ]
    out = StringIO()
    Console(file=out, width=100).print(table(cells))
    lines = out.getvalue().splitlines()
    rows = [line.split()[:3] for line in lines if line.startswith("3 ")]
    assert rows == [["3", rule.value, by] for rule in Admission for by in ("HTTP", "virtual")]
    assert "…" not in out.getvalue()


def test_what_speaks_against_the_figures_is_said() -> None:
    result = in_virtual_time(small(), Admission.NONE, 1, STAGE)
    assert (
        doubts([Cell(2.0, Admission.NONE, True, result, 0.001, 0.001), Cell(2.0, Admission.NONE, False, result)]) == []
    )
    busy, failed = doubts([Cell(2.0, Admission.NONE, True, result, 0.1, 0.05, (("connect", 3),))])
    assert "50 ms late" in busy
    assert failed.endswith("3 connect")


def test_the_command_starts_what_it_presses_and_writes_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressed, "load", lambda name: small())
    monkeypatch.setattr(pressed, "capacity", lambda scenario, seed: 10.0)
    first = free_ports(4)
    words = ["press", "--only", "wait_bound", "flow", "--times", "1.5", "--seconds", "1", "--warm-up", "0.2"]
    result = CliRunner().invoke(
        cli.app, spread([*words, "--port", str(first), "--engine-port", str(first + 2), "--json", "-"])
    )
    assert result.exit_code == 0, result.output
    cells = orjson.loads(result.stdout)["cells"]
    assert [(cell["rule"], cell["way"]) for cell in cells] == [
        ("wait_bound", "virtual"), ("flow", "http"), ("flow", "virtual"),
    ]  # fmt: skip
    assert cells[1]["requests"] == cells[2]["requests"]
    assert cells[1]["failed"] == {}
