"""Engines that flood, and engines that say odd things: bounded in memory and time, and never switched off by a word."""

import asyncio
import contextlib
import gzip
import socket
import time
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay import MAX_HELD_BYTES
from gateway.routes import Shape
from gateway.sse import MAX_SOUGHT_EVENTS, EventReader
from gateway.unpack import MAX_EXPANDED_BYTES, BadPacking, Unpacker
from policies.health import State
from tests.until import until
from tests.wire.client import CHAT, call, chat
from tests.wire.engine import EVENTS_HEAD, Call, ScriptedEngine, chunk, says, whole
from tests.wire.house import serving
from tests.wire.sse import STREAM

HEADLESS = {
    "a header value without end": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 4_000_000,
    "a header name without end": b"HTTP/1.1 200 OK\r\n" + b"y" * 4_000_000,
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 700_000,
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 200_000,
}


@pytest.mark.parametrize("flood", HEADLESS.values(), ids=HEADLESS)
async def test_an_answer_without_a_head_ends_soon(flood: bytes) -> None:
    async def script(call: Call) -> None:
        call.write(flood)
        await call.gone()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        began = time.process_time()
        assert (await call(gateway.url, CHAT, chat())).refusal == (502, "server_error", "upstream_error")
        assert time.process_time() - began < 2, "nobody else could be served meanwhile"


@pytest.mark.parametrize("block", [b": ping\n\n", b"data: hello\n\n", b"data: " + b"a" * 1000 + b"\n\n", b"\n\n"])
async def test_a_stream_is_held_back_no_longer_than_it_is_bounded(block: bytes) -> None:
    """Comments and odd events before the first token pass, once there are enough of them."""
    flood = block * (4 * MAX_HELD_BYTES // len(block))

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD + chunk(flood))
        await call.gone()

    async with ScriptedEngine(script) as engine, serving(engine.url, timeouts={"idle_s": 0.2}) as gateway:
        answer = await call(gateway.url, CHAT, STREAM)
        assert answer.status == 200
        assert answer.body.startswith(flood)
        assert b'"error"' in answer.body[len(flood) :]


async def test_a_line_without_end_is_not_held_for_ever() -> None:
    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD + chunk(b"data: " + b"a" * (3 << 20)))
        await call.gone()

    async with ScriptedEngine(script) as engine, serving(engine.url, timeouts={"idle_s": 0.2}) as gateway:
        answer = await call(gateway.url, CHAT, STREAM)
        assert answer.status == 200
        assert len(answer.body) > 1 << 20


def test_the_first_token_is_sought_in_so_many_events_and_no_more() -> None:
    reader = EventReader(Shape.CHAT, hides_usage=False)
    reader.feed(b": ping\n\n" * (MAX_SOUGHT_EVENTS + 1))
    assert reader.has_content


# Packing.

JSON = b'{"choices":[],"text":"' + b"abc" * 500 + b'"}'


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(JSON[:40], mtime=0) + gzip.compress(JSON[40:], mtime=0)),
        ("deflate", zlib.compress(JSON)),
        ("deflate", raw_deflate(JSON)),
    ],
    ids=["several members", "deflate", "deflate without a header"],
)
async def test_every_way_of_packing_arrives_whole(encoding: str, packed: bytes) -> None:
    script = says(whole(200, packed, f"content-encoding: {encoding}"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        assert (answer.status, answer.body) == (200, JSON)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_unpacking_does_not_care_how_the_bytes_are_cut(size: int) -> None:
    packed = gzip.compress(JSON) + gzip.compress(JSON)
    unpacker = Unpacker(b"gzip")
    assert b"".join(unpacker.feed(packed[at : at + size]) for at in range(0, len(packed), size)) == JSON + JSON
    assert unpacker.is_whole


def test_what_expands_without_measure_is_refused() -> None:
    with pytest.raises(BadPacking, match="expands"):
        Unpacker(b"gzip").feed(gzip.compress(bytes(MAX_EXPANDED_BYTES + 1)))


@pytest.mark.parametrize(
    "packed", [zlib.compress(JSON) + b"more", b"\x00nothing", zlib.compress(JSON)[:30] + b"\xff" * 30]
)
def test_what_is_not_packed_as_it_says_is_refused(packed: bytes) -> None:
    with pytest.raises(BadPacking):
        Unpacker(b"deflate").feed(packed)


# Odd words.


async def test_trailers_say_nothing() -> None:
    answer_bytes = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\ncontent-type: text/html\r\nx-odd: 1\r\n\r\n"
    )
    async with ScriptedEngine(says(answer_bytes)) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        assert answer.body == b"{}"
        told = [(name.lower(), value) for name, value in answer.head.headers]
        assert [value for name, value in told if name == "content-type"] == ["application/json"]
        assert "x-odd" not in dict(told)


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_a_client_cannot_talk_an_engine_out_of_the_fleet(kind: str) -> None:
    """An engine that quotes its client in a 5xx is not shutting down because the client says so."""
    words = b'{"error":{"message":"you said: after shutdown"}}'
    async with (
        ScriptedEngine(says(whole(500, words))) as engine,
        serving(engine.url, endpoint={"kind": kind}) as gateway,
    ):
        await call(gateway.url, CHAT, chat())
        (member,) = gateway.fleet.members()
        assert member.endpoint.health.state is not State.DRAINING


async def test_an_engine_that_is_well_long_after_it_said_goodbye_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.probe.DRAINING_DOUBT_S", 0.05)
    words = b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}'
    async with ScriptedEngine(says(whole(500, words))) as engine, serving(engine.url) as gateway:
        await call(gateway.url, CHAT, chat())
        (member,) = gateway.fleet.members()
        said_goodbye = member.endpoint
        assert said_goodbye.health.state is State.DRAINING
        await until(lambda: member.endpoint is not said_goodbye and member.endpoint.health.state is State.READY, "back")


