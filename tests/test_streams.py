"""Streams: bytes pass as they came and when they came, one that breaks never looks whole, and usage stays hidden."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator

import orjson
import pytest

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.until import until
from tests.wire.client import CHAT, RawClient, call, chat, errors, events, request
from tests.wire.engine import EVENTS_HEAD, Call, ScriptedEngine, chunk, streams
from tests.wire.house import asked, metric, serving
from tests.wire.sse import DONE, ROLE, STREAM, USAGE, WITH_USAGE, text_of, token

WORDS = (
    token("Zo\u00eb \u6771\u4eac")
    + token(" \U0001f6e4\ufe0f\r")
    + token("x" * 70_000)
    + token("", finish_reason="stop")
)


async def through(body: bytes, ask: bytes = STREAM) -> bytes:
    """Give what a client gets of a stream that an engine sends at once."""
    async with ScriptedEngine(streams(body)) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, ask)
        assert (answer.status, answer.is_whole) == (200, True)
        return answer.body


# Bytes.


SEGMENTS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "at once": lambda body: iter([body]),
    "line by line": lambda body: iter(body.splitlines(keepends=True)),
    "in odd pieces": lambda body: (body[at : at + 13] for at in range(0, len(body), 13)),
    "within blank lines": lambda body: iter(re.split(rb"(?<=\n)(?=\r?\n)", body)),
}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("cut", SEGMENTS)
async def test_a_stream_passes_byte_for_byte_however_it_is_cut(cut: str, newline: bytes) -> None:
    """S4."""
    sent = (b": hello\n\n" + ROLE + WORDS + b"id: 7\nevent: x\nretry: 5\ndata:{}\n\n" + USAGE + DONE).replace(
        b"\n", newline
    )

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD)
        for piece in SEGMENTS[cut](sent):
            call.write(chunk(piece))
            await asyncio.sleep(0)
        call.write(b"0\r\n\r\n")

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        assert (await call(gateway.url, CHAT, WITH_USAGE)).body == sent


async def test_single_byte_segments_through_cjk_and_emoji_pass_and_usage_is_found() -> None:
    """S4."""
    sent = ROLE + token("\u6771\u4eac \U0001f9ed \u00e9") * 3 + USAGE + DONE

    async def script(call: Call) -> None:
        await call.write_slowly(
            EVENTS_HEAD + b"".join(chunk(sent[at : at + 1]) for at in range(len(sent))) + b"0\r\n\r\n"
        )

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        got = (await call(gateway.url, CHAT, WITH_USAGE)).body
        assert hashlib.sha256(got).digest() == hashlib.sha256(sent).digest()
        assert await metric(gateway, "kvlane_output_tokens_total") == 3


@pytest.mark.parametrize("alphabet", ["cjk", "emoji", "mixed"])
@pytest.mark.parametrize("fault", [Kind.DRIBBLE, Kind.CRLF, Kind.GZIP])
async def test_an_engines_odd_transport_changes_no_character(
    gateway: Gateway, engine: SimulatedEngine, alphabet: str, fault: Kind
) -> None:
    """S4: usage is counted all the same."""
    body = chat(stream=True, sim={"output_tokens": 20, "alphabet": alphabet})
    plain = (await call(engine.url, CHAT, body)).body
    await engine.inject(Fault(fault))
    assert text_of((await call(gateway.url, CHAT, body)).body) == text_of(plain)
    assert await metric(gateway, "kvlane_output_tokens_total") == 20


@pytest.mark.parametrize(
    "text",
    [
        "data: [DONE]",
        "[DONE]",
        "\n\ndata: [DONE]\n\n",
        "data: [DONE]\r\n\r\n",
        '"error"',
        '{"error":{"code":500}}',
        '"abort"',
    ],
)
async def test_generated_text_that_looks_like_the_protocol_is_text(
    gateway: Gateway, engine: SimulatedEngine, text: str
) -> None:
    """S3."""
    sent = ROLE + token(text) + token(" end") + DONE
    assert await through(sent) == sent
    words = max(2, text.count(" ") * 3 + 12)
    answer = await call(gateway.url, CHAT, chat(stream=True, sim={"output_tokens": words, "text": text}))
    assert text in text_of(answer.body)


@pytest.mark.parametrize(
    "done", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data:  [DONE] \n\n"]
)
async def test_done_is_known_in_every_spelling(done: bytes) -> None:
    sent = token("a") + done
    assert await through(sent) == sent


@pytest.mark.parametrize(
    "almost",
    [
        b"data: [DONE]x\n\n",
        b"data: [DONE]\ndata: more\n\n",
        b": [DONE]\n\n",
        b"event: [DONE]\n\n",
        b'data: "[DONE]"\n\n',
    ],
)
async def test_what_only_looks_like_done_does_not_end_a_stream(almost: bytes) -> None:
    sent = token("a") + almost + token("b") + DONE
    assert await through(sent) == sent


async def test_an_event_longer_than_any_buffer_passes() -> None:
    sent = token("a") + token("b" * 3_000_000) + DONE
    assert await through(sent) == sent


async def test_a_stream_in_anthropics_shape_passes_as_it_came_and_is_counted(
    gateway: Gateway, engine: SimulatedEngine
) -> None:
    ask = chat(stream=True, max_tokens=50, sim={"output_tokens": 9})
    headers = [("x-request-id", "same")]
    direct = (await call(engine.url, "/v1/messages", ask, headers)).body
    engine.model.forget()  # what it has cached stands in the usage
    assert (await call(gateway.url, "/v1/messages", ask, headers)).body == direct
    assert asked(engine)[0].body == asked(engine)[1].body
    assert await metric(gateway, "kvlane_output_tokens_total") == 9


# When.


async def test_each_chunk_is_seen_before_the_next_is_made() -> None:
    """S5: nothing is held back, the role-only chunk that opens a stream included."""
    seen = asyncio.Semaphore(0)

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD)
        for piece in (ROLE, *(token(str(at)) for at in range(10)), DONE):
            call.write(chunk(piece))
            await seen.acquire()
        await call.gone()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway, RawClient.to(gateway.url) as client:
        client.ask(CHAT, STREAM)
        head = await client.head()
        pieces = []
        async for piece in client.pieces(head):
            pieces.append(piece)
            seen.release()
        assert len(pieces) == 12


async def test_the_body_ends_right_behind_done_whatever_the_engine_does() -> None:
    """S6: the engine neither ends its body nor closes."""

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD + chunk(token("a")) + chunk(DONE))
        await call.gone()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        for version in ("1.1", "1.0"):
            async with RawClient.to(gateway.url) as client:
                client.send(request(CHAT, STREAM, version=version))
                answer = await client.answer()
                assert (answer.body, answer.is_whole) == (token("a") + DONE, True)


async def test_what_an_engine_says_behind_done_is_not_passed_on() -> None:
    assert await through(token("a") + DONE + b": bye\n\n" + token("b")) == token("a") + DONE


async def test_a_trickle_outlives_every_timeout() -> None:
    """S7, scaled: 15 gaps of 40 ms, when each timeout is 400 ms."""

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD)
        for at in range(15):
            call.write(chunk(token(str(at))))
            await asyncio.sleep(0.04)
        call.write(chunk(DONE) + b"0\r\n\r\n")

    timeouts = {"connect_s": 0.4, "first_byte_s": 0.4, "idle_s": 0.4, "deadline_s": 0.4}
    async with ScriptedEngine(script) as engine, serving(engine.url, timeouts=timeouts) as gateway:
        answer = await call(gateway.url, CHAT, STREAM, [("x-stainless-read-timeout", "0.4")])
        assert answer.body.endswith(DONE)
        assert not errors(answer.body)


async def test_time_to_first_token_is_to_content_not_to_the_role() -> None:
    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD + chunk(ROLE))
        await asyncio.sleep(0.1)
        call.write(chunk(token("a") + DONE) + b"0\r\n\r\n")

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        await call(gateway.url, CHAT, STREAM)
        ttft_s = await metric(gateway, "kvlane_ttft_seconds_sum")
        assert ttft_s is not None
        assert ttft_s >= 0.09


# Usage.


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("cut", SEGMENTS)
async def test_usage_that_nobody_asked_for_is_hidden_and_every_other_byte_passes(cut: str, newline: bytes) -> None:
    """S9: the gateway counted all the same."""
    sent, passed = ROLE + WORDS + USAGE + DONE, ROLE + WORDS + DONE

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD)
        for piece in SEGMENTS[cut](sent.replace(b"\n", newline)):
            call.write(chunk(piece))
            await asyncio.sleep(0)
        call.write(b"0\r\n\r\n")

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        assert (await call(gateway.url, CHAT, STREAM)).body == passed.replace(b"\n", newline)
        assert await metric(gateway, "kvlane_output_tokens_total") == 3
        assert await metric(gateway, "kvlane_prompt_tokens_total") == 7


async def test_usage_on_a_chunk_with_content_passes() -> None:
    """llama.cpp and SGLang put it there."""
    last = (
        b'data: {"choices":[{"index":0,"delta":{"content":"b"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    )
    assert await through(token("a") + last + DONE) == token("a") + last + DONE


async def test_a_chunk_without_choices_or_usage_passes() -> None:
    """Some engines open with one (content filters, timings)."""
    odd = b'data: {"choices":[],"prompt_filter_results":[]}\n\n'
    assert await through(odd + token("a") + USAGE + DONE) == odd + token("a") + DONE


@pytest.mark.parametrize("ask", [WITH_USAGE, chat(stream=True, stream_options={"include_usage": True, "x": 1})])
async def test_usage_that_was_asked_for_is_seen(gateway: Gateway, ask: bytes) -> None:
    *_, last, done = events((await call(gateway.url, CHAT, ask)).body)
    assert orjson.loads(last)["choices"] == []
    assert orjson.loads(last)["usage"]["completion_tokens"] > 0
    assert done == "[DONE]"


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
async def test_no_chunk_without_choices_is_seen_by_who_did_not_ask(
    gateway: Gateway, engine: SimulatedEngine, route: str
) -> None:
    """S9."""
    ask = {"model": "sim", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": True}
    answer = await call(gateway.url, route, orjson.dumps({**ask, "sim": {"output_tokens": 9}}))
    chunks = [orjson.loads(data) for data in events(answer.body) if data != "[DONE]"]
    assert all(chunk["choices"] for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)
    assert await metric(gateway, "kvlane_output_tokens_total") == 9


async def test_an_engine_that_tells_usage_twice_or_never_still_serves(
    gateway: Gateway, engine: SimulatedEngine
) -> None:
    for kind in (Kind.USAGE_TWICE, Kind.NO_USAGE):
        await engine.inject(Fault(kind, times=1))
        answer = await call(gateway.url, CHAT, chat(stream=True, sim={"output_tokens": 5}))
        assert text_of(answer.body)
        assert b'"choices":[]' not in answer.body
    assert await metric(gateway, "kvlane_output_tokens_total") in (5, 10), "once, and what is not told may be estimated"


# Backpressure.


async def test_a_client_that_does_not_read_holds_back_the_engine_and_gets_all_in_the_end() -> None:
    """The idle timeout is the engine's, not the client's: a slow reader is no stalled engine."""
    piece, pieces = chunk(token("x" * 60_000)), 500
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        call.write(EVENTS_HEAD)
        for _ in range(pieces):
            call.write(piece)
            await call.writer.drain()
            sent += 1
        call.write(chunk(DONE) + b"0\r\n\r\n")

    async with (
        ScriptedEngine(script) as engine,
        serving(engine.url, timeouts={"idle_s": 0.2}) as gateway,
        RawClient.to(gateway.url) as client,
    ):
        client.ask(CHAT, STREAM)
        head = await client.head()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.25)  # longer than the idle timeout
        assert sent < pieces / 2, "what is under way is bounded by the kernel's buffers and ours"
        got = b"".join([piece async for piece in client.pieces(head)])
        assert sent == pieces
        assert got == token("x" * 60_000) * pieces + DONE


async def test_a_slow_reader_holds_up_nobody_else() -> None:
    async with Cluster(1, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        await cluster[0].inject(Fault(Kind.HUGE_ANSWER, size=30_000_000, times=1))
        async with RawClient.to(gateway.url) as client:
            client.ask(CHAT, STREAM)
            await client.head()
            for _ in range(5):
                assert (await call(gateway.url, CHAT, STREAM)).status == 200
        await until(lambda: not cluster[0].facts.live)
