"""Tenants while they change: at once, whole, said once, and never so that the door opens or stands shut by mistake."""

import logging

import pytest

from gateway.config import Config, build
from gateway.errors import InvalidApiKey, TenantsUnknown
from gateway.sources import Callers, NotThere, SourceError
from gateway.tenancy import AnonymousConfig, TenantConfig
from gateway.tenants import Tenants
from gateway.tenantwatch import TenantWatch
from tests.gateway.test_tenants import NOW, tenant

CONFIG: Config = build({"anonymous": {}, "pools": [{"endpoints": [{"url": "http://127.0.0.1:9"}]}]}, "test", {})


class Told:
    """A source that gives what it is told to."""

    every_s = 1.0

    def __init__(self, name: str, *tenants: TenantConfig, anonymous: AnonymousConfig | None = None) -> None:
        self.name = self.title = name
        self.next: Callers | Exception | None = Callers(tenants, anonymous)

    def tell(self, *tenants: TenantConfig, anonymous: AnonymousConfig | None = None) -> None:
        self.next = Callers(tenants, anonymous)

    async def read(self) -> Callers | None:
        found = self.next
        if isinstance(found, Exception):
            raise found
        self.next = None
        return found


class Watched:
    """Sources and what becomes of them, a round at a time."""

    def __init__(self, *sources: Told, config: Config = CONFIG) -> None:
        self.tenants = Tenants()
        self.watch = TenantWatch(self.tenants, sources, config)

    async def round(self) -> None:
        for origin in self.watch._origins:
            await self.watch.look(origin)

    @property
    def troubles(self) -> dict[str, str]:
        return {origin.source.name: origin.trouble for origin in self.watch._origins if origin.trouble}

    def opens(self, *keys: str) -> list[str]:
        """Name the tenants of keys; - where one opens nothing, ? where nobody can say yet."""
        return [self._opens(key) for key in keys]

    def _opens(self, key: str) -> str:
        try:
            return self.tenants.identify(key, NOW).name
        except InvalidApiKey:
            return "-"
        except TenantsUnknown:
            return "?"


async def loaded(*sources: Told, config: Config = CONFIG) -> Watched:
    watched = Watched(*sources, config=config)
    assert not await watched.watch.load()
    return watched


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


async def test_tenants_of_all_sources_may_call() -> None:
    watched = await loaded(Told("file", tenant("a", "ka")), Told("redis", tenant("b", "kb")))
    assert watched.opens("ka", "kb", "kc") == ["a", "b", "-"]
    assert [found.name for found in watched.tenants] == ["a", "b"]


async def test_what_a_source_no_longer_has_may_no_longer_call() -> None:
    file, redis = Told("file", tenant("a", "ka", "ka2")), Told("redis", tenant("b", "kb"))
    watched = await loaded(file, redis)
    file.tell(tenant("a", "ka2"))
    await watched.round()
    assert watched.opens("ka", "ka2", "kb") == ["-", "a", "b"]
    redis.tell()
    await watched.round()
    assert watched.opens("ka", "ka2", "kb") == ["-", "a", "-"]


async def test_an_empty_set_of_tenants_opens_nothing() -> None:
    file = Told("file", tenant("a", "ka"))
    watched = await loaded(file)
    file.tell()
    await watched.round()
    assert watched.opens("ka", "", "anything") == ["-", "-", "-"]
    assert not watched.tenants.is_open


async def test_what_cannot_be_read_leaves_everything_as_it_was_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    file, redis = Told("file", tenant("a", "ka")), Told("redis", tenant("b", "kb"))
    watched = await loaded(file, redis)
    caplog.clear()
    file.next = SourceError("is not YAML")
    for _ in range(3):
        await watched.round()
    assert watched.opens("ka", "kb") == ["a", "b"]
    assert watched.troubles == {"file": "is not YAML"}
    assert lines(caplog) == ["tenants: file cannot be used, what it said before holds on: is not YAML"]
    redis.tell()
    await watched.round()
    assert watched.opens("ka", "kb") == ["a", "-"], "others go on changing"
    caplog.clear()
    file.next = None
    for _ in range(2):
        await watched.round()
    assert watched.troubles == {}
    assert lines(caplog, logging.INFO) == ["tenants: file is good again"]


async def test_a_fault_of_ours_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    file = Told("file", tenant("a", "ka"))
    watched = await loaded(file)
    file.next = ZeroDivisionError("x")
    await watched.round()
    assert watched.troubles == {"file": "reading it failed inside the gateway"}
    file.tell(tenant("a", "kb"))
    await watched.round()
    assert (watched.opens("ka", "kb"), watched.troubles) == (["-", "a"], {})


