"""The line to Redis, wherever that is: behind a password, a path or TLS, a cluster, sentinels; real servers."""

import asyncio
import shutil
import ssl
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
import redis.crc

from gateway.redisline import Line, Servers, slot_of
from tests.gateway.lines import COUNT, is_failing, is_up, open_line
from tests.ports import free_port
from tests.redis_server import SERVICE, RedisServer, clustered, is_whole, serving, wait_until, watched
from tests.until import until

# Where it is, and who we are.


async def test_a_password_lets_in_and_is_told_to_nobody(log: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        server.tell("ACL SETUSER", "kvlane", "on", ">se:cret", "~kvlane:*", "+@all")
        server.tell("ACL SETUSER", "default", "resetpass", "off")
        at = f"127.0.0.1:{server.port}"
        async with open_line(f"redis://kvlane:se%3Acret@{at}/3") as line:
            assert await line.ask("SET", "kvlane:a", 1) == b"OK"
            await is_failing(line.ask("SET", "other", 1))
            assert line.is_up
        async with open_line(f"redis://{at}", username="kvlane", password="se:cret", database=3) as line:
            assert await line.ask("GET", "kvlane:a") == b"1"
        async with open_line(f"redis://{at}", username="kvlane", password="wrong secret") as line:
            assert "WRONGPASS" in line.why
            assert "secret" not in f"{log.text} {line!r} {line.why} {Servers(('redis://a',), password='secret')}"


async def test_a_redis_may_listen_on_a_path(tmp_path: Path) -> None:
    with serving(tmp_path, "--unixsocket", str(tmp_path / "redis.sock")):
        async with open_line(f"unix://{tmp_path}/redis.sock") as line:
            assert await line.ask("PING") == b"PONG"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is nothing to make a certificate with")
async def test_a_redis_behind_tls_is_asked_if_its_certificate_is_right(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1"]
    making = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    process = await asyncio.create_subprocess_exec(
        *making, *subject, "-keyout", str(key), "-out", str(certificate), stderr=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(65_536):
                writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", redis_server.port)
        await asyncio.gather(copy(reader, outer), copy(inner, writer), return_exceptions=True)

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=tls) as server:
        url = f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        trusted = Line(Servers((url,), ca_file=str(certificate), timeout_s=1), chance=Random(1))
        await trusted.start()
        assert await trusted.ask("PING") == b"PONG"
        await trusted.close()
        doubted = Line(Servers((url,)), chance=Random(1))
        await doubted.start()
        assert "certificate" in doubted.why
        await doubted.close()


async def test_a_redis_with_too_many_clients_is_down(line: Line, redis_server: RedisServer) -> None:
    assert await line.ask("CONFIG", "SET", "maxclients", 1) == b"OK"
    async with open_line(redis_server.url) as other:
        assert "max number of clients" in other.why
        assert await line.ask("CONFIG", "SET", "maxclients", 1000) == b"OK"
        await is_up(other)


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@host",
        "secret",
        "redis://",
        "unix://",
        "redis://:sec/secret@host",
        "redis://secret@host:port",
        "redis://host/secret",
        "redis://host?password=secret",
    ],
)
def test_what_is_no_url_of_redis_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a Redis") as caught:
        Line(Servers((url,)), chance=Random(1))
    assert "sec" not in str(caught.value)


# Cluster and sentinels.


@pytest.mark.parametrize("key", ["", "a", "{a}b", "b{a}", "{}a", "{a", "a{b}{c}", "{{a}}", "ä{ö}"])
def test_a_key_has_the_slot_that_clusters_give_it(key: str) -> None:
    assert slot_of(key) == redis.crc.key_slot(key.encode())


