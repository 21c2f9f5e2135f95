"""Prefixes stay at home and nobody drowns, through the real application: cases R2-R4, R8-R11, R18-R20, R22-R24."""

import asyncio
import logging
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import pytest

from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.kvcache import BlockTree
from loadtests.settings import Settings
from loadtests.tokens import WORDS
from policies import forecast
from policies.health import State
from tests.fleet_fixtures import CHAT, FAST, House, Reply, before, leave, prompt
from tests.fleet_fixtures import house as any_house
from tests.until import until

FOR_LONG = Settings(time_scale=1.0)
"""A token every 7 ms: 1,000 of them last."""
BUSY = Settings(time_scale=0.2)
"""Five times as fast as life: prompts take their time, and a test does not."""


house = partial(any_house, policy="least_work")


def text(seed: int, tokens: int) -> str:
    """Give English of about so many tokens."""
    chance = Random(seed)
    return " ".join(chance.choice(WORDS) for _ in range(tokens))


def asking(system: str, *turns: str, tokens: int = 4, **fields: Any) -> dict[str, Any]:
    """Make the body of a chat: a system prompt, then turns of user and assistant, a user's last."""
    messages = [{"role": "system", "content": system}] if system else []
    for at, turn in enumerate(turns):
        messages.append({"role": "assistant" if at % 2 else "user", "content": turn})
    return {"model": "sim", "messages": messages, "sim": {"output_tokens": tokens}, **fields}


def predicted(reply: Reply) -> int:
    return int(reply.headers["x-kvlane-cached-tokens"])


async def test_r2_an_endpoint_with_slow_requests_gets_under_a_tenth_of_what_is_new() -> None:
    async with house(4, FOR_LONG) as whole:
        for engine in list(whole.cluster)[1:]:
            await engine.inject(Fault(Kind.NOT_READY))
        await until(lambda: whole.states.count(State.READY) == 1, "only one is ready")
        slow = [asyncio.create_task(whole.ask(text(at, 100), tokens=10_000, stream=True)) for at in range(20)]
        await until(lambda: whole.in_flight[0] == 20, "20 in flight")
        await whole.cluster.clear()
        await until(lambda: set(whole.states) == {State.READY}, "all ready")
        counts: Counter[str] = Counter()
        for first in range(100, 200, 5):
            answers = await asyncio.gather(*(whole.ask(text(first + at, 100)) for at in range(5)))
            counts.update(answer.endpoint for answer in answers)
        assert counts["e0"] < 10, counts
        await leave(slow)


async def test_r3_a_burst_of_one_prefix_spreads_and_its_steady_traffic_sticks() -> None:
    """N = 4 endpoints, R = 60 at once, 1,450 tokens in common that take 1.4 s to prefill."""
    shared = text(3, 1450)
    async with house(4, Settings(time_scale=30.0)) as whole:
        answers = await asyncio.gather(*(whole.post(CHAT, asking(shared, f"q{at}", tokens=1)) for at in range(60)))
        counts = Counter(answer.endpoint for answer in answers)
        assert max(counts.values()) <= 2 * 60 / 4, counts
        steady = {(await whole.post(CHAT, asking(shared, f"later {at}", tokens=1))).endpoint for at in range(6)}
        assert len(steady) == 1


async def test_r4_conversations_stay_where_they_are_held() -> None:
    """64 conversations of 8 turns on 4 endpoints that are nearly always busy: 80 % of turns find their history."""
    stayed: list[bool] = []

    async def converse(whole: House, at: int) -> None:
        chance = Random(at)
        system = text(at % 8, 500)
        turns: list[str] = []
        held: set[str] = set()
        for turn in range(8):
            turns.append(text(1000 * at + turn, 120))
            answer = await whole.post(CHAT, asking(system, *turns, tokens=40))
            turns.append(answer.json["choices"][0]["message"]["content"])
            if turn:
                stayed.append(answer.endpoint in held)
            held.add(answer.endpoint)
            await asyncio.sleep(chance.random() * 0.2)

    async with house(4, BUSY) as whole:
        await asyncio.gather(*(converse(whole, at) for at in range(64)))
    assert sum(stayed) >= 0.8 * len(stayed)


