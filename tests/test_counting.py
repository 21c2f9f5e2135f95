"""What requests used, where engines say it and where they do not: L7.

An engine tells usage in its last chunk, in the last two, in every one, or not at all; clients and engines leave in the
middle. Whatever happens, the answer knows what to charge.
"""

import asyncio
from typing import Any

import orjson
import pytest

from gateway import openai
from gateway.app import Gateway
from gateway.classes import Classes
from gateway.exchange import Exchange
from gateway.intake import Intake
from gateway.members import InFlight
from gateway.relay import Answer
from gateway.routes import ENGINE_ROUTES
from gateway.sections import Admission
from gateway.tenants import ANONYMOUS
from gateway.usage import Usage, Used, used
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from loadtests.vocabulary import small_tokenizer
from policies.learned import OutputHabits
from policies.record import Outcome, RequestRecord
from policies.request import InferenceRequest
from tests.until import until
from tests.wire.client import CHAT, RawClient, call, chat
from tests.wire.engine import EVENTS_HEAD, ScriptedEngine, chunk, says, streams, whole
from tests.wire.engine import Call as Asked
from tests.wire.house import serving
from tests.wire.sse import DONE, ROLE, STREAM, USAGE, WITH_USAGE, token

MADE = 60
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello", "max_tokens": MADE},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": MADE},
}


class Answers(set[InFlight]):
    """The answers that an engine gave, those that have ended too."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Answer] = []

    def add(self, answer: InFlight) -> None:
        """Keep it."""
        super().add(answer)
        assert isinstance(answer, Answer)
        self.given.append(answer)

    @property
    def last(self) -> Answer:
        return self.given[-1]


def listen(gateway: Gateway) -> Answers:
    """Keep the answers of the one engine."""
    (member,) = gateway.fleet.members()
    member.in_flight = answers = Answers()
    return answers


async def answered(stream: bytes, ask: bytes = STREAM, path: str = CHAT) -> Answer:
    """Give what the gateway made of a stream."""
    async with ScriptedEngine(streams(stream)) as engine, serving(engine.url) as gateway:
        answers = listen(gateway)
        await call(gateway.url, path, ask)
        return answers.last


def settled(answer: Answer, prompt_tokens: int = 5) -> Used:
    return used(answer.usage, prompt_tokens=prompt_tokens, counted_tokens=answer.counted_tokens)


async def counted(gateway: Gateway, path: str, body: dict[str, Any], answer: Answer) -> int:
    """Count an answer as the proxy does when it has ended."""
    route, data = ENGINE_ROUTES[path], orjson.dumps({"model": "sim", **body})
    asked = openai.parse(route, "application/json", data)
    exchange = Exchange(route, "POST", path, b"", data, asked, ANONYMOUS, InferenceRequest("r", "sim"))
    return await Intake(
        gateway.fleet, gateway.readers.of, Classes(Admission()), None, OutputHabits(), lambda tenant: None
    ).count(exchange, answer)


# Engines that do not say.


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_an_engine_without_usage_is_counted_within_5_percent(path: str, is_stream: bool) -> None:
    """L7."""
    body = {**BODIES[path], "stream": is_stream, "sim": {"output_tokens": MADE}}
    settings = Settings(time_scale=0, tokenizer=small_tokenizer())
    async with (
        Cluster(1, settings) as cluster,
        serving(*cluster.urls, models=[{"name": "sim", "tokenizer": small_tokenizer()}]) as gateway,
    ):
        answers = listen(gateway)
        await call(gateway.url, path, orjson.dumps({"model": "sim", **body}))
        reported = answers.last.usage
        assert reported is not None
        assert reported.output_tokens == MADE
        await cluster[0].inject(Fault(Kind.NO_USAGE))
        await call(gateway.url, path, orjson.dumps({"model": "sim", **body}))
        assert answers.last.usage is None
        assert await counted(gateway, path, body, answers.last) == pytest.approx(MADE, rel=0.05)
        assert answers.last.counted_tokens == pytest.approx(MADE, rel=0.05 if is_stream else 0.5)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_several_choices_are_counted_together(path: str) -> None:
    body = {**BODIES[path], "n": 3, "stream": True, "sim": {"output_tokens": MADE}}
    async with Cluster(1, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        answers = listen(gateway)
        await cluster[0].inject(Fault(Kind.NO_USAGE))
        await call(gateway.url, path, orjson.dumps({"model": "sim", **body}))
        assert settled(answers.last) == Used(5, 0, 3 * MADE, False)


async def test_embeddings_have_no_output_to_count() -> None:
    body = b'{"object":"list","data":[{"embedding":"AAAA","index":0}],"model":"sim"}'
    async with ScriptedEngine(lambda asked: _say(asked, whole(200, body))) as engine, serving(engine.url) as gateway:
        answers = listen(gateway)
        await call(gateway.url, "/v1/embeddings", b'{"model":"sim","input":"Hello"}')
        assert settled(answers.last) == Used(5, 0, 0, False)
        assert await counted(gateway, "/v1/embeddings", {"input": "Hello"}, answers.last) == 0


async def _say(asked: Asked, answer: bytes) -> None:
    asked.write(answer)


# Engines that say it, more or less often.


async def test_usage_in_the_last_two_chunks_is_charged_once() -> None:
    """L7."""
    answer = await answered(ROLE + token("a") * 3 + USAGE * 2 + DONE)
    assert settled(answer) == Used(7, 0, 3, True)


@pytest.mark.parametrize("ask", [STREAM, WITH_USAGE], ids=["hidden", "asked for"])
async def test_a_null_behind_the_usage_does_not_take_it_back(ask: bytes) -> None:
    answer = await answered(ROLE + token("a") + USAGE + token("", usage=None) + b'data: {"usage":null}\n\n' + DONE, ask)
    assert settled(answer) == Used(7, 0, 3, True)


@pytest.mark.parametrize("prompt", [0, 7])
async def test_explicit_zeros_stay_zero(prompt: int) -> None:
    """L7."""
    said = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":0}}\n\n' % prompt
    assert settled(await answered(ROLE + token("a") * 3 + said + DONE)) == Used(prompt, 0, 0, True)


def running_usage(made: int) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": made, "total_tokens": 7 + made}
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
    return b"data: " + orjson.dumps({"choices": [choice], "usage": usage}) + b"\n\n"


async def test_of_usage_in_every_chunk_the_last_counts() -> None:
    """L7."""
    stream = b"".join(running_usage(2 * at) for at in range(1, 11))
    assert settled(await answered(stream + DONE)) == Used(7, 0, 20, True)
    assert settled(await answered(stream)) == Used(7, 0, 20, True)  # it was cut off


# Clients and engines that leave in the middle.


async def left_after(events: list[bytes], ask: bytes, path: str = CHAT) -> Answer:
    """Give what the gateway knows of a stream whose client left after these events."""

    async def script(asked: Asked) -> None:
        asked.write(EVENTS_HEAD)
        for event in events:
            asked.write(chunk(event))
            await asyncio.sleep(0)
        await asked.gone()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway, RawClient.to(gateway.url) as client:
        answers = listen(gateway)
        client.ask(path, ask)
        due, received = len(b"".join(events)), b""
        async for piece in client.pieces(await client.head()):
            received += piece
            if len(received) >= due:
                break
        client.close()
    return answers.last


async def test_a_stream_that_is_left_at_chunk_10_is_charged_its_prompt_and_10() -> None:
    """L7."""
    answer = await left_after([ROLE, *[token("a")] * 10], STREAM)
    assert settled(answer) == Used(5, 0, 10, False)


async def test_of_a_stream_with_usage_in_every_chunk_that_is_left_the_last_seen_counts() -> None:
    """L7."""
    ask = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    answer = await left_after([running_usage(3 * at) for at in range(1, 11)], ask)
    assert settled(answer) == Used(7, 0, 30, True)


async def test_a_message_that_is_left_is_charged_its_prompt_as_told_and_what_came() -> None:
    """Anthropic's first event has numbers, before anything was made."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 0}}}
    piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    events = [b"data: " + orjson.dumps(payload) + b"\n\n" for payload in [start, *[piece] * 10]]
    ask = b'{"model":"sim","stream":true,"messages":[],"max_tokens":50}'
    answer = await left_after(events, ask, "/v1/messages")
    assert answer.usage == Usage(7, None, None)
    assert settled(answer) == Used(7, 0, 10, False)


