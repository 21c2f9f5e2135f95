"""Streams that break: before the first byte they are served elsewhere, after it they never look whole."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from tests.wire.client import CHAT, RawClient, call, chat, errors, events
from tests.wire.engine import EVENTS_HEAD, Call, ScriptedEngine, chunk
from tests.wire.house import asked, metric, serving
from tests.wire.sse import DONE, ROLE, STREAM, USAGE, WITH_USAGE, text_of, token


class TwoPart:
    """An engine's stream in two parts: the second comes when the client has seen the first."""

    def __init__(self, first: bytes, *then: bytes | str) -> None:
        self._first = first
        self._then = then
        self._is_seen = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        """Play it; `then` is bytes of the stream, or how it ends: end, reset, close, hang."""
        call.write(EVENTS_HEAD + chunk(self._first))
        await self._is_seen.wait()
        for part in self._then:
            if isinstance(part, bytes):
                call.write(chunk(part))
            elif part == "end":
                call.write(b"0\r\n\r\n")
            elif part == "hang":
                await call.gone()
            elif part == "reset":
                call.reset()
            else:
                call.close()

    async def asked(self, gateway: Gateway, ask: bytes = STREAM, route: str = CHAT) -> bytes:
        """Ask for it; give what comes behind the first part."""
        async with RawClient.to(gateway.url) as client:
            client.ask(route, ask)
            head = await client.head()
            assert head.status == 200
            pieces = [piece async for piece in self._tell(client.pieces(head))]
        got = b"".join(pieces)
        assert got.startswith(self._first)
        return got.removeprefix(self._first)

    async def _tell(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            self._is_seen.set()
            yield piece


@pytest.mark.parametrize("how", ["reset", "close", "end", "hang"])
@pytest.mark.parametrize("ask", [STREAM, WITH_USAGE], ids=["usage hidden", "usage asked for"])
async def test_a_stream_that_breaks_ends_with_one_error_and_without_done(how: str, ask: bytes) -> None:
    """S2: the metric counts it, and there is no second try after the first byte."""
    play = TwoPart(ROLE + token("a"), token("b"), how)
    timeouts = {"idle_s": 0.2} if how == "hang" else {}
    async with ScriptedEngine(play) as engine, serving(engine.url, timeouts=timeouts) as gateway:
        rest = await play.asked(gateway, ask)
        assert rest.startswith(token("b") + b"data: ") or how == "reset"  # which may overtake what was sent before
        assert rest.endswith(b"\n\n")
        assert b"[DONE]" not in rest
        (error,) = errors(rest)
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "server_error"
        assert error["code"] == ("upstream_timeout" if how == "hang" else "upstream_error")
        assert await metric(gateway, "kvlane_requests_total", outcome="failed", status="200") == 1
        assert await metric(gateway, "kvlane_endpoint_failures_total", endpoint="E0") == 1
        assert len(engine.calls) == 1


async def test_an_event_that_is_cut_off_is_not_passed_on_in_part() -> None:
    """S2: half an event before the error would make that unreadable."""
    play = TwoPart(token("a"), token("b")[:-20], "close")
    async with ScriptedEngine(play) as engine, serving(engine.url) as gateway:
        rest = await play.asked(gateway)
        assert [list(orjson.loads(data)) for data in events(rest)] == [["error"]]


@pytest.mark.parametrize("ending", [DONE, USAGE + DONE, b""])
async def test_an_error_in_a_stream_passes_as_it_came_and_no_done_behind_it(ending: bytes) -> None:
    """S2: vLLM sends one when its core dies, then [DONE]."""
    error = b'data: {"error": {"message": "EngineCore died", "type": "Internal", "param": null, "code": 500}}\n\n'
    play = TwoPart(ROLE + token("a"), token("b") + error + ending, "end")
    async with ScriptedEngine(play) as engine, serving(engine.url) as gateway:
        assert await play.asked(gateway) == token("b") + error
        assert await metric(gateway, "kvlane_requests_total", outcome="failed", status="200") == 1


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_an_abort_in_a_stream_is_a_failure(reason: str) -> None:
    """S2: vLLM ends streams so on SIGTERM, and clients take it for success."""
    play = TwoPart(ROLE + token("a"), token("b") + token("c", finish_reason=reason) + USAGE + DONE, "end")
    async with ScriptedEngine(play) as engine, serving(engine.url) as gateway:
        rest = await play.asked(gateway)
        assert rest.startswith(token("b"))
        assert len(errors(rest)) == 1
        assert b"[DONE]" not in rest
        assert await metric(gateway, "kvlane_requests_total", outcome="failed", status="200") == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_engine_that_aborts_at_once_is_not_taken_for_success(is_stream: bool) -> None:
    """S2: before the first byte it has its true status."""
    async with Cluster(1, Settings(time_scale=0)) as cluster, serving(*cluster.urls) as gateway:
        await cluster[0].inject(Fault(Kind.ABORT, after=1))
        answer = await call(gateway.url, CHAT, chat(stream=is_stream))
        assert answer.refusal[:2] == (502, "server_error")


@pytest.mark.parametrize("comments", [0, 1, 3])
async def test_an_error_first_in_a_stream_gets_its_true_status(comments: int) -> None:
    """The head is held back until there is something to say; comments, which keep a wait alive, say nothing."""
    error = b'data: {"error":{"message":"The request queue is full.","type":"x","param":null,"code":503}}\n\n'

    async def script(call: Call) -> None:
        call.write(EVENTS_HEAD)
        for _ in range(comments):
            call.write(chunk(b": keep-alive\n\n"))
            await asyncio.sleep(0.005)
        call.write(chunk(error + DONE) + b"0\r\n\r\n")

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        answer = await call(gateway.url, CHAT, STREAM)
        assert answer.status == 503
        assert answer.json["error"]["message"] == "The request queue is full."


FIRST_FAULTS = {
    "reset": Fault(Kind.RESET),
    "reset behind the head": Fault(Kind.RESET_AFTER),
    "closed behind the head": Fault(Kind.CLOSE_AFTER),
    "ended behind the head": Fault(Kind.TRUNCATE),
    "silent behind the head": Fault(Kind.HANG_AFTER),
    "silent": Fault(Kind.HANG),
    "an error first": Fault(Kind.ERROR_FIRST),
    "an error status": Fault(Kind.STATUS, status=500),
    "busy": Fault(Kind.STATUS, status=503),
    "too many": Fault(Kind.STATUS, status=429),
}


@pytest.mark.parametrize("fault", FIRST_FAULTS)
async def test_what_fails_before_the_first_byte_is_served_elsewhere(fault: str) -> None:
    async with (
        Cluster(2, Settings(time_scale=0)) as cluster,
        serving(*cluster.urls, timeouts={"first_byte_s": 0.25}, policy="round_robin") as gateway,
    ):
        await cluster[0].inject(FIRST_FAULTS[fault])
        for _ in range(3):
            answer = await call(gateway.url, CHAT, STREAM)
            assert (answer.status, answer.head["x-kvlane-endpoint"]) == (200, "E1")
            assert text_of(answer.body)
        assert asked(cluster[0])


async def test_a_stream_that_stalls_before_its_first_byte_is_504() -> None:
    async with Cluster(1, Settings(time_scale=0)) as cluster:
        await cluster[0].inject(Fault(Kind.HANG_AFTER, after=0))
        async with serving(*cluster.urls, timeouts={"first_byte_s": 0.05}) as gateway:
            answer = await call(gateway.url, CHAT, STREAM)
            assert answer.refusal == (504, "server_error", "upstream_timeout")


@pytest.mark.parametrize(
    ("route", "sent"),
    [
        ("/v1/responses", b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'),
        ("/v1/messages", b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'),
        ("/v1/completions", b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'),
    ],
)
async def test_every_kind_of_stream_that_is_cut_short_ends_with_an_error(route: str, sent: bytes) -> None:
    ask = b'{"model":"sim","stream":true,"prompt":"a","input":"a","messages":[],"max_tokens":5}'
    play = TwoPart(sent, "end")
    async with ScriptedEngine(play) as engine, serving(engine.url) as gateway:
        rest = await play.asked(gateway, ask, route)
        assert len(errors(rest)) == 1
        if route == "/v1/messages":
            assert rest.startswith(b"event: error\ndata: ")