async def test_r8_a_dead_endpoint_unsettles_no_prompt() -> None:
    system = text(8, 400)
    async with house(3) as whole:
        home = (await whole.post(CHAT, asking(system, "first"))).endpoint
        other = next(at for at in range(3) if f"e{at}" != home)
        await whole.cluster.kill(other)
        await until(lambda: whole.states[other] is State.EJECTED, "ejected")
        assert {(await whole.post(CHAT, asking(system, f"q{at}"))).endpoint for at in range(20)} == {home}


@pytest.mark.parametrize("policy", ["bounded_load", "least_work"])
async def test_r9_a_hot_prefix_spills_to_few_homes_and_back(policy: str) -> None:
    """One key, 100 at once on 8 endpoints, twice: the same homes, and no more than the bound of 1.25 makes necessary.

    7 = ceil(100 / (1.25 * 101 / 8)).
    """
    system = text(9, 1000)
    async with any_house(8, BUSY, policy=policy) as whole:
        rounds = []
        for turn in range(2):
            bodies = [asking(system, f"q {turn} {at}", tokens=20) for at in range(100)]
            answers = await asyncio.gather(*(whole.post(CHAT, body) for body in bodies))
            rounds.append(Counter(answer.endpoint for answer in answers))
        assert len(rounds[0] | rounds[1]) <= 7
        alone = await whole.post(CHAT, asking(system, "alone"))
        assert alone.endpoint in rounds[0]


async def test_r10_small_counts_are_no_imbalance() -> None:
    """4 prefixes at once on 4 endpoints, and each again while the first still run: the second stays."""
    prefixes = [text(10 + at, 600) for at in range(4)]
    async with house(4, FOR_LONG) as whole:
        first = [asyncio.create_task(whole.post(CHAT, asking(each, "a", tokens=60, stream=True))) for each in prefixes]
        await until(lambda: sum(whole.in_flight) == 4, "4 in flight")
        second = [await whole.post(CHAT, asking(each, "b", tokens=1)) for each in prefixes]
        homes = [(await task).endpoint for task in first]
        assert [answer.endpoint for answer in second] == homes
        assert len(set(homes)) == 4


async def test_r11_a_restarted_engine_holds_nothing() -> None:
    system = text(11, 600)
    async with house(1) as whole:
        await whole.post(CHAT, asking(system, "a"))
        assert predicted(await whole.post(CHAT, asking(system, "b"))) > 500
        old = whole.endpoints[0]
        await whole.restart(0)
        await until(lambda: whole.endpoints[0] is not old and whole.states == [State.READY], "a new incarnation")
        assert predicted(await whole.post(CHAT, asking(system, "c"))) == 0


async def test_r18_heads_match_and_tails_do_not() -> None:
    head, tail = text(18, 900), text(19, 900)
    async with house(4) as whole:
        first = await whole.ask(head + " " + tail)
        assert predicted(await whole.ask("other words before it " + head + " " + tail)) == 0
        again = await whole.ask(head + " " + text(20, 100))
        assert (again.endpoint, predicted(again) > 700) == (first.endpoint, True)


async def test_r18_two_short_prompts_and_their_extension_stay_together() -> None:
    short = text(21, 80)
    async with house(4) as whole:
        answers = [await whole.ask(short), await whole.ask(short), await whole.ask(short + " " + text(22, 300))]
        assert len({answer.endpoint for answer in answers}) == 1


async def test_r19_what_engines_cache_apart_is_told_apart() -> None:
    """A changed system prompt, tool list, salt or picture is another prefix; a session is not."""
    system = text(23, 600)
    tool = {"type": "function", "function": {"name": "look", "description": text(24, 60), "parameters": {}}}
    async with house(1) as whole:

        async def held(body: dict[str, Any]) -> int:
            return predicted(await whole.post(CHAT, body))

        assert await held(asking(system, "a")) == 0
        whole_prefix = await held(asking(system, "b"))
        assert whole_prefix > 500
        assert await held(asking(system, "b", prompt_cache_key="mine")) == whole_prefix
        assert await held(asking(system, "b", cache_salt="mine")) == 0
        assert await held(asking("x" + system, "b")) == 0
        assert await held(asking(system, "b", tools=[tool])) < whole_prefix

        def seeing(url: str) -> dict[str, Any]:
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text(25, 300)}]
            return {"model": "sim", "messages": [{"role": "user", "content": parts}], "sim": {"output_tokens": 2}}

        one, other = (f"data:image/png;base64,{letter * 4000}" for letter in "AB")
        assert await held(seeing(one)) == 0
        assert await held(seeing(one)) > 200
        assert await held(seeing(other)) == 0


