"""Where engines publish: what they say themselves, whatever they say."""

from typing import Any

import pytest

from gateway.config import Kind
from gateway.engines.kvsources import MAX_RANKS, Source, configured, read_sources

URL = "http://gpu-1:8000/v"
RANK: dict[str, Any] = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv"}
BLOCK: dict[str, Any] = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "",
    "block_size": 64,
}


@pytest.mark.parametrize(
    ("endpoint", "replay", "sources"),
    [
        ("tcp://*:5557", "tcp://*:5558", [Source("tcp://gpu-1:5557", "tcp://gpu-1:5558")]),
        ("tcp://0.0.0.0:5557", None, [Source("tcp://gpu-1:5557")]),
        ("tcp://[::]:5557", 7, [Source("tcp://gpu-1:5557")]),
        ("ipc:///run/events", "ipc:///run/replay", [Source("ipc:///run/events", "ipc:///run/replay")]),
        ("tcp://10.0.0.7:5557", "tcp://*:5558", []),  # it connects there, and nobody told us to bind
        ("inproc://x", None, []),
        (None, None, []),
    ],
)
def test_vllm_names_an_address_a_rank(endpoint: object, replay: object, sources: list[Source]) -> None:
    told = RANK | {"endpoint": endpoint, "replay_endpoint": replay}
    assert read_sources(Kind.VLLM, {"0": told}, URL) == tuple(sources)


def test_vllm_has_as_many_addresses_as_ranks() -> None:
    told = {str(rank): RANK | {"endpoint": f"tcp://*:{5557 + rank}"} for rank in range(3)}
    assert read_sources(Kind.VLLM, told, URL) == tuple(Source(f"tcp://gpu-1:{5557 + rank}") for rank in range(3))


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"0": None}, {"0": RANK | {"publisher": "null"}}, {"0": {"enable_kv_cache_events": False}}]
)
def test_vllm_that_publishes_nothing_has_no_sources(answer: object) -> None:
    assert read_sources(Kind.VLLM, answer, URL) == ()


@pytest.mark.parametrize(
    ("more", "sources"),
    [
        ({}, [Source("tcp://gpu-1:5557")]),
        ({"dp_size": 2}, [Source("tcp://gpu-1:5557"), Source("tcp://gpu-1:5558")]),
        ({"endpoint_host": "10.0.0.7"}, [Source("tcp://10.0.0.7:5557")]),
        ({"endpoint_host": "fd00::7"}, [Source("tcp://[fd00::7]:5557")]),
        ({"endpoint_host": None, "replay_endpoint_port_base": 6000}, [Source("tcp://gpu-1:5557", "tcp://gpu-1:6000")]),
        ({"endpoint_port_base": None}, []),
        ({"publisher": "null"}, []),
    ],
)
def test_sglang_names_a_port_for_its_first_rank(more: dict[str, object], sources: list[Source]) -> None:
    assert read_sources(Kind.SGLANG, {"kv_events": BLOCK | more}, URL) == tuple(sources)


def test_ranks_are_bounded() -> None:
    assert len(read_sources(Kind.SGLANG, {"kv_events": BLOCK | {"dp_size": 10**9}}, URL)) == MAX_RANKS
    told = {str(rank): RANK | {"endpoint": "tcp://*:1"} for rank in range(100)}
    assert len(read_sources(Kind.VLLM, told, URL)) == MAX_RANKS


def test_sglang_that_publishes_nothing_has_no_sources() -> None:
    assert read_sources(Kind.SGLANG, {"kv_events": None}, URL) == ()


def test_the_configuration_says_who_binds() -> None:
    assert configured("tcp://h:1", "tcp://h:2") == Source("tcp://h:1", "tcp://h:2")
    assert configured("bind:tcp://127.0.0.1:1", None) == Source("tcp://127.0.0.1:1", None, True)
