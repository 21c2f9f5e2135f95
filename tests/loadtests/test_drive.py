"""The load: seeded traffic, and numbers that are what the server did."""

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from loadtests.client import Outcome
from loadtests.drive import Driver, Run, Target, drive
from loadtests.faults import Fault, Kind
from loadtests.report import Spread, Summary, percentile
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from loadtests.tokens import cut
from loadtests.traffic import Mix, Traffic, arrivals
from tests.ports import free_port
from tests.until import until

MIX = Mix(system_prompts=2, system_tokens=200, turn_tokens=20, output_tokens=5)
SIM = Path(sys.executable).with_name("kvlane-sim")


def target(engine: SimulatedEngine, **fields: int | float | None) -> Target:
    """Aim at an engine, at exact lengths."""
    return replace(Target(url=engine.url, ignore_eos=True), **fields)  # type: ignore[arg-type]


# traffic


def test_arrivals_are_poisson() -> None:
    times = list(arrivals(50.0, 200.0, Random(1)))  # N = 10,000 expected, seed 1, 4 sigma
    assert 9_600 <= len(times) <= 10_400
    assert times == sorted(times)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)


def test_same_seed_is_the_same_load() -> None:
    first, again, other = ([*Traffic(MIX, seed).calls(20.0, 5.0)] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_popular_system_prompts_come_more_often() -> None:
    calls = [*Traffic(replace(MIX, system_prompts=10), 1).calls(200.0, 10.0)]
    counts = [sum(call.system == rank for call in calls) for rank in (0, 9)]
    assert counts[0] > 5 * counts[1]
    assert len({call.system_text for call in calls}) == 10


def test_turns_have_the_lengths_they_should() -> None:
    calls = [*Traffic(replace(MIX, turn_tokens=100, output_tokens=50), 1).calls(500.0, 10.0)]
    turns = sum(len(cut(call.turn_text.encode())) for call in calls) / len(calls)
    assert turns == pytest.approx(100, rel=0.05)  # N = 5,000, sigma .8: 1.3 % standard error
    assert sum(call.max_tokens for call in calls) / len(calls) == pytest.approx(50, rel=0.05)


# numbers


async def test_counts_are_those_of_the_server(engine: SimulatedEngine) -> None:
    calls = [*Traffic(MIX, 1).calls(500.0, 0.2)]
    summary = Summary.of(await drive(target(engine), calls))
    assert summary.requests == summary.succeeded == len(calls) == engine.facts.finished
    assert summary.output_tokens == sum(call.max_tokens for call in calls) == engine.model.generation_tokens
    assert summary.prompt_tokens == engine.model.prompt_tokens
    hits, queries = engine.model.prefix_hit_tokens, engine.model.prefix_query_tokens
    assert summary.cached_share == pytest.approx(hits / queries)
    assert (summary.errors, summary.statuses) == ({}, {"200": len(calls)})


@pytest.mark.parametrize("engine", [Settings(time_scale=1.0)], indirect=True)
async def test_times_are_those_of_the_model(engine: SimulatedEngine) -> None:
    (call,) = [*Traffic(MIX, 1).calls(10.0, 1.0)][:1]
    run = await drive(target(engine), [replace(call, at=0.0, max_tokens=20)])
    summary = Summary.of(run)
    assert summary.ttft.p50 is not None
    assert summary.tpot.p50 is not None
    assert summary.e2e.p50 is not None
    assert 0.007 <= summary.ttft.p50 < 0.5
    assert 0.006 <= summary.tpot.p50 < 0.1  # 7 ms a step; generous above, since the machine is shared
    assert summary.e2e.p50 == pytest.approx(summary.ttft.p50 + 19 * summary.tpot.p50)


async def test_failures_are_told_apart(engine: SimulatedEngine) -> None:
    calls = [replace(call, at=0.0) for call in Traffic(MIX, 1).calls(100.0, 1.0)][:6]
    for fault, error in (
        (Fault(Kind.STATUS, status=429, times=1), "status 429"),
        (Fault(Kind.RESET, times=1), "reset"),
        (Fault(Kind.TRUNCATE, after=2, times=1), "no [DONE]"),
        (Fault(Kind.ERROR_DONE, after=2, times=1), "error event"),
        (Fault(Kind.ABORT, after=1, times=1), "finish_reason abort"),
        (Fault(Kind.CLOSE_AFTER, after=2, times=1), "closed early"),
    ):
        await engine.inject(fault)
        summary = Summary.of(await drive(target(engine), calls[:1]))
        assert summary.errors == {error: 1}, fault
        assert summary.succeeded == 0
    await engine.inject(Fault(Kind.HANG, times=1))
    assert Summary.of(await drive(target(engine, timeout_s=0.02), calls[:1])).errors == {"timeout": 1}
    await engine.stop()
    assert Summary.of(await drive(target(engine), calls[:2])).errors == {"connect": 2}


async def test_connections_are_used_again(engine: SimulatedEngine) -> None:
    calls = [replace(call, at=0.0) for call in Traffic(MIX, 1).calls(100.0, 1.0)][:20]
    await drive(target(engine, max_concurrency=2), calls)
    assert engine.facts.finished == 20
    assert engine.facts.connections_total == engine.facts.connections_peak == 2


@pytest.mark.parametrize("engine", [Settings(time_scale=0.0)], indirect=True)
async def test_waiting_for_a_place_counts_in_the_times(engine: SimulatedEngine) -> None:
    calls = [replace(call, at=0.0) for call in Traffic(MIX, 1).calls(100.0, 1.0)][:2]
    await engine.inject(Fault(Kind.STALL))
    driver = Driver(target(engine, max_concurrency=1))
    running = asyncio.create_task(driver.drive(calls))
    await until(lambda: engine.model.running == 1)
    await asyncio.sleep(0.005)
    await engine.clear()
    run = await running
    assert all(outcome.last_at - outcome.due_at > 0.005 for outcome in run.outcomes)


def test_percentiles_are_values_that_were_seen() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert [percentile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50.0, 95.0, 99.0, 100.0]
    assert percentile([7.0], 0.5) == 7.0
    assert Spread.of([]) == Spread(None, None, None, None)


def test_report_is_json_and_tables() -> None:
    outcome = Outcome(1.0, 200, None, "e0", 1.5, 2.5, 11, 100, 11, 40)
    failed = Outcome(1.0, 503, "status 503")
    summary = Summary.of(Run([outcome, failed], 1.0, 3.0))
    facts = json.loads(summary.json())
    assert (facts["requests_per_s"], facts["output_tokens_per_s"], facts["cached_share"]) == (0.5, 5.5, 0.4)
    assert facts["tpot"]["p50"] == pytest.approx(0.1)
    assert (facts["endpoints"], facts["errors"]) == ({"e0": 1}, {"status 503": 1})
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    summary.show(console, "here")
    shown = console.export_text()
    console.file.close()
    assert "here: 1 of 2 requests succeeded in 2.0 s" in shown
    assert "status 503" in shown


# the commands


async def run_fleet(*arguments: str) -> tuple[asyncio.subprocess.Process, list[str]]:
    """Start a fleet and read its URLs."""
    process = await asyncio.create_subprocess_exec(SIM, "fleet", *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    count = int(arguments[arguments.index("-n") + 1])
    return process, [(await process.stdout.readline()).decode().strip() for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_fleet_serves_until_interrupted_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    process, urls = await run_fleet("-n", "1", "--port", str(port), "--time-scale", "0", "--model", "other")
    assert urls == [f"http://127.0.0.1:{port}"]
    out = tmp_path / "numbers.json"
    drive = ("drive", "--url", urls[0], "--model", "other", "--rate", "200", "--duration", "0.1", "--json", str(out))
    load = await asyncio.create_subprocess_exec(SIM, *drive, stdout=asyncio.subprocess.DEVNULL)
    assert await load.wait() == 0
    facts = json.loads(out.read_bytes())
    assert facts["requests"] == facts["succeeded"] > 0
    process.send_signal(number)
    assert await process.wait() == 0


async def test_taken_port_is_one_line_and_exit_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            SIM, "fleet", "-n", "1", "--port", str(port), stderr=asyncio.subprocess.PIPE
        )
        _, complaint = await process.communicate()
    assert process.returncode == 2
    assert complaint.decode().count("\n") == 1
    assert str(port) in complaint.decode()


async def test_unknown_profile_is_refused() -> None:
    process = await asyncio.create_subprocess_exec(SIM, "fleet", "--profile", "abacus", stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()
    assert process.returncode == 2
    assert b"bench-8b" in complaint
