"""kvlane tenant: what is put into Redis is checked before, arrives whole, and keeps keys that nobody spoke of."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app as kvlane
from gateway.keys import sha256_of
from gateway.sources import DOCUMENTS, VERSION
from tests.redis_server import RedisServer

POOLS = "pools: [{endpoints: [{url: 'http://127.0.0.1:9'}]}]\n"
LIMITED = "tenants: [{name: a, weight: 2, limits: {parallel: 4, tokens_per_day: 1000000}}, {name: b}]\n"


def do(*words: str | Path) -> Result:
    return CliRunner().invoke(kvlane, [*map(str, words)], env={"COLUMNS": "20"})


def good(*words: str | Path) -> str:
    result = do(*words)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def wrong(*words: str | Path) -> str:
    """Do what cannot be done; give the one line that says why."""
    result = do(*words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return result.stderr.removeprefix("kvlane: ").rstrip("\n")


@pytest.fixture
def config(tmp_path: Path, redis_server: RedisServer) -> Path:
    """A configuration with one tenant of its own, and the others in Redis."""
    file = tmp_path / "kvlane.yaml"
    tenants = f"tenants: [{{name: own, key_sha256: ['{sha256_of('own')}']}}]\n"
    file.write_text(f"{POOLS}tenants_in_redis: true\nredis: {{url: '{redis_server.url}'}}\n{tenants}")
    return file


def given(config: Path, text: str) -> Path:
    """Write what is to be put."""
    file = config.with_name("given.yaml")
    file.write_text(text)
    return file


def rows(config: Path) -> dict[str, list[str]]:
    lines = good("tenant", "list", config).splitlines()[1:]
    return {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line) for line in lines)}


def version(redis: RedisServer) -> int:
    return int(redis.tell("GET", VERSION) or 0)


def test_tenants_are_put_with_their_limits_and_listed(config: Path, redis_server: RedisServer) -> None:
    result = do("tenant", "put", config, given(config, LIMITED))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "put 2 tenants into Redis: gateways follow within two seconds\n"
    assert version(redis_server) > 0
    assert rows(config) == {
        "own": ["1", "-", "1", "all", "none", str(config)],
        "a": ["0", "-", "2", "all", "parallel=4 tokens_per_day=1,000,000", "Redis"],
        "b": ["0", "-", "1", "all", "none", "Redis"],
    }


def test_what_is_put_replaces_all_but_keys_that_it_does_not_name(config: Path) -> None:
    good("tenant", "put", config, given(config, LIMITED))
    good("key", "new", config, "a", "--name", "ci")
    good("tenant", "put", config, given(config, "tenants: [{name: a, limits_by_model: {m: {parallel: 1}}}]"))
    assert rows(config)["a"] == ["1", "-", "1", "all", "m:parallel=1", "Redis"]
    assert "ci" in good("key", "list", config)
    good("tenant", "put", config, given(config, f"tenants: [{{name: a, key_sha256: ['{sha256_of('a')}']}}]"))
    assert "ci" not in good("key", "list", config)
    good("tenant", "put", config, given(config, "tenants: [{name: a, models: [m, n]}]"))
    assert rows(config)["a"] == ["1", "-", "1", "m n", "none", "Redis"]
    good("tenant", "put", config, given(config, "tenants: [{name: a, keys: []}]"))
    assert rows(config)["a"][0] == "0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: [{name: a, limits: {paralel: 1}}]", "given.yaml: tenants[0].limits.paralel: unknown key"),
        ("tenants: [{name: n}, {name: n}]", "tenants[1].name: 'n' is there twice, first at tenants[0].name"),
        ("tenants: [{name: own}]", "tenants[0].name: 'own' is there twice, first at "),
        (
            f"tenants: [{{name: n, key_sha256: ['{sha256_of('b')}']}}]",
            "is there twice, first at Redis: b.key_sha256[0]",
        ),
        ("tenants: [{name: n, service_class: gold}]", "tenants[0].service_class: 'gold' is no class of admission"),
        ("tenants: []", "given.yaml: has no tenants"),
        ("a: [", "given.yaml: "),
    ],
)
def test_what_no_gateway_could_use_is_not_put(config: Path, redis_server: RedisServer, text: str, words: str) -> None:
    good("tenant", "put", config, given(config, f"tenants: [{{name: b, key_sha256: ['{sha256_of('b')}']}}]"))
    before = redis_server.tell("HGETALL", DOCUMENTS), version(redis_server)
    assert words in wrong("tenant", "put", config, given(config, text))
    assert (redis_server.tell("HGETALL", DOCUMENTS), version(redis_server)) == before


def test_tenants_are_removed_all_or_none(config: Path, redis_server: RedisServer) -> None:
    good("tenant", "put", config, given(config, LIMITED))
    before = version(redis_server)
    assert wrong("tenant", "remove", config, "a", "c") == "Redis: there is no tenant 'c'"
    assert version(redis_server) == before
    result = do("tenant", "remove", config, "a", "b")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "removed 2 tenants: gateways refuse their keys within two seconds\n"
    assert version(redis_server) > before
    assert list(rows(config)) == ["own"]


def test_one_that_makes_no_sense_can_be_removed(config: Path, redis_server: RedisServer) -> None:
    redis_server.tell("HSET", DOCUMENTS, "a", "{")
    assert "Redis: tenant 'a'" in wrong("tenant", "list", config)
    assert "Redis: tenant 'a'" in wrong("tenant", "put", config, given(config, "tenants: [{name: b}]"))
    good("tenant", "remove", config, "a")
    assert list(rows(config)) == ["own"]


@pytest.mark.parametrize(
    ("line", "where"), [("tenants_file: t.yaml\n", "t.yaml"), ("anonymous: {}\n", "the configuration")]
)
def test_files_are_the_operators_own(tmp_path: Path, line: str, where: str) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text(POOLS + line)
    tenants = given(file, "tenants: [{name: a}]")
    for told in (wrong("tenant", "put", file, tenants), wrong("tenant", "remove", file, "a")):
        assert told.endswith(f"{where}, which is yours to edit; this is for tenants_in_redis")
