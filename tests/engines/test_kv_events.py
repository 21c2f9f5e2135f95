"""What a real vLLM tells of its cache is what it then reports as cached, to the unit: through eviction and restart."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from tests.engines.conftest import kept
from tests.engines.house import COMPLETIONS, until
from tests.engines.real import BLOCK, NAME, SEQUENCES, RealEngine, vllm
from tests.gateway.listening import Listening, listening

pytestmark = pytest.mark.engines

BLOCKS = 80  # of the whole cache: some five of the prompts
Prompt = tuple[int, ...]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    at = tmp_path_factory.mktemp("kv")
    return f"ipc://{at}/events", f"ipc://{at}/replay"


@pytest.fixture(scope="module")
def telling(addresses: tuple[str, str], logs: Path) -> Iterator[RealEngine]:
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv@pod@tiny"}
    config |= dict(zip(("endpoint", "replay_endpoint"), addresses, strict=True))
    more = ("--kv-events-config", orjson.dumps(config).decode(), "--num-gpu-blocks-override", str(BLOCKS))
    yield from kept(lambda: vllm(logs / "telling.log", *more))


@pytest.fixture(params=[BLOCK, 2 * BLOCK])
async def whole(telling: RealEngine, request: pytest.FixtureRequest) -> AsyncIterator[Listening]:
    """One who asks the engine itself where it publishes, and joins late from the second test on."""
    await telling.start()
    async with listening(telling.url) as whole:
        whole.unit_tokens = request.param
        await whole.is_followed()
        yield whole


def ids(chance: Random, count: int) -> Prompt:
    return tuple(chance.randrange(5, 4000) for _ in range(count))


async def cached(engine: RealEngine, prompt: Prompt, tokens: int = 1) -> tuple[int, Prompt]:
    """Send a prompt; give the tokens that were cached, and the answer's."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "return_token_ids": True}
    answer: Any = (await engine.ask(COMPLETIONS, body | {"ignore_eos": True})).json
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], tuple(answer["choices"][0]["token_ids"])


async def predicted(whole: Listening, engine: RealEngine, prompt: Prompt, tokens: int = 1) -> tuple[int, Prompt]:
    """Send a prompt and hold what the index said against what the engine says; give the units, and the answer."""
    (units,) = whole.held(prompt[:-1])  # the last token is always computed
    was_cached, answer = await cached(engine, prompt, tokens)
    assert units == was_cached // whole.unit_tokens
    computed = prompt + answer[:-1]
    await whole.comes_to_hold(len(computed) // whole.unit_tokens, of=[computed])
    return units, answer


def held_of(whole: Listening, prompts: Sequence[Prompt]) -> list[int]:
    return whole.held(*prompts)


async def test_the_index_says_what_the_engine_will_report_as_cached(telling: RealEngine, whole: Listening) -> None:
    """R = 60 prompts of 100 to 700 tokens in 6 families, seed 1: several times what the cache holds."""
    chance = Random(1)
    families = [ids(chance, 350) for _ in range(6)]
    hits = misses = 0
    for _ in range(60):
        head = chance.choice(families)[: chance.randrange(50, 350)]
        units, _ = await predicted(whole, telling, head + ids(chance, chance.randrange(50, 350)))
        hits, misses = hits + bool(units), misses + (not units)
    assert hits > 5
    assert misses > 5
    assert whole.told.gaps == 0
    assert len(whole.index) * whole.unit_tokens <= BLOCKS * BLOCK


async def test_answers_are_held_as_well(telling: RealEngine, whole: Listening) -> None:
    chance = Random(2)
    prompt = ids(chance, 200)
    for _ in range(3):
        _, answer = await predicted(whole, telling, prompt, 100)
        prompt += answer + ids(chance, 40)
    units, _ = await predicted(whole, telling, prompt)
    assert units * whole.unit_tokens > 450


async def test_copies_of_a_block_go_one_by_one(telling: RealEngine, whole: Listening) -> None:
    """The same prompt eight times at once is computed, and told of, more than once."""
    chance = Random(3)
    prompts = [ids(chance, 256) for _ in range(3)]
    for prompt in prompts:
        await asyncio.gather(*(cached(telling, prompt) for _ in range(SEQUENCES)))
        await whole.comes_to_hold(len(prompt) // whole.unit_tokens, of=[prompt])
        for _ in range(4):
            await predicted(whole, telling, ids(chance, 300))
            for other in prompts:
                await predicted(whole, telling, other)


async def test_who_joins_late_knows_what_the_others_know(telling: RealEngine, whole: Listening) -> None:
    chance = Random(4)
    prompts = [ids(chance, 300) for _ in range(12)]
    for prompt in prompts:
        await predicted(whole, telling, prompt)
    known = held_of(whole, prompts)
    assert 0 in known
    async with listening(telling.url) as late:
        late.unit_tokens = whole.unit_tokens
        await late.is_followed()
        assert held_of(late, prompts) == known
        assert repr(late.index) == repr(whole.index)


async def test_an_emptied_cache_is_known_to_be_empty(telling: RealEngine, whole: Listening) -> None:
    chance = Random(5)
    one, two = ids(chance, 300), ids(chance, 200)
    await predicted(whole, telling, one)
    assert (await telling.ask("/reset_prefix_cache", b"")).status == 200
    await cached(telling, two)  # it tells with its next step
    await whole.comes_to_hold(0, 200 // whole.unit_tokens, of=[one, two])
    assert whole.told.is_followed


async def test_an_engine_that_was_killed_holds_nothing(telling: RealEngine, whole: Listening) -> None:
    chance = Random(6)
    one, two = ids(chance, 300), ids(chance, 200)
    await predicted(whole, telling, one)
    telling.signal(signal.SIGKILL)
    await telling.ended()
    await telling.start()
    await until(lambda: whole.told.is_followed, lambda: whole.told.trouble)
    assert whole.held(one) == [0]
    await predicted(whole, telling, two)
    await predicted(whole, telling, one)