async def test_r20_identical_cold_prompts_at_once_share_one_or_two_endpoints() -> None:
    body = asking(text(26, 2000), "the same", tokens=4)
    async with house(8, FOR_LONG) as whole:
        answers = await asyncio.gather(*(whole.post(CHAT, body) for _ in range(16)))
    assert len({answer.endpoint for answer in answers}) <= 2


async def test_r22_a_cache_that_is_not_what_it_should_be_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine's cache is emptied before each request, as by a salt that something adds on the way."""
    monkeypatch.setattr(forecast, "PERSISTS_S", 0.2)
    system = text(27, 1000)
    async with house(1) as whole:
        engine = whole.cluster[0].model
        with caplog.at_level(logging.WARNING, "gateway.probe"):
            for at in range(30):
                engine.kv = BlockTree(engine.kv.capacity)
                await whole.post(CHAT, asking(system, f"q{at}"))
            await until(lambda: "not what they should be" in caplog.text, "a warning")
        assert await whole.metric("kvlane_cache_forecast_off", endpoint="e0") == 1
        assert await whole.metric("kvlane_cache_forecast_error_ratio", endpoint="e0") > 0.5
        assert await whole.metric("kvlane_cache_hit_ratio", endpoint="e0") < 0.1
        assert await whole.metric("kvlane_cached_tokens_total", source="predicted") > 20_000
        assert await whole.metric("kvlane_cached_tokens_total", source="reported") < 2_000


async def test_predictions_that_hold_raise_no_alarm() -> None:
    system = text(28, 1000)
    async with house(2) as whole:
        for at in range(30):
            reply = await whole.post(CHAT, asking(system, f"q{at}"))
            cached = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert abs(cached - predicted(reply)) <= 0.15 * reply.json["usage"]["prompt_tokens"] or at == 0
        errors = [member.forecast.error_ratio or 0.0 for member in whole.gateway.fleet.members()]
        assert max(errors) < 0.2


def two_pools(cluster: Cluster, normal: dict[str, Any], long: dict[str, Any]) -> list[dict[str, Any]]:
    """Put the last engine into a pool for long prompts."""
    endpoints = [{"name": f"e{at}", "url": url} for at, url in enumerate(cluster.urls)]
    return [
        {"name": "normal", "endpoints": endpoints[:-1], **normal},
        {"name": "long", "endpoints": endpoints[-1:], **long},
    ]


async def test_r23_nothing_short_waits_behind_a_long_prefill() -> None:
    """Long prompts by length, and short ones while the long pool works: each in its own."""
    settings = Settings(time_scale=1.0, max_context_tokens=131_072)
    async with Cluster(3, settings) as cluster:
        pools = two_pools(cluster, {"max_context_tokens": 8192}, {})
        async with before(cluster, pools=pools) as whole:
            await until(lambda: set(whole.states) == {State.READY}, "all ready")
            long = asyncio.create_task(whole.ask(text(29, 30_000), tokens=2))
            await until(lambda: whole.in_flight[2] == 1, "the long one is at work")
            short = await asyncio.gather(*(whole.ask(text(30 + at, 900), tokens=2) for at in range(20)))
            assert {answer.headers["x-kvlane-pool"] for answer in short} == {"normal"}
            assert (await long).headers["x-kvlane-pool"] == "long"


async def test_short_requests_use_an_idle_long_pool_when_their_own_is_busy() -> None:
    async with Cluster(2, FOR_LONG) as cluster:
        pools = two_pools(cluster, {"max_context_tokens": 16_384}, {})
        async with before(cluster, pools=pools) as whole:
            await until(lambda: set(whole.states) == {State.READY}, "all ready")
            busy = asyncio.create_task(whole.ask(text(31, 12_000), tokens=2))
            await until(lambda: whole.in_flight[0] == 1, "the own pool is at work")
            lent = await whole.ask(text(32, 500), tokens=2)
            assert (lent.headers["x-kvlane-pool"], lent.headers["x-kvlane-reason"]) == ("long", "lent")
            assert (await busy).headers["x-kvlane-pool"] == "normal"


