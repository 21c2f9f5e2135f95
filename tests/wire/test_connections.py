"""HTTP/1.1 with clients of every kind: keep-alive, pipelining, chunks, packed bodies, HEAD, Expect, HTTP/1.0."""

import gzip
import zlib

import orjson
import pytest

from gateway.app import Gateway
from loadtests.faults import Fault, Kind
from loadtests.server import SimulatedEngine
from tests.wire.client import CHAT, RawClient, chat, request
from tests.wire.engine import EVENTS_HEAD, Call, ScriptedEngine, chunk, says, whole
from tests.wire.house import asked, serving
from tests.wire.sse import DONE

CLOSE = ("Connection", "close")
CHUNKED = ("Transfer-Encoding", "chunked")


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


# Connections that last.


async def test_a_connection_serves_one_request_after_another(client: RawClient, gateway: Gateway) -> None:
    """Whatever the answers: whole, streamed, refused."""
    bodies = [chat(), chat(stream=True), b"nope", chat(model="nope"), chat(temperature=-1), chat()]
    for body, status in zip(bodies, [200, 200, 400, 404, 400, 200], strict=True):
        client.ask(CHAT, body)
        answer = await client.answer()
        assert answer.status == status
        assert "connection" not in answer.head
    client.ask("/nope", b"", method="GET")
    assert (await client.answer()).status == 404
    client.ask("/healthz", b"", method="GET")
    assert (await client.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order(client: RawClient, engine: SimulatedEngine) -> None:
    asks = [request(CHAT, chat(str(at), stream=at % 2 == 0), [("x-request-id", str(at))]) for at in range(6)]
    asks.insert(3, request("/healthz", method="GET"))
    client.send(b"".join(asks))
    answers = [await client.answer() for _ in asks]
    assert [answer.status for answer in answers] == [200] * 7
    ids = [answer.head["x-request-id"] for answer in answers if "x-request-id" in answer.head]
    assert ids == ["0", "1", "2", "3", "4", "5"]
    assert len(asked(engine)) == 6


async def test_a_request_in_single_bytes_is_read(client: RawClient) -> None:
    for byte in request(CHAT, chat()):
        client.send(bytes((byte,)))
        await client.flush()
    assert (await client.answer()).status == 200


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_asks_to_close_is_closed_after_its_answer(client: RawClient, is_stream: bool) -> None:
    client.ask(CHAT, chat(stream=is_stream), [CLOSE])
    answer = await client.answer()
    assert (answer.status, answer.is_whole) == (200, True)
    assert answer.head["connection"] == "close"
    assert await client.rest() == b""


async def test_an_engines_connection_is_used_again() -> None:
    """Behind whole answers, streams and refusals."""
    answers = [whole(200, b"{}"), EVENTS_HEAD + chunk(DONE) + b"0\r\n\r\n", whole(400, b'{"error":{}}')] * 3

    async def script(call: Call) -> None:
        call.write(answers.pop())

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway, RawClient.to(gateway.url) as client:
        while answers:
            client.ask(CHAT, chat())
            await client.answer()
        assert len(engine.calls) == 9
        assert len({call.writer for call in engine.calls}) == 1


# HTTP/1.0.


@pytest.mark.parametrize("body", [chat(), chat(stream=True), b"nope", chat(model="nope")])
async def test_an_old_client_gets_an_answer_that_ends_with_the_connection(client: RawClient, body: bytes) -> None:
    client.send(request(CHAT, body, version="1.0"))
    answer = await client.answer()
    assert "transfer-encoding" not in answer.head
    assert answer.is_whole
    if b"stream" in body:
        assert answer.body.endswith(b"data: [DONE]\n\n")
    elif answer.status == 200:
        assert answer.json["choices"]
    assert await client.rest() == b""


async def test_an_old_client_without_a_host_is_served(client: RawClient) -> None:
    client.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert (await client.answer()).json["data"]
    assert await client.rest() == b""


@pytest.mark.parametrize("body", [chat(), chat(stream=True), b"nope"])
async def test_an_old_client_that_asks_to_stay_is_told_whether_it_may(client: RawClient, body: bytes) -> None:
    """RFC 9112, appendix C.2.2: to HTTP/1.0 a connection without `keep-alive` in the answer is over."""
    client.send(request(CHAT, body, [("Connection", "keep-alive")], version="1.0"))
    answer = await client.answer()
    assert answer.is_whole
    if answer.head.all("connection") == ["keep-alive"]:
        client.ask("/healthz", b"", method="GET")
        assert (await client.answer()).status == 200
    else:
        assert await client.rest() == b""


async def test_an_old_client_never_sees_a_broken_answer_end_cleanly() -> None:
    """Where only the close ends a body, the close of a broken one must be a reset."""

    async def script(call: Call) -> None:
        call.write(whole(200, b"x" * 1000, content_type="audio/wav")[:-500])
        await call.writer.drain()
        call.close()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway, RawClient.to(gateway.url) as client:
        client.send(request("/v1/audio/speech", b'{"model":"sim","input":"a"}', version="1.0"))
        assert not (await client.answer()).is_whole


# HEAD.


@pytest.mark.parametrize(
    ("target", "status"),
    [("/v1/models", 200), ("/v1/models/sim", 200), ("/v1/models/nope", 404), ("/nope", 404), (CHAT, 405)],
)
async def test_head_is_answered_without_a_body(client: RawClient, target: str, status: int) -> None:
    client.ask(target, b"", method="HEAD")
    head = await client.head()
    assert head.status == status
    assert int(head["content-length"]) > 0
    client.ask("/healthz", b"", method="GET")
    assert (await client.answer()).status == 200, "the next answer follows at once"


# Bodies.


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_body_in_chunks_reaches_the_engine_with_its_length(
    client: RawClient, engine: SimulatedEngine, size: int
) -> None:
    body = chat("words " * 100)
    client.send(request(CHAT, b"", [CHUNKED]) + in_chunks(body, size))
    assert (await client.answer()).status == 200
    (seen,) = asked(engine)
    assert seen.body == body
    names = [name.lower() for name, _ in seen.headers]
    assert names.count("content-length") == 1
    assert "transfer-encoding" not in names


async def test_chunk_extensions_and_trailers_are_read_over(client: RawClient, engine: SimulatedEngine) -> None:
    body = chat()
    framed = b"%x;name=value\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(body), body)
    client.send(request(CHAT, b"", [CHUNKED]) + framed)
    assert (await client.answer()).status == 200
    (seen,) = asked(engine)
    assert seen.body == body
    assert "x-trailer" not in {name.lower() for name, _ in seen.headers}
    client.ask("/healthz", b"", method="GET")
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(chat(), mtime=0)),
        ("GZIP", gzip.compress(chat(), mtime=0)),
        ("deflate", zlib.compress(chat())),
        ("identity", chat()),
    ],
)
async def test_a_packed_body_reaches_the_engine_unpacked(
    client: RawClient, engine: SimulatedEngine, encoding: str, packed: bytes
) -> None:
    client.ask(CHAT, packed, [("Content-Encoding", encoding)])
    assert (await client.answer()).status == 200
    (seen,) = asked(engine)
    assert seen.body == chat()
    headers = {name.lower(): value for name, value in seen.headers}
    assert headers["content-length"] == str(len(chat()))
    assert headers.get("content-encoding", "identity") == "identity"


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", b"this is not gzip"),
        ("gzip", gzip.compress(chat(), mtime=0)[:-10]),
        ("deflate", b"\xff\xff\xff\xff"),
        ("br", b"\x0b\x02\x80"),
        ("zstd", b"(\xb5/\xfd"),
        ("compress", b"\x1f\x9d"),
        ("gzip, gzip", gzip.compress(gzip.compress(chat(), mtime=0), mtime=0)),
    ],
)
async def test_a_body_that_cannot_be_unpacked_is_the_clients_mistake(
    client: RawClient, engine: SimulatedEngine, encoding: str, packed: bytes
) -> None:
    client.ask(CHAT, packed, [("Content-Encoding", encoding)])
    answer = await client.answer()
    assert answer.status in (400, 415)
    assert answer.error["type"] == "invalid_request_error"
    assert asked(engine) == []


