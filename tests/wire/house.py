"""serving: a gateway as it runs in production, in front of given engines, and checked for leaks when it goes."""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway, running
from gateway.config import build
from loadtests.cluster import Cluster
from loadtests.server import SimulatedEngine
from loadtests.settings import Seen
from tests.until import until
from tests.wire.client import get


@contextlib.asynccontextmanager
async def serving(
    *urls: str,
    endpoint: dict[str, Any] | None = None,
    policy: str = "least_requests",
    ready: int | None = None,
    **sections: Any,
) -> AsyncIterator[Gateway]:
    """Run a gateway until the end of the block, then make sure that nothing of any request is left.

    Args:
        urls: Of the engines, which are named E0, E1 ...
        endpoint: More configuration of each.
        policy: How requests are spread over them.
        ready: How many of them to wait for; all by default.
        sections: More configuration, by section.
    """
    listen = {"port": 0, "admin_port": 0, **sections.pop("listen", {})}
    health = {"interval_s": 0.05, "state_interval_s": 0.05, **sections.pop("health", {})}
    told = {"kind": "vllm", "models": ["sim"], "kv_events": "off", **(endpoint or {})}
    endpoints = [{"name": f"E{at}", "url": url, **told} for at, url in enumerate(urls)]
    pools = [{"policy": policy, "endpoints": endpoints}]
    config = build({"listen": listen, "health": health, "pools": pools, **who_calls(sections)}, "test", {})
    before = asyncio.all_tasks()
    with no_faults():
        async with running(config) as gateway:
            wanted = len(urls) if ready is None else ready
            await until(lambda: len(ready_endpoints(gateway)) >= wanted, lambda: standing(gateway))
            yield gateway
            await until(lambda: is_quiet(gateway), lambda: standing(gateway))
        await until(lambda: not tasks_since(before), lambda: tasks_since(before))


def who_calls(sections: dict[str, Any]) -> dict[str, Any]:
    """Let everybody in where nothing is said of who may call."""
    is_said = sections.keys() & {"anonymous", "tenants", "tenants_file", "tenants_in_redis"}
    return sections if is_said else {**sections, "anonymous": {}}


def tasks_since(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Give the tasks that were not there before, but for the one that asks."""
    return {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}


def tenant(name: str, **settings: Any) -> dict[str, Any]:
    """Configure a tenant whose key is "NAME's key"."""
    return {"name": name, "key_sha256": [hashlib.sha256(f"{name}'s key".encode()).hexdigest()], **settings}


def ready_endpoints(gateway: Gateway) -> list[str]:
    """Name the endpoints that may be given a request."""
    now = asyncio.get_running_loop().time()
    return [member.endpoint.name for member in gateway.fleet.members() if member.endpoint.health.is_ready(now)]


def is_quiet(gateway: Gateway) -> bool:
    """Say whether nothing is charged to any endpoint and nothing is being served."""
    outstanding = [member.endpoint.outstanding for member in gateway.fleet.members()]
    return not gateway.proxy.active and all(
        (books.requests, books.prefill_tokens, books.decoding) == (0, 0, 0) for books in outstanding
    )


def standing(gateway: Gateway) -> object:
    """Say how things stand."""
    return gateway.proxy.active, [(m.endpoint.health, m.endpoint.outstanding) for m in gateway.fleet.members()]


def asked(engine: SimulatedEngine) -> list[Seen]:
    """Give the requests that reached an engine, beside the gateway's own polls."""
    is_poll = re.compile(
        r"/(health|ping|version|metrics|load|v1/models|get_model_info|get_server_info|info|props|slots)"
    )
    return [seen for seen in engine.facts.recent if seen.method != "GET" or not is_poll.fullmatch(seen.target)]


async def no_generation(cluster: Cluster) -> None:
    """Make sure that no engine goes on with what nobody waits for."""
    await until(lambda: not any(engine.facts.live for engine in cluster), lambda: [engine.facts for engine in cluster])


@contextlib.contextmanager
def no_faults() -> Iterator[None]:
    """Make sure that nothing is logged as an error, and no callback or task fails unnoticed."""
    faults: list[object] = []
    loop = asyncio.get_running_loop()
    watch = _Watch(faults)
    loop.set_exception_handler(lambda loop, context: faults.append(context))
    logging.getLogger().addHandler(watch)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(watch)
        loop.set_exception_handler(None)
    assert not faults, faults


class _Watch(logging.Handler):
    def __init__(self, faults: list[object]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.append(record.getMessage() + (f": {record.exc_info[1]!r}" if record.exc_info else ""))


async def metric(gateway: Gateway, name: str, **labels: str) -> float | None:
    """Read the metrics page: the sum over all series of a name that have these labels; None where there is none."""
    page = await get(gateway.admin_url, "/metrics", [("Accept", "text/plain;version=0.0.4")])
    values = [
        sample.value
        for family in text_string_to_metric_families(page.body.decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(values) if values else None