@pytest.mark.parametrize("kind", [Kind.RESET_AFTER, Kind.CLOSE_AFTER, Kind.ERROR_DONE, Kind.TRUNCATE])
async def test_an_engine_that_dies_at_chunk_10_leaves_about_10_to_charge(kind: Kind) -> None:
    async with Cluster(1, Settings(time_scale=0.01)) as cluster, serving(*cluster.urls) as gateway:
        answers = listen(gateway)
        await cluster[0].inject(Fault(kind, after=10))
        await call(gateway.url, CHAT, chat(stream=True, sim={"output_tokens": MADE}))
        assert 8 <= settled(answers.last).output_tokens <= 12


async def test_an_answer_that_never_came_has_nothing_to_charge_but_its_prompt() -> None:
    async with Cluster(1, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        answers = listen(gateway)
        await cluster[0].inject(Fault(Kind.STATUS, status=500))
        await call(gateway.url, CHAT, chat())
        assert settled(answers.last) == Used(5, 0, 0, False)


# Settling.


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Used(100, 0, 10, False)),
        (Usage(90, 12, 64), Used(90, 64, 12, True)),
        (Usage(90, 12, None), Used(90, 0, 12, True)),
        (Usage(0, 0, 0), Used(0, 0, 0, True)),
        (Usage(90, None, 64), Used(90, 64, 10, False)),
        (Usage(None, 12, 64), Used(100, 64, 12, False)),
        (Usage(None, 12, 640), Used(100, 100, 12, False)),
    ],
)
def test_what_an_engine_says_counts_and_the_rest_is_as_it_is_known_here(usage: Usage | None, expected: Used) -> None:
    assert used(usage, prompt_tokens=100, counted_tokens=10) == expected


def test_an_embedding_is_reported_whole_without_any_output() -> None:
    assert used(Usage(90, None, None), prompt_tokens=100, counted_tokens=0) == Used(90, 0, 0, True)


async def test_a_client_that_leaves_with_its_whole_answer_was_served(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = asyncio.Event()

    async def count_for_long(*_: object) -> None:
        counting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Intake, "count", count_for_long)
    hello = whole(200, b'{"choices":[{"message":{"content":"Hi there"}}]}')
    async with ScriptedEngine(says(hello)) as engine, serving(engine.url) as gateway:
        records: list[RequestRecord] = []
        monkeypatch.setattr(gateway.proxy._books, "_others", (("test", records.append),))
        async with RawClient.to(gateway.url) as client:
            client.ask(CHAT, chat())
            assert (await client.answer()).status == 200
            await counting.wait()
        await until(lambda: records)
    (record,) = records
    assert (record.status, record.outcome) == (200, Outcome.OK)
    assert record.output_tokens
