"""Suite: one official client, once before an engine and once before the gateway, and whether it can tell.

A client runs as a process of its own (runner.py, runner.mjs), so that other versions and other languages can.
Two clusters of simulated engines do the same work: one is reached directly, the other through the gateway,
each with a fault of its own when a scenario asks for one. What differs by nature (ids, times) is put aside
before comparing: an id becomes the order in which it was first seen, so that ids that should agree still
must.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import aiohttp
import yaml

from gateway.app import running
from gateway.config import build
from loadtests.cluster import Cluster
from loadtests.faults import Fault
from loadtests.settings import Settings

HERE = Path(__file__).parent
Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
Outcome: TypeAlias = dict[str, Json]

MODEL = "lab/sim"
ENGINE = Settings(models=(MODEL,), time_scale=0.1, max_context_tokens=4096)
LONG = "word " * 5000  # tokens of the simulated engine: more than its context
LINE_BYTES = 1 << 24  # of an answer
ANSWER_LIMIT_S = 30.0
FREE_LIMIT_S = 2.0  # for an engine to see that its client left
IDS = {"id", "item_id", "response_id", "previous_response_id"}
TIMES = {"created", "created_at", "completed_at"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing a client does."""

    name: str
    steps: tuple[Mapping[str, Json], ...]
    faults: tuple[Mapping[str, Json], ...] = ()
    gateway: str = "same"
    only: str = ""
    """What the names of the clients that can do it begin with."""


def scenarios() -> list[Scenario]:
    """Read scenarios.yaml."""
    listed = yaml.safe_load((HERE / "scenarios.yaml").read_text())
    return [
        Scenario(
            entry["name"],
            tuple(_complete(step) for step in entry["steps"]),
            tuple(entry.get("faults", ())),
            entry.get("gateway", "same"),
            entry.get("only", ""),
        )
        for entry in listed
    ]


def _complete(step: dict[str, Json]) -> dict[str, Json]:
    """Give a step the model it does not name, and a long text where it wants one."""
    text = json.dumps(step).replace('"$LONG"', json.dumps(LONG))
    whole: dict[str, Json] = json.loads(text)
    body = whole.get("body")
    if isinstance(body, dict) and whole["call"] != "post":
        whole["body"] = {"model": MODEL, **body}
    return whole


class Client:
    """An official client in a process of its own."""

    def __init__(self, *command: str | Path) -> None:
        self._command = [str(word) for word in command]

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def _start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, limit=LINE_BYTES)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        self._process.kill()  # it has nothing to finish; awaited, so that its pipes are closed
        await self._process.communicate()

    async def run(self, url: str, steps: Sequence[Mapping[str, Json]]) -> list[Outcome]:
        """Run the steps against a server and return what each came to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"base_url": f"{url}/v1", "steps": steps}).encode() + b"\n")
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_LIMIT_S)
        except TimeoutError:
            await self._end()
            await self._start()  # its late answer must not be taken for the next one's
            raise
        assert line, "the client ended"
        outcomes: list[Outcome] = json.loads(line)
        return outcomes


class Sides:
    """A client, an engine, and the gateway before other engines."""

    def __init__(self, *command: str | Path) -> None:
        self.client = Client(*command)
        self.direct = Cluster(1, ENGINE)
        self.behind = Cluster(2, ENGINE)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.direct)
            await stack.enter_async_context(self.behind)
            config = {
                "listen": {"port": 0, "admin_port": 0},
                "health": {"interval_s": 0.1, "state_interval_s": 0.1},
                "pools": [{"endpoints": [{"url": url} for url in self.behind.urls]}],
                "anonymous": {},
            }
            self.gateway = await stack.enter_async_context(running(build(config, "test", {})))
            await stack.enter_async_context(self.client)
            await self._until_ready()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def run(self, scenario: Scenario) -> tuple[list[Outcome], list[Outcome]]:
        """Run a scenario on both sides: what came of it directly, and what through the gateway."""
        direct = await self._run(self.direct, self.direct.urls[0], scenario)
        through = await self._run(self.behind, self.gateway.url, scenario)
        await self._until_ready()
        return direct, through

    async def _run(self, engines: Cluster, url: str, scenario: Scenario) -> list[Outcome]:
        for engine in engines:
            for fault in scenario.faults:
                await engine.inject(Fault(**fault))  # type: ignore[arg-type]
        outcomes = await self.client.run(url, scenario.steps)
        await engines.clear()
        await self._until_free(engines)
        return outcomes

    async def _until_free(self, engines: Cluster) -> None:
        async with asyncio.timeout(FREE_LIMIT_S):
            while any(engine.facts.live for engine in engines):  # noqa: ASYNC110  # they tell nobody
                await asyncio.sleep(0.01)

    async def _until_ready(self) -> None:
        """Wait until the gateway has forgiven its engines the last fault."""
        async with aiohttp.ClientSession() as session, asyncio.timeout(ANSWER_LIMIT_S):
            while (await session.get(f"{self.gateway.url}/readyz")).status != 200:  # noqa: ASYNC110  # nor does it
                await asyncio.sleep(0.05)


def check(scenario: Scenario, direct: Sequence[Outcome], through: Sequence[Outcome]) -> None:
    """Assert that the gateway's outcomes are what the scenario says of them."""
    assert len(direct) == len(through) == len(scenario.steps)
    for outcome in through:
        assert_named(outcome)
    judge = JUDGES[scenario.gateway]
    for at, (plain, ours) in enumerate(zip(faceless(direct), faceless(through), strict=True)):
        judge(plain, ours, f"step {at}")


