"""Three real vLLM engines: what routing by prefix is worth by their own counters, and whether predictions hold.

Twelve system prompts of some 450 tokens are too many for one cache of 2,560 tokens, and fit into three. Each policy
gets the same requests, with texts of its own, so that none finds what another has left.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from gateway.app import Gateway
from loadtests.tokens import WORDS
from tests.engines.conftest import kept
from tests.engines.house import CHAT, ask, before, until
from tests.engines.installed import model
from tests.engines.real import BLOCK, NAME, RealEngine, vllm

pytestmark = pytest.mark.engines

ENGINES = 3
BLOCKS = 80  # of each cache
SYSTEMS = 12
REQUESTS = 120
AT_ONCE = 6
UNIT = 64


@pytest.fixture(scope="module")
def fleet(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealEngine]]:
    """Three engines that tell of their caches."""
    at = tmp_path_factory.mktemp("kv")
    made: list[Iterator[RealEngine]] = []
    for number in range(ENGINES):
        events = (
            f'{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc://{at}/events{number}",'
            f'"replay_endpoint":"ipc://{at}/replay{number}"}}'
        )
        more = ("--num-gpu-blocks-override", str(BLOCKS), "--kv-events-config", events)
        log = logs / f"routing{number}.log"
        made.append(kept(lambda log=log, more=more: vllm(log, *more)))  # type: ignore[misc]
    yield [next(each) for each in made]
    for each in made:
        next(each, None)


@pytest.fixture
async def engines(fleet: list[RealEngine]) -> list[RealEngine]:
    await asyncio.gather(*(engine.start() for engine in fleet))
    return fleet


def text(chance: Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


@dataclass
class Seen:
    """What a policy's requests came to."""

    prompt_tokens: int = 0
    reported: int = 0
    predicted: int = 0
    off: list[int] = field(default_factory=list)
    """Tokens by which a prediction was more than a unit off, for each request."""
    wrong_counts: int = 0
    """Requests whose prompt tokens were not counted as the engine counts them."""


async def send(gateway: Gateway, seed: int) -> Seen:
    """Send the requests, some at a time."""
    chance = Random(seed)
    systems = [text(chance, 300) for _ in range(SYSTEMS)]
    bodies = [
        {
            "model": NAME,
            "messages": [
                {"role": "system", "content": chance.choice(systems)},
                {"role": "user", "content": text(chance, chance.randrange(3, 20))},
            ],
            "max_tokens": 4,
            "temperature": 0,
        }
        for _ in range(REQUESTS)
    ]
    seen, places = Seen(), asyncio.Semaphore(AT_ONCE)

    async def one(body: dict[str, object]) -> None:
        async with places:
            answer = await ask(gateway, CHAT, body)
        assert answer.status == 200
        usage = answer.json["usage"]
        headers = answer.head
        reported = usage["prompt_tokens_details"]["cached_tokens"]
        predicted = int(headers["x-kvlane-cached-tokens"])
        seen.prompt_tokens += usage["prompt_tokens"]
        seen.reported += reported
        seen.predicted += predicted
        seen.off.append(max(0, abs(predicted - reported) - UNIT))
        seen.wrong_counts += int(headers["x-kvlane-prompt-tokens"]) != usage["prompt_tokens"]

    await asyncio.gather(*(one(body) for body in bodies))
    return seen


async def counters(gateway: Gateway) -> tuple[float, float]:
    """Add up what the engines' own pages say: cached tokens, and tokens asked for."""
    reports = [member.endpoint.report for member in gateway.fleet.members()]
    return sum(r.prefix_hit_tokens or 0 for r in reports), sum(r.prefix_query_tokens or 0 for r in reports)


async def share(engines: list[RealEngine], policy: str, seed: int, *, kv_events: str) -> tuple[float, Seen]:
    """Run the requests under a policy; give the share of tokens that the engines' own counters say were cached."""
    endpoints = [{"name": f"E{at}", "url": engine.url, "kv_events": kv_events} for at, engine in enumerate(engines)]
    sections = {
        "pools": [{"policy": policy, "endpoints": endpoints}],
        "models": [{"name": NAME, "tokenizer": str(model("tiny"))}],
    }
    async with before(*engines, **sections) as gateway:
        await until(lambda: all(gateway.readers.exactness().values()))
        if kv_events == "auto":
            await until(lambda: all(told.is_followed for told in gateway.kv_events.told()))
        before_hits, before_queries = await counters(gateway)
        seen = await send(gateway, seed)
        told_at = [member.endpoint.report.at for member in gateway.fleet.members()]
        await until(
            lambda: all(m.endpoint.report.at > at + 1 for m, at in zip(gateway.fleet.members(), told_at, strict=True))
        )
        hits, queries = await counters(gateway)
    return (hits - before_hits) / (queries - before_queries), seen


async def test_prefixes_stay_at_home_by_the_engines_own_counters(engines: list[RealEngine]) -> None:
    shares = {}
    for seed, (policy, kv_events) in enumerate((("round_robin", "off"), ("least_work", "off"), ("least_work", "auto"))):
        counted, seen = await share(engines, policy, seed, kv_events=kv_events)
        held = sum(not off for off in seen.off) / len(seen.off)
        shares[policy, kv_events] = counted
        print(
            f"\n{policy}, KV events {kv_events}: {counted:.1%} cached by the engines' counters, "
            f"{seen.reported / seen.prompt_tokens:.1%} by their answers, {seen.predicted / seen.prompt_tokens:.1%} "
            f"predicted; {held:.0%} of predictions within a unit of {UNIT}"
        )
        assert seen.wrong_counts == 0
        assert abs(seen.reported / seen.prompt_tokens - counted) < 0.02
        if policy == "least_work":
            assert held >= (0.9 if kv_events == "auto" else 0.8)
    assert shares["least_work", "off"] > 1.5 * shares["round_robin", "off"]
    assert shares["least_work", "auto"] > 1.5 * shares["round_robin", "off"]
    assert BLOCK <= UNIT
