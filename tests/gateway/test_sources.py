"""Where tenants are told of: what has changed is read once it stands still, and what cannot be used says why."""

import asyncio
import logging
import os
from pathlib import Path
from threading import Event

import orjson
import pytest

from gateway.redisline import Line
from gateway.sources import (
    DOCUMENTS,
    FILE_EVERY_S,
    MAX_RESTLESS,
    REDIS_EVERY_S,
    VERSION,
    Callers,
    FileSource,
    NotThere,
    RedisSource,
    SourceError,
    configuration_file,
    read_tenants,
    tenants_file,
)
from tests.redis_server import PATIENCE_S, RedisServer
from tests.until import until

DIGEST = "0" * 64
A = f"tenants: [{{name: a, key_sha256: ['{DIGEST}']}}]\n"
B = f"tenants: [{{name: b, key_sha256: ['{DIGEST}']}}]\n"
POOLS = "pools: [{endpoints: [{url: 'http://127.0.0.1:9'}]}]\n"
EVERYBODY_AGAIN_S = 2.0  # a revoked key lives so long at most


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.yaml"
    path.write_text(A)
    return path


def look(source: FileSource) -> list[str] | str | None:
    """Give the names of tenants that a source gives, or its trouble."""
    try:
        callers = source.look()
    except SourceError as error:
        return str(error)
    return None if callers is None else [tenant.name for tenant in callers.tenants]


def test_a_change_is_seen_well_within_what_is_promised() -> None:
    """Two looks at a file, or a few while it changes; one at Redis, and the time that an answer may take."""
    assert 2 * FILE_EVERY_S < EVERYBODY_AGAIN_S / 2
    assert (MAX_RESTLESS + 2) * FILE_EVERY_S < EVERYBODY_AGAIN_S
    assert REDIS_EVERY_S < EVERYBODY_AGAIN_S / 2


# Files.


def test_a_file_is_read_at_first_and_when_it_has_changed_and_stands_still(file: Path) -> None:
    source = tenants_file(file)
    assert [look(source), look(source)] == [["a"], None]
    file.write_text(B + "# another size")
    assert [look(source), look(source), look(source)] == [None, ["b"], None]


async def test_what_a_look_finds_for_whom_would_not_wait_is_given_to_who_asks_next(file: Path) -> None:
    """At the start nobody waits for long, and thousands of tenants are not read in a moment."""
    may_end = Event()

    def parse(path: Path) -> Callers:
        assert may_end.wait(PATIENCE_S)
        return Callers(read_tenants(path))

    source = FileSource("tenants_file", file, parse)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await source.read()
    may_end.set()
    given = await source.read()
    assert given is not None
    assert [tenant.name for tenant in given.tenants] == ["a"]
    assert await source.read() is None


def test_a_file_that_is_being_written_is_not_read(file: Path) -> None:
    """Half of it may be good YAML that lacks the other half of the tenants."""
    source = tenants_file(file)
    assert look(source) == ["a"]
    for part in ("tenants:", "tenants: []\n"):
        file.write_text(part)
        assert look(source) is None
    file.write_text(B + "# whole")
    assert [look(source), look(source)] == [None, ["b"]]


def test_a_file_that_changes_all_the_time_is_read_all_the_same(file: Path) -> None:
    source = tenants_file(file)
    assert look(source) == ["a"]
    found = []
    for at in range(1, 9):
        file.write_text(B + "#" * at)
        found.append(look(source))
    assert found == [None, None, None, ["b"]] * 2


@pytest.mark.parametrize("how", ["mtime", "inode", "size"])
def test_any_trace_of_a_change_is_enough(file: Path, how: str) -> None:
    source = tenants_file(file)
    assert look(source) == ["a"]
    before = file.stat()
    if how == "inode":
        other = file.with_name("other")
        other.write_text(B)
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(file)
    else:
        file.write_text(B + "#" * (how == "size"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + (how == "mtime")))
    assert [look(source), look(source)] == [None, ["b"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: [}", "expected the node content"),
        ("", "must be a mapping of `tenants` alone"),
        ("tenants: []\npools: []\n", "must be a mapping of `tenants` alone"),
        ("tenants: [{name: a, limits: {parallel: 0}}]", "tenants[0].limits.parallel: "),
        ("tenants: [{name: a, limit: {}}]", "tenants[0].limit: unknown key"),
        (f"tenants: [{{name: anonymous, key_sha256: ['{DIGEST}']}}]", "must be another name"),
        ("tenants: [{name: a, key_sha256: [kvl-secret]}]", "each must be 64 hex digits"),
        ("tenants: [{name: a, keys: [{sha256: [kvl-secret]}]}]", "each must be 64 hex digits"),
        ("tenants: [{name: a, keys: [kvl-secret]}]", "tenants[0].keys[0]: must be a mapping"),
    ],
)
def test_a_bad_file_is_trouble_until_it_is_good_and_quotes_no_secret(file: Path, text: str, words: str) -> None:
    source = tenants_file(file)
    assert look(source) == ["a"]
    file.write_text(text)
    assert look(source) is None
    for _ in range(2):
        told = look(source)
        assert isinstance(told, str)
        assert words in told
        assert "kvl-secret" not in told
    file.write_text(B)
    look(source)
    assert [look(source), look(source)] == [["b"], None]


def test_a_file_that_is_gone_is_trouble_until_it_is_back(file: Path) -> None:
    source = tenants_file(file)
    assert look(source) == ["a"]
    file.unlink()
    assert [look(source), look(source)] == [None, "No such file or directory"]
    file.write_text(A)
    assert [look(source), look(source), look(source)] == ["No such file or directory", ["a"], None]


