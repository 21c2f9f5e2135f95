"""House: the real gateway in front of simulated engines in this process, and a client, for tests of the whole."""

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway, running
from gateway.config import Config, build
from loadtests.cluster import Cluster
from loadtests.settings import Settings
from policies.endpoint import Endpoint, Outstanding
from policies.health import State
from tests.until import until
from tests.wire.house import no_faults, who_calls

INTERVAL_S = 0.05  # of health checks: a second, scaled
FAST = Settings(time_scale=0.0)
CHAT = "/v1/chat/completions"
SELDOM: dict[str, object] = {"interval_s": 3600, "state_interval_s": 3600}
"""Of health checks: none while a test counts connections, or wants its request to be the first to meet a fault."""
SECTIONS: dict[str, dict[str, object]] = {
    "listen": {"port": 0, "admin_port": 0},
    "health": {"interval_s": INTERVAL_S, "timeout_s": 1, "state_interval_s": INTERVAL_S},
}


def config(
    urls: list[str], *, policy: str = "least_requests", endpoint: dict[str, Any] | None = None, **sections: Any
) -> Config:
    """Make a configuration for engines e0, e1, … with health checks twenty times as often as by default.

    Args:
        urls: Of the engines.
        policy: Of the one pool.
        endpoint: What is said of each engine beside its name and URL.
        sections: Of the configuration, over those of `SECTIONS`.
    """
    said = {"kv_events": "off", **(endpoint or {})}  # so that engines see clients' requests and polls, and nothing else
    endpoints = [{"name": f"e{at}", "url": url, **said} for at, url in enumerate(urls)]
    quick = {name: {**section, **sections.pop(name, {})} for name, section in SECTIONS.items()}
    pools = [{"policy": policy, "endpoints": endpoints}]
    return build({**quick, "pools": pools, **who_calls(sections)}, "test", {})


def prompt(text: str, *, tokens: int = 4, stream: bool = False, **fields: object) -> dict[str, object]:
    """Make the body of a chat request whose answer has so many tokens."""
    messages = [{"role": "user", "content": text}]
    return {"model": "sim", "messages": messages, "stream": stream, "sim": {"output_tokens": tokens}, **fields}


async def leave(tasks: list[asyncio.Task[Any]]) -> None:
    """Let clients go away in the middle of whatever they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def allow_open_files(count: int) -> None:
    """Make sure that so many files may be open, as the gateway's own command does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    """With lower-case names."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def endpoint(self) -> str:
        return self.headers["x-kvlane-endpoint"]

    @property
    def is_whole_stream(self) -> bool:
        return self.status == 200 and self.body.endswith(b"data: [DONE]\n\n")


@dataclass(frozen=True)
class House:
    """Engines, gateway, client."""

    cluster: Cluster
    gateway: Gateway
    session: aiohttp.ClientSession

    async def ask(self, text: str = "hello", *, path: str = CHAT, timeout_s: float = 60, **fields: Any) -> Reply:
        """Send one chat request and read its answer to the end."""
        return await self.post(path, prompt(text, **fields), timeout_s=timeout_s)

    async def post(
        self, path: str, body: object, *, timeout_s: float = 60, headers: dict[str, str] | None = None
    ) -> Reply:
        """Send a JSON body, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(
            self.gateway.url + path,
            data=data,
            headers={"content-type": "application/json", **(headers or {})},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    async def get(self, path: str, *, admin: bool = False) -> Reply:
        """Read a page."""
        base = self.gateway.admin_url if admin else self.gateway.url
        async with self.session.get(base + path) as response:
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    async def metric(self, name: str, **labels: str) -> float:
        """Add up the samples of a metric that have these labels."""
        page = (await self.get("/metrics", admin=True)).body.decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def endpoints(self) -> list[Endpoint]:
        """The present incarnation of each engine."""
        return [member.endpoint for member in self.gateway.fleet.members()]

    @property
    def in_flight(self) -> list[int]:
        """What the gateway's books say of each engine."""
        return [endpoint.outstanding.requests for endpoint in self.endpoints]

    @property
    def states(self) -> list[State]:
        """How the engines stand."""
        return [endpoint.health.state for endpoint in self.endpoints]

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in flight, at the gateway and at the engines."""
        return (
            all(endpoint.outstanding == Outstanding() for endpoint in self.endpoints)
            and not self.gateway.proxy.active
            and not any(engine.facts.live for engine in self.cluster)
        )

    async def rests(self) -> None:
        """Wait until everything borrowed was given back; fails if it is not, to the last token."""
        await until(lambda: self.is_at_rest, "everything given back")

    async def restart(self, at: int) -> None:
        """Restart an engine at once, but in another hundredth of a second than it started: that tells runs apart."""
        started_at = self.cluster[at].meters.started_at
        await until(lambda: time.time() > started_at + 0.02, "time has passed")
        await self.cluster.restart(at)

    async def is_ready(self, at: int) -> None:
        """Wait until an engine may be given requests."""
        await until(lambda: self.states[at] is State.READY, f"engine {at} ready")


@asynccontextmanager
async def house(
    count: int = 2, settings: Settings = FAST, *, waits: bool = True, **sections: Any
) -> AsyncIterator[House]:
    """Run engines and a gateway; wait until all are ready, if not told otherwise.

    Args:
        count: Of engines.
        settings: Of each engine.
        waits: Whether to wait for all engines.
        sections: What `config` takes.
    """
    async with Cluster(count, settings) as cluster, before(cluster, **sections) as whole:
        if waits:
            await until(lambda: set(whole.states) == {State.READY}, "all engines ready")
        yield whole


@asynccontextmanager
async def before(cluster: Cluster, **sections: Any) -> AsyncIterator[House]:
    """Run a gateway before engines that run already; at the end nothing may be left over, nor be logged as a fault."""
    with no_faults():
        async with (
            running(config(cluster.urls, **sections)) as gateway,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            whole = House(cluster, gateway, session)
            yield whole
            await whole.rests()
