"""An access log replayed: who asked for how much and when, and how much prompts share."""

from dataclasses import replace
from pathlib import Path
from random import Random

import orjson
import pytest
import typer

from loadtests.doors import Admission
from loadtests.experiment import experiment
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.logged import Log
from loadtests.logtrace import BrokenLog, LogSource, own_rate, rows, span_s
from loadtests.replica import Replica
from loadtests.scenario import RingKey, load
from loadtests.sources import source
from loadtests.sweep import Case, run
from loadtests.workloads import Job
from policies.fingerprint import Fingerprinter, marks_of
from policies.record import Outcome, RequestRecord
from policies.request import BlockHash
from tests.policies.test_record import FULL

PRINTS = Fingerprinter(b"test")
ASKED = replace(FULL, prompt_tokens=6500, output_tokens=100, prefix="", ring_key=None)


def chain(*parts: range) -> str:
    return PRINTS.of([BlockHash(link) for part in parts for link in part])


def replayed(path: Path, *records: RequestRecord, noise: bytes = b"") -> list[Job]:
    path.write_bytes(noise + b"".join(orjson.dumps(each) + b"\n" for each in records))
    past = rows(path)
    return list(LogSource(path, "1").jobs(own_rate(past), span_s(past)))


def shared(one: Job, other: Job) -> int:
    """Give how many tokens of two prompts are the same blocks."""
    pairs = zip(one.blocks, other.blocks, strict=False)
    return sum(mine == theirs for mine, theirs in pairs) * BLOCK_TOKENS


def test_requests_come_when_and_as_they_came(tmp_path: Path) -> None:
    first, second = replayed(
        tmp_path / "log",
        replace(ASKED, arrived_at=105.0, tenant="b", service_class=None),
        replace(ASKED, arrived_at=100.0, tenant="a", prompt_tokens=99, output_tokens=7),
    )
    assert (first.at, first.tenant, first.prompt_tokens, first.output_tokens) == (0.0, "a", 99, 7)
    assert (first.service_class, second.service_class) == ("batch", "")
    assert (second.at, second.tenant) == (5.0, "b")


@pytest.mark.parametrize("units", [0, 1, 20, 32, 33, 70, 100])
def test_prompts_share_what_they_shared_to_a_16th(units: int, tmp_path: Path) -> None:
    one, other = replayed(
        tmp_path / "log",
        replace(ASKED, prefix=chain(range(units), range(1000, 1101 - units))),
        replace(ASKED, prefix=chain(range(units), range(2000, 2101 - units))),
    )
    assert units * 64 * 15 / 16 <= shared(one, other) <= units * 64
    assert max(len(one.blocks), len(other.blocks)) <= 6500 // BLOCK_TOKENS


def test_marks_of_a_longer_prompt_than_there_is_are_cut(tmp_path: Path) -> None:
    (job,) = replayed(tmp_path / "log", replace(ASKED, prompt_tokens=100, prefix=chain(range(100))))
    assert len(job.blocks) == 6


def test_what_it_went_by_on_the_ring_it_goes_by_again(tmp_path: Path) -> None:
    (job,) = replayed(tmp_path / "log", replace(ASKED, ring_key=PRINTS.mark(7)))
    assert [job.ring] == marks_of(PRINTS.mark(7))
    fleet = load("tenants").fleet
    engines = [fleet.engine(0)]
    replica = Replica("least_work", engines, Random(1), profile=fleet.profile, ring_key=RingKey.ANSWERED)
    assert replica._key(job) == job.ring


def test_what_nobody_could_serve_is_left_out(tmp_path: Path) -> None:
    wrong = [
        replace(ASKED, outcome=Outcome.CLIENT_ERROR),
        replace(ASKED, prompt_tokens=0),
        replace(ASKED, unit_tokens=None),
    ]
    assert len(replayed(tmp_path / "log", ASKED, *wrong, noise=b"cut\n")) == 1


def test_an_answer_that_never_came_is_as_long_as_others(tmp_path: Path) -> None:
    refused = replace(ASKED, outcome=Outcome.REFUSED, output_tokens=None)
    jobs = replayed(tmp_path / "log", ASKED, replace(ASKED, output_tokens=51), refused)
    assert [job.output_tokens for job in jobs] == [100, 51, 76]
    assert [job.output_tokens for job in replayed(tmp_path / "other", refused)] == [1]


