"""kvlane key: a secret is written once and kept nowhere; what goes wrong is one line and exit status 2."""

import re
import stat
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app as kvlane
from gateway.keys import sha256_of
from gateway.sources import DOCUMENTS
from tests.gateway_process import run
from tests.ports import free_port
from tests.redis_server import RedisServer

POOLS = "pools: [{endpoints: [{url: 'http://127.0.0.1:9'}]}]\n"
SECRET = re.compile(r"kvl-[A-Za-z0-9]{43}")


def key(*words: str | Path) -> Result:
    return CliRunner().invoke(kvlane, ["key", *map(str, words)], env={"COLUMNS": "20"})


def made(*words: str | Path) -> str:
    """Make a key; give its secret."""
    result = key("new", *words)
    assert result.exit_code == 0, result.stderr
    assert SECRET.fullmatch(result.stdout.rstrip("\n")), result.stdout
    return result.stdout.strip()


def wrong(*words: str | Path) -> str:
    """Do what cannot be done; give the one line that says why."""
    result = key(*words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("kvlane: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("kvlane: ").rstrip("\n")


def rows(config: Path) -> list[list[str]]:
    result = key("list", config)
    assert result.exit_code == 0, result.stderr
    return [re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines()[1:]]


@pytest.fixture(params=["file", "redis"])
def config(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Path:
    """A configuration whose tenants are in a file of their own, or in Redis."""
    file = tmp_path / "kvlane.yaml"
    in_redis = f"tenants_in_redis: true\nredis: {{url: '{redis_server.url}'}}\n"
    file.write_text(POOLS + ("tenants_file: t.yaml\n" if request.param == "file" else in_redis))
    return file


def kept(config: Path, redis: RedisServer) -> str:
    """Give all that is stored anywhere."""
    files = "".join(path.read_text() for path in config.parent.iterdir())
    return files + str(redis.tell("HGETALL", DOCUMENTS))


# Wherever tenants are.


def test_of_a_new_key_only_the_hash_is_kept(config: Path, redis_server: RedisServer) -> None:
    secret = made(config, "team-a", "--name", "ci", "--expires", "90d", "--create")
    stored = kept(config, redis_server)
    assert sha256_of(secret) in stored
    assert secret not in stored
    assert secret[12:-4] not in stored
    (row,) = rows(config)
    assert row[:3] == ["team-a", "ci", f"{secret[:8]}…{secret[-4:]}"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", row[3])
    assert row[4] == "active"


def test_what_is_said_about_a_secret_is_not_mixed_with_it(config: Path) -> None:
    result = key("new", config, "a", "--create")
    assert SECRET.fullmatch(result.stdout.strip())
    assert result.stdout.strip() not in result.stderr
    assert "this is the only time that this secret of a is shown; it is good until it is revoked" in result.stderr


def test_a_key_is_rotated_and_its_old_secret_dropped(config: Path, redis_server: RedisServer) -> None:
    old = made(config, "a", "--name", "ci", "--create")
    new = made(config, "a", "--rotate", old[:8])
    stored = kept(config, redis_server)
    assert sha256_of(old) in stored
    assert sha256_of(new) in stored
    assert [row[1:5] for row in rows(config)] == [["ci", f"{new[:8]}…{new[-4:]}", "never", "rotating"]]
    assert "has two secrets" in wrong("new", config, "a", "--rotate", "ci")
    assert key("revoke", config, "a/ci", "--old").exit_code == 0
    stored = kept(config, redis_server)
    assert sha256_of(old) not in stored
    assert sha256_of(new) in stored


def test_a_key_is_revoked_by_any_of_its_names(config: Path, redis_server: RedisServer) -> None:
    made(config, "a", "--name", "one", "--create")
    secrets = [made(config, "a", "--name", name) for name in ("two", "three", "four", "five")]
    three, four, five = secrets[1:]
    for words in ("two", f"{three[:8]}…{three[-4:]}", four[-4:], f"sha256:{sha256_of(five)[:16]}"):
        result = key("revoke", config, words)
        assert (result.exit_code, result.stdout) == (0, "")
        assert "gateways refuse it within two seconds" in result.stderr
    assert [row[1] for row in rows(config)] == ["one"]
    assert not [secret for secret in secrets if sha256_of(secret) in kept(config, redis_server)]
    assert key("revoke", config, "one").exit_code == 0
    assert rows(config)[0][:5] == ["a", "-", "-", "-", "no key"]


def test_what_cannot_be_done_is_said_in_one_line(config: Path) -> None:
    assert wrong("new", config, "a") == "there is no tenant 'a': --create makes one, without limits"
    assert wrong("new", config, "a b", "--create") == "no tenant can be called 'a b'"
    assert wrong("new", config, "anonymous", "--create") == "no tenant can be called 'anonymous'"
    assert wrong("new", config, "a", "--create", "--name", "x y") == "no key can be called 'x y'"
    assert "--expires must be a period" in wrong("new", config, "a", "--create", "--expires", "soon")
    assert "has been" in wrong("new", config, "a", "--create", "--expires", "2020-01-01T00:00:00Z")
    assert "leave out --name" in wrong("new", config, "a", "--name", "x", "--rotate", "y")
    assert wrong("revoke", config, "x") == "there is no key 'x': `kvlane key list` shows all"
    made(config, "a", "--create", "--name", "ci")
    made(config, "b", "--create", "--name", "ci")
    assert wrong("revoke", config, "ci").startswith("'ci' is 2 keys: a/ci (sha256:")
    assert "there is no key 'zz'" in wrong("new", config, "a", "--rotate", "zz")
    assert "--rotate ci gives it a new secret" in wrong("new", config, "a", "--name", "ci")
    assert wrong("list", config.parent / "none.yaml").endswith("none.yaml: No such file or directory")


# In a file.


@pytest.mark.parametrize("config", ["file"], indirect=True)
def test_a_file_of_tenants_is_for_its_owner_alone_and_beside_the_configuration(config: Path) -> None:
    made(config, "a", "--create")
    file = config.parent / "t.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in config.parent.iterdir()) == ["kvlane.yaml", "t.yaml"]
    assert CliRunner().invoke(kvlane, ["check", str(config)]).exit_code == 0


@pytest.mark.parametrize("config", ["file"], indirect=True)
def test_check_names_what_is_wrong_with_a_file_of_tenants(config: Path) -> None:
    (config.parent / "t.yaml").write_text("tenants: [{name: a, limits: {paralel: 1}}]\n")
    result = CliRunner().invoke(kvlane, ["check", str(config)])
    assert result.exit_code == 2
    assert "t.yaml: tenants[0].limits.paralel: unknown key" in result.stderr
    assert "t.yaml: tenants[0].limits.paralel: unknown key" in wrong("list", config)


# In the configuration itself.


@pytest.fixture
def inline(tmp_path: Path) -> Path:
    file = tmp_path / "kvlane.yaml"
    keys = f"[{{name: ci, sha256: ['{'1' * 64}'], prefix: kvl-AAAA, last4: aaaa}}]"
    file.write_text(f"{POOLS}tenants:\n  - {{name: a, key_sha256: ['{'0' * 64}'], keys: {keys}}}\n")
    return file


def test_for_a_tenant_in_the_configuration_it_is_said_what_to_put_where(inline: Path) -> None:
    before = inline.read_text()
    result = key("new", inline, "a", "--name", "x", "--expires", "2099-01-01T00:00:00Z")
    secret = result.stdout.strip()
    assert SECRET.fullmatch(secret)
    head, snippet = result.stderr.split(f"put this under `keys` of tenant a in {inline}:\n")
    assert head == ""
    entry = yaml.safe_load(snippet.split("this is the only")[0])
    assert entry == [
        {
            "name": "x",
            "sha256": [sha256_of(secret)],
            "prefix": secret[:8],
            "last4": secret[-4:],
            "expires_at": entry[0]["expires_at"],
        }
    ]
    assert inline.read_text() == before
    assert [row[1] for row in rows(inline)] == ["-", "ci"]


def test_for_a_new_tenant_too(inline: Path) -> None:
    result = key("new", inline, "b", "--create")
    assert f"put this under `tenants` in {inline}:\n- name: b\n  keys:\n  - sha256:\n" in result.stderr


@pytest.mark.parametrize("words", ["ci", "sha256:00000000"])
def test_what_to_take_out_is_said_and_is_no_success(inline: Path, words: str) -> None:
    told = wrong("revoke", inline, words)
    assert told.startswith(f"{inline} is yours to edit: take ")


def test_a_rotated_key_in_the_configuration_takes_its_old_place(inline: Path) -> None:
    result = key("new", inline, "a", "--rotate", "ci")
    head, snippet = result.stderr.split(":\n", 1)
    assert head == f"put this in the place of a/ci, under `keys` of tenant a in {inline}"
    (entry,) = yaml.safe_load(snippet.split("this is the only")[0])
    assert entry["sha256"] == [sha256_of(result.stdout.strip()), "1" * 64]


# As operators run it.


@pytest.mark.parametrize("words", ["key", "tenant"])
async def test_a_redis_that_is_away_is_one_line(tmp_path: Path, words: str) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text(f"{POOLS}tenants_in_redis: true\nredis: {{url: 'redis://127.0.0.1:{free_port()}'}}\n")
    status, out, told = await run(words, "list", str(file))
    assert (status, out, told.count("\n")) == (2, "", 1), told
    assert told.startswith("kvlane: redis 127.0.0.1:")


async def test_an_operator_makes_lists_and_revokes_a_key(tmp_path: Path) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text(POOLS + "tenants_file: t.yaml\n")
    status, secret, told = await run("key", "new", str(file), "a", "--create", "--name", "ci")
    assert (status, SECRET.fullmatch(secret.strip()) is not None, secret.strip() in told) == (0, True, False)
    status, out, _ = await run("key", "list", str(file))
    assert (status, secret.strip() in out, f"{secret[:8]}…" in out) == (0, False, True)
    assert (await run("key", "revoke", str(file), "ci"))[0] == 0
    status, out, told = await run("key", "revoke", str(file), "ci")
    assert (status, out, told) == (2, "", "kvlane: there is no key 'ci': `kvlane key list` shows all\n")
