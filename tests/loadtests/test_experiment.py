"""kvlane-sim simulate: its words, its search, its table, and the JSON that scripts rely on."""

import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from loadtests import cli
from loadtests.experiment import runs_table, spread
from loadtests.scenario import load, names
from loadtests.sweep import Case, highest, run, sweep

TINY = """
name: tiny
about: a test
workload:
  kind: singles
  systems: {count: 5, zipf: 1.0, tokens: {mean: 500, sigma: 0.5, least: 100, most: 1000}}
  user: {mean: 50, sigma: 0.5, least: 10, most: 100}
  output: {mean: 20, sigma: 0.5, least: 1, most: 50}
fleet: {endpoints: 2}
stages: [{rate: 10, arrivals_s: 6, warm_up_s: 1}]
objective: {ttft_s: 0.02}
bracket: [10, 160]
"""
RUN_KEYS = {
    "policy", "seed", "gateways", "share", "requests", "hit_rate", "ttft_s", "tpot_s", "e2e_s",
    "output_tokens_per_s", "goodput_per_s", "slo_attainment", "refused", "imbalance",
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    return file


def simulate(*words: str) -> str:
    result = CliRunner().invoke(cli.app, spread(["simulate", *words]))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_json_has_a_run_for_each_policy_and_seed(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--policy", "random", "least_work", "--seed", "1", "2", "--gateways", "2", "--share", "shared"]
    shown = simulate(str(tiny), *words, "--processes", "1", "--json", str(file))
    runs = orjson.loads(file.read_bytes())["runs"]
    assert [(run["policy"], run["seed"]) for run in runs] == [
        ("random", 1), ("random", 2), ("least_work", 1), ("least_work", 2),
    ]  # fmt: skip
    assert all(set(run) >= RUN_KEYS and set(run["ttft_s"]) >= {"mean", "p50", "p99"} for run in runs)
    assert {(run["gateways"], run["share"]) for run in runs} == {(2, "shared")}
    assert "least_work" in shown


def test_the_highest_rate_is_in_the_json(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    simulate(str(tiny), "--policy", "round_robin", "--max-rate", "--json", str(file))
    found = orjson.loads(file.read_bytes())
    (row,) = found["max_rate"]
    assert row.keys() == {"policy", "seed", "gateways", "share", "requests_per_s"}
    assert row["requests_per_s"] > 10
    assert found["runs"][0]["slo_attainment"] >= 0.95


def test_standard_output_can_be_the_json(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kvlane-sim", "simulate", str(tiny), "--policy", "random", "--json", "-"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0
    assert orjson.loads(capfdbinary.readouterr().out)["runs"][0]["policy"] == "random"


def test_a_rate_takes_the_place_of_the_scenarios(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    simulate(str(tiny), "--policy", "random", "--rate", "30", "--json", str(file))
    assert orjson.loads(file.read_bytes())["runs"][0]["requests"] == pytest.approx(150, abs=45)


def test_several_processes_find_the_same(tiny: Path) -> None:
    cases = [Case(load(str(tiny)), policy, 1) for policy in ("random", "least_work")]
    told: list[tuple[int, float]] = []
    assert sweep(cases, 2, lambda place, share: told.append((place, share))) == [run(case) for case in cases]
    assert all(0 <= share <= 1 for _, share in told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "no scenario 'nowhere'"),
        (["tenants", "--policy", "best"], "no policy 'best'"),
    ],
)
def test_wrong_words_are_explained(words: list[str], told: str) -> None:
    result = CliRunner().invoke(cli.app, ["simulate", *words])
    assert result.exit_code == 2
    assert told in result.output


def test_lists_may_follow_their_option() -> None:
    assert spread(["x", "--seed", "1", "2", "--rate", "3", "--policy", "a", "b"]) == [
        "x", "--seed", "1", "--seed", "2", "--rate", "3", "--policy", "a", "--policy", "b",
    ]  # fmt: skip


def below(limit: float) -> Callable[[float], bool]:
    return lambda rate: rate <= limit


@pytest.mark.parametrize("limit", [2.0, 11.0, 15.0, 19.9, 35.0, 100.0])
def test_the_search_comes_close_in_and_beside_its_bracket(limit: float) -> None:
    assert limit * 0.985 <= highest(below(limit), 10.0, 20.0) <= limit


def test_the_search_ends_where_nothing_is_served() -> None:
    assert highest(below(0.0), 10.0, 20.0) == 0.0


def test_a_rate_of_a_staged_scenario_is_its_stage() -> None:
    b2b = load("b2b")
    assert [(stage.rate, stage.arrivals_s) for stage in b2b.at(40)] == [(15, 50), (40, 38)]
    assert [(stage.rate, stage.arrivals_s) for stage in b2b.at(37.5)] == [(15, 50), (37.5, 40)]


def test_every_scenario_can_be_read() -> None:
    assert {"tenants", "conv", "agent", "rag", "dirty", "b2b", "mooncake", "azure"} <= set(names())
    assert all(load(name).name == name for name in names())


def test_the_table_fits_a_terminal(tiny: Path) -> None:
    finding = run(Case(load(str(tiny)), "consistent_hash", 1))
    out = StringIO()
    Console(file=out, width=80).print(runs_table(finding.runs))
    assert "…" not in out.getvalue()
