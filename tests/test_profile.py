"""kvlane profile on logs of real traffic: it finds what was published of the traces, and what a gateway served.

The traces are replayed at their own rates through the simulated fleet, with the routing that needs least of our time;
the figures are those of the trace's releases (loadtests/data/traces). Lengths are in sketches: quantiles to 1 %.
"""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from gateway.loglines import LogLines
from gateway.profile.portrait import Profile
from loadtests.cluster import Cluster
from loadtests.experiment import experiment
from loadtests.scenario import Stage, load
from loadtests.settings import Settings
from loadtests.simulate import Simulation
from loadtests.traces import Row, azure, mooncake
from tests.gateway_process import GatewayProcess
from tests.until import PATIENCE_S, until
from tests.wire.client import call, get
from tests.wire.house import serving


def replayed(name: str, rows: Sequence[Row], endpoints: int) -> Profile:
    """Let all of a trace be served, and draw what the log of it shows."""
    scenario = load(name)
    scenario = scenario.model_copy(update={"fleet": scenario.fleet.model_copy(update={"endpoints": endpoints})})
    profile = Profile()
    length = rows[-1].at + 1e-3
    simulation = Simulation(scenario, "round_robin", on_record=profile.note)
    simulation.run(Stage(rate=len(rows) / length, arrivals_s=length))
    return profile


@pytest.fixture(scope="module")
def conversations() -> Profile:
    return replayed("mooncake", mooncake(), 8)


def test_mooncakes_published_figures_are_found(conversations: Profile) -> None:
    whole = conversations.whole
    assert (whole.requests, whole.arrivals.count) == (12_031, 12_031)
    assert whole.arrivals.span_s / 60 == pytest.approx(59, abs=0.5)
    assert whole.arrivals.rate == pytest.approx(3.4, abs=0.05)
    assert whole.arrivals.peak == pytest.approx(28, abs=1)  # the trace is turned, and its seconds with it
    assert round(whole.prompt_tokens.mean) == 12_035
    assert whole.prompt_tokens.quantile(0.5) == pytest.approx(6_909, rel=0.011)
    assert whole.prompt_tokens.quantile(0.99) == pytest.approx(85_400, rel=0.011)
    assert round(whole.output_tokens.mean) == 343
    assert whole.reachable == pytest.approx(0.37, abs=0.005)


def test_mooncakes_common_beginning_is_found(conversations: Profile) -> None:
    first = conversations.beginnings.top(1)[0]
    assert (first.tokens, first.uses) == (512, 12_031)


def test_azures_published_figures_are_found() -> None:
    whole = replayed("azure", azure(), 2).whole
    assert whole.requests == 19_366
    assert whole.arrivals.rate == pytest.approx(5.5, abs=0.05)
    assert round(whole.prompt_tokens.mean) == 1_155
    assert whole.prompt_tokens.quantile(0.99) == pytest.approx(4_142, rel=0.011)
    assert round(whole.output_tokens.mean) == 211


async def test_what_a_gateway_served_is_drawn_and_can_be_replayed(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    system = "You are a helpful assistant of a large company. " * 60
    async with (
        Cluster(1, Settings(time_scale=0)) as cluster,
        serving(cluster.urls[0], access_log={"path": str(log)}) as gateway,
    ):
        for at in range(6):
            body = {
                "model": "sim",
                "stream": True,
                "max_tokens": 5,
                "messages": [{"role": "system", "content": system}, {"role": "user", "content": f"{at} " * 50}],
            }
            answer = await call(gateway.url, "/v1/chat/completions", orjson.dumps(body), [])
            assert answer.status == 200
        assert (await call(gateway.url, "/v1/chat/completions", b"{", [])).status == 400
    lines, profile = LogLines([log]), Profile()
    profile.draw(lines)
    whole = profile.whole
    assert (lines.lines, lines.broken, dict(whole.outcomes)) == (7, 0, {"ok": 6, "client_error": 1})
    assert (whole.ttft_s.count, whole.waited_s.count, whole.output_tokens.mean) == (6, 6, 5)
    assert whole.reachable is not None
    assert whole.reached is not None
    assert 0.5 < whole.reachable < 0.85  # five of six find the system prompt
    assert 0.5 < whole.reached < 0.85
    assert list(profile.classes) == ["interactive"]
    times = orjson.loads(log.read_bytes().splitlines()[0])
    assert times["arrived_at"] <= times["dispatched_at"] <= times["first_token_at"] <= times["finished_at"]
    wanted = experiment(None, log, 1)
    result = Simulation(wanted, "least_work").run(wanted.stages[0])
    assert result is not None
    assert result.requests == 6
    assert result.hit_rate == pytest.approx(whole.reachable, abs=0.05)


async def test_logrotate_loses_no_request(tmp_path: Path) -> None:
    log, asked = tmp_path / "access.log", b'{"model":"sim","prompt":"hello","max_tokens":1}'
    async with (
        Cluster(1, Settings(time_scale=0)) as cluster,
        GatewayProcess.serving(
            tmp_path, cluster.urls, access_log={"path": str(log)}, shutdown={"grace_s": 0}
        ) as gateway,
    ):
        async with asyncio.timeout(PATIENCE_S):
            while (await get(gateway.url, "/readyz")).status != 200:
                pass
        assert (await call(gateway.url, "/v1/completions", asked, [])).status == 200
        await until(lambda: log.read_bytes().count(b"\n") == 1)
        log.rename(tmp_path / "access.log.1")
        gateway.signal(signal.SIGHUP)
        assert (await call(gateway.url, "/v1/completions", asked, [])).status == 200
        gateway.signal(signal.SIGTERM)
        assert await gateway.exit_status() == 0
    lines = LogLines([tmp_path / "access.log.1", log])
    assert (len(list(lines)), len(log.read_bytes().splitlines())) == (2, 1)
