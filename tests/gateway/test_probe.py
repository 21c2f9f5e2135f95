"""Watching engines: what they are, how they are, what they serve, what they do not tell, how often they are asked."""

import asyncio

import pytest

from gateway.app import running
from gateway.config import Kind as EngineKind
from gateway.config import build
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from policies.endpoint import EngineReport
from policies.health import State
from tests.fleet_fixtures import FAST, INTERVAL_S, House, before, house, leave
from tests.until import until

MODELS = ("/v1/models",)
METRICS = ("/metrics",)


async def rounds(whole: House, count: int, at: int = 0) -> None:
    """Wait until an engine was asked so many times more."""
    engine = whole.cluster[at]
    asked = engine.facts.calls["/health"]
    await until(lambda: engine.facts.calls["/health"] >= asked + count, f"{count} health checks")


# What it is.


async def test_an_engine_says_itself_what_it_is_and_serves() -> None:
    async with house(1, Settings(time_scale=0.0, models=("base", "org/lora"), max_context_tokens=4096)) as whole:
        (member,) = whole.gateway.fleet.members()
        assert member.kind is EngineKind.VLLM
        assert member.endpoint.models == {"base", "org/lora"}
        assert member.endpoint.max_context_tokens == 4096


async def test_what_the_configuration_says_goes_before_what_the_engine_says() -> None:
    told = {"kind": "vllm", "models": ["sim", "alias"], "max_context_tokens": 100}
    async with house(1, FAST, endpoint=told) as whole:
        await rounds(whole, 3)
        (endpoint,) = whole.endpoints
        assert (endpoint.models, endpoint.max_context_tokens) == (frozenset(("sim", "alias")), 100)


async def test_an_engine_with_a_key_is_asked_with_it() -> None:
    async with house(1, Settings(time_scale=0.0, api_key="s3cret"), endpoint={"api_key": "s3cret"}) as whole:
        assert whole.endpoints[0].models == {"sim"}
        assert (await whole.ask()).status == 200


async def test_an_engine_that_refuses_our_key_is_known_and_useless() -> None:
    async with house(1, Settings(time_scale=0.0, api_key="s3cret"), waits=False) as whole:
        await rounds(whole, 2)
        assert whole.endpoints[0].models == frozenset()
        answer = await whole.ask()
        assert (answer.status, answer.json["error"]["code"]) == (503, "server_overloaded")


async def test_an_engine_of_no_known_kind_serves_what_the_configuration_names() -> None:
    """Any server of OpenAI's API: nothing is known of its load, and its health is that it answers at all."""
    async with Cluster(1, FAST) as cluster:
        page = Fault(Kind.STATUS, status=200, paths=("/v1/models", "/info", "/metrics"), body="{}")
        await cluster[0].inject(page)
        async with before(cluster, endpoint={"models": ["sim"]}) as whole:
            await whole.is_ready(0)
            (member,) = whole.gateway.fleet.members()
            assert (member.kind, member.endpoint.report) == (None, EngineReport())
            assert (await whole.ask()).status == 200
            page.status = 500
            await until(lambda: whole.states == [State.EJECTED], "ejected")
            await cluster.clear()
            await whole.is_ready(0)
            assert member.kind is EngineKind.VLLM


async def test_models_are_asked_for_until_they_are_told() -> None:
    async with Cluster(1, FAST) as cluster:
        await cluster[0].inject(Fault(Kind.STATUS, status=500, paths=MODELS, body="not yet"))
        async with before(cluster, endpoint={"kind": "vllm"}) as whole:
            await rounds(whole, 3)
            assert whole.endpoints[0].models == frozenset()
            await cluster.clear()
            await until(lambda: whole.endpoints[0].models == {"sim"}, "told")


async def test_models_that_are_known_are_not_asked_for_all_the_time() -> None:
    async with house(1, FAST) as whole:
        asked = whole.cluster[0].facts.calls["/v1/models"]
        await rounds(whole, 10)
        assert whole.cluster[0].facts.calls["/v1/models"] == asked


# How loaded it is.


async def test_load_is_what_the_engine_reports() -> None:
    async with house(1, Settings(time_scale=1.0, max_num_seqs=2)) as whole:
        waiting = [asyncio.create_task(whole.ask(f"unique {at}", tokens=10_000, stream=True)) for at in range(5)]
        await until(lambda: whole.endpoints[0].report.waiting == 3, "all have come")
        report = whole.endpoints[0].report
        assert report.running == 2
        assert (report.waiting, report.block_tokens, report.kv_capacity_tokens) == (3, 16, 400_000)
        assert report.kv_usage is not None
        assert 0 < report.kv_usage < 0.1
        assert report.at <= asyncio.get_running_loop().time()
        await leave(waiting)
        await until(lambda: whole.endpoints[0].report.running == 0, "none running")


