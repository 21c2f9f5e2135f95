"""bars: what is asked for, and the verdicts."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from loadtests import bars, cli
from loadtests.experiment import spread
from loadtests.results import Result
from loadtests.scenario import load
from loadtests.sweep import Case, Finding, run


@pytest.mark.parametrize(
    ("row", "is_met"),
    [
        (bars.Row("", [1.0, 3.0], least=2.0), True),
        (bars.Row("", [1.0, 2.0], least=2.0), False),
        (bars.Row("", [1.0, 3.0], most=2.0), True),
        (bars.Row("", [1.0, 3.0], least=2.0, is_each=True), False),
        (bars.Row("", [0.9, 1.1], least=0.85, most=1.15, is_each=True), True),
        (bars.Row("", [1.2], least=0.85, most=1.15), False),
    ],
)
def test_a_row_is_met_by_its_mean_or_by_each_seed(row: bars.Row, is_met: bool) -> None:
    assert row.is_met is is_met


@pytest.mark.parametrize(
    "name", [name for name in bars.BARS if name not in ("decision", "fixed", "b2b", "long", "overload")]
)
def test_rates_are_compared_seed_by_seed(name: str) -> None:
    bar = bars.BARS[name]
    findings = [Finding(case, [], 10.0) for case in bar.cases([1, 2])]
    rows = bar.judge(findings)
    assert {len(row.values) for row in rows} == {2}
    assert all(row.values == [1.0, 1.0] for row in rows if "published" not in row.what)


@pytest.mark.parametrize("name", bars.BARS)
def test_every_bar_names_each_case_once_and_in_every_seed(name: str) -> None:
    cases = bars.BARS[name].cases([1, 2, 3])
    assert len(cases) == len({repr(case) for case in cases})
    assert sum(case.seed == 1 for case in cases) * 3 == len(cases)


@pytest.mark.parametrize("name", ["fixed", "b2b", "long", "overload"])
def test_runs_are_judged_by_workload_policy_and_rate(name: str) -> None:
    """With results of one tiny run in place of each."""
    tiny = load("tenants").at(5.0)[-1].model_copy(update={"arrivals_s": 3.0, "warm_up_s": 0.0})
    scenario = load("tenants").model_copy(update={"stages": (tiny,)})
    result = run(Case(scenario, "round_robin", 1)).runs[0]
    bar = bars.BARS[name]
    findings = [
        Finding(case, [_at(result, rate) for rate in ((40.0, 60.0) if name == "b2b" else (case.rate or 1.0,))])
        for case in bar.cases([1])
    ]
    rows = bar.judge(findings)
    assert [len(row.values) for row in rows] == [1] * len(rows)
    assert len(rows) == {"fixed": 9, "b2b": 3, "long": 3, "overload": 18}[name]


def _at(result: Result, rate: float) -> Result:
    return replace(result, rate=rate)


def test_the_table_says_what_is_met() -> None:
    out = StringIO()
    rows = [bars.Row("one", [1.0], least=2.0), bars.Row("two", [1.0], most=2.0)]
    Console(file=out, width=100).print(bars.table(bars.BARS["b2b"], rows, 3.0))
    assert "1 of 2 met, 3 s" in out.getvalue()
    assert [line.split()[3] for line in out.getvalue().splitlines() if line.startswith(("one", "two"))] == [
        "missed",
        "met",
    ]


def test_an_unknown_bar_is_refused_with_the_known_ones() -> None:
    result = CliRunner().invoke(cli.app, spread(["bars", "--only", "nothing"]))
    assert result.exit_code == 2
    assert "gateways" in result.output


def test_the_command_writes_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        bars.BARS, "long", bars.Bar("a test", lambda seeds: [], lambda findings: [bars.Row("x", [1.0])])
    )
    file = tmp_path / "bars.json"
    result = CliRunner().invoke(cli.app, spread(["bars", "--only", "long", "--json", str(file)]))
    assert result.exit_code == 0, result.output
    assert orjson.loads(file.read_bytes())["long"]["rows"][0]["is_met"] is True
