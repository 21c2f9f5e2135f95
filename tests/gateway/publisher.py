"""Publisher: an engine's side of KV events, as vLLM has it, in this process: numbers, a buffer, answers to replays."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec
import zmq
import zmq.asyncio

from tests.until import PATIENCE_S

END = b"\xff" * 8
BEFORE = 1795966402.0  # engines' clocks

Entry = dict[str, object]


def stored(prompt: Sequence[int], first: int = 0, block: int = 16, **more: object) -> Entry:
    """Tell that the full blocks of a prompt are stored, from block `first` on; a block's name is made of its prompt."""
    ends = range((first + 1) * block, len(prompt) + 1, block)
    return {
        "type": "BlockStored",
        "block_hashes": [name(prompt[:end]) for end in ends],
        "parent_block_hash": name(prompt[: first * block]) if first else None,
        "token_ids": list(prompt[first * block : len(prompt) // block * block]),
        "block_size": block,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    } | more


def removed(*prompts: Sequence[int]) -> Entry:
    """Tell that the last blocks of some prompts are gone."""
    return {"type": "BlockRemoved", "block_hashes": [name(prompt) for prompt in prompts], "medium": "GPU"}


CLEARED: Entry = {"type": "AllBlocksCleared"}


def name(prompt: Sequence[int]) -> int:
    return hash(tuple(prompt)) & ((1 << 64) - 1)


class Publisher:
    """Publishes at one address and replays at another.

    Args:
        address: Where to publish.
        replay: Where to replay; None: nowhere.
        buffer: Messages that are kept for that.
        topics: Whether replayed messages carry the topic, as they do since mid-2026.
        connects: Whether it connects to the address, and the listener binds.
    """

    def __init__(
        self, address: str, replay: str | None, *, buffer: int = 10_000, topics: bool = True, connects: bool = False
    ) -> None:
        self.address = address
        self.replay = replay
        self.number = 0
        self.asked: list[int] = []
        """The numbers from which a replay was asked for."""
        self._topics = topics
        self._connects = connects
        self._started = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._context = zmq.asyncio.Context()
        self._open()

    def _open(self) -> None:
        self._publisher = self._context.socket(zmq.XPUB)  # a PUB that also says who listens
        self._publisher.setsockopt(zmq.LINGER, 0)
        self._publisher.setsockopt(zmq.SNDHWM, 100_000)
        (self._publisher.connect if self._connects else self._publisher.bind)(self.address)
        self._now: zmq.Socket[bytes] = zmq.Socket.shadow(self._publisher)
        self._task: asyncio.Task[None] | None = None
        if self.replay is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.setsockopt(zmq.LINGER, 0)
            self._router.setsockopt(zmq.SNDHWM, 100_000)
            self._router.bind(self.replay)
            self._task = asyncio.create_task(self._answer())

    async def is_heard(self) -> None:
        """Wait until somebody has subscribed: who is connected has not yet, and what is published then is lost."""
        assert await asyncio.wait_for(self._publisher.recv(), PATIENCE_S) == b"\x01"

    def publish(self, *entries: object, is_lost: bool = False, is_kept: bool = True) -> None:
        """Publish a batch; one that is lost reaches nobody, one that is not kept is not replayed."""
        payload = msgspec.msgpack.encode([BEFORE + 1000 * self._started + self.number, list(entries), 0])
        self.send(payload, is_lost=is_lost, is_kept=is_kept)

    def send(self, payload: bytes, *, is_lost: bool = False, is_kept: bool = True) -> None:
        """Publish whatever it is."""
        if not is_lost:
            self._now.send_multipart([b"kv@pod@model", self.number.to_bytes(8, "big"), payload])
        if is_kept:
            self._buffer.append((self.number, payload))
        self.number += 1

    def send_frames(self, *frames: bytes) -> None:
        """Send what is no message."""
        self._now.send_multipart(frames)

    async def pause(self) -> None:
        """Go away."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._router.close(linger=0)
        self._publisher.close(linger=0)

    def publish_while_away(self, *entries: object) -> None:
        """Publish a batch while nobody can hear it."""
        self.publish(*entries, is_lost=True)

    def forget(self) -> None:
        """Begin anew without going away."""
        self._buffer.clear()
        self.number = 0
        self._started += 1

    def resume(self) -> None:
        """Come back, as after a hiccup of the network."""
        self._open()

    def begin_anew(self) -> None:
        """Come back as a new process."""
        self.forget()
        self._open()

    async def _answer(self) -> None:
        while True:
            who, empty, first = await self._router.recv_multipart()
            assert empty == b""
            self.asked.append(int.from_bytes(first, "big"))
            topic = [b"kv@pod@model"] if self._topics else []
            for number, payload in list(self._buffer):
                if number >= self.asked[-1]:
                    await self._router.send_multipart([who, b"", *topic, number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([who, b"", *[b""][: len(topic)], END, b""])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.pause()
        self._context.destroy(linger=0)
