"""listening: the real listener for KV events, one engine, and what the index holds of it."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from gateway.config import EndpointConfig
from gateway.fleet import Fleet
from gateway.kvevents import KvEvents
from gateway.members import Member
from gateway.told import Told
from policies.index import PrefixIndex
from policies.prefix import block_hashes, root_of
from policies.request import BlockHash
from policies.spread import RoundRobin
from tests.until import until

PROMPTS = [tuple(range(1000 * at, 1000 * at + 256)) for at in range(1, 9)]
MODEL = "m"


def chain(prompt: Sequence[int], unit_tokens: int = 64) -> tuple[BlockHash, ...]:
    return block_hashes(root_of(MODEL), array("I", prompt), unit_tokens)


@dataclass
class Listening:
    """A listener, its one engine, and what the index holds of it."""

    kv_events: KvEvents
    fleet: Fleet
    member: Member
    unit_tokens: int = 64
    asked: int = 0
    """How often the unit was asked for."""

    def unit_tokens_of(self, member: Member) -> int:
        self.asked += 1
        return self.unit_tokens

    @property
    def told(self) -> Told:
        (told,) = self.kv_events.told()
        return told

    @property
    def index(self) -> PrefixIndex:
        return self.member.pool.index

    def held(self, *prompts: Sequence[int]) -> list[int]:
        """Count the units of each prompt that the index thinks are held."""
        return [self.index.matched_on(self.member.endpoint, chain(prompt, self.unit_tokens)) for prompt in prompts]

    async def comes_to_hold(self, *counts: int, of: Sequence[Sequence[int]] = PROMPTS) -> None:
        """Wait until so many units of the first prompts are held."""
        prompts = of[: len(counts)]
        await until(lambda: self.held(*prompts) == list(counts), f"{counts} held")

    async def is_followed(self) -> None:
        await until(lambda: self.told.is_followed, "followed")


@asynccontextmanager
async def listening(url: str = "http://127.0.0.1:1", kind: str = "vllm", **config: Any) -> AsyncIterator[Listening]:
    """Listen to one engine."""
    clock = asyncio.get_running_loop().time
    fleet = Fleet(clock)
    pool = fleet.add_pool("p", RoundRobin(Random(1)), PrefixIndex())
    member = fleet.add(pool, EndpointConfig(name="e0", url=url, kind=kind, **config))
    async with aiohttp.ClientSession() as session:
        kv_events = KvEvents(
            session,
            lambda _, adapter, salt: root_of(MODEL, adapter, salt),
            lambda member: whole.unit_tokens_of(member),
            clock,
        )
        whole = Listening(kv_events, fleet, member)
        kv_events.follow(member)
        try:
            yield whole
        finally:
            await kv_events.close()