async def test_a_packed_body_is_measured_unpacked(engine: SimulatedEngine) -> None:
    """Some kilobytes can unpack to gigabytes."""
    async with serving(engine.url, listen={"max_body_bytes": 100_000}) as gateway, RawClient.to(gateway.url) as client:
        client.ask(CHAT, gzip.compress(chat(" " * 20_000_000)), [("Content-Encoding", "gzip")])
        assert (await client.answer()).refusal == (413, "invalid_request_error", "request_too_large")
        assert asked(engine) == []


# Expect.


async def test_a_client_that_waits_to_be_asked_is_asked(client: RawClient) -> None:
    client.send(request(CHAT, b"", [("Content-Length", str(len(chat()))), ("Expect", "100-Continue")]))
    assert (await client.head()).status == 100
    client.send(chat())
    answer = await client.answer()
    assert (answer.status, answer.is_whole) == (200, True)
    client.ask("/healthz", b"", method="GET")
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("target", "status"), [("/nope", 404), ("/v1/models", 405), ("/v1/responses/resp_1/input_items", 405)]
)
async def test_a_client_that_will_be_refused_is_not_asked(client: RawClient, target: str, status: int) -> None:
    client.send(request(target, b"", [("Content-Length", "10"), ("Expect", "100-continue")]))
    assert (await client.answer()).status == status


