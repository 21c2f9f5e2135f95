"""Replay: real conversations held again over HTTP, many at once, each turn when the one before has been answered.

Several users have each conversation. They share its system prompt and nothing else: the first turn of each is signed.
Who begins when, and how long they think, is drawn from a seed, so that every policy meets the same people.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from loadtests.client import Link, Outcome
from loadtests.conversations import Conversation
from loadtests.drive import Run, Target

BEGIN_WITHIN_S = 3.0
THINK_S = 0.1  # the mean: agents and their tools are quick


@dataclass(frozen=True, slots=True)
class Session:
    """One user in one conversation."""

    conversation: Conversation
    user: str
    begins_s: float
    """After the start."""
    thinks_s: tuple[float, ...]
    """After each answer."""


def sessions(conversations: Sequence[Conversation], users: int, seed: int = 0) -> list[Session]:
    """Let so many users have each conversation."""
    found = []
    for conversation in conversations:
        for number in range(users):
            chance = Random(f"{seed} {conversation.name} {number}")
            thinks = tuple(chance.expovariate(1 / THINK_S) for _ in conversation.turns)
            begins = chance.random() * BEGIN_WITHIN_S
            found.append(Session(conversation, f"customer {number + 1}", begins, thinks))
    return found


async def replay(
    target: Target, people: Sequence[Session], *, time_scale: float = 1.0, on_answer: Callable[[], None] = lambda: None
) -> Run:
    """Hold all conversations.

    Args:
        time_scale: Real seconds per second, as the engines have it.
        on_answer: Called after each.
    """
    run = Run(started_at=time.monotonic())

    async def hold(session: Session) -> None:
        await asyncio.sleep(session.begins_s * time_scale)
        bodies = session.conversation.bodies(target.model, session.user)
        for body, think_s in zip(bodies, session.thinks_s, strict=True):
            run.outcomes.append(await call(target, body))
            on_answer()
            await asyncio.sleep(think_s * time_scale)

    async with asyncio.TaskGroup() as group:
        for session in people:
            group.create_task(hold(session))
    run.ended_at = max([run.started_at, *(outcome.last_at for outcome in run.outcomes)])
    return run


async def note_delays(delays_s: list[float], every_s: float = 0.05) -> None:
    """Note how late this process is woken up, until cancelled: what a busy machine adds to every time it measures."""
    while True:
        due = time.monotonic() + every_s
        await asyncio.sleep(every_s)
        delays_s.append(max(0.0, time.monotonic() - due))


async def call(target: Target, body: bytes) -> Outcome:
    """Make one call and wait for the end of its answer."""
    return await fetch(target, target.request(body), Outcome(time.monotonic()))


async def fetch(target: Target, request: bytes, outcome: Outcome) -> Outcome:
    """Send a whole request, on a connection of its own, and wait for the end of its answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def then(link: Link, outcome: Outcome) -> None:
        link.close()
        if not done.done():
            done.set_result(None)

    try:
        async with asyncio.timeout(target.timeout_s):
            _, link = await loop.create_connection(Link, *target.address)
    except (OSError, TimeoutError):
        outcome.error = "connect"
        outcome.last_at = time.monotonic()
        return outcome
    timer = loop.call_later(target.timeout_s, link.give_up)
    link.send(request, outcome, then)
    try:
        await done
    finally:
        timer.cancel()
        link.close()
    return outcome