CLASHES: list[tuple[list[TenantConfig], str]] = [
    ([tenant("a", "kx")], "tenants[0].name: 'a' is there twice"),
    ([tenant("b", "ka")], "is there twice, first at file: tenants[0].key_sha256[0]"),
    ([tenant("b", "kb", service_class="gold")], "tenants[0].service_class: 'gold' is no class of admission"),
    ([tenant("b", "kb", limits={"cost_per_day": 1})], "tenants[0].limits: a budget in money needs models"),
    ([tenant("b", "kb", limits_by_model={"m": {"cost_per_day": 1}})], "tenants[0].limits_by_model.m: "),
]


@pytest.mark.parametrize(("given", "words"), CLASHES)
async def test_what_cannot_stand_beside_the_others_waits_until_it_can(given: list[TenantConfig], words: str) -> None:
    file, redis = Told("file", tenant("a", "ka")), Told("redis", tenant("old", "kold"))
    watched = await loaded(file, redis)
    redis.tell(*given)
    for _ in range(2):
        await watched.round()
        assert watched.opens("ka", "kold", "kx", "kb") == ["a", "old", "-", "-"]
        assert words in watched.troubles["redis"]
        assert "redis: " not in watched.troubles["redis"]
    file.tell(tenant("c", "kc"))
    redis.tell(tenant("new", "knew"))
    await watched.round()
    assert (watched.opens("ka", "kold", "kc", "knew"), watched.troubles) == (["-", "-", "c", "new"], {})


async def test_a_tenant_may_move_from_one_source_to_another() -> None:
    file, redis = Told("file", tenant("a", "ka")), Told("redis")
    watched = await loaded(file, redis)
    redis.tell(tenant("a", "ka", weight=2))
    await watched.round()
    assert set(watched.troubles) == {"redis"}
    file.tell()
    await watched.round()
    assert watched.troubles == {}
    assert watched.tenants.identify("ka", NOW).weight == 2


async def test_who_calls_without_a_key_may_change_too() -> None:
    file = Told("file", tenant("a", "ka"), anonymous=AnonymousConfig())
    watched = await loaded(file, Told("redis"))
    assert watched.tenants.identify(None, NOW).name == "anonymous"
    file.tell(tenant("a", "ka"))
    await watched.round()
    with pytest.raises(InvalidApiKey):
        watched.tenants.identify(None, NOW)


async def test_what_is_not_there_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Those whom others tell of may call; once it has been read once, it is a source like any other."""
    caplog.set_level(logging.INFO)
    file, redis = Told("file", tenant("a", "ka")), Told("redis")
    redis.next = NotThere("no answer", "start it")
    watched = await loaded(file, redis)
    assert watched.opens("ka", "kb") == ["a", "?"]
    assert watched.tenants.unread == "redis"
    until_then = "until it can be read, keys that are nobody's yet get 503"
    assert watched.watch.awaited() == [f"redis: no answer; {until_then}; start it"]
    for _ in range(3):
        await watched.round()
    assert lines(caplog, logging.INFO) == []
    redis.next = SourceError("is no JSON")
    for _ in range(3):
        await watched.round()
    assert watched.opens("ka", "kb") == ["a", "?"], "what is wrong is not there either"
    assert lines(caplog, logging.INFO) == [f"tenants: not ready: redis: is no JSON; {until_then}"]
    caplog.clear()
    redis.tell(tenant("b", "kb"))
    await watched.round()
    assert (watched.opens("ka", "kb", "kc"), watched.tenants.unread) == (["a", "b", "-"], "")
    assert (watched.watch.awaited(), watched.troubles) == ([], {})
    assert lines(caplog, logging.INFO) == [
        "tenants: 2 with 2 secrets, since redis has changed",
        "tenants: redis is good again",
    ]
    redis.next = NotThere("no answer")
    await watched.round()
    assert watched.opens("ka", "kb", "kc") == ["a", "b", "-"], "what it said holds on"


async def test_what_is_wrong_elsewhere_keeps_from_starting_all_the_same() -> None:
    file, redis = Told("file"), Told("redis")
    file.next, redis.next = SourceError("is not YAML"), NotThere("no answer")
    watched = Watched(file, redis)
    assert await watched.watch.load() == ["file: is not YAML"]


async def test_trouble_at_the_start_is_told_to_who_starts(caplog: pytest.LogCaptureFixture) -> None:
    file, redis = Told("file", tenant("a", "ka")), Told("redis", tenant("a", "kx"))
    bad = Told("bad")
    bad.next = SourceError("is not YAML")
    watched = Watched(file, redis, bad)
    told = await watched.watch.load()
    assert told[0].startswith("redis: tenants[0].name: 'a' is there twice, first at file: tenants[0].name")
    assert told[1:] == ["bad: is not YAML"]
    assert lines(caplog) == []
