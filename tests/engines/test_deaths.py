"""Real engines are killed in the middle of their work: nobody waits for ever, nothing is left charged, they come back.

What they do when they die is in the tests' names and differs: a connection that breaks, an error event followed by a
[DONE], an answer that is cut short but says 200, or silence on an open connection.
"""

import asyncio
import signal
from collections.abc import Callable

import orjson
import pytest

from gateway.app import Gateway
from policies.endpoint import Outstanding
from policies.health import State
from tests.engines.house import CHAT, ask, before, chat, endless, endpoints, in_flight, is_whole, until
from tests.engines.real import RealEngine
from tests.wire.client import Answer, RawClient, errors
from tests.wire.house import ready_endpoints, standing

pytestmark = pytest.mark.engines

IDLE_S = 3.0
FIRST_BYTE_S = 6.0
SLACK_S = 4.0  # of a busy machine, on top of what the timeouts allow
COMES_S = 60.0
DEATHS: dict[str, Callable[[RealEngine], None]] = {
    "SIGTERM": lambda engine: engine.signal(signal.SIGTERM),
    "SIGKILL": lambda engine: engine.signal(signal.SIGKILL),
    "SIGKILL of the core": lambda engine: engine.kill_core(),
}
TIMEOUTS = {"idle_s": IDLE_S, "first_byte_s": FIRST_BYTE_S, "connect_s": 1}


class Call:
    """A request on its way."""

    def __init__(self, gateway: Gateway, *, is_stream: bool) -> None:
        self.is_stream = is_stream
        self.is_under_way = asyncio.Event()
        self._gateway = gateway
        self._received: list[bytes] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> Answer:
        async with RawClient.to(self._gateway.url) as client:
            client.ask(CHAT, orjson.dumps(endless("until the end", stream=self.is_stream)))
            if not self.is_stream:
                return await client.answer()
            head = await client.head()
            try:
                async for piece in client.pieces(head):
                    self._received.append(piece)
                    self.is_under_way.set()
            except (asyncio.IncompleteReadError, ConnectionError):
                return Answer(head, b"".join(self._received), is_whole=False)
            return Answer(head, b"".join(self._received))


async def under_way(engine: RealEngine, calls: list[Call], expected: int) -> None:
    """Wait until streams flow and the engine works on what it is expected to."""
    async with asyncio.timeout(COMES_S):
        for call in calls:
            if call.is_stream:
                await call.is_under_way.wait()
        await engine.comes_to(expected)


async def ends(calls: list[Call], within_s: float) -> list[Answer]:
    """Wait for the answers; none may take longer."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    _, pending = await asyncio.wait([call.task for call in calls], timeout=within_s)
    print(f" all ended after {loop.time() - started:.1f} s", end="")
    assert not pending, f"{len(pending)} of {len(calls)} hang after {within_s:g} s"
    return [call.task.result() for call in calls]


def is_broken(answer: Answer) -> bool:
    """Say whether a stream told its client that it is not whole."""
    return answer.status == 200 and bool(errors(answer.body)) and b"[DONE]" not in answer.body


@pytest.mark.parametrize(
    ("busy", "death"),
    [
        ("vllm", "SIGTERM"),
        ("vllm", "SIGKILL"),
        ("vllm", "SIGKILL of the core"),
        ("slow llama.cpp", "SIGTERM"),
        ("slow llama.cpp", "SIGKILL"),
    ],
    indirect=["busy"],
)
async def test_nothing_hangs_and_the_engine_is_known_again_when_it_is_back(busy: RealEngine, death: str) -> None:
    async with before(busy, timeouts=TIMEOUTS) as gateway:
        (before_death,) = endpoints(gateway)
        calls = [Call(gateway, is_stream=at % 2 == 0) for at in range(4)]
        await under_way(busy, calls, 4)
        DEATHS[death](busy)
        answers = await ends(calls, FIRST_BYTE_S + SLACK_S)
        for call, answer in zip(calls, answers, strict=True):
            if call.is_stream:
                assert is_broken(answer), answer
                assert answer.is_whole  # its framing: the client reads the error, then the end
            else:
                assert answer.status in (500, 502, 504)
                assert answer.json["error"]["message"]
        assert in_flight(gateway) == [0]
        await busy.ended()
        await until(lambda: before_death.health.state in (State.EJECTED, State.DRAINING), lambda: before_death)
        refused = await ask(gateway, CHAT, chat(max_tokens=2))
        assert refused.status == 503
        assert int(refused.head["retry-after"]) >= 1
        await busy.start()
        await until(lambda: ready_endpoints(gateway) == ["E0"])
        await until(lambda: endpoints(gateway)[0] is not before_death, lambda: standing(gateway))
        await until(lambda: ready_endpoints(gateway) == ["E0"])
        assert (await ask(gateway, CHAT, chat(max_tokens=2))).status == 200
        assert before_death.outstanding == endpoints(gateway)[0].outstanding == Outstanding()


async def test_another_kind_of_engine_takes_over_what_has_shown_nothing_yet(
    busy: RealEngine, llama_up: RealEngine
) -> None:
    in_turn = {
        "policy": "round_robin",
        "endpoints": [{"name": "E0", "url": busy.url}, {"name": "E1", "url": llama_up.url}],
    }
    async with before(busy, llama_up, pools=[in_turn], timeouts=TIMEOUTS) as gateway:
        calls = [Call(gateway, is_stream=at % 4 < 2) for at in range(8)]
        await until(lambda: in_flight(gateway)[0] == 4, lambda: standing(gateway))
        await under_way(busy, calls, 4)
        busy.signal(signal.SIGTERM)
        answers = await ends(calls, FIRST_BYTE_S + COMES_S)
        for call, answer in zip(calls, answers, strict=True):
            if call.is_stream:
                assert is_whole(answer) if answer.head["x-kvlane-endpoint"] == "E1" else is_broken(answer), answer
            else:
                assert answer.status == 200, answer
                assert answer.json["usage"]["completion_tokens"] == 1900
                assert answer.head["x-kvlane-endpoint"] == "E1"
        assert any(map(is_broken, answers))
        later = [await ask(gateway, CHAT, chat(max_tokens=2)) for _ in range(10)]
        assert [answer.status for answer in later] == [200] * 10
        await busy.ended()
