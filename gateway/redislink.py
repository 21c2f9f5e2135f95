"""Link: the way to one Redis, which opens again by itself; its breaker is whether there is a wire.

    resuming --connected, greeted--> up --lost while nobody waited--> resuming
        |                            |
        |  refused, or no            |  no answer in time, reset while somebody waited,
        v  wire in time              v  or an answer that says "not now": BUSY, LOADING, READONLY, OOM…
      down <-------------------------+
        |
        +--connected, greeted--> up

Whoever asks while it is up waits for one timeout at most; while it is down he is told so at once. While it resumes,
which it does where a server or something in between closed a silent connection, questions are held for as long as a
timeout takes, since most likely nothing is wrong.

To greet is to log in and to run a script that writes: a server that is busy, loading, full or a replica refuses it as
it would refuse any. A try begins `retry_s` after the one before began, or at once if that is long ago.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.rediswire import CONNECT_S, Access, Address, LineDown, Question, Refusal, Refused, Wire

log = logging.getLogger(__name__)

JITTER = 0.2  # of the time between tries, up or down, so that a fleet of gateways does not return in step
SAY_EVERY_S = 60.0  # a command that Redis refuses is one that comes often
PROBE_KEY = "kvlane:probe"
PROBE = "return redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])"  # a command alone may be refused where scripts are not
PROBE_MS = 1000  # how long the key stays

NOT_NOW = frozenset(("BUSY", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "OOM", "MISCONF", "NOAUTH"))
"""Errors that the next question would get as well."""
ELSEWHERE = frozenset(("MOVED", "ASK"))
"""Errors of a node in a cluster that is well: its slots have moved."""


@dataclass(slots=True)
class Counts:
    """What happened since the start."""

    calls: int = 0
    batches: int = 0
    """Round trips: what was asked within one turn of the loop is one."""
    failures: int = 0
    """Calls without an answer."""
    refusals: int = 0
    """Calls answered with an error of their own."""
    timeouts: int = 0
    """Times that Redis did not answer for too long; each ends a connection."""


class Link:
    """The way to one Redis."""

    def __init__(
        self,
        name: str,
        locate: Callable[[], Awaitable[Address]],
        access: Access,
        counts: Counts,
        chance: Random,
        *,
        on_change: Callable[[], None],
        redirect: Callable[[Question, Refusal], bool],
    ) -> None:
        """Not yet connected: see `open`.

        Args:
            name: For the log.
            locate: Says where the server is, before each try; may raise OSError and LineDown.
            access: How to talk to it.
            counts: Shared with other links.
            chance: For the jitter.
            on_change: Called when it went up or down.
            redirect: Takes over a question that belongs elsewhere; gives whether it did.
        """
        self.name = name
        self.is_up = True
        """Whether questions are taken; before the first try nobody knows better."""
        self.why = ""
        """Why it is down."""
        self.probe_key = PROBE_KEY
        self._locate = locate
        self._access = access
        self._counts = counts
        self._chance = chance
        self._on_change = on_change
        self._redirect = redirect
        self._wire: Wire | None = None
        self._held: list[Question] = []
        self._patience: asyncio.TimerHandle | None = None
        self._tried_at = float("-inf")
        self._down_at = 0.0
        self._said_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._is_closed = False

    def __repr__(self) -> str:
        state = "up" if self._wire else "resuming" if self.is_up else f"down: {self.why}"
        state = "closed" if self._is_closed else state
        return f"<Link {self.name} {state}>"

    def open(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._connect(), name=f"redis {self.name}")

    async def tried(self) -> None:
        """Wait until it was tried once to connect."""
        await self._first.wait()

    def send(self, question: Question) -> None:
        """Ask; a question that cannot be asked fails at once."""
        if self._wire is not None:
            self._wire.send(question)
        elif self.is_up and not self._is_closed:
            if not self._held:
                loop = asyncio.get_running_loop()
                self._patience = loop.call_later(self._access.timeout_s, self._go_down, "no connection in time")
            self._held.append(question)
        else:
            self._fail([question])

    async def close(self) -> None:
        """Let what was asked be answered within its time, and end."""
        self._is_closed = True
        if self._patience is not None:
            self._patience.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(self._take_held())
        if self._wire is not None:
            await self._wire.close()

    # What its wire says.

    def batch_left(self) -> None:
        self._counts.batches += 1

    def refused(self, question: Question, refusal: Refusal) -> None:
        kind = refusal.kind
        if kind == "NOSCRIPT" and question.script is not None:
            # Nothing was run. The text is sent in the caller's stead: he may have left, and still means it.
            question.command = ("EVAL", question.script.text, *question.command[2:])
            question.script = None
            self.send(question)
        elif self._redirect(question, refusal):
            pass
        elif kind in NOT_NOW:
            self._go_down(str(refusal))
            self._fail([question])
            if self._wire is not None:
                self._wire.lose(str(refusal))
        else:
            self._refuse(question, refusal)

    def lost(self, why: str, questions: Sequence[Question], *, is_timeout: bool) -> None:
        self._counts.timeouts += is_timeout
        self._wire = None
        if self._is_closed:
            self._fail(questions, why)
            return
        if questions or is_timeout or time.monotonic() < self._tried_at + self._access.retry_s:
            self._go_down(why)
        self._fail(questions, why)
        self.open()

    # The ways between the states.

    async def _connect(self) -> None:
        """Try until there is a wire."""
        while True:
            retry_s = self._access.retry_s * (1 + JITTER * (2 * self._chance.random() - 1))
            await asyncio.sleep(self._tried_at + retry_s - time.monotonic())
            self._tried_at = time.monotonic()
            try:
                await self._try()
                return
            except TimeoutError:
                self._go_down(f"no connection within {CONNECT_S:g} s")
            except Exception as error:  # whatever a name or a server is like, the trying does not end
                if self.is_up and not isinstance(error, OSError | LineDown | Refusal):
                    log.exception("redis %s: connecting failed inside the gateway", self.name)
                self._go_down(str(error) or type(error).__name__)
            finally:
                self._first.set()

    async def _try(self) -> None:
        """Connect, log in, and see that the server takes what we write.

        Raises:
            OSError: there is no connection.
            LineDown: it does not answer.
            Refusal: it refuses.
        """
        wire = await Wire.open(await self._locate(), self._access)
        async with wire.unless_it_fails():
            try:
                await wire.ask("EVAL", PROBE, 1, self.probe_key, PROBE_MS)
            except Refusal as refusal:
                if refusal.kind not in ELSEWHERE:
                    raise
            wire.adopt(self)
        self._go_up(wire)

    def _go_up(self, wire: Wire) -> None:
        self._wire = wire
        if self._patience is not None:
            self._patience.cancel()
        if not self.is_up:
            self.is_up = True
            self.why = ""
            log.warning("redis %s is up again, after %.1f s", self.name, time.monotonic() - self._down_at)
            self._on_change()
        for question in self._take_held():
            wire.send(question)

    def _go_down(self, why: str) -> None:
        self.why = why
        if self.is_up:
            self.is_up = False
            self._down_at = time.monotonic()
            log.warning("redis %s is down: %s", self.name, why)
            self._on_change()
        self._fail(self._take_held())

    def _refuse(self, question: Question, refusal: Refusal) -> None:
        text = str(refusal).partition(", with args")[0]  # those are not for logs
        self._counts.refusals += 1
        question.fail(Refused(text))
        now = time.monotonic()
        if now > self._said_at + SAY_EVERY_S:
            self._said_at = now
            log.warning("redis %s refuses %s: %s", self.name, question.command[0], text)

    def _take_held(self) -> list[Question]:
        held, self._held = self._held, []
        return held

    def _fail(self, questions: Sequence[Question], why: str = "") -> None:
        for question in questions:
            if question.fail(LineDown(f"redis {self.name}: {why or self.why or 'closed'}")):
                self._counts.failures += 1