# Events with marks.


def test_a_read_full_of_marks_costs_no_more_than_its_length() -> None:
    """Twice the events must not cost four times the time; a ratio, taken at the fastest of several runs."""

    def cost_s(events: int, event: bytes) -> float:
        data = event * events
        best = float("inf")
        for _ in range(5):
            reader = EventReader(Shape.CHAT, hides_usage=True)
            reader.has_content = True
            began = time.process_time()
            assert reader.feed(data) == data
            best = min(best, time.process_time() - began)
        return best

    for event in (
        b'data: "error"\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}\n\n',
    ):
        assert cost_s(8000, event) < 16 * cost_s(1000, event)


def test_the_end_is_found_behind_any_number_of_marks() -> None:
    reader = EventReader(Shape.CHAT, hides_usage=False)
    text = b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n' * 3000
    assert reader.feed(text + b"data: [DONE]\n\n") == text + b"data: [DONE]\n\n"
    assert reader.is_done


# Statuses and waits.


@pytest.mark.parametrize("status", [301, 302, 307, 308, 304])
async def test_a_redirect_leads_no_client_into_the_fleet(status: int) -> None:
    script = says(whole(status, b"", "location: http://10.0.0.5:8000/v1/chat/completions"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        assert answer.refusal == (502, "server_error", "upstream_error")
        assert b"10.0.0.5" not in repr(answer).encode()


async def test_a_wait_that_clients_do_not_keep_is_capped_and_they_are_told_not_to_retry() -> None:
    script = says(whole(429, b'{"error":{"message":"later"}}', "retry-after: 86400", "retry-after-ms: 86400000"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, chat())
        told = [(name.lower(), value) for name, value in answer.head.headers if "retry" in name.lower()]
        assert sorted(told) == [("retry-after", "60"), ("x-should-retry", "false")]


@pytest.mark.parametrize(("body", "status"), [(b'{"a":1}', 200), (b'{"a":', 502)])
async def test_json_that_only_the_close_ends_must_be_whole(body: bytes, status: int) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + body)
        await call.flush()
        call.close()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        assert (await call(gateway.url, CHAT, chat())).status == status


# Clients that take nothing.


async def test_a_client_that_takes_nothing_is_cut_off_and_its_engine_freed() -> None:
    """It holds a place at an engine, and would hold it, and the shutdown, for ever."""

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD + chunk(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))
        with contextlib.suppress(ConnectionError):
            while True:
                call.write(chunk(b"data: " + b"x" * 60_000 + b"\n\n"))
                await call.writer.drain()

    async with (
        ScriptedEngine(script) as engine,
        serving(engine.url, listen={"write_timeout_s": 0.3}, timeouts={"idle_s": 0.2}) as gateway,
    ):
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (host, int(port)))
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(STREAM)}\r\n\r\n"
            await loop.sock_sendall(sock, head.encode() + STREAM)
            (member,) = gateway.fleet.members()
            await until(lambda: member.endpoint.outstanding.requests == 1, "under way")
            await until(lambda: member.endpoint.outstanding.requests == 0, "cut off")
            assert member.endpoint.health.failed_requests == 0, "the engine is not to blame"


# Events of odd types.

ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["error", "abort", "response.completed", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "delta", "usage"]), inner),
    max_leaves=4,
)
KEYS = ("type", "response", "choices", "usage", "error", "object", "finish_reason", "delta")


@given(st.dictionaries(st.sampled_from(KEYS), ODD), st.sampled_from(list(Shape)), st.booleans())
def test_an_event_of_any_types_is_read_without_a_fault(event: dict[str, object], shape: Shape, hides: bool) -> None:
    reader = EventReader(shape, hides_usage=hides)
    for _ in range(2):
        reader.feed(b"data: " + orjson.dumps(event) + b"\n\n")
    assert reader.usage is None or reader.usage
