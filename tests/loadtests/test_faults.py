"""Every fault does what it says, as often as it says, and ends."""

import asyncio
import json
from random import Random
from typing import Any

import aiohttp
import pytest

from loadtests.faults import Fault, Faults, Kind
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.loadtests.calls import Json, chat, events, post, raw, raw_chat, stream, streamed, text
from tests.until import until

CHAT = "/v1/chat/completions"


async def read_all(engine: SimulatedEngine, body: Json) -> bytes:
    """Read an answer up to the end of its connection, whichever way that comes."""
    reader, writer = await raw(engine, raw_chat(body))
    data = b""
    try:
        while piece := await reader.read(65_536):
            data += piece
    finally:
        writer.close()
    return data


async def answers_well(http: aiohttp.ClientSession, engine: SimulatedEngine) -> bool:
    """Say whether a request goes through as if nothing were."""
    return (await stream(http, engine, streamed())).endswith(b"data: [DONE]\n\n")


async def test_reset_comes_before_any_byte_and_only_once(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.RESET, times=1))
    with pytest.raises(ConnectionResetError):
        await read_all(engine, streamed())
    assert await answers_well(http, engine)


async def test_reset_after_three_events(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.RESET_AFTER, times=1, after=3))
    reader, writer = await raw(engine, raw_chat(streamed()))
    with pytest.raises(ConnectionResetError):
        await reader.readuntil(b"[DONE]")
    writer.close()
    assert (engine.facts.broken, engine.facts.live, engine.model.running) == (1, 0, 0)
    assert await answers_well(http, engine)


async def test_close_after_leaves_the_chunked_body_open(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.CLOSE_AFTER, after=2))
    data = await read_all(engine, streamed())
    assert len(events(data)) == 2
    assert not data.endswith(b"0\r\n\r\n")


async def test_truncated_stream_ends_cleanly_without_done(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.TRUNCATE, after=4))
    told = events(await stream(http, engine, streamed()))
    assert len(told) == 4
    assert "[DONE]" not in told
    assert engine.facts.broken == 1


@pytest.mark.parametrize("fault", [Fault(Kind.RESET_AFTER), Fault(Kind.CLOSE_AFTER), Fault(Kind.ERROR_DONE)])
async def test_breaks_hit_whole_answers_too(engine: SimulatedEngine, fault: Fault) -> None:
    await engine.inject(fault)
    reader, writer = await raw(engine, raw_chat(chat()))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (ConnectionResetError, asyncio.IncompleteReadError):
        assert fault.kind is Kind.RESET_AFTER
    else:
        assert head.startswith(b"HTTP/1.1 500" if fault.kind is Kind.ERROR_DONE else b"HTTP/1.1 200")
    writer.close()
    await until(lambda: engine.facts.broken == 1)


async def test_hang_sends_not_a_byte(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.HANG, times=1))
    reader, writer = await raw(engine, raw_chat(streamed()))
    await until(lambda: engine.facts.engine_calls == 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.02)
    writer.close()
    await until(lambda: engine.facts.aborted == 1)
    assert engine.facts.departures[0].phase == "unborn"


