"""Simulation: nothing is lost, nothing is left to chance, and gateways know what they are told."""

import pytest

from loadtests.results import Tally
from loadtests.rules.catalog import NAMES
from loadtests.scenario import Fleet, Objective, Scenario, Stage, load
from loadtests.simulate import Simulation
from loadtests.workloads import Job


def small(name: str, rate: float = 20.0, seconds: float = 10.0) -> tuple[Scenario, Stage]:
    """Give a scenario on two engines, and a short stage of it."""
    scenario = load(name)
    fleet = scenario.fleet.model_copy(update={"endpoints": 2})
    return scenario.model_copy(update={"fleet": fleet}), Stage(rate=rate, arrivals_s=seconds, warm_up_s=1.0)


@pytest.mark.parametrize("policy", NAMES)
def test_every_request_finishes(policy: str) -> None:
    scenario, stage = small("conv")
    simulation = Simulation(scenario, policy)
    result = simulation.run(stage)
    assert result is not None
    assert simulation.arrived == simulation.finished > 100
    assert 0 < result.requests < simulation.arrived
    assert result.slo_attainment * result.requests == pytest.approx(result.goodput_per_s * 9.0)


@pytest.mark.parametrize("name", ["tenants", "agent", "rag", "dirty", "mooncake", "azure", "b2b"])
@pytest.mark.parametrize("share", ["own", "shared"])
def test_every_request_finishes_whatever_comes(name: str, share: str) -> None:
    scenario, stage = small(name, 4.0)
    simulation = Simulation(scenario, "least_work", gateways=3, share=share)
    simulation.run(stage)
    assert simulation.arrived == simulation.finished > 0
    for replica in simulation.replicas:
        assert [endpoint.outstanding.requests for endpoint in replica.endpoints] == [0, 0]
        assert [endpoint.outstanding.prefill_tokens for endpoint in replica.endpoints] == [0, 0]


def test_what_no_engine_takes_is_refused_and_counted() -> None:
    scenario, stage = small("dirty", 20.0, 30.0)
    fleet = Fleet(endpoints=2, max_context_tokens=32_768)
    simulation = Simulation(scenario.model_copy(update={"fleet": fleet}), "least_work", seed=3)
    result = simulation.run(stage)
    assert result is not None
    assert simulation.refused > 0
    assert simulation.finished + simulation.refused == simulation.arrived
    assert result.slo_attainment <= 1 - result.refused / result.requests


