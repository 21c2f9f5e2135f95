"""What every test has: production's event loop; and a simulated engine behind a gateway for those who ask."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.redis_server import _redis_of_session, redis_server  # noqa: F401
from tests.wire.client import RawClient
from tests.wire.house import no_generation, serving


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on uvloop, as the gateway runs."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    """A simulated engine that answers at once."""
    async with Cluster(1, Settings(time_scale=0)) as cluster:
        yield cluster[0]
        await no_generation(cluster)


@pytest.fixture
async def gateway(engine: SimulatedEngine) -> AsyncIterator[Gateway]:
    """A gateway in front of the one engine."""
    async with serving(engine.url) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[RawClient]:
    """A connection to the gateway."""
    async with RawClient.to(gateway.url) as client:
        yield client