def test_a_fingerprint_that_is_none_shares_nothing(tmp_path: Path) -> None:
    (job,) = replayed(tmp_path / "log", replace(ASKED, prefix="odd", ring_key="odd"))
    assert (job.blocks, job.ring) == ((), None)


def test_another_rate_is_several_logs_that_share_nothing(tmp_path: Path) -> None:
    records = [
        replace(ASKED, arrived_at=float(at), prefix=chain(range(50)), ring_key=PRINTS.mark(7)) for at in range(100)
    ]
    replayed(tmp_path / "log", *records)
    jobs = list(LogSource(tmp_path / "log", "1").jobs(3.0, 100.0))
    assert len(jobs) == pytest.approx(300, rel=0.05)
    assert len({job.blocks for job in jobs}) == len({job.ring for job in jobs}) == 3


def test_a_log_with_nothing_in_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"{}\n")
    with pytest.raises(BrokenLog, match="nothing to replay: 1 broken lines"):
        rows(tmp_path / "log")


@pytest.mark.parametrize(
    ("scenario", "trace", "words"),
    [
        (None, None, "a YAML file, or --trace"),
        (None, "gone", "No such file"),
        (None, "empty", "nothing to replay"),
        ("strange", None, "no scenario 'strange'"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_a_line(
    scenario: str | None, trace: str | None, words: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(typer.BadParameter, match=words):
        experiment(scenario, None if trace is None else tmp_path / trace, None)


def test_a_scenario_lends_its_fleet_and_its_objective(tmp_path: Path) -> None:
    replayed(tmp_path / "log", ASKED, replace(ASKED, arrived_at=10.0))
    wanted = experiment("b2b", tmp_path / "log", 3)
    assert (wanted.fleet.profile, wanted.fleet.endpoints, wanted.name) == ("qwen-32b-2xh100", 3, "log")
    assert [(stage.rate, stage.arrivals_s, stage.warm_up_s) for stage in wanted.stages] == [(0.2, 10.0, 0.0)]
    assert isinstance(source(wanted.workload, "1"), LogSource)


def test_a_log_of_a_simulation_simulates_like_it(tmp_path: Path) -> None:
    """N = 1,250 requests of 300 tenants, seed 0: hits within 2 points, mean TTFT and E2E within 10 %."""
    tenants = load("tenants")
    stage = tenants.stages[0].model_copy(update={"rate": 50.0, "arrivals_s": 25.0, "warm_up_s": 0.0})
    wanted = tenants.model_copy(update={"stages": (stage,)})
    (first,) = run(Case(wanted, "least_work", 0, log=tmp_path / "log")).runs
    past = rows(tmp_path / "log")
    assert len(past) == first.requests
    again = experiment("tenants", tmp_path / "log", None)
    (second,) = run(Case(again, "least_work", 0)).runs
    assert second.requests == first.requests
    assert second.hit_rate == pytest.approx(first.hit_rate, abs=0.02)
    for one, other in ((first.ttft_s, second.ttft_s), (first.e2e_s, second.e2e_s)):
        assert one.mean is not None
        assert other.mean == pytest.approx(one.mean, rel=0.1)


def test_a_simulations_log_tells_of_waits_refusals_and_hits(tmp_path: Path) -> None:
    wanted = load("overload")
    stage = wanted.stages[0].model_copy(update={"rate": 200.0, "arrivals_s": 8.0, "warm_up_s": 0.0})
    wanted = wanted.model_copy(update={"stages": (stage,), "fleet": wanted.fleet.model_copy(update={"endpoints": 2})})
    (result,) = run(Case(wanted, "least_work", 0, log=tmp_path / "log", admission=Admission.FLOW)).runs
    lines = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    served = [line for line in lines if line["outcome"] == "ok"]
    refused = [line for line in lines if line["outcome"] == "refused"]
    assert (len(lines), len(refused)) == (result.requests, result.refused)
    assert refused
    assert any(line["waited_s"] > 0.1 for line in served)
    assert {line["service_class"] for line in served} >= {"interactive", "batch"}
    assert all(line["prefix"] for line in refused if line["prompt_tokens"] >= 64)
    assert sum(line["cached_tokens"] for line in served) > 0


def test_a_log_is_written_anew(tmp_path: Path) -> None:
    for _ in range(2):
        with Log(tmp_path / "log") as log:
            log.write(ASKED)
    assert len((tmp_path / "log").read_bytes().splitlines()) == 1