def test_a_file_that_nobody_has_made_yet_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    source = tenants_file(path)
    with pytest.raises(NotThere) as caught:
        source.look()
    assert "kvlane key new" in caught.value.hint
    assert look(source) == "No such file or directory"
    path.write_text(A)
    looks = [look(source) for _ in range(3)]
    assert [found for found in looks if found not in (None, "No such file or directory")] == [["a"]]


def test_a_file_that_a_fault_of_ours_kept_from_being_read_is_trouble_until_it_changes(file: Path) -> None:
    def parse(path: Path) -> Callers:
        raise ZeroDivisionError

    source = FileSource("tenants_file", file, parse)
    with pytest.raises(ZeroDivisionError):
        source.look()
    assert look(source) == look(source) == "reading it failed inside the gateway"


def test_an_empty_list_is_no_tenants(file: Path) -> None:
    file.write_text("tenants: []\n")
    assert look(tenants_file(file)) == []
    file.write_text("tenants:\n")
    assert look(tenants_file(file)) == []


def test_of_the_configuration_tenants_alone_are_taken_and_the_rest_needs_a_restart(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(A + POOLS)
    source = configuration_file(file)
    assert look(source) == ["a"]
    file.write_text(B + POOLS + "listen: {port: 1}\nretries: {max_tries: 1}\n")
    assert [look(source), look(source)] == [None, ["b"]]
    file.write_text(A + POOLS + "listen: {port: 1}\nretries: {max_tries: 1}\n# again\n")
    assert [look(source), look(source)] == [None, ["a"]]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == [f"{file} has changed in listen, retries, which needs a restart"]


def test_the_section_for_everybody_is_taken_as_well(file: Path) -> None:
    file.write_text(A + POOLS + "anonymous: {weight: 2}\n")
    source = configuration_file(file)
    first = source.look()
    assert first is not None
    assert first.anonymous is not None
    assert first.anonymous.weight == 2
    file.write_text(A + POOLS)
    source.look()
    second = source.look()
    assert second is not None
    assert second.anonymous is None


# Redis.


def put(server: RedisServer, version: int | None, **documents: object) -> None:
    """Put tenants into Redis as an operator's own script might."""
    with server.ask() as redis:
        for name, document in documents.items():
            redis.hset(DOCUMENTS, name, document if isinstance(document, str) else orjson.dumps(document).decode())
        if version is not None:
            redis.set(VERSION, version)


async def names(source: RedisSource) -> list[str] | str | None:
    try:
        callers = await source.read()
    except SourceError as error:
        return str(error)
    return None if callers is None else [tenant.name for tenant in callers.tenants]


async def test_tenants_are_read_when_their_version_rises(line: Line, redis_server: RedisServer) -> None:
    source = RedisSource(line)
    put(redis_server, 1, a={"name": "a"}, b={"name": "b", "limits": {"parallel": 1}})
    assert [await names(source), await names(source)] == [["a", "b"], None]
    put(redis_server, None, c={"name": "c"})
    assert await names(source) is None
    put(redis_server, 2)
    assert await names(source) == ["a", "b", "c"]


async def test_a_redis_in_which_nobody_ever_wrote_is_not_one_without_tenants(
    line: Line, redis_server: RedisServer
) -> None:
    """It may have lost them before this gateway came: a version without tenants says that nobody may call."""
    source = RedisSource(line)
    for _ in range(2):
        with pytest.raises(NotThere, match=r"^it has no tenants$"):
            await source.read()
    put(redis_server, 1)
    assert [await names(source), await names(source)] == [[], None]


async def test_at_first_a_redis_that_is_down_is_not_there(line: Line, redis_server: RedisServer) -> None:
    source = RedisSource(line)
    put(redis_server, 1, a={"name": "a"})
    with redis_server.frozen(), pytest.raises(NotThere, match=r"^redis "):
        await source.read()
    await until(lambda: line.is_up)
    assert await names(source) == ["a"]


async def test_a_redis_that_has_forgotten_brings_nothing_back(line: Line, redis_server: RedisServer) -> None:
    """Restored from yesterday's dump, failed over to a replica that lags, or empty: a revoked key stays revoked."""
    source = RedisSource(line)
    put(redis_server, 5, a={"name": "a"})
    assert await names(source) == ["a"]
    put(redis_server, 4, old={"name": "old"})
    assert await names(source) == "it has forgotten tenants: their version is 4, and was 5"
    redis_server.flush()
    assert await names(source) == "it has forgotten tenants: their version is 0, and was 5"
    put(redis_server, 6, new={"name": "new"})
    assert [await names(source), await names(source)] == [["new"], None]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "tenant 'a': invalid JSON"),
        ({"name": "b"}, "tenant 'a': calls itself b"),
        ({"name": "a", "limits": {"parallel": -1}}, "tenant 'a': limits.parallel: "),
        ({"name": "a", "key_sha256": ["kvl-secret"]}, "tenant 'a': key_sha256: each must be 64 hex digits"),
    ],
)
async def test_a_bad_document_is_trouble_until_it_is_good(
    line: Line, redis_server: RedisServer, document: object, words: str
) -> None:
    source = RedisSource(line)
    put(redis_server, 1, a=document)
    for _ in range(2):
        told = await names(source)
        assert isinstance(told, str)
        assert told.startswith(words)
        assert "kvl-secret" not in told
    put(redis_server, 2, a={"name": "a"})
    assert await names(source) == ["a"]


async def test_a_redis_that_does_not_answer_is_one_trouble(line: Line, redis_server: RedisServer) -> None:
    source = RedisSource(line)
    put(redis_server, 1, a={"name": "a"})
    assert await names(source) == ["a"]
    with redis_server.frozen():
        told = [await names(source) for _ in range(3)]
        assert isinstance(told[0], str)
        assert told == told[:1] * 3
    await until(lambda: line.is_up)
    assert await names(source) is None
