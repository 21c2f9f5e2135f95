"""No key and no prompt leaves by a side door: not in logs, not in metrics, not on the admin pages, whatever fails.

Every failure is asked for with a key and a prompt that are found again wherever they stand. What an engine answers is
its own: it may quote the prompt to the client who sent it. Logs are read at debug level, as the command writes them.
"""

import asyncio
import hashlib
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest

from gateway.app import Gateway
from gateway.logs import Discreet
from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from tests.until import until
from tests.wire.client import CHAT, Headers, RawClient, call, chat, get, request
from tests.wire.engine import EVENTS_HEAD, Call, Script, ScriptedEngine, chunk, says, whole
from tests.wire.house import asked, serving

KEY = "sk-4f1dThisIsTheKey9c"
PROMPT = "Zanzibarian tourmaline"
STREAM = chat(PROMPT, stream=True)
WHOLE = chat(PROMPT)
BEARER: Headers = [("Authorization", f"Bearer {KEY}")]
TENANT = {"name": "acme", "key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}
STRANGER = {"name": "acme", "key_sha256": ["0" * 64]}
QUOTED = orjson.dumps({"error": {"message": f"cannot take {PROMPT!r} of {KEY}", "type": "x", "code": 400}})

Failing: TypeAlias = Callable[[Gateway], Awaitable[object]]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """All that is logged, by any library."""
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    handler.setFormatter(Discreet("%(asctime)s %(levelname)-7s %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield told
    root.setLevel(level)
    root.removeHandler(handler)


class Doors:
    """Whatever can be read beside the answers."""

    def __init__(self, log: Path, lines: io.StringIO) -> None:
        self._log = log
        self._lines = lines
        self._pages: list[bytes] = []

    async def read(self, gateway: Gateway) -> None:
        """Read the pages that the gateway shows."""
        for path in ("/metrics", "/admin/endpoints", "/admin/tenants", "/admin/doctor", "/admin/overview"):
            self._pages.append((await get(gateway.admin_url, path)).body)

    def check(self) -> None:
        """Make sure that neither key nor prompt stands anywhere; the log must have lines."""
        told = [self._lines.getvalue().encode(), *self._pages, self._log.read_bytes()]
        assert all(told[1:2])
        assert told[-1]
        for page in told:
            for word in (KEY, PROMPT, *PROMPT.split()):
                assert word.encode() not in page, page[max(0, page.index(word.encode()) - 300) :][:600]


@asynccontextmanager
async def watched(
    url: str, tmp_path: Path, lines: io.StringIO, tenant: dict[str, Any] = TENANT, **sections: Any
) -> AsyncIterator[Gateway]:
    """Serve in front of an engine, and look behind all doors at the end."""
    log = tmp_path / "access.log"
    doors = Doors(log, lines)
    async with serving(url, tenants=[tenant], access_log={"path": str(log)}, **sections) as gateway:
        yield gateway
        await doors.read(gateway)
    doors.check()


REFUSED: dict[str, tuple[str, bytes, Headers]] = {
    "no JSON": (CHAT, b'{"model":"sim","messages":"' + PROMPT.encode(), BEARER),
    "no object": (CHAT, orjson.dumps([PROMPT]), BEARER),
    "no model": (CHAT, orjson.dumps({"messages": [PROMPT]}), BEARER),
    "an unknown model": (CHAT, orjson.dumps({"model": PROMPT, "messages": []}), BEARER),
    "a model that is no text": (CHAT, orjson.dumps({"model": [PROMPT], "messages": []}), BEARER),
    "an unknown path": (f"/v1/{PROMPT.split()[0]}?key={KEY}", WHOLE, BEARER),
    "a key in the query": (f"{CHAT}?key={KEY}", WHOLE, [("Authorization", f"Basic {KEY}")]),
    "the key as no bearer's": (CHAT, WHOLE, [("Authorization", KEY)]),
    "a wrong key": (CHAT, WHOLE, [("x-api-key", KEY + "x")]),
    "too long a body": (CHAT, chat(PROMPT * 10_000), BEARER),
    "too long a context": (CHAT, chat(PROMPT * 2000, max_tokens=30_000), BEARER),
    "too many fields": (
        CHAT,
        orjson.dumps({"model": "sim", "priority": 1, **{PROMPT * at: 1 for at in range(1001)}})[:60_000],
        BEARER,
    ),
    "a stored response of nobody": (f"/v1/responses/{PROMPT.split()[0]}/cancel", b"", BEARER),
    "a previous response of nobody": (
        "/v1/responses",
        orjson.dumps({"model": "sim", "input": PROMPT, "previous_response_id": PROMPT}),
        BEARER,
    ),
    "a prompt that is odd": (CHAT, orjson.dumps({"model": "sim", "messages": {PROMPT: [PROMPT]}}), BEARER),
    "a lone surrogate": (
        CHAT,
        b'{"model":"sim","messages":[{"role":"user","content":"%b \\ud800"}]}' % PROMPT.encode(),
        BEARER,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_the_gateway_refuses_leaves_no_trace_of_key_or_prompt(
    what: str, tmp_path: Path, lines: io.StringIO
) -> None:
    target, body, headers = REFUSED[what]
    async with (
        Cluster(1, Settings(time_scale=0)) as cluster,
        watched(cluster.urls[0], tmp_path, lines, listen={"max_body_bytes": 100_000}) as gateway,
    ):
        answer = await call(gateway.url, target, body, headers)
        assert 400 <= answer.status < 500


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization Bearer %b\r\n\r\n" % KEY.encode(),
        b"%b %b\r\n\r\n" % (KEY.encode(), PROMPT.encode()),
        b"POST %b HTTP/1.1\r\nhost: g\r\nx: \x00%b\r\n\r\n" % (CHAT.encode(), KEY.encode()),
        request(CHAT, b"zz\r\n" + WHOLE, [*BEARER, ("Transfer-Encoding", "chunked")]),
        request(CHAT, WHOLE, [*BEARER, ("Content-Encoding", "gzip")]),
        request(CHAT, WHOLE, [*BEARER, ("x", PROMPT * 10_000)]),
        request(CHAT, WHOLE[:-1], [*BEARER, ("Content-Length", str(len(WHOLE) + 9))]),
    ],
    ids=["bad header", "bad line", "bad value", "bad chunk", "bad encoding", "huge header", "half a body"],
)
async def test_what_is_no_http_leaves_no_trace(data: bytes, tmp_path: Path, lines: io.StringIO) -> None:
    async with (
        Cluster(1, Settings(time_scale=0)) as cluster,
        watched(cluster.urls[0], tmp_path, lines, listen={"body_timeout_s": 0.05}) as gateway,
    ):
        async with RawClient.to(gateway.url) as client:
            client.send(data)
            assert 400 <= (await client.head()).status < 500
        assert (await call(gateway.url, CHAT, WHOLE, BEARER)).status == 200


FAULTS = [
    Fault(Kind.RESET),
    Fault(Kind.RESET_AFTER, after=3),
    Fault(Kind.CLOSE_AFTER, after=3),
    Fault(Kind.TRUNCATE, after=3),
    Fault(Kind.HANG),
    Fault(Kind.HANG_AFTER, after=3),
    Fault(Kind.STATUS, status=500, body=QUOTED.decode()),
    Fault(Kind.STATUS, status=503, body=QUOTED.decode()),
    Fault(Kind.STATUS, status=401, body=QUOTED.decode()),
    Fault(Kind.STATUS, status=400, body=PROMPT + KEY),
    Fault(Kind.ERROR_FIRST),
    Fault(Kind.ERROR_DONE, after=3),
    Fault(Kind.ABORT, after=3),
    Fault(Kind.NOT_READY),
    Fault(Kind.REFUSE),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.status}")
@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_an_engine_that_fails_leaves_no_trace(
    fault: Fault, body: bytes, tmp_path: Path, lines: io.StringIO
) -> None:
    timeouts = {"first_byte_s": 0.05, "idle_s": 0.05}
    async with (
        Cluster(1, Settings(time_scale=0.01)) as cluster,
        watched(cluster.urls[0], tmp_path, lines, timeouts=timeouts) as gateway,
    ):
        await cluster[0].inject(fault)
        await asyncio.wait([asyncio.ensure_future(call(gateway.url, CHAT, body, BEARER))])
        await cluster[0].clear()


SAID: dict[str, Script] = {
    "no HTTP": says(f"{PROMPT} {KEY}\r\n\r\n".encode()),
    "a bad header": says(f"HTTP/1.1 200 OK\r\n{PROMPT} {KEY}\r\n\r\n".encode()),
    "an error in a 200": says(whole(200, QUOTED)),
    "a page": says(whole(502, PROMPT.encode(), content_type="text/html")),
    "an error in a stream": says(
        EVENTS_HEAD
        + chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        + chunk(b"data: " + QUOTED + b"\n\n")
        + b"0\r\n\r\n"
    ),
    "what is packed badly": says(
        whole(200, PROMPT.encode(), "content-encoding: gzip", content_type="text/event-stream")
    ),
}


@pytest.mark.parametrize("what", SAID)
async def test_what_an_engine_says_of_a_prompt_is_told_to_its_client_alone(
    what: str, tmp_path: Path, lines: io.StringIO
) -> None:
    async with ScriptedEngine(SAID[what]) as engine, watched(engine.url, tmp_path, lines) as gateway:
        await call(gateway.url, CHAT, STREAM, BEARER)


async def test_a_client_that_leaves_leaves_no_trace(tmp_path: Path, lines: io.StringIO) -> None:
    async def script(asked: Call) -> None:
        asked.write(EVENTS_HEAD + chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'))
        await asked.gone()

    async with (
        ScriptedEngine(script) as engine,
        watched(engine.url, tmp_path, lines) as gateway,
        RawClient.to(gateway.url) as client,
    ):
        client.ask(CHAT, STREAM, BEARER)
        await anext(client.pieces(await client.head()))
        client.reset()
        await until(lambda: not gateway.proxy.active)


async def test_no_engine_sees_the_key_of_a_client(tmp_path: Path, lines: io.StringIO) -> None:
    carriers: Headers = [(name, KEY) for name in ("x-api-key", "api-key", "Cookie", "Proxy-Authorization")]
    async with Cluster(1, Settings(time_scale=0)) as cluster, watched(cluster.urls[0], tmp_path, lines) as gateway:
        assert (await call(gateway.url, CHAT, WHOLE, [*BEARER, *carriers])).status == 200
        (seen,) = asked(cluster[0])
        assert KEY not in repr((seen.target, seen.headers))