async def test_frozen_figures_are_taken_as_they_come() -> None:
    async with house(1, FAST) as whole:
        await whole.cluster[0].inject(Fault(Kind.FROZEN_METRICS))
        at = whole.endpoints[0].report.at
        await until(lambda: whole.endpoints[0].report.at > at, "read again")
        assert whole.endpoints[0].report.running == 0
        assert whole.states == [State.READY]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(Kind.STATUS, status=404, paths=METRICS, body="no"),
        Fault(Kind.STATUS, status=501, paths=METRICS, body="no"),
        Fault(Kind.STATUS, status=500, paths=METRICS, body="boom"),
        Fault(Kind.STATUS, status=200, paths=METRICS, body="vllm:num_requests_running{ 12\x00 nonsense"),
        Fault(Kind.STATUS, status=200, paths=METRICS, body=""),
    ],
    ids=["404", "501", "500", "nonsense", "empty"],
)
async def test_an_engine_without_figures_is_well_and_its_load_unknown(fault: Fault) -> None:
    """Missing is not zero, and old is not now."""
    async with house(1, FAST) as whole:
        await whole.cluster[0].inject(fault)
        await until(lambda: whole.endpoints[0].report.running is None, "unknown")
        report = whole.endpoints[0].report
        size = (report.kv_capacity_tokens, report.block_tokens)  # which does not change
        assert report == EngineReport(at=report.at, kv_capacity_tokens=size[0], block_tokens=size[1])
        assert whole.states == [State.READY]
        assert (await whole.ask()).status == 200
        await whole.cluster.clear()
        await until(lambda: whole.endpoints[0].report.running == 0, "known again")


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.HANG])
async def test_figures_that_do_not_come_leave_the_last_ones_at_their_age(kind: Kind) -> None:
    async with house(1, FAST, health={"timeout_s": 0.1}) as whole:
        await whole.cluster[0].inject(Fault(kind, paths=METRICS))
        await rounds(whole, 2)
        at = whole.endpoints[0].report.at
        await rounds(whole, 3)
        report = whole.endpoints[0].report
        assert report.at == at or report.running is None
        assert whole.states == [State.READY]
        await whole.cluster.clear()
        await until(lambda: whole.endpoints[0].report.at > at, "read again")


async def test_a_page_without_end_is_not_read_to_its_end() -> None:
    async with house(1, FAST, health={"timeout_s": 10}) as whole:
        await whole.cluster[0].inject(Fault(Kind.HUGE_ERROR, status=200, paths=METRICS, size=1 << 40))
        await until(lambda: whole.endpoints[0].report.running is None, "read, and of no use")
        assert whole.states == [State.READY]
        await whole.cluster.clear()


# How it is.


async def test_an_engine_that_is_slow_to_say_that_it_is_well_is_not() -> None:
    async with house(1, FAST, health={"timeout_s": 0.1}) as whole:
        await whole.cluster[0].inject(Fault(Kind.HANG, paths=("/health",)))
        await until(lambda: whole.states == [State.EJECTED], "ejected")
        await whole.cluster.clear()
        await whole.is_ready(0)


async def test_health_is_what_the_health_page_says_now() -> None:
    async with house(1, FAST) as whole:
        for _ in range(3):
            await whole.cluster[0].inject(Fault(Kind.UNHEALTHY))
            await until(lambda: whole.states == [State.EJECTED], "ejected")
            await whole.cluster.clear()
            await whole.is_ready(0)
        assert whole.endpoints[0].outstanding.requests == 0


async def test_one_lost_health_check_does_not_empty_a_pool() -> None:
    async with house(1, FAST) as whole:
        await whole.cluster[0].inject(Fault(Kind.STATUS, times=1, status=503, paths=("/health",), body=""))
        while not whole.endpoints[0].health.failed_probes:
            assert (await whole.ask()).status == 200
        assert (await whole.ask()).status == 200
        await whole.is_ready(0)


# How often.


async def test_an_engine_is_asked_for_health_and_load_once_a_round() -> None:
    async with house(2, FAST) as whole:
        facts = whole.cluster[0].facts
        start = facts.calls.copy()
        await rounds(whole, 10)
        asked = facts.calls - start
        assert asked["/metrics"] <= asked["/health"] + 1
        assert set(asked) <= {"/health", "/metrics"}


async def test_load_may_be_asked_for_less_often_than_health() -> None:
    async with house(1, FAST, health={"state_interval_s": 3600}) as whole:
        asked = whole.cluster[0].facts.calls["/metrics"]
        await rounds(whole, 10)
        assert whole.cluster[0].facts.calls["/metrics"] == asked