@pytest.mark.parametrize("after", [0, 3])
async def test_hang_after_falls_silent_and_keeps_the_connection(engine: SimulatedEngine, after: int) -> None:
    await engine.inject(Fault(Kind.HANG_AFTER, after=after))
    reader, writer = await raw(engine, raw_chat(streamed()))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    for _ in range(after):
        await reader.readuntil(b"\n\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readuntil(b"data: "), 0.02)
    assert engine.facts.live == 1
    writer.close()
    await until(lambda: engine.facts.live == 0)
    assert engine.facts.aborted == 1


@pytest.mark.parametrize(
    ("fault", "status", "says", "headers"),
    [
        (Fault(Kind.STATUS, status=503, retry_after_s=2), 503, "currently busy", {"retry-after": "2"}),
        (Fault(Kind.STATUS, status=429, retry_after_ms=150), 429, "Too many", {"retry-after-ms": "150"}),
        (Fault(Kind.STATUS, status=500), 500, "cannot schedule new futures after shutdown", {}),
        (Fault(Kind.STATUS, status=418, body='{"error":"tea"}'), 418, "tea", {}),
    ],
)
async def test_statuses_come_with_their_bodies_and_headers(
    http: aiohttp.ClientSession, engine: SimulatedEngine, fault: Fault, status: int, says: str, headers: dict[str, str]
) -> None:
    await engine.inject(fault)
    async with http.post(engine.url + CHAT, json=chat()) as response:
        assert response.status == status
        assert says in await response.text()
        assert {name: response.headers[name] for name in headers} == headers
    assert engine.model.iterations == 0


async def test_error_first_is_a_200_stream_that_begins_with_an_error(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    await engine.inject(Fault(Kind.ERROR_FIRST))
    error, done = events(await stream(http, engine, streamed()))
    assert error["error"]["message"] == "The request queue is full."
    assert (error["error"]["code"], done) == (503, "[DONE]")
    status, answer = await post(http, engine, CHAT, chat())
    assert (status, answer["object"]) == (503, "error")


async def test_error_done_is_the_end_of_a_dead_core(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.ERROR_DONE, after=3))
    told = events(await stream(http, engine, streamed()))
    assert len(told) == 5
    assert told[3]["error"]["message"].startswith("EngineCore encountered an issue.")
    assert told[4] == "[DONE]"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_abort_ends_cleanly_with_that_reason(
    http: aiohttp.ClientSession, engine: SimulatedEngine, is_stream: bool
) -> None:
    await engine.inject(Fault(Kind.ABORT, after=4))
    if is_stream:
        told = events(await stream(http, engine, streamed()))
        assert told[4]["choices"][0]["finish_reason"] == "abort"
        assert told[-2]["usage"]["completion_tokens"] == 4
        assert told[-1] == "[DONE]"
    else:
        _, answer = await post(http, engine, CHAT, chat())
        assert answer["choices"][0]["finish_reason"] == "abort"


async def test_gzip_is_readable_streamed_and_whole(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    plain = text(await stream(http, engine, streamed()))
    await engine.inject(Fault(Kind.GZIP))
    assert text(await stream(http, engine, streamed())) == plain
    async with http.post(engine.url + CHAT, json=chat()) as response:
        assert response.headers["content-encoding"] == "gzip"
        assert (await response.json())["choices"][0]["message"]["content"] == plain


async def test_crlf_lines(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.CRLF))
    data = await stream(http, engine, streamed())
    assert data.count(b"\r\n") == data.count(b"\n") > 0
    assert events(data)[-1] == "[DONE]"


async def test_dribble_sends_single_bytes_through_characters(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.DRIBBLE))
    reader, writer = await raw(engine, raw_chat(streamed(max_tokens=4, sim={"alphabet": "emoji"})))
    pieces: list[bytes] = []
    while not b"".join(pieces).endswith(b"0\r\n\r\n"):
        pieces.append(await reader.read(65_536))
    writer.close()
    data = b"".join(pieces)
    assert len(pieces) > len(data) / 20  # the kernel may join some, never many
    assert events(data)[-1] == "[DONE]"
    assert len(text(data).encode()) > 4 * 4


async def test_usage_twice_and_no_usage(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.USAGE_TWICE))
    told = events(await stream(http, engine, streamed()))
    assert [bool(event.get("usage")) for event in told[-3:-1]] == [True, True]
    await engine.clear()
    await engine.inject(Fault(Kind.NO_USAGE))
    assert not any("usage" in event for event in events(await stream(http, engine, streamed())))
    _, answer = await post(http, engine, CHAT, chat())
    assert "usage" not in answer


async def test_huge_error_and_huge_answer_are_as_long_as_asked(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    await engine.inject(Fault(Kind.HUGE_ERROR, status=500, size=3_000_000, times=1))
    async with http.post(engine.url + CHAT, json=chat()) as response:
        assert response.status == 500
        assert len(await response.read()) >= 3_000_000
    await engine.inject(Fault(Kind.HUGE_ANSWER, size=3_000_000, times=1))
    data = await stream(http, engine, streamed())
    assert len(data) >= 3_000_000
    assert events(data)[-1] == "[DONE]"


async def test_huge_answer_waits_for_its_reader(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.HUGE_ANSWER, size=1 << 40))
    reader, writer = await raw(engine, raw_chat(streamed()))
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await until(lambda: engine.facts.aborted == 1)


# of the engine as a whole


async def test_refused_connections_come_back_on_the_same_port(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    port = engine.port
    await engine.inject(Fault(Kind.REFUSE))
    with pytest.raises(ConnectionRefusedError):
        await raw(engine, b"")
    await engine.clear(Kind.REFUSE)
    assert engine.port == port
    assert await answers_well(http, engine)


async def test_one_connection_in_two_is_reset(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.RESET_ON_ACCEPT, probability=0.5))
    resets = 0
    for _ in range(40):  # seed 0: N = 40, p = .5, 4 sigma
        reader, writer = await raw(engine, b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        try:
            resets += not await reader.read(1)
        except ConnectionResetError:
            resets += 1
        writer.close()
    assert 8 <= resets <= 32


async def test_slow_stretches_the_steps_until_cleared(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.SLOW, factor=5.0))
    assert engine.model.slowdown == 5.0
    await engine.clear(Kind.SLOW)
    assert engine.model.slowdown == 1.0


@pytest.mark.parametrize("engine", [Settings(time_scale=0.01)], indirect=True)
async def test_stalled_engine_makes_no_token_and_goes_on_where_it_was(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    await engine.inject(Fault(Kind.STALL))
    answer = asyncio.create_task(stream(http, engine, streamed()))
    await until(lambda: engine.model.running == 1)
    async with http.get(f"{engine.url}/health") as response:
        assert response.status == 200
    assert (engine.model.iterations, answer.done()) == (0, False)
    await engine.clear()
    assert events(await answer)[-1] == "[DONE]"


async def test_black_hole_takes_connections_and_says_nothing(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.BLACK_HOLE))
    reader, writer = await raw(engine, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: engine.facts.calls["/health"] == 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.02)
    writer.close()


