"""Where tenants are kept: nobody's change is lost, nobody reads half a file, nobody else may read it."""

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gateway import keystores
from gateway.keys import KeyProblem, sha256_of, with_new_key
from gateway.keystores import HEAD, Change, FileStore, RedisStore, Store, locked
from gateway.redisline import Line
from gateway.sources import DOCUMENTS, VERSION, RedisSource, read_tenants
from gateway.tenancy import TenantConfig
from tests.redis_server import RedisServer


def adds(tenant: str, secret: str) -> Change:
    """Make a change that gives a tenant a key more."""

    def change(known: Mapping[str, TenantConfig]) -> TenantConfig:
        return with_new_key(known.get(tenant) or TenantConfig(name=tenant), secret, None, None)

    return change


async def keys_in(store: Store) -> dict[str, list[str]]:
    return {tenant.name: [digest for _, digest in tenant.digests()] for tenant in await store.tenants()}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# A file.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tenants.yaml"


def test_a_file_that_is_not_there_is_made_for_its_owner_alone(file: Path) -> None:
    store = FileStore(file)
    assert asyncio.run(store.tenants()) == ()
    asyncio.run(store.change(adds("a", "secret")))
    assert mode_of(file) == 0o600
    assert asyncio.run(keys_in(store)) == {"a": [sha256_of("secret")]}
    assert file.read_text().startswith(HEAD)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_file_keeps_who_may_read_it(file: Path, mode: int) -> None:
    store = FileStore(file)
    asyncio.run(store.change(adds("a", "one")))
    file.chmod(mode)
    asyncio.run(store.change(adds("a", "two")))
    assert mode_of(file) == mode


def test_what_else_is_said_of_tenants_stays_as_it_was(file: Path) -> None:
    before = {
        "name": "a",
        "weight": 2.5,
        "limits": {"requests_per_minute": 60},
        "models": [],
        "keys": [{"name": "ci", "sha256": ["0" * 64], "last4": "1234", "expires_at": "2027-01-31T00:00:00Z"}],
    }
    file.write_text(yaml.safe_dump({"tenants": [before, {"name": "b", "key_sha256": ["1" * 64]}]}))
    asyncio.run(FileStore(file).change(adds("b", "secret")))
    after = yaml.safe_load(file.read_text())["tenants"]
    assert after[0] == before
    assert {**after[1], "keys": 0} == {"name": "b", "key_sha256": ["1" * 64], "keys": 0}
    assert [tenant.name for tenant in read_tenants(file)] == ["a", "b"]


def test_what_a_link_leads_to_is_replaced_and_not_the_link(file: Path) -> None:
    real = file.parent / "real"
    real.mkdir()
    (real / "t.yaml").write_text("tenants: []\n")
    file.symlink_to(real / "t.yaml")
    asyncio.run(FileStore(file).change(adds("a", "secret")))
    assert file.is_symlink()
    assert len(read_tenants(real / "t.yaml")) == 1


async def test_two_who_write_at_a_time_lose_nothing(file: Path) -> None:
    """Each over a store of its own, as two processes have; 20 changes."""
    await asyncio.gather(*(FileStore(file).change(adds("a", f"secret-{at}")) for at in range(20)))
    found = (await keys_in(FileStore(file)))["a"]
    assert sorted(found) == sorted(sha256_of(f"secret-{at}") for at in range(20))


def test_who_waits_for_the_lock_too_long_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystores, "LOCK_WITHIN_S", 0.0)
    with locked(file.parent), pytest.raises(KeyProblem, match="another `kvlane key` has been writing"):
        asyncio.run(FileStore(file).change(adds("a", "secret")))
    assert not file.exists()


def test_a_change_that_fails_leaves_the_file_and_the_lock_free(file: Path) -> None:
    store = FileStore(file)
    asyncio.run(store.change(adds("a", "one")))
    before = file.read_bytes()

    def change(known: Mapping[str, TenantConfig]) -> TenantConfig:
        raise KeyProblem("no")

    with pytest.raises(KeyProblem, match="no"):
        asyncio.run(store.change(change))
    assert file.read_bytes() == before
    asyncio.run(store.change(adds("a", "two")))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyProblem, match=r"none/t\.yaml: cannot be written: No such file or directory"):
        asyncio.run(FileStore(tmp_path / "none" / "t.yaml").change(adds("a", "one")))


def test_a_bad_file_is_not_overwritten(file: Path) -> None:
    file.write_text("tenants: [{name: a, limit: 3}]\n")
    with pytest.raises(KeyProblem, match=r"tenants\[0\]\.limit: unknown key"):
        asyncio.run(FileStore(file).change(adds("a", "one")))
    assert "limit: 3" in file.read_text()


def test_a_file_that_cannot_take_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        keystores.replace(target, "text")
    assert os.listdir(tmp_path) == ["taken"]


# Redis.


async def test_a_change_in_redis_is_one_that_gateways_see(line: Line, redis_server: RedisServer) -> None:
    store, source = RedisStore(line), RedisSource(line)
    for secret in ("one", "two"):
        await store.change(adds("a", secret))
        seen = await source.read()
        assert seen is not None
        assert (tenant := seen.tenants[0]).name == "a"
        assert tenant.keys[-1].sha256 == (sha256_of(secret),)
    assert await source.read() is None


async def test_a_version_rises_with_every_change_and_with_time(line: Line, redis_server: RedisServer) -> None:
    """What is written after everything was lost is newer than all there was before."""
    store = RedisStore(line)
    seen = []
    for at in range(5):
        await store.change(adds("a", f"secret-{at}"))
        seen.append(int(redis_server.tell("GET", VERSION)))
    redis_server.flush()
    await store.change(adds("a", "secret"))
    seen.append(int(redis_server.tell("GET", VERSION)))
    assert seen == sorted(set(seen))
    ahead = seen[-1] + 10**12
    redis_server.tell("SET", VERSION, ahead)
    await store.change(adds("a", "another"))
    assert int(redis_server.tell("GET", VERSION)) == ahead + 1


async def test_two_who_write_into_redis_at_a_time_lose_nothing(line: Line, redis_server: RedisServer) -> None:
    """Four at a time, less than a change is tried again."""
    await asyncio.gather(*(RedisStore(line).change(adds("a", f"secret-{at}")) for at in range(4)))
    assert len((await keys_in(RedisStore(line)))["a"]) == 4


async def test_a_bad_document_in_redis_is_not_overwritten(line: Line, redis_server: RedisServer) -> None:
    redis_server.tell("HSET", DOCUMENTS, "a", "{}")
    with pytest.raises(KeyProblem, match="Redis: tenant 'a': name: is required"):
        await RedisStore(line).change(adds("b", "one"))
    assert redis_server.tell("HGETALL", DOCUMENTS) == {"a": "{}"}


async def test_a_redis_that_does_not_answer_is_named(line: Line, redis_server: RedisServer) -> None:
    with redis_server.frozen(), pytest.raises(KeyProblem, match="redis 127"):
        await RedisStore(line).change(adds("a", "one"))