async def test_engines_are_not_asked_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """R = 10 rounds of 6 engines, unseeded: each lasts up to a tenth longer or shorter than said."""
    interval_s = 0.15
    loop = asyncio.get_running_loop()
    sleep = asyncio.sleep
    woke_at: dict[str, float] = {}
    lasted_s: list[float] = []

    async def noted(delay_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        name = task.get_name()
        if name in woke_at and delay_s > 0.05:  # the least pause, after a round that took too long
            lasted_s.append(loop.time() - woke_at[name] + delay_s)
        await sleep(delay_s)
        if name.startswith("probe "):
            woke_at[name] = loop.time()

    monkeypatch.setattr(asyncio, "sleep", noted)
    async with house(6, FAST, health={"interval_s": interval_s}) as whole:
        await asyncio.gather(*(rounds(whole, 10, at) for at in range(6)))
    assert len(lasted_s) >= 30
    assert all(0.89 * interval_s <= seconds <= 1.11 * interval_s for seconds in lasted_s), lasted_s
    assert min(lasted_s) < 0.96 * interval_s
    assert max(lasted_s) > 1.04 * interval_s


async def test_an_engine_that_was_removed_is_asked_nothing_more() -> None:
    async with house(2, FAST) as whole:
        gateway = whole.gateway
        member = gateway.fleet.pools[0].members[0]
        gateway._probe.forget(member)
        gateway.fleet.remove(member)
        await rounds(whole, 2, at=1)
        asked = whole.cluster[0].facts.calls.total()
        await rounds(whole, 5, at=1)
        assert whole.cluster[0].facts.calls.total() == asked
        assert await whole.metric("kvlane_endpoint_state", endpoint="e0") == 0


async def test_an_engines_figures_may_be_on_another_port() -> None:
    """Triton's are; here a second engine lends its page."""
    async with Cluster(2, FAST) as cluster:
        endpoint = {"name": "e0", "url": cluster.urls[0], "metrics_url": cluster.urls[1] + "/metrics", "kind": "vllm"}
        await cluster[0].inject(Fault(Kind.STATUS, status=404, paths=METRICS, body=""))
        configuration = build(
            {
                "listen": {"port": 0, "admin_port": 0},
                "health": {"interval_s": INTERVAL_S, "state_interval_s": INTERVAL_S},
                "pools": [{"endpoints": [endpoint]}],
                "anonymous": {},
            },
            "test",
            {},
        )
        async with running(configuration) as gateway:
            (member,) = gateway.fleet.members()
            await until(lambda: member.endpoint.report.running == 0, "read")
            assert cluster[1].facts.calls["/metrics"] >= 1


# What is wrong with it.

TROUBLES = {
    "nobody listens": ("http://127.0.0.1:1", "GET /v1/models failed: "),
    "a name that is none": ("http://no-such-host.invalid:8000", "GET /v1/models failed: "),
}


@pytest.mark.parametrize(("url", "words"), TROUBLES.values(), ids=TROUBLES)
async def test_why_an_engine_is_not_ready_is_said_once(url: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """A newcomer's first hour: without a line about it nobody finds a wrong port or certificate."""
    config = {
        "listen": {"port": 0, "admin_port": 0},
        "health": {"interval_s": INTERVAL_S, "timeout_s": 2},
        "pools": [{"endpoints": [{"name": "e0", "url": url}]}],
        "anonymous": {},
    }
    async with running(build(config, "test", {})) as gateway:
        (member,) = gateway.fleet.members()
        await until(lambda: member.endpoint.health.failed_probes >= 3, "asked three times")
        assert member.trouble.startswith(words), member.trouble
        said = [record.getMessage() for record in caplog.records if "not ready" in record.getMessage()]
        assert said == [f"endpoint e0 is not ready: {member.trouble}"]


async def test_an_engine_that_serves_no_models_is_not_ready_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with house(1, Settings(time_scale=0.0, api_key="s3cret"), waits=False) as whole:
        (member,) = whole.gateway.fleet.members()
        await until(lambda: member.trouble, "in trouble")
        await rounds(whole, 2)
        assert member.trouble == "GET /v1/models says 401"
        assert member.endpoint.health.state is State.STARTING
        assert sum("not ready" in record.getMessage() for record in caplog.records) == 1


async def test_what_was_wrong_is_forgotten_once_it_is_well() -> None:
    async with house(1, FAST) as whole:
        (member,) = whole.gateway.fleet.members()
        await whole.cluster[0].inject(Fault(Kind.UNHEALTHY))
        await until(lambda: whole.states[0] is State.EJECTED, "ejected")
        assert member.trouble == "GET /health says 503"
        await whole.cluster.clear()
        await whole.is_ready(0)
        await until(lambda: not member.trouble, "well")
