"""openai-python 1.x and openai-node see through the gateway what they see before an engine."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients.installed import openai_node, openai_python_1
from tests.clients.suite import HERE, Scenario, Sides, check, scenarios

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

CLIENTS: Mapping[str, Callable[[], tuple[str | Path, ...]]] = {
    "openai-python 1.x": lambda: (openai_python_1(), HERE / "runner.py"),
    "openai-node": lambda: ("node", HERE / "runner.mjs", openai_node()),
}


@pytest.fixture(scope="module", params=CLIENTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sides(name: str) -> AsyncIterator[Sides]:
    async with Sides(*CLIENTS[name]()) as both:
        yield both


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
async def test_a_client_cannot_tell_the_gateway_from_an_engine(name: str, sides: Sides, scenario: Scenario) -> None:
    if not name.startswith(scenario.only):
        pytest.skip(f"only {scenario.only} can do this")
    check(scenario, *await sides.run(scenario))
