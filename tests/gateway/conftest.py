"""What tests of what speaks to Redis ask for: a line to a real one, and what the gateway logs."""

import logging
from collections.abc import AsyncIterator

import pytest

from gateway.redisline import Line
from tests.gateway.lines import open_line
from tests.redis_server import RedisServer


@pytest.fixture
async def line(redis_server: RedisServer) -> AsyncIterator[Line]:
    """A line that leaves nothing behind."""
    async with open_line(redis_server.url) as line:
        yield line
    assert redis_server.clients() == []


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the gateway logs."""
    caplog.set_level(logging.INFO, "gateway")
    return caplog