async def test_frozen_metrics_stay_as_they_were(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.FROZEN_METRICS))
    before = engine.page()
    await stream(http, engine, streamed())
    assert engine.page() == before
    await engine.clear()
    assert engine.page() != before


async def test_unhealthy_engine_still_works(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.UNHEALTHY))
    async with http.get(f"{engine.url}/health") as response:
        assert response.status == 503
    assert await answers_well(http, engine)


async def test_engine_that_is_not_ready_refuses_until_it_is(
    http: aiohttp.ClientSession, engine: SimulatedEngine
) -> None:
    await engine.inject(Fault(Kind.NOT_READY, seconds=0.02))
    async with http.get(f"{engine.url}/health") as response:
        assert response.status == 503
    status, _ = await post(http, engine, CHAT, chat())
    assert status == 503
    await until(lambda: engine.is_healthy)
    assert await answers_well(http, engine)


async def test_stale_connection_is_reset_when_used_again(engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.STALE_REUSE, seconds=0.005))
    get = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    reader, writer = await raw(engine, get)
    await reader.readuntil(b"}")
    await asyncio.sleep(0.01)
    assert engine.facts.connections == 1  # it looks alive
    writer.write(get)
    with pytest.raises(ConnectionResetError):
        await reader.readuntil(b"}")
    writer.close()


@pytest.mark.parametrize("engine", [Settings(keep_alive_s=0.005)], indirect=True)
async def test_idle_connection_is_closed_after_its_time(engine: SimulatedEngine) -> None:
    reader, writer = await raw(engine, b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    await reader.readuntil(b"}")
    assert await reader.read() == b""
    writer.close()


# which requests


async def test_faults_may_name_paths(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await engine.inject(Fault(Kind.STATUS, status=500, paths=("/metrics",)))
    async with http.get(f"{engine.url}/metrics") as response:
        assert response.status == 500
    assert await answers_well(http, engine)


def test_faults_count_down_and_leave() -> None:
    faults = Faults(Random(1))
    faults.add(Fault(Kind.RESET, times=2))
    faults.add(Fault(Kind.GZIP))
    drawn = [set(faults.draw("POST", CHAT)) for _ in range(3)]
    assert drawn == [{Kind.RESET, Kind.GZIP}, {Kind.RESET, Kind.GZIP}, {Kind.GZIP}]
    assert faults.draw("GET", "/health") == {}
    faults.clear(Kind.GZIP)
    assert list(faults) == []


def test_faults_strike_by_chance() -> None:
    faults = Faults(Random(1))
    faults.add(Fault(Kind.RESET, probability=0.01))
    struck = sum(bool(faults.draw("POST", CHAT)) for _ in range(10_000))
    assert 60 <= struck <= 140  # N = 10,000, p = .01, seed 1, 4 sigma


# over HTTP


async def test_faults_over_http(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    url = f"{engine.url}/sim/faults"
    fault = {"kind": "status", "status": 429, "retry_after_s": 1.5, "times": 1}
    async with http.post(url, json=fault) as response:
        assert response.status == 200
    async with http.get(url) as response:
        (held,) = await response.json()
        assert (held["kind"], held["status"], held["times"]) == ("status", 429, 1)
    async with http.post(engine.url + CHAT, json=chat()) as response:
        assert (response.status, response.headers["retry-after"]) == (429, "1.5")
    async with http.post(url, json={"kind": "gzip"}), http.delete(f"{url}?kind=gzip") as response:
        assert response.status == 200
    assert list(engine.faults) == []
    for wrong in ({"kind": "nope"}, {"sort": "reset"}, {}):
        async with http.post(url, json=wrong) as response:
            assert response.status == 400


async def test_facts_over_http(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await stream(http, engine, streamed())
    async with http.get(f"{engine.url}/sim/facts") as response:
        facts: dict[str, Any] = json.loads(await response.read())
    assert facts["calls"] == {CHAT: 1}
    assert (facts["finished"], facts["live"], facts["aborted"]) == (1, 0, 0)
    assert json.loads(facts["last"]["body"]) == streamed()
    async with http.post(f"{engine.url}/sim/forget") as response:
        assert response.status == 200
    assert engine.model.kv.idle == 0
    async with http.get(f"{engine.url}/sim/nope") as response:
        assert response.status == 404


async def test_life_and_death_over_http(http: aiohttp.ClientSession, engine: SimulatedEngine) -> None:
    await stream(http, engine, streamed())
    incarnation = engine.model
    async with http.post(f"{engine.url}/sim/restart") as response:
        assert response.status == 202
    await until(lambda: engine.model is not incarnation and engine.is_listening)
    assert await answers_well(http, engine)
    async with http.post(f"{engine.url}/sim/terminate", json={"mode": "abort"}) as response:
        assert response.status == 202
    await until(lambda: not engine.is_listening)