async def test_a_cluster_is_asked_where_the_key_is(tmp_path: Path) -> None:
    with clustered(tmp_path) as nodes:
        urls = [f"redis://127.0.0.1:{free_port()}", *(f"redis://localhost:{node.port}" for node in nodes)]
        async with open_line(*urls, is_cluster=True) as line:
            await is_up(line)
            tenants = [f"kvlane:1:{{tenant{at}}}" for at in range(50)]
            asked = [line.script(COUNT, [f"{tenant}:n"], [1]) for tenant in tenants]
            assert await asyncio.gather(*asked) == [1] * 50
            assert [len(node.clients()) >= 1 for node in nodes] == [True] * 3
            assert all(node.tell("DBSIZE") > 5 for node in nodes)

            slot = slot_of(tenants[0])
            old = nodes[slot * 3 // 16_384]
            new = nodes[nodes.index(old) - 1]
            ids = {node.port: node.tell("CLUSTER MYID") for node in nodes}

            # On its way: what is not there any more is asked for at the new node.
            new.tell("CLUSTER SETSLOT", slot, "IMPORTING", ids[old.port])
            old.tell("CLUSTER SETSLOT", slot, "MIGRATING", ids[new.port])
            assert await line.script(COUNT, [f"{tenants[0]}:fresh"], [1]) == 1
            assert await line.script(COUNT, [f"{tenants[0]}:n"], [1]) == 2

            # Moved.
            old.tell("MIGRATE", "127.0.0.1", new.port, f"{tenants[0]}:n", 0, 1000)
            for node in (new, old):
                node.tell("CLUSTER SETSLOT", slot, "NODE", ids[new.port])
            assert await line.script(COUNT, [f"{tenants[0]}:n"], [1]) == 3
            assert await line.script(COUNT, [f"{tenants[0]}:fresh"], [1]) == 2

            # One node that stands still is down alone.
            with new.frozen():
                await is_failing(line.script(COUNT, [f"{tenants[0]}:n"], [1]))
                assert not line.is_up
                here = next(tenant for tenant in tenants[1:] if slot_of(tenant) * 3 // 16_384 == nodes.index(old))
                assert await line.ask("GET", f"{here}:n") in {b"1", b"2", b"3"}
            await is_up(line)
            # What had no answer was run all the same, since it had been sent.
            assert await line.script(COUNT, [f"{tenants[0]}:n"], [1]) == 5


async def test_a_replica_that_takes_over_a_dead_nodes_slots_is_found(tmp_path: Path) -> None:
    home = tmp_path / "replica"
    home.mkdir()
    with clustered(tmp_path) as nodes, serving(home, "--cluster-enabled", "yes") as replica:
        master = nodes[0]
        replica.tell("CLUSTER MEET", "127.0.0.1", master.port)
        wait_until(lambda: all(is_whole(node, 4) for node in (*nodes, replica)), "all know the replica")
        wait_until(lambda: replica.tell("CLUSTER REPLICATE", master.tell("CLUSTER MYID")), "it knows its master")
        key = next(key for key in map(str, range(100)) if slot_of(key) < 5000)
        async with open_line(master.url, is_cluster=True) as line:
            assert await line.script(COUNT, [key], [1]) == 1
            await until(lambda: "slave0" in master.tell("INFO", "replication"), "it replicates")
            await until(lambda: replica.tell("INFO", "replication")["master_link_status"] == "up", "it replicates")
            master.kill()
            await until(lambda: not line.is_up, "the node is missed")
            replica.tell("CLUSTER FAILOVER", "TAKEOVER")
            await is_up(line)
            assert await line.script(COUNT, [key], [1]) == 2


async def test_the_line_follows_the_master_that_the_sentinels_name(tmp_path: Path) -> None:
    with watched(tmp_path) as sentinel:
        urls = (f"redis://127.0.0.1:{free_port()}", sentinel.url)
        async with open_line(*urls, service=SERVICE) as line:
            await is_up(line)
            assert await line.script(COUNT, ["n"], [1]) == 1
            await until(lambda: sentinel.replica.tell("GET", "n") == "1", "it is replicated")
            await asyncio.to_thread(sentinel.fail_over)
            await is_up(line)
            assert await line.script(COUNT, ["n"], [1]) == 2
            assert sentinel.replica.tell("GET", "n") == "2"


async def test_a_service_that_no_sentinel_knows_is_down(tmp_path: Path) -> None:
    with watched(tmp_path) as sentinel:
        async with open_line(sentinel.url, service="other") as line:
            assert line.why.endswith("no sentinel knows a master called other")