async def test_an_old_client_is_never_asked(client: RawClient) -> None:
    """RFC 9110, 10.1.1."""
    client.send(request(CHAT, chat(), [("Expect", "100-continue")], version="1.0"))
    assert (await client.answer()).status == 200


# Offers that are not taken up.


@pytest.mark.parametrize(
    "offer",
    [
        [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA")],
        [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")],
        [("Connection", "upgrade"), ("Upgrade", "TLS/1.0")],
    ],
)
async def test_an_offer_to_upgrade_is_declined_and_the_request_served(
    client: RawClient, engine: SimulatedEngine, offer: list[tuple[str, str]]
) -> None:
    """Java's HTTP client and `curl --http2` send one with every first request."""
    client.ask(CHAT, chat(), offer)
    answer = await client.answer()
    assert (answer.status, answer.is_whole) == (200, True)
    (seen,) = asked(engine)
    assert seen.body == chat()
    assert not {"upgrade", "http2-settings"} & {name.lower() for name, _ in seen.headers}


# Answers of every framing.


FRAMINGS = {
    "length": b"content-length: 12\r\n\r\n" + b'{"text":"a"}',
    "chunks": b"transfer-encoding: chunked\r\n\r\n" + in_chunks(b'{"text":"a"}', 5),
    "close": b"connection: close\r\n\r\n" + b'{"text":"a"}',
    "chunks, spelt otherwise": b"Transfer-Encoding: Chunked\r\n\r\n"
    + in_chunks(b'{"text":"a"}', 5).replace(b"5", b"05"),
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("media", [b"application/json", b"audio/wav"])
async def test_an_engine_may_frame_its_answer_as_it_likes(framing: str, media: bytes) -> None:
    async def script(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\ncontent-type: " + media + b"\r\n" + FRAMINGS[framing])
        if framing == "close":
            await call.writer.drain()
            call.close()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway, RawClient.to(gateway.url) as client:
        for _ in range(2):
            client.ask(CHAT, chat())
            answer = await client.answer()
            assert (answer.status, answer.body, answer.is_whole) == (200, b'{"text":"a"}', True)


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n"]
)
async def test_an_interim_answer_of_an_engine_is_not_the_answer(interim: bytes) -> None:
    script = says(interim * 2 + whole(200, b"{}"))
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway, RawClient.to(gateway.url) as client:
        client.ask(CHAT, chat())
        assert (await client.answer()).body == b"{}"


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_by_its_status_ends_with_its_head(status: int) -> None:
    script = says(b"HTTP/1.1 %d Nothing\r\n\r\n" % status)
    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway, RawClient.to(gateway.url) as client:
        client.ask(CHAT, chat())
        assert (await client.answer()).status in (status, 502)
        client.ask("/healthz", b"", method="GET")
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("media", ["audio/wav", "application/json"])
async def test_a_body_that_breaks_is_severed_before_its_end(media: str) -> None:
    """No client may take half of an answer for the whole."""

    async def script(call: Call) -> None:
        call.write(whole(200, bytes(100_000), content_type=media)[:-1])
        await call.writer.drain()
        call.reset() if b"reset" in call.body else call.close()

    async with ScriptedEngine(script) as engine, serving(engine.url) as gateway:
        for how in ("reset", "close"):
            async with RawClient.to(gateway.url) as client:
                client.ask("/v1/audio/speech", orjson.dumps({"model": "sim", "input": how}))
                answer = await client.answer()
                assert (answer.status, answer.is_whole) == (200, False)


async def test_a_refused_body_is_not_taken_for_the_next_request(engine: SimulatedEngine) -> None:
    hidden = request("/v1/models", method="GET")
    async with serving(engine.url, listen={"max_body_bytes": 10}) as gateway, RawClient.to(gateway.url) as client:
        client.send(request(CHAT, hidden))
        assert (await client.answer()).status == 413
        client.half_close()
        assert await client.rest() == b""


async def test_a_stale_connection_is_tried_once_more_on_a_fresh_one(client: RawClient, engine: SimulatedEngine) -> None:
    client.ask(CHAT, chat())
    await client.answer()
    await engine.inject(Fault(Kind.STALE_REUSE, seconds=0.001))
    for _ in range(5):
        client.ask(CHAT, chat())
        assert (await client.answer()).status == 200
