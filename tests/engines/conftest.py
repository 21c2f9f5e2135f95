"""Real engines for tests: one of each kind for the whole session, started when first needed, up when a test begins."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gateway.app import Gateway
from tests.engines.house import before
from tests.engines.installed import Missing
from tests.engines.real import RealEngine, llama, vllm

KINDS = ("vllm", "llama.cpp")
FIXTURES = {"vllm": "vllm_engine", "llama.cpp": "llama_engine", "slow llama.cpp": "slow_engine"}


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


def kept(make: Callable[[], RealEngine]) -> Iterator[RealEngine]:
    """Give an engine for the session, or skip; stop it at the end."""
    try:
        engine = make()
    except Missing as missing:
        pytest.skip(str(missing))
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def vllm_engine(logs: Path) -> Iterator[RealEngine]:
    yield from kept(lambda: vllm(logs / "vllm.log"))


@pytest.fixture(scope="session")
def llama_engine(logs: Path) -> Iterator[RealEngine]:
    yield from kept(lambda: llama(logs / "llama.log"))


@pytest.fixture(scope="session")
def slow_engine(logs: Path) -> Iterator[RealEngine]:
    yield from kept(lambda: llama(logs / "slow.log", is_slow=True))


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest) -> RealEngine:
    """Each kind of engine, with the tiny model: one that answers at once."""
    return await up(request, request.param)


@pytest.fixture(params=["vllm", "slow llama.cpp"])
async def busy(request: pytest.FixtureRequest) -> RealEngine:
    """Each kind of engine, in the make that takes seconds for an endless answer."""
    return await up(request, request.param)


@pytest.fixture
async def vllm_up(request: pytest.FixtureRequest) -> RealEngine:
    return await up(request, "vllm")


@pytest.fixture
async def llama_up(request: pytest.FixtureRequest) -> RealEngine:
    return await up(request, "llama.cpp")


@pytest.fixture
async def slow_up(request: pytest.FixtureRequest) -> RealEngine:
    return await up(request, "slow llama.cpp")


async def up(request: pytest.FixtureRequest, kind: str) -> RealEngine:
    found: RealEngine = request.getfixturevalue(FIXTURES[kind])
    await found.start()
    return found


@pytest.fixture
async def gateway(engine: RealEngine) -> AsyncIterator[Gateway]:
    """A gateway before the one engine."""
    async with before(engine) as gateway:
        yield gateway
