"""The tests' own redis-server does what its methods say."""

from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.redis_server import RedisServer, clustered, watched


def test_a_server_starts_empty_and_restarts_empty(redis_server: RedisServer) -> None:
    with redis_server.ask() as client:
        assert client.dbsize() == 0
        client.set("a", 1)
    redis_server.restart()
    with redis_server.ask() as client:
        assert client.dbsize() == 0


def test_a_busy_server_answers_again_afterwards(redis_server: RedisServer) -> None:
    with redis_server.busy(), redis_server.ask() as client, pytest.raises(redis.ResponseError, match=r"BUSY|busy"):
        client.get("a")
    with redis_server.ask() as client:
        assert client.ping()


def test_a_frozen_and_a_paused_server_answer_nobody(redis_server: RedisServer) -> None:
    for silence in (redis_server.frozen, redis_server.paused):
        once = Retry(NoBackoff(), 0)
        client = redis.Redis(port=redis_server.port, socket_timeout=0.02, retry=once)
        with silence(), client, pytest.raises(redis.TimeoutError):
            client.set("a", 1)
        with redis_server.ask() as client:
            assert client.ping()
    redis_server.kill()
    assert not redis_server.is_running


def test_a_cluster_shares_the_slots(tmp_path: Path) -> None:
    with clustered(tmp_path) as nodes, redis.RedisCluster.from_url(nodes[0].url) as client:
        assert [client.set(f"key{at}", at) for at in range(20)] == [True] * 20


def test_a_sentinel_makes_the_replica_the_master(tmp_path: Path) -> None:
    with watched(tmp_path) as sentinel:
        sentinel.fail_over()
        assert sentinel.seen()["port"] == sentinel.replica.port
