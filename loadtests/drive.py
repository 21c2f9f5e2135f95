"""drive: open-loop load on any OpenAI endpoint.

Each call is sent when it is due, whether or not earlier ones have been answered; with a limit on concurrency
it waits here, and that wait counts in its times, so that a stalled system cannot hide what it does to
arrivals.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from types import MappingProxyType
from urllib.parse import urlsplit

from loadtests.client import Link, Outcome
from loadtests.traffic import Call

NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the load goes."""

    url: str
    """With or without /v1 at the end; of plain HTTP."""
    model: str = "sim"
    api_key: str | None = None
    timeout_s: float = 600.0
    """Of one request, from when it is sent."""
    max_concurrency: int | None = None
    ignore_eos: bool = False
    """Let engines of vLLM's kind make max_tokens tokens in any case."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def request(self, body: bytes, route: str = "/v1/chat/completions", headers: Mapping[str, str] = NONE) -> bytes:
        """Render a whole request; `headers` come on top of its own."""
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/").removesuffix("/v1")
        head = f"POST {path}{route} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        head += "content-type: application/json\r\naccept: text/event-stream\r\n"
        if self.api_key:
            head += f"authorization: Bearer {self.api_key}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body


@dataclass(slots=True)
class Run:
    """What came of a load."""

    outcomes: list[Outcome] = field(default_factory=list)
    started_at: float = 0.0
    ended_at: float = 0.0


class Driver:
    """Sends calls and gathers their outcomes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._idle: list[Link] = []
        self._waiting: deque[tuple[Call, float]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._left = 0
        self._all_over = asyncio.Event()
        self.run = Run()

    async def drive(self, calls: Iterable[Call]) -> Run:
        """Send all calls at their times; wait for the last answer."""
        run = self.run
        run.started_at = monotonic()
        self._left = 1  # the arrivals themselves
        for call in calls:
            due = run.started_at + call.at
            delay = due - monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            self._left += 1
            self._waiting.append((call, due))
            self._dispatch()
        self._over()
        await self._all_over.wait()
        run.ended_at = max([run.started_at, *(outcome.last_at for outcome in run.outcomes)])
        for link in self._idle:
            link.close()
        return run

    def _dispatch(self) -> None:
        """Send what waits, as far as the limit allows."""
        limit = self._target.max_concurrency
        while self._waiting and (limit is None or self._busy < limit):
            call, due = self._waiting.popleft()
            self._busy += 1
            outcome = Outcome(due)
            request = self._target.request(call.body(self._target.model, self._target.ignore_eos))
            while self._idle and not self._idle[-1].is_usable:
                self._idle.pop()
            if self._idle:
                self._send(self._idle.pop(), request, outcome)
            else:
                task = self._loop.create_task(self._connect(request, outcome))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _connect(self, request: bytes, outcome: Outcome) -> None:
        host, port = self._target.address
        try:
            async with asyncio.timeout(self._target.timeout_s):
                _, link = await self._loop.create_connection(Link, host, port)
        except (OSError, TimeoutError):
            outcome.error = "connect"
            outcome.last_at = monotonic()
            self._done(outcome)
            return
        self._send(link, request, outcome)

    def _send(self, link: Link, request: bytes, outcome: Outcome) -> None:
        timer = self._loop.call_later(self._target.timeout_s, link.give_up)

        def then(link: Link, outcome: Outcome) -> None:
            timer.cancel()
            if link.is_usable:
                self._idle.append(link)
            self._done(outcome)

        link.send(request, outcome, then)

    def _done(self, outcome: Outcome) -> None:
        self.run.outcomes.append(outcome)
        self._busy -= 1
        self._over()
        self._dispatch()

    def _over(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_over.set()


async def drive(target: Target, calls: Iterable[Call]) -> Run:
    """Drive a load and give its outcomes."""
    return await Driver(target).drive(calls)
