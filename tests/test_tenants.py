"""Tenants while the gateway serves: a revoked key is refused everywhere within 2 s, for good; nothing opens by mistake.

Case L12. Two gateways under load, over each place where tenants can be.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from gateway.app import Gateway, StartError, running
from gateway.config import build, load
from gateway.keys import entries, sha256_of, the_one, without_key
from gateway.keystores import FileStore, RedisStore, Store
from gateway.redisline import Line, Servers
from gateway.sources import DOCUMENTS, VERSION
from gateway.tenancy import TenantConfig
from loadtests.server import SimulatedEngine
from tests.redis_server import RedisServer
from tests.until import until
from tests.wire.client import CHAT, call, get
from tests.wire.house import metric, no_faults, ready_endpoints, serving, tenant

REVOKED_WITHIN_S = 2.0
CLIENTS = 4  # of each gateway and key
GOOD, BAD = "kvl-good-key", "kvl-bad-key"
TWO_TENANTS: list[dict[str, Any]] = [
    {"name": "good", "keys": [{"name": "g", "sha256": [sha256_of(GOOD)]}]},
    {"name": "bad", "keys": [{"name": "b", "sha256": [sha256_of(BAD)]}, {"name": "c", "sha256": ["0" * 64]}]},
]
BODY = b'{"model":"sim","messages":[{"role":"user","content":"hi"}],"sim":{"output_tokens":2}}'


def bearer(key: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {key}")]


def revokes(name: str) -> Callable[[Mapping[str, TenantConfig]], TenantConfig]:
    def change(known: Mapping[str, TenantConfig]) -> TenantConfig:
        entry = the_one(name, entries(known.values()))
        return without_key(known[entry.tenant], entry)

    return change


async def status(gateway: Gateway, key: str) -> int:
    return (await call(gateway.url, CHAT, BODY, bearer(key))).status


# A revoked key, under load.


@dataclass
class Load:
    """Clients that ask one gateway with one key, over and over."""

    gateway: Gateway
    key: str
    seen: list[tuple[float, int]] = field(default_factory=list)
    """When each request was begun, and its status."""

    async def run(self) -> None:
        while True:
            began_at = asyncio.get_running_loop().time()
            self.seen.append((began_at, await status(self.gateway, self.key)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        tasks = [asyncio.create_task(self.run()) for _ in range(CLIENTS)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def since(self, when: float) -> list[int]:
        return [status for began_at, status in self.seen if began_at >= when]


@contextlib.asynccontextmanager
async def stored_in(place: str, directory: Path, redis: RedisServer) -> AsyncIterator[tuple[Store, dict[str, Any]]]:
    """Put the two tenants in a place; give it, and the configuration that leads there."""
    if place == "file":
        file = directory / "tenants.yaml"
        file.write_text(yaml.safe_dump({"tenants": TWO_TENANTS}))
        yield FileStore(file), {"tenants_file": str(file)}
        return
    line = Line(Servers((redis.url,)), chance=Random(1))
    await line.start()
    store = RedisStore(line)
    for one in TWO_TENANTS:
        await store.change(lambda known, one=one: TenantConfig.model_validate(one))  # type: ignore[misc]
    try:
        yield store, {"tenants_in_redis": True, "redis": {"url": redis.url}}
    finally:
        await line.close()


@pytest.mark.parametrize("place", ["file", "redis"])
async def test_l12_a_revoked_key_is_refused_by_every_gateway_within_two_seconds_and_for_good(
    place: str, engine: SimulatedEngine, tmp_path: Path, redis_server: RedisServer
) -> None:
    async with (
        stored_in(place, tmp_path, redis_server) as (store, sections),
        serving(engine.url, **sections) as one,
        serving(engine.url, **sections) as other,
        Load(one, BAD).running() as first,
        Load(other, BAD).running() as second,
        Load(one, GOOD).running() as third,
        Load(other, GOOD).running() as fourth,
    ):
        now = asyncio.get_running_loop().time
        bad, good = (first, second), (third, fourth)
        await until(lambda: all(len(load.seen) >= 20 for load in (*bad, *good)))
        assert all(set(load.since(0)) == {200} for load in (*bad, *good))
        await store.change(revokes("b"))
        revoked_at = now()
        await until(lambda: all(load.seen[-1][1] == 401 for load in bad))
        took_s = now() - revoked_at
        print(f"\nL12 {place}: refused by both after {took_s:.2f} s")
        assert took_s < REVOKED_WITHIN_S
        refused_at = now()
        await store.change(revokes("c"))  # the next reading of everything must not bring it back
        await until(lambda: all(len(load.since(refused_at + 1)) >= 20 for load in (*bad, *good)))
        assert all(set(load.since(refused_at)) == {401} for load in bad)
        assert all(set(load.since(0)) == {200} for load in good)


async def test_l12_with_redis_down_or_empty_what_was_known_holds_on(
    engine: SimulatedEngine, tmp_path: Path, redis_server: RedisServer
) -> None:
    async with (
        stored_in("redis", tmp_path, redis_server) as (store, sections),
        serving(engine.url, **sections) as gateway,
    ):

        async def stale() -> float | None:
            return await metric(gateway, "kvlane_tenants_stale", source="tenants_in_redis")

        before = {key: redis_server.tell(*key) for key in (("HGETALL", DOCUMENTS), ("GET", VERSION))}
        await store.change(revokes("b"))
        await until_answers(gateway, BAD, 401)
        assert await stale() == 0
        redis_server.kill()
        await until_metric(gateway, 1)
        assert (await status(gateway, BAD), await status(gateway, GOOD)) == (401, 200)
        redis_server.start()
        await is_read_again(redis_server)  # found again, empty
        assert await stale() == 1
        assert (await status(gateway, BAD), await status(gateway, GOOD)) == (401, 200)
        documents = before["HGETALL", DOCUMENTS]
        redis_server.tell("HSET", DOCUMENTS, *(word for pair in documents.items() for word in pair))
        redis_server.tell("SET", VERSION, before["GET", VERSION])
        await is_read_again(redis_server)
        assert (await status(gateway, BAD), await status(gateway, GOOD)) == (401, 200), "an old copy brings none back"


async def is_read_again(redis: RedisServer) -> None:
    """Wait until the version has been asked for twice more: the answer to the first has been taken then."""
    before = version_reads(redis)
    await until(lambda: version_reads(redis) >= before + 2)


def version_reads(redis: RedisServer) -> int:
    """Count the GETs since the server started; nobody but a source of tenants sends any."""
    return int(redis.tell("INFO", "commandstats").get("cmdstat_get", {}).get("calls", 0))


async def until_answers(gateway: Gateway, key: str, wanted: int) -> None:
    await until_so(lambda: status(gateway, key), wanted)


async def until_metric(gateway: Gateway, value: float, **labels: str) -> None:
    await until_so(lambda: metric(gateway, "kvlane_tenants_stale", **labels), value)


async def until_so(ask: Callable[[], Awaitable[float | None]], wanted: float) -> None:
    """Ask until the answer is that; it takes a second at most."""
    found = None
    for _ in range(500):
        if (found := await ask()) == wanted:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still {found}, not {wanted}")


# A start without all that there should be.


@contextlib.asynccontextmanager
async def started_without(
    engine: SimulatedEngine, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Gateway]:
    """Start a gateway that finds no tenants in Redis; it must stand as it should until somebody mends that."""
    caplog.set_level("INFO")
    async with serving(engine.url, tenants=[tenant("own")], tenants_in_redis=True, redis={"url": redis.url}) as gateway:
        ready = await get(gateway.url, "/readyz")
        assert (ready.status, ready.json) == (503, {"status": "not all tenants are known yet: tenants_in_redis"})
        assert (await get(gateway.url, "/healthz")).status == 200
        answer = await call(gateway.url, CHAT, BODY, bearer(GOOD))
        assert answer.refusal == (503, "service_unavailable_error", "tenants_unknown")
        assert (answer.head["retry-after"], answer.head["retry-after-ms"]) == ("1", "1000")
        assert (await call(gateway.url, CHAT, BODY)).status == 401, "a key is needed whoever is there"
        assert await status(gateway, "own's key") == 200, "who is known is served"
        assert await metric(gateway, "kvlane_tenants_unread", source="tenants_in_redis") == 1
        assert await metric(gateway, "kvlane_tenants_unread", source="tenants") == 0
        assert await metric(gateway, "kvlane_refusals_total", code="tenants_unknown") == 1
        assert sum("tenants: not ready: Redis: " in record.getMessage() for record in caplog.records) == 1
        yield gateway


async def is_ready(gateway: Gateway) -> bool:
    return (await get(gateway.url, "/readyz")).status == 200


async def test_a_gateway_that_starts_while_redis_is_away_serves_within_two_seconds_of_its_return(
    engine: SimulatedEngine, tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Else an outage of Redis, and a restart of gateways meanwhile, would be one of the fleet."""
    now = asyncio.get_running_loop().time
    async with stored_in("redis", tmp_path, redis_server):
        redis_server.freeze()
        async with started_without(engine, redis_server, caplog) as gateway:
            redis_server.thaw()
            back_at = now()
            while not await is_ready(gateway):
                assert await status(gateway, GOOD) in (200, 503), "never 401"
                assert now() < back_at + REVOKED_WITHIN_S
            print(f"\nready {now() - back_at:.2f} s after Redis was back")
            assert await status(gateway, GOOD) == 200
            assert await status(gateway, "nobody's key") == 401
            assert await metric(gateway, "kvlane_tenants_unread") == await metric(gateway, "kvlane_tenants_stale") == 0


