"""The prefix doctor finds each of ten planted faults, finds nothing where nothing is wrong, and does so end to end."""

import asyncio
import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from gateway import doctorcli
from gateway.cli import app as kvlane
from gateway.shapes import ShapeMaker
from policies.doctor import Doctor
from policies.findings import Fault, Finding
from tests.fleet_fixtures import CHAT, house
from tests.prompt_families import CLEAN, FURTHER, PLANTED, Body, Family, clock_on_top, questions, tool_order

SEEDS = range(3)
FAULTY: dict[str, Family] = {**PLANTED, **FURTHER}
SECRET = b"a secret of the tests"


def seen(*families: Family, seed: int = 0, share: int = 1) -> Doctor:
    """Let a doctor see families, one after the other; of so many requests one has a shape."""
    maker, doctor = ShapeMaker(SECRET, 1.0, lambda: 0.0), Doctor()
    for at, (seconds, body) in enumerate(each for family in families for each in family(Random(seed))):
        doctor.note("t", "m", seconds, None if at % share else maker.made(body))
    return doctor


def mixed(*families: Family, seed: int = 0) -> Doctor:
    """Let a doctor see families of one tenant at the same time."""
    maker, doctor, chance = ShapeMaker(SECRET, 1.0, lambda: 0.0), Doctor(), Random(seed)
    bodies: list[Body] = [body for family in families for _, body in family(chance)]
    chance.shuffle(bodies)
    for at, body in enumerate(bodies):
        doctor.note("t", "m", float(at), maker.made(body))
    return doctor


def faults(doctor: Doctor) -> set[str]:
    return {finding.fault.value for finding in doctor.findings()}


def the_finding(family: Family) -> Finding:
    (finding,) = seen(family).findings()
    return finding


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTY)
def test_a_planted_fault_is_found_and_no_other(name: str, seed: int) -> None:
    assert faults(seen(FAULTY[name], seed=seed)) == {name.partition(" ")[0]}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_among_other_applications_of_its_tenant(name: str) -> None:
    assert faults(mixed(*CLEAN[:5], PLANTED[name])) == {name.partition(" ")[0]}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", CLEAN, ids=lambda family: family.__name__)
def test_nothing_is_found_where_nothing_is_wrong(family: Family, seed: int) -> None:
    assert seen(family, seed=seed).findings() == []


@pytest.mark.parametrize("family", CLEAN, ids=lambda family: family.__name__)
def test_nothing_is_found_in_a_sample_either(family: Family) -> None:
    assert seen(*[family] * 8, share=7).findings() == []


def test_nothing_is_found_in_all_clean_applications_of_one_tenant() -> None:
    assert mixed(*CLEAN).findings() == []