def faceless(value: Sequence[Outcome]) -> list[Outcome]:
    """Replace ids by the order of their first appearance, and times by a word."""
    seen: dict[str, str] = {}

    def strip(value: Json, key: str = "") -> Json:
        if isinstance(value, dict):
            return {name: strip(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [strip(item, key) for item in value]
        if key in IDS and isinstance(value, str) and value != MODEL:
            return seen.setdefault(value, f"<id {len(seen)}>")
        if isinstance(value, str):
            for id, word in seen.items():
                value = value.replace(id, word)  # messages name ids
        return "<time>" if key in TIMES and value is not None else value

    return [
        {name: strip(item, name) for name, item in outcome.items() if name != "request_id"}  # engines need not give one
        for outcome in value
    ]


def _same(direct: Outcome, through: Outcome, where: str) -> None:
    assert through == direct, where


def _own_refusal(direct: Outcome, through: Outcome, where: str) -> None:
    names = ("error", "status_code")
    assert {name: through.get(name) for name in names} == {name: direct.get(name) for name in names}, where
    assert_ours(through, where)


def _models(direct: Outcome, through: Outcome, where: str) -> None:
    assert model_ids(through) == model_ids(direct), where


def _own_model(direct: Outcome, through: Outcome, where: str) -> None:
    assert direct["error"] == "NotFoundError", where
    assert model_ids(through) == [MODEL], where


def _no_fingerprint(direct: Outcome, through: Outcome, where: str) -> None:
    chunks = direct["chunks"]
    assert isinstance(chunks, list)
    for chunk in chunks:
        if isinstance(chunk, dict):
            chunk.pop("system_fingerprint", None)
    _same(direct, through, where)


def _rescued(direct: Outcome, through: Outcome, where: str) -> None:
    assert direct["error"] == "APIConnectionError", where
    assert "result" in through, where


def _failed(direct: Outcome, through: Outcome, where: str) -> None:
    assert "error" in direct, where
    assert (through["error"], through["status_code"]) == ("InternalServerError", 502), where
    assert_ours(through, where)


def _stream_error(direct: Outcome, through: Outcome, where: str) -> None:
    ours, theirs = through["chunks"], direct["chunks"]
    assert isinstance(ours, list), where
    assert isinstance(theirs, list), where
    assert len(ours) > 0, where
    assert ours == theirs[: len(ours)], where  # a reset may overtake the last ones, on either side
    assert through.get("error") == "APIError", where


JUDGES: Mapping[str, Callable[[Outcome, Outcome, str], None]] = {
    "same": _same,
    "own refusal": _own_refusal,
    "models": _models,
    "own model": _own_model,
    "no fingerprint": _no_fingerprint,
    "rescued": _rescued,
    "failed": _failed,
    "stream error": _stream_error,
}


def assert_named(outcome: Outcome) -> None:
    """Assert that the client can name the request: every answer has an x-request-id, errors included."""
    if isinstance(outcome.get("result"), dict) or "status_code" in outcome:
        assert str(outcome["request_id"]).startswith("req_"), outcome


def assert_ours(outcome: Outcome, where: str) -> None:
    """Assert that the client found the error object whole: a message, a type, a code that is a string."""
    body = outcome["body"]
    assert isinstance(body, dict), where
    assert set(body) == {"message", "type", "param", "code"}, where
    assert isinstance(body["code"], str), where


def model_ids(outcome: Outcome) -> list[Json]:
    """Name the models of a page, or the one of a single answer."""
    result = outcome["result"]
    assert isinstance(result, dict)
    listed = result.get("data", [result])
    assert isinstance(listed, list)
    return [model["id"] for model in listed if isinstance(model, dict)]