@pytest.mark.parametrize("policy", ["random", "least_work", "sglang"])
def test_the_same_seed_gives_the_same_figures(policy: str) -> None:
    scenario, stage = small("tenants")
    runs = [Simulation(scenario, policy, seed=seed).run(stage) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_gateways_that_share_know_what_all_know() -> None:
    scenario, stage = small("tenants", 20.0)
    stage = stage.model_copy(update={"arrivals_s": 5.0})
    own, shared = (Simulation(scenario, "least_work", gateways=2, share=share) for share in ("own", "shared"))
    own.run(stage)
    shared.run(stage)

    def held(simulation: Simulation) -> list[int]:
        return [len(replica.index) for replica in simulation.replicas]

    assert held(shared)[0] == held(shared)[1] > max(held(own))


def test_sharing_brings_the_hits_back() -> None:
    scenario, stage = small("rag", 5.0, 40.0)
    own, shared = (
        Simulation(scenario, "least_work", gateways=4, share=share).run(stage) for share in ("own", "shared")
    )
    assert own is not None
    assert shared is not None
    assert shared.hit_rate > own.hit_rate + 0.05


def test_stages_follow_on_warm_caches() -> None:
    scenario, _ = small("b2b")
    simulation = Simulation(scenario, "least_work")
    stage = Stage(rate=4.0, arrivals_s=10.0, is_drained=True)
    first, second = simulation.run(stage), simulation.run(stage)
    assert first is not None
    assert second is not None
    assert second.output_tokens_per_s > 0
    assert simulation.arrived == first.requests + second.requests


def test_it_gives_up_on_a_rate_that_is_lost() -> None:
    scenario, _ = small("tenants")
    simulation = Simulation(scenario, "round_robin")
    assert simulation.run(Stage(rate=200.0, arrivals_s=30.0), give_up=True) is None
    assert simulation.finished < 30 * 200 / 2


def test_progress_is_told_in_virtual_seconds() -> None:
    scenario, stage = small("tenants", 5.0)
    told: list[float] = []
    Simulation(scenario, "random", on_progress=told.append).run(stage)
    assert sum(told) >= 10.0


def test_long_prompts_may_take_longer() -> None:
    tally = Tally(Objective())
    for prompt, ttft_s, e2e_s in ((100, 2.0, 3.0), (100, 2.1, 3.0), (40_000, 19.0, 20.0), (100, 1.0, 1.6), (100, 1, 1)):
        tally.requests += 1
        output = 1 if e2e_s == 1 else 11 if e2e_s == 1.6 else 101
        tally.finish(Job(0.0, "t", prompt, output, (), 0, 0), 50, ttft_s, e2e_s)
    tally.refuse()
    assert (tally.good, tally.bad) == (3, 3)  # late first token, 60 ms a token, refused


def test_imbalance_is_the_busiest_over_the_mean() -> None:
    tally = Tally(Objective())
    tally.sample([0, 0])
    tally.sample([3, 1])
    tally.sample([2, 2])
    result = tally.result(policy="p", seed=0, gateways=1, share="own", rate=1.0, counted_s=1.0, output_tokens_per_s=0.0)
    assert result.imbalance == 1.25
    assert (result.hit_rate, result.ttft_s.p99) == (0.0, None)


def test_gateways_that_hear_of_kv_events_find_what_the_others_sent() -> None:
    scenario, stage = small("rag", 4.0, 20.0)
    own, events, pretended = (
        Simulation(scenario, "least_work", gateways=4, share=share).run(stage)
        for share in ("own", "events", "pretended")
    )
    assert own is not None
    assert events is not None
    assert pretended is not None
    assert own.hit_rate < events.hit_rate
    assert own.hit_rate < pretended.hit_rate


def test_events_serve_policies_that_choose_by_other_things_too() -> None:
    scenario, stage = small("tenants")
    simulation = Simulation(scenario, "bounded_load", gateways=2, share="events")
    simulation.run(stage)
    assert simulation.arrived == simulation.finished


def test_long_prompts_go_to_the_engines_set_apart_for_them_and_nothing_else_does() -> None:
    scenario, stage = small("dirty", 5.0, 60.0)
    simulation = Simulation(scenario, "least_work", long_endpoints=1)
    result = simulation.run(stage)
    assert result is not None
    assert result.long_slo_attainment is not None
    assert result.normal_ttft_s.p99 is not None
    assert result.normal_ttft_s.p99 < 1.0
    normal, long = (node.engine.prefix_query_tokens for node in simulation._nodes)
    assert long >= 48_000
    assert normal > 48_000


def test_later_news_of_the_others_is_worth_less() -> None:
    scenario, stage = small("rag", 5.0, 30.0)
    hits = []
    for told_after_s in (0.0, 30.0):
        result = Simulation(scenario, "least_work", gateways=4, share="shared", told_after_s=told_after_s).run(stage)
        assert result is not None
        hits.append(result.hit_rate)
    assert hits[0] > hits[1]


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_a_wrong_work_model_learns_better(factor: float) -> None:
    scenario, stage = small("mixed", 15.0, 60.0)
    simulation = Simulation(scenario, "least_work", work_factor=factor)
    begun = [endpoint.work.p1 for endpoint in simulation.replicas[0].endpoints]
    assert begun == pytest.approx([factor * 0.033e-3] * 2)
    simulation.run(stage)
    default, slower = (endpoint.work for endpoint in simulation.replicas[0].endpoints)
    assert default.p1 == pytest.approx(0.033e-3, rel=0.5)
    assert slower.d0 > 1.2 * default.d0