@pytest.mark.parametrize("kind", ["swe", "tau", "*"])
def test_nothing_is_found_in_conversations_of_real_agents(kind: str) -> None:
    folder = Path(__file__).parent.parent / "loadtests/data/conversations"
    maker, doctor = ShapeMaker(SECRET, 1.0, lambda: 0.0), Doctor()
    for file in sorted(folder.glob(f"{kind}_*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            doctor.note("t", "m", 0.0, maker.made({"prompt": json.loads(line)["input"]}))
    assert doctor.looked_at > 20
    assert doctor.findings() == []


def test_a_clock_on_top_costs_all_that_follows() -> None:
    finding = the_finding(clock_on_top)
    assert (finding.place, finding.line, finding.offset_bytes, finding.position_tokens) == ("system prompt", 1, 14, 3)
    assert (finding.requests, finding.breaks, finding.variants) == (100, 99, 100)
    assert finding.example == "·" * 14 + "<time>" + "·" * 2
    assert finding.share > 0.9
    lasted_s = 99 * 37.0
    assert finding.wasted_tokens_per_day == pytest.approx(finding.wasted_tokens * 86_400 / lasted_s, rel=1e-3)
    assert "end of the last user turn" in finding.advice


def test_requests_that_were_not_looked_at_cost_as_much_as_those_that_were() -> None:
    (whole,), (sampled,) = seen(clock_on_top).findings(), seen(clock_on_top, share=3).findings()
    assert sampled.wasted_tokens == pytest.approx(whole.wasted_tokens, rel=0.1)


def test_what_a_tenant_does_is_not_another_ones_fault() -> None:
    maker, doctor = ShapeMaker(SECRET, 1.0, lambda: 0.0), Doctor()
    for (_, faulty), (_, clean) in zip(tool_order(Random(1)), questions(Random(1)), strict=False):
        doctor.note("a", "m", 0.0, maker.made(faulty))
        doctor.note("b", "m", 0.0, maker.made(clean))
    assert [finding.tenant for finding in doctor.findings()] == ["a"]
    assert doctor.findings("b") == []


# End to end.


async def run(*args: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, kvlane, ["doctor", *args])
    return result.exit_code, result.output


async def send(tmp_path: Path, family: Family, **doctor: Any) -> tuple[Path, Any, float]:
    """Send a family through a gateway; give its log, its page and its metric."""
    log = tmp_path / "access.jsonl"
    config = {"per_second": 100_000, **doctor}
    async with house(2, access_log={"path": str(log)}, doctor=config) as whole:
        for _, body in family(Random(1)):
            assert (await whole.post(CHAT, {**body, "sim": {"output_tokens": 1}})).status == 200
        await whole.rests()
        page = (await whole.get("/admin/doctor", admin=True)).json
        wasted = await whole.metric("kvlane_prefix_wasted_tokens_total", tenant="anonymous")
        assert (await whole.get("/admin/doctor?nobody=1", admin=True)).status == 400
    return log, page, wasted


async def test_the_log_of_a_gateway_tells_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.shapes.MAX_CPU", 1e9)
    log, page, wasted = await send(tmp_path, tool_order)
    status, told = await run(str(log))
    assert status == 1
    assert "tool_order" in told
    assert "Sort the tools by name" in told
    status, told = await run(str(log), "--json")
    (found,) = json.loads(told)["findings"]
    (shown,) = page["findings"]
    assert status == 1
    assert found == shown
    assert (found["tenant"], found["model"], found["fault"]) == ("anonymous", "sim", Fault.TOOL_ORDER.value)
    assert wasted == pytest.approx(found["wasted_tokens"], abs=1)
    assert (await run(str(log), "--tenant", "somebody"))[0] == 2
    text = log.read_bytes()
    assert b"software engineer" not in text
    assert b"read_file" not in text


async def test_a_clean_log_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.shapes.MAX_CPU", 1e9)
    log, page, wasted = await send(tmp_path, questions)
    assert page["findings"] == []
    assert (page["requests"], page["looked_at"], wasted) == (200, 200, 0)
    said = "200 requests, 200 prompts looked at: nothing keeps prompts out of prefix caches\n"
    assert await run(str(log)) == (0, said)


async def test_masked_text_is_shown_only_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.shapes.MAX_CPU", 1e9)
    log, page, _ = await send(tmp_path, clock_on_top, examples=True)
    assert page["findings"][0]["masked_text"] == "Current time: <t>"
    assert b"Current time" not in log.read_bytes()
    _, page, _ = await send(tmp_path, clock_on_top)
    assert page["findings"][0]["masked_text"] is None


async def test_switched_off_it_costs_and_says_nothing(tmp_path: Path) -> None:
    log, page, wasted = await send(tmp_path, tool_order, enabled=False)
    assert page == {"is_enabled": False, "requests": 0, "looked_at": 0, "findings": []}
    assert wasted == 0
    assert {orjson.loads(line)["prefix_shape"] for line in log.read_bytes().splitlines()} == {None}
    status, told = await run(str(log))
    assert status == 2
    assert "has no prefix_shape" in told


async def test_what_is_no_log_is_said_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert await run(str(log)) == (2, f"kvlane: {log}: cannot be read: No such file or directory\n")
    whole = {"tenant": "t", "model": "m", "route": "r", "arrived_at": 1, "tries": 1}
    odd: dict[str, object] = {"tenant": 1, "route": [], "arrived_at": "now", "prefix_shape": 1}
    wrong = [*({**whole, name: value} for name, value in odd.items()), [], {"tenant": "t"}]
    log.write_text("\n\n".join(map(json.dumps, wrong)) + "\nno json\n")
    status, told = await run(str(log))
    assert status == 2
    lines = ["lines that are no record of a request: 7", "no request to a model in it"]
    assert told.splitlines() == [f"kvlane: {log}: {line}" for line in lines]


async def test_a_line_without_end_is_no_record_and_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what might be gigabytes no more is read at a time than a record could have."""
    log = tmp_path / "log"
    record = {"tenant": "t", "model": "m", "route": "/v1/completions", "arrived_at": 1, "tries": 1}
    good = json.dumps({**record, "prefix_shape": "1;CCCC;s,10.DDDD"}).encode() + b"\n"
    monkeypatch.setattr("gateway.loglines.MAX_LINE_BYTES", 1000)
    endless = json.dumps({**record, "prefix_shape": "x" * 100_000}).encode() + b"\n"
    log.write_bytes(good + endless + good)
    seen: list[int] = []
    real = doctorcli.note

    def note(doctor: Doctor, line: bytes | None, tenant: str | None) -> bool:
        seen.append(-1 if line is None else len(line))
        return real(doctor, line, tenant)

    monkeypatch.setattr(doctorcli, "note", note)
    status, told = await run(str(log))
    assert (status, seen) == (0, [len(good), -1, len(good)])
    assert f"kvlane: {log}: lines that are no record of a request: 1\n" in told
    assert "2 requests, 2 prompts looked at" in told


async def test_logs_that_were_moved_away_and_packed_are_read_as_one(tmp_path: Path) -> None:
    lines = [
        {"tenant": "t", "model": "m", "route": "/v1/completions", "arrived_at": at, "tries": 1,
         "prefix_shape": "1;CCCC;s,10.DDDD"}
        for at in range(30)
    ]  # fmt: skip
    old, new, cut = tmp_path / "log.2.gz", tmp_path / "log.1", tmp_path / "cut.gz"
    old.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines[:20]).encode()))
    new.write_text("".join(json.dumps(line) + "\n" for line in lines[20:]))
    cut.write_bytes(old.read_bytes()[:-9])
    said = "30 requests, 30 prompts looked at: nothing keeps prompts out of prefix caches\n"
    assert await run(str(old), str(new)) == (0, said)
    told = f"kvlane: {cut}: ends before its end: it was cut, or is still being written\n"
    assert await run(str(new), str(cut)) == (2, told)
    packed = old.read_bytes()
    cut.write_bytes(packed[:40] + b"\xff" * 40 + packed[80:])
    assert await run(str(cut)) == (2, f"kvlane: {cut}: is damaged, and cannot be unpacked\n")
    assert (await run(str(new), "--tenant", "u"))[1] == f"kvlane: {new}: no request of this tenant to a model in it\n"
