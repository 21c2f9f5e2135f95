"""The current openai-python sees through the gateway what it sees before an engine; tests/clients/ has the others."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.clients.installed import this_python
from tests.clients.suite import HERE, Scenario, Sides, check, scenarios

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sides() -> AsyncIterator[Sides]:
    async with Sides(this_python(), HERE / "runner.py") as both:
        yield both


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
async def test_a_client_cannot_tell_the_gateway_from_an_engine(sides: Sides, scenario: Scenario) -> None:
    check(scenario, *await sides.run(scenario))