async def test_long_prompts_that_are_cached_are_not_long() -> None:
    """The soft limit counts what must be computed."""
    conversation = text(33, 6000)
    async with Cluster(2, FAST) as cluster:
        pools = two_pools(cluster, {"max_uncached_tokens": 4096}, {})
        async with before(cluster, pools=pools) as whole:
            await until(lambda: set(whole.states) == {State.READY}, "all ready")
            assert (await whole.ask(conversation[:12_000])).headers["x-kvlane-pool"] == "normal"
            assert (await whole.ask(conversation)).headers["x-kvlane-pool"] == "normal"
            assert (await whole.ask(text(34, 6000))).headers["x-kvlane-pool"] == "long"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_r24_what_fits_nowhere_is_refused_before_any_engine_is_called(field: str) -> None:
    async with house(2) as whole:
        reply = await whole.post(CHAT, {**prompt("hello"), field: 32_768})
        error = reply.json["error"]
        assert (reply.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert "32768 tokens" in error["message"]
        assert "of prompt and 32768 of output" in error["message"]
        long = await whole.post("/v1/completions", {"model": "sim", "prompt": list(range(40_000)), "max_tokens": 5})
        assert "needs 40005: 40000 of prompt and 5 of output" in long.json["error"]["message"]
        assert sum(whole.cluster.engine_calls) == 0


async def test_r24_without_max_tokens_the_prompt_alone_must_leave_room() -> None:
    async with house(1) as whole:
        body: dict[str, Any] = {"model": "sim", "sim": {"output_tokens": 2}}
        assert (await whole.post("/v1/completions", {**body, "prompt": list(range(32_700))})).status == 200
        assert (await whole.post("/v1/completions", {**body, "prompt": list(range(32_768))})).status == 400
        assert sum(whole.cluster.engine_calls) == 1


async def test_an_alias_is_served_as_the_model_that_it_names() -> None:
    models = [{"name": "sim", "aliases": ["gpt-4o-mini"]}]
    async with house(1, models=models) as whole:
        reply = await whole.post(CHAT, prompt("hello") | {"model": "gpt-4o-mini"})
        assert (reply.status, reply.json["model"]) == (200, "sim")
        assert [model["id"] for model in (await whole.get("/v1/models")).json["data"]] == ["sim", "gpt-4o-mini"]
        form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt-4o-mini\r\n--b\r\n'
        form += b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
        headers = {"content-type": "multipart/form-data; boundary=b"}
        spoken = await whole.post("/v1/audio/transcriptions", form, headers=headers)
        assert spoken.status == 200
        seen = whole.cluster[0].facts.recent[-1]
        assert b"\r\n\r\nsim\r\n--b\r\n" in next(s.body for s in whole.cluster[0].facts.recent if "audio" in s.target)
        assert seen


async def test_answers_that_are_not_streamed_leave_the_prefill_queue_when_they_must_have() -> None:
    """Else an endpoint that writes long answers would look as if it had prompts to work through."""
    async with house(1, FOR_LONG) as whole:
        running = [asyncio.create_task(whole.ask(text(40 + at, 500), tokens=10_000)) for at in range(4)]
        await until(lambda: sum(whole.in_flight) == 4, "4 in flight")
        books = whole.endpoints[0].outstanding
        await until(lambda: (books.decoding, books.prefill_tokens) == (4, 0), "all four are thought to decode")
        await leave(running)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_what_an_engine_only_counts_it_does_not_hold(path: str) -> None:
    async with house(1) as whole:
        body = asking(text(50, 600), "hello", max_tokens=5)
        assert (await whole.post(path, body)).status == 200
        assert predicted(await whole.post(CHAT, body)) == 0


async def test_a_prompt_that_the_engine_refused_is_not_thought_to_be_held() -> None:
    body = asking(text(51, 900), "hello")
    async with house(1) as whole:
        refused = await whole.post(CHAT, body | {"cache_salt": ""})
        assert refused.status == 400
        assert predicted(await whole.post(CHAT, body)) == 0
        assert predicted(await whole.post(CHAT, body)) > 700
