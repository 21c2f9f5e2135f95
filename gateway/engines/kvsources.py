"""Where an engine publishes its KV events: what the configuration says, or what the engine says when asked. Pure.

An engine binds its publisher where its address is a wildcard or a path, and we connect; a wildcard is then the host of
the engine's own URL. Where its address is a concrete one, the engine connects, and we would have to bind: only the
configuration can say so, with `bind:`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.config import BIND, Kind

SOURCE_PATHS = {Kind.VLLM: "/kv_event_sources", Kind.SGLANG: "/server_info"}
"""What to ask an engine for, by kind; the others do not say."""
TCP = re.compile(r"tcp://(?P<host>.+):(?P<port>\d{1,5})")
WILDCARDS = ("*", "0.0.0.0", "::", "[::]")
MAX_RANKS = 64


class Source(NamedTuple):
    """One publisher: an engine has one for each of its data parallel ranks."""

    address: str
    replay: str | None = None
    binds: bool = False
    """Whether it is us who bind."""


def configured(address: str, replay: str | None) -> Source:
    """Read what the configuration says."""
    return Source(address.removeprefix(BIND), replay, address.startswith(BIND))


def read_sources(kind: Kind, answer: object, url: str) -> tuple[Source, ...]:
    """Read what an engine answered; nothing where it publishes nothing that we could connect to."""
    if not isinstance(answer, dict):
        return ()
    host = urlsplit(url).hostname or ""
    if kind is Kind.SGLANG:
        return _sglang(answer.get("kv_events"), host)
    return _vllm(list(answer.values())[:MAX_RANKS], host)


def _vllm(ranks: Sequence[object], host: str) -> tuple[Source, ...]:
    """Read `{"0": {"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint"}}`; ports are each rank's."""
    found = []
    for rank in ranks:
        if isinstance(rank, dict) and rank.get("enable_kv_cache_events") and rank.get("publisher") == "zmq":
            address = _reachable(rank.get("endpoint"), host)
            if address is not None:
                found.append(Source(address, _reachable(rank.get("replay_endpoint"), host)))
    return tuple(found)


def _sglang(block: object, host: str) -> tuple[Source, ...]:
    """Read `{"publisher", "endpoint_host", "endpoint_port_base", "dp_size"}`; port base plus rank."""
    if not isinstance(block, dict) or block.get("publisher") != "zmq":
        return ()
    base, ranks, replay = (block.get(name) for name in ("endpoint_port_base", "dp_size", "replay_endpoint_port_base"))
    if not isinstance(base, int):
        return ()
    told = block.get("endpoint_host")
    at = host if told in WILDCARDS or not isinstance(told, str) else told
    return tuple(
        Source(_tcp(at, base + rank), _tcp(at, replay + rank) if isinstance(replay, int) else None)
        for rank in range(min(ranks, MAX_RANKS) if isinstance(ranks, int) else 1)
    )


def _reachable(address: object, host: str) -> str | None:
    """Give an address to connect to; None where the engine itself connects."""
    if not isinstance(address, str):
        return None
    if address.startswith("ipc://"):
        return address
    match = TCP.fullmatch(address)
    return _tcp(host, int(match["port"])) if match is not None and match["host"] in WILDCARDS else None


def _tcp(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"
