"""The whole bench, with a second mock engine in a proxy's place, and what set-up says of what it cannot bring."""

import json
import os
import shutil
from pathlib import Path

import pytest

from loadtests.bench import __main__ as bench
from loadtests.bench import measure, setup, targets
from loadtests.bench.targets import DIRECT, Missing, Place, mock_engine


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for everything that set-up makes."""
    for module in (setup, targets, measure):
        monkeypatch.setattr(module, "OUT", tmp_path)
    return tmp_path


def test_a_part_that_cannot_be_had_is_said_in_one_line_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> str:
        raise setup.Unavailable("not on this machine")

    there = setup.bring([("first", lambda: "version 1"), ("second", missing)])
    assert there == {"first": True, "second": False}
    assert capsys.readouterr().out.splitlines() == [
        "bench-setup: first: version 1",
        "bench-setup: second: NOT AVAILABLE, left out: not on this machine",
    ]


def test_a_command_that_fails_is_told_by_the_last_line_it_said() -> None:
    with pytest.raises(setup.Unavailable, match="failed: that was it"):
        setup.run("sh", "-c", "echo first; echo that was it; exit 3")
    with pytest.raises(setup.Unavailable, match="no-such-command"):
        setup.run("no-such-command")


def test_without_tools_the_bench_says_what_to_run(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Missing, match="make bench-setup"):
        bench.run(bench.parse(["--quick"]))


def test_names_that_are_asked_for_are_kept_and_none_means_all() -> None:
    assert bench.chosen(["nginx", "1 KB"], ["nginx", "kvlane"]) == ["nginx"]
    assert bench.chosen(["1 KB"], ["nginx", "kvlane"]) == ["nginx", "kvlane"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the bench's tools are written in C")
def test_the_bench_measures_every_target_and_leaves_nothing_behind(
    built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.tools()
    setup.bodies()
    places: list[Place] = []

    def twin(place: Place) -> list[str]:
        places.append(place)
        return mock_engine(place.port)

    def nobody(place: Place) -> list[str]:
        raise Missing("no such rival")

    monkeypatch.setattr(bench, "TARGETS", {"twin": twin, "nobody": nobody})
    monkeypatch.setattr(targets, "ENGINES", 1)
    before = os.sched_getaffinity(0)
    words = ["--rounds", "1", "--seconds", "0.2", "--only", "1 KB", "--json", str(built / "figures.json"), "--gate"]
    assert bench.run(bench.parse(words)) == 0
    assert os.sched_getaffinity(0) == before
    assert "CPU, 1 KB" in capsys.readouterr().out
    data = json.loads((built / "figures.json").read_text())
    assert set(data["samples"]) == {DIRECT, "twin"}
    for by_load in data["samples"].values():
        (sample,) = by_load["1 KB"]
        assert sample["errors"] == 0
        assert sample["cpu_us"] > 0
    assert targets.free_ports(1, places[0].port) == places[0].port
