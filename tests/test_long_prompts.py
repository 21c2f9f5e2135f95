"""Case P2: long prompts take nobody else's time.

The gateway is a process of its own with a tokenizer loaded, the engines answer at once, and three things are watched
beside the flood: /healthz, small requests, and the chunks of a running stream. What a machine shared with others does
to a percentile is no fault of the gateway: the bars hold in `make soak`, the scaled twin only has to get through.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from random import Random

import aiohttp
import orjson
import pytest

from loadtests.tokens import WORDS
from tests.fleet_fixtures import CHAT, prompt
from tests.gateway_process import GatewayProcess

TOKENIZER = str(Path(__file__).parent.parent / "loadtests" / "data" / "tokenizer")
KB, MB = 1 << 10, 1 << 20
SWIFT = ("--time-scale", "0", "--max-context-tokens", "4000000", "--kv-tokens", "64000000")
CALM_S = 0.05
LATE_S = 0.1


def text(seed: int, size: int) -> str:
    """Give so many bytes of English that nobody has seen."""
    chance = Random(seed)
    paragraph = " ".join(chance.choice(WORDS) for _ in range(400)) + "\n"
    return f"{seed} " + paragraph * (size // len(paragraph)) + paragraph[: size % len(paragraph)]


def body(seed: int, size: int) -> bytes:
    return orjson.dumps(prompt(text(seed, size), tokens=2))


async def ready(session: aiohttp.ClientSession, gateway: GatewayProcess) -> None:
    """Wait until both models are served."""
    for model in ("sim", "talk"):
        data = orjson.dumps(prompt("hello", tokens=1) | {"model": model})
        for _ in range(500):
            async with session.post(gateway.url + CHAT, data=data) as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError(f"{model} is not served")


async def watch(session: aiohttp.ClientSession, gateway: GatewayProcess, seen: dict[str, list[float]]) -> None:
    """Ask for health and for a small answer, again and again."""
    small = orjson.dumps(prompt("hello", tokens=1) | {"model": "talk"})
    while True:
        for name in ("health", "small"):
            began = time.perf_counter()
            if name == "health":
                async with session.get(gateway.url + "/healthz") as response:
                    assert response.status == 200
            else:
                async with session.post(gateway.url + CHAT, data=small) as response:
                    assert response.status == 200
                    await response.read()
            seen[name].append(time.perf_counter() - began)
        await asyncio.sleep(0.005)


async def listen(session: aiohttp.ClientSession, gateway: GatewayProcess, seen: dict[str, list[float]]) -> None:
    """Note the time between chunks of a stream."""
    endless = orjson.dumps(prompt("tell", tokens=100_000, stream=True) | {"model": "talk"})
    async with session.post(gateway.url + CHAT, data=endless) as answer:
        last = time.perf_counter()
        async for _ in answer.content.iter_any():
            now = time.perf_counter()
            seen["chunks"].append(now - last)
            last = now


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


CASES = {
    "220 KB at 200 a time": [220 * KB] * 400,
    "10 MB": [10 * MB] * 4,
    "1.5M tokens": [6 * MB] * 3,
}


@asynccontextmanager
async def engine(*words: str) -> AsyncIterator[str]:
    """Run a simulated engine in a process of its own; give its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests", "fleet", "-n", "1", "--port", "0", *words, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()
        await process.stdout.read()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "share", [pytest.param(0.05, id="scaled"), pytest.param(1, id="whole", marks=pytest.mark.soak)]
)
async def test_p2_long_prompts_take_nobody_elses_time(name: str, share: float, tmp_path: Path) -> None:
    sizes = CASES[name]
    bodies = [body(at, size) for at, size in enumerate(sizes[: max(1, int(len(sizes) * share))])]
    seen: dict[str, list[float]] = {"health": [], "small": [], "chunks": []}
    models = [{"name": "sim", "tokenizer": TOKENIZER}]
    async with (
        engine(*SWIFT) as swift,
        engine("--model", "talk") as talking,
        GatewayProcess.serving(tmp_path, [swift, talking], models=models) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        await ready(session, gateway)
        tasks = [asyncio.create_task(work(session, gateway, seen)) for work in (watch, listen)]
        await asyncio.sleep(0.5)
        places = asyncio.Semaphore(200)

        async def send(data: bytes) -> int:
            async with places, session.post(gateway.url + CHAT, data=BytesIO(data)) as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(send(each) for each in bodies))
        assert set(statuses) == {200}
        for task in tasks:
            assert not task.done(), task
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not gateway.has_traceback
    assert all(seen.values())
    told = {what: f"p99 {p99(times) * 1e3:.1f} ms, worst {max(times) * 1e3:.1f} ms" for what, times in seen.items()}
    print(f"\n{name}: {len(bodies)} prompts; {told}")
    if share == 1:
        assert p99(seen["health"]) < CALM_S
        assert p99(seen["small"]) < CALM_S
        assert max(seen["chunks"]) < LATE_S
