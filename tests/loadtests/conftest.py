"""Simulated engines and a plain client for the tests of this folder."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from loadtests.server import SimulatedEngine
from loadtests.settings import Settings

INSTANT = Settings(time_scale=0.0)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client whose connections are its own."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[SimulatedEngine]:
    """An engine that takes no time, or one with the settings the test is parametrized with."""
    engine = SimulatedEngine(getattr(request, "param", INSTANT))
    await engine.start()
    yield engine
    await engine.stop()
