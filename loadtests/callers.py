"""Callers: tenants that ask for many times what they may have, and two beside them by whom latency is measured.

Half of the tenants are limited by requests, half by tokens; what each may have is small, so that many times as much of
many tenants is what two cores can refuse. Bursts are BURST_S's worth: after a minute it is the rate that shows. Those
two have no limits, or such as are never reached: both send the same, by turns, and are always served.

Arrivals are Poisson, seeded, and do not wait for answers. What a tenant was given is counted here, by what answers say:
so many with 200, so many tokens. What it may have been given is its burst, and its rate times the time.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from time import monotonic

import orjson

from loadtests.client import Link, Outcome
from loadtests.drive import Target
from loadtests.several import Section
from loadtests.stand import MODEL
from loadtests.traffic import arrivals

PER_MINUTE = 12  # requests that a tenant may have; with 200 tenants at ten times that, 400 requests come in a second
BURST_S = 10
OUTPUT_TOKENS = (8, 24)  # of an answer, evenly
MAX_TOKENS = 32  # what is set aside for it: more than it comes to, as is usual
WORDS = 18
REQUEST_TOKENS = WORDS + 16 + sum(OUTPUT_TOKENS) // 2  # as the engines count, in the mean
NEVER = 1_000_000_000
MEASURED_PER_S = 20.0  # of each of the two
TIMEOUT_S = 20.0


class Kind(Enum):
    """What limits a caller."""

    REQUESTS = "by requests"
    TOKENS = "by tokens"
    FAR = "far off"
    NONE = "none"

    def limits(self, per_minute: int) -> dict[str, int]:
        """Give its section of the configuration: so many requests, or as many tokens as they come to."""
        burst = max(2, per_minute * BURST_S // 60)
        match self:
            case Kind.REQUESTS:
                return {"requests_per_minute": per_minute, "burst_requests": burst}
            case Kind.TOKENS:
                return {"tokens_per_minute": per_minute * REQUEST_TOKENS, "burst_tokens": burst * REQUEST_TOKENS}
            case Kind.FAR:
                return {"requests_per_minute": NEVER, "tokens_per_minute": NEVER}
            case Kind.NONE:
                return {}

    @property
    def is_pressing(self) -> bool:
        """Whether it asks for more than it may have."""
        return self in (Kind.REQUESTS, Kind.TOKENS)


@dataclass(eq=False, slots=True)
class Caller:
    """A tenant, and what it was given."""

    name: str
    kind: Kind
    per_minute: int = PER_MINUTE
    admitted: int = 0
    refused: int = 0
    failed: int = 0
    """Answered with neither 200 nor 429."""
    tokens: int = 0
    largest: int = 0
    """Tokens of the largest of its requests."""
    served_s: list[float] = field(default_factory=list)
    """How long each took that was admitted."""
    refused_s: list[float] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its API key."""
        return f"sk-{self.name}"

    @property
    def section(self) -> Section:
        """Give its section of the configuration."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()
        return {"name": self.name, "key_sha256": [digest], "limits": self.kind.limits(self.per_minute)}

    @property
    def offered(self) -> int:
        """Count its requests."""
        return self.admitted + self.refused + self.failed

    def allowed(self, seconds: float) -> float:
        """Say how much it may be given within so long: requests, or tokens."""
        rate, burst = self.kind.limits(self.per_minute).values()
        return burst + rate * seconds / 60

    @property
    def used(self) -> int:
        """Say how much it was given, as it is limited."""
        return self.tokens if self.kind is Kind.TOKENS else self.admitted

    @property
    def one(self) -> int:
        """Say what one request is, as it is limited; of unlike ones the largest."""
        return self.largest if self.kind is Kind.TOKENS else 1

    def error(self, seconds: float) -> float:
        """Say by which part of what it may have it was given more, or less."""
        return self.used / self.allowed(seconds) - 1

    def over(self, seconds: float) -> float:
        """Say by how many requests it was given more than it may have; below 0: less."""
        return (self.used - self.allowed(seconds)) / max(1, self.one)

    def note(self, outcome: Outcome, took_s: float) -> None:
        """Note an answer."""
        if outcome.status == 429:
            self.refused += 1
            self.refused_s.append(took_s)
        elif outcome.status == 200 and outcome.error is None:
            tokens = outcome.prompt_tokens + outcome.output_tokens
            self.admitted += 1
            self.tokens += tokens
            self.largest = max(self.largest, tokens)
            self.served_s.append(took_s)
        else:
            self.failed += 1


def callers(tenants: int, run: str, per_minute: int = PER_MINUTE) -> list[Caller]:
    """Make so many tenants, of either kind by turns, and the two by whom latency is measured.

    Args:
        run: In their names: what one run has used is nothing to the next.
    """
    kinds = [(Kind.REQUESTS, Kind.TOKENS)[at % 2] for at in range(tenants)]
    return [Caller(f"{run}-{at}", kind, per_minute) for at, kind in enumerate((*kinds, Kind.FAR, Kind.NONE))]


@dataclass(frozen=True, slots=True)
class Call:
    """A request to be."""

    at: float
    """Seconds after the start."""
    caller: Caller
    gateway: int
    request: bytes


def calls_of(people: Sequence[Caller], doors: Sequence["Door"], times: float, seconds: float, seed: int) -> list[Call]:
    """Give all calls in the order of their arrival, spread over the gateways."""
    found = [
        _call(at, caller, chance.randrange(len(doors)), doors, chance)
        for number, caller in enumerate(people)
        if caller.kind.is_pressing
        for chance in (Random(f"caller {seed} {number}"),)
        for at in arrivals(times * caller.per_minute / 60, seconds, chance)
    ]
    measured = [caller for caller in people if not caller.kind.is_pressing]
    chance = Random(f"measured {seed}")
    for turn, at in enumerate(arrivals(MEASURED_PER_S * len(measured), seconds, chance)):
        caller, gateway = measured[turn % len(measured)], turn // len(measured) % len(doors)
        found.append(_call(at, caller, gateway, doors, chance))
    return sorted(found, key=lambda call: call.at)


def warm_up(people: Sequence[Caller], doors: Sequence["Door"], each: int = 10) -> Iterator[Call]:
    """Give calls that count for nothing: connections are made then, and scripts known."""
    chance = Random(0)
    for caller in people:
        if not caller.kind.is_pressing:
            uncounted = Caller(caller.name, caller.kind)
            for turn in range(each * len(doors)):
                yield _call(0.0, uncounted, turn % len(doors), doors, chance)


def _call(at: float, caller: Caller, gateway: int, doors: Sequence["Door"], chance: Random) -> Call:
    words = " ".join(chance.choices(("one", "two", "three", "four", "five"), k=WORDS))
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": MAX_TOKENS,
        "sim": {"output_tokens": chance.randint(*OUTPUT_TOKENS)},
    }
    return Call(at, caller, gateway, doors[gateway].request(orjson.dumps(body), caller.key))


class Door:
    """The way to a gateway: as many connections as are needed at a time, and kept."""

    def __init__(self, url: str) -> None:
        self._target = Target(url=url, timeout_s=TIMEOUT_S)
        self._idle: list[Link] = []

    def request(self, body: bytes, key: str) -> bytes:
        """Render a whole request."""
        return self._target.request(body, headers={"authorization": f"Bearer {key}"})

    async def ask(self, request: bytes) -> Outcome:
        """Send a request, and wait for the end of its answer."""
        loop = asyncio.get_running_loop()
        outcome = Outcome(monotonic())
        while self._idle and not self._idle[-1].is_usable:
            self._idle.pop()
        if self._idle:
            link = self._idle.pop()
        else:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    _, link = await loop.create_connection(Link, *self._target.address)
            except (OSError, TimeoutError):
                outcome.error, outcome.last_at = "connect", monotonic()
                return outcome
        is_over = asyncio.Event()
        timer = loop.call_later(TIMEOUT_S, link.give_up)
        link.send(request, outcome, lambda link, outcome: is_over.set())
        try:
            await is_over.wait()
        except asyncio.CancelledError:
            link.close()
            raise
        finally:
            timer.cancel()
        if link.is_usable:
            self._idle.append(link)
        return outcome

    def close(self) -> None:
        """Close all connections that nobody uses."""
        for link in self._idle:
            link.close()


async def hold(calls: Sequence[Call], doors: Sequence[Door]) -> float:
    """Make all calls at their times; say how long it took, to the last answer. Each caller notes what it was given."""
    began = monotonic()

    async def make(call: Call) -> None:
        outcome = await doors[call.gateway].ask(call.request)
        call.caller.note(outcome, outcome.last_at - outcome.due_at)

    async with asyncio.TaskGroup() as group:
        for call in calls:
            if (delay_s := began + call.at - monotonic()) > 0:
                await asyncio.sleep(delay_s)
            group.create_task(make(call))
    return monotonic() - began