async def test_a_redis_that_has_lost_its_tenants_before_the_start_is_waited_for_too(
    engine: SimulatedEngine, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is up, and empty: nothing says that nobody may call."""
    async with started_without(engine, redis_server, caplog) as gateway:
        line = Line(Servers((redis_server.url,)), chance=Random(1))
        await line.start()
        await RedisStore(line).change_all(lambda known: [TenantConfig.model_validate(one) for one in TWO_TENANTS])
        await line.close()
        await until_so(lambda: is_ready(gateway), True)
        assert (await status(gateway, GOOD), await status(gateway, "nobody's key")) == (200, 401)


async def test_what_is_wrong_in_redis_keeps_a_gateway_from_starting(redis_server: RedisServer) -> None:
    redis_server.tell("HSET", DOCUMENTS, "a", "{")
    redis_server.tell("SET", VERSION, 1)
    pools = [{"endpoints": [{"url": "http://127.0.0.1:9"}]}]
    sections = {"pools": pools, "listen": {"port": 0, "admin_port": 0}, "tenants_in_redis": True}
    config = build({**sections, "redis": {"url": redis_server.url}}, "test", {})
    with pytest.raises(StartError, match=r"^Redis: tenant 'a': invalid JSON"):
        async with running(config):
            pass


# The configuration file itself.


async def test_l12_a_broken_configuration_keeps_the_old_one_says_so_and_raises_a_metric(
    engine: SimulatedEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kvlane.yaml"

    def write(**sections: Any) -> None:
        health = {"interval_s": 0.05, "state_interval_s": 0.05}
        pools = [{"endpoints": [{"name": "E0", "url": engine.url, "kind": "vllm", "models": ["sim"]}]}]
        listen = {"port": 0, "admin_port": 0}
        document = {"listen": listen, "health": health, "pools": pools, **sections}
        file.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))

    def said(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    caplog.set_level("INFO")
    write(tenants=TWO_TENANTS)
    with no_faults():
        async with running(load(file), file) as gateway:
            await until(lambda: ready_endpoints(gateway))
            assert (await status(gateway, GOOD), await status(gateway, BAD)) == (200, 200)
            for count, broken in enumerate(("pools: [}", "", "tenants: []\n"), 1):
                file.write_text(broken)
                await until(lambda count=count: said("cannot be used, what it said before holds on") == count)  # type: ignore[misc]
                assert await metric(gateway, "kvlane_tenants_stale", source="tenants") == 1
                assert (await status(gateway, GOOD), await status(gateway, BAD)) == (200, 200)
            write(tenants=None)  # nobody may call: that is no configuration
            await until(lambda: said("who may call?"))
            assert (await get(gateway.url, "/v1/models")).status == 401
            write(tenants=TWO_TENANTS[:1], admission={"enabled": False})
            await until_answers(gateway, BAD, 401)
            assert await status(gateway, GOOD) == 200
            assert await metric(gateway, "kvlane_tenants_stale") == 0
            assert said("is good again") == 1
            assert said("has changed in admission, which needs a restart") == 1
            write(tenants=TWO_TENANTS[:1], anonymous={})
            await until(lambda: said(f"since {file} has changed") == 2)
            assert (await get(gateway.url, "/v1/models")).status == 200
            assert await status(gateway, BAD) == 401, "a key that is nobody's is not nobody"
    assert BAD not in caplog.text


# Odd keys.


ODD: list[list[tuple[str, str]]] = [
    [],
    [("Authorization", "")],
    [("Authorization", "Bearer")],
    [("Authorization", "Bearer ")],
    [("Authorization", "Bearer  ")],
    [("Authorization", "bearer nope")],
    [("Authorization", "Bearer a's key x")],
    [("Authorization", "Bearer a's key,Bearer a's key")],
    [("Authorization", "Basic YTpi")],
    [("Authorization", "Digest x")],
    [("Authorization", "a's key")],
    [("Authorization", "Bearer é")],
    [("Authorization", "Bearer \udcff\udcfe")],
    [("Authorization", "Bearer " + "k" * 10_000)],
    [("Authorization", "Bearer a's key"), ("Authorization", "Bearer a's key")],
    [("Authorization", "Bearer nope"), ("Authorization", "Bearer a's key")],
    [("Authorization", "Bearer nope"), ("X-API-Key", "a's key")],
    [("X-API-Key", "")],
    [("X-API-Key", "nope")],
    [("Api-Key", "nope")],
]


@pytest.mark.parametrize("headers", ODD, ids=range(len(ODD)))
async def test_odd_keys_are_refused_and_break_nothing(
    headers: list[tuple[str, str]], engine: SimulatedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(engine.url, tenants=[tenant("a")]) as gateway:
        answer = await call(gateway.url, CHAT, BODY, headers)
        assert answer.refusal == (401, "authentication_error", "invalid_api_key")
        assert "key x" not in answer.body.decode()
        assert await status(gateway, "a's key") == 200
        assert (await call(gateway.url, CHAT, BODY, [("authorization", "BEARER a's key")])).status == 200
    assert not caplog.records


async def test_a_key_of_any_size_is_refused(engine: SimulatedEngine) -> None:
    async with serving(engine.url, tenants=[tenant("a")]) as gateway:
        answer = await call(gateway.url, CHAT, BODY, bearer("k" * 100_000))
        assert answer.status in (400, 401, 431)
        assert "kkkk" not in answer.body.decode()
        assert await status(gateway, "a's key") == 200


@pytest.mark.parametrize("headers", [ODD[1], ODD[2], ODD[5], ODD[8], ODD[14], ODD[18]])
async def test_an_odd_key_is_not_none(headers: list[tuple[str, str]], engine: SimulatedEngine) -> None:
    """Where there are tenants and everybody may call besides."""
    async with serving(engine.url, tenants=[tenant("a")], anonymous={"models": ["sim"]}) as gateway:
        assert (await call(gateway.url, CHAT, BODY, headers)).status == 401
        assert (await call(gateway.url, CHAT, BODY)).status == 200
        assert (await call(gateway.url, CHAT, BODY.replace(b"sim", b"x", 1))).status == 403
