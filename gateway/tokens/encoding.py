"""Turns text into ids, where it costs the fewest others their time.

Short texts are encoded at once. Longer ones go to a few threads, by a call that lets go of the interpreter's lock; the
longest of them may not take all threads. What waits for a thread is bounded by its length: a prompt that would have to
wait a second for its ids is better served by an estimate now. Two requests for the same text share one job.
"""

import asyncio
from array import array
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

INLINE_CHARS = 2048  # half a millisecond of new text
LONG_CHARS = 256 << 10  # 0.13 s; jobs of this length leave one thread to the others
QUEUED_CHARS = 2 << 20  # a second of one core
THREADS = 2
LONG_AT_ONCE = THREADS - 1


class Encode(Protocol):
    """A tokenizer's call: text to ids, without what goes around a prompt."""

    def __call__(self, text: str, /) -> Sequence[int]: ...


class Encoder:
    """Encodes for all requests of one gateway; one for all models, since they share its cores."""

    def __init__(self, *, threads: int = THREADS, max_queued_chars: int = QUEUED_CHARS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokens")
        self._long = asyncio.Semaphore(max(1, threads - 1))
        self._max_queued_chars = max_queued_chars
        self._jobs: dict[Hashable, asyncio.Task[list[bytes]]] = {}
        self.queued_chars = 0

    async def encode(self, encode: Encode, texts: Sequence[str], key: Hashable) -> list[bytes] | None:
        """Give the ids of texts, four bytes each.

        Args:
            encode: The model's.
            texts: Each by itself.
            key: Names model and texts.
        Returns:
            None where too much waits already.
        """
        size = sum(map(len, texts))
        if size <= INLINE_CHARS:
            return _encoded(encode, texts)
        job = self._jobs.get(key)
        if job is None:
            if self.queued_chars and self.queued_chars + size > self._max_queued_chars:
                return None
            self.queued_chars += size
            job = asyncio.create_task(self._run(encode, texts, size))
            self._jobs[key] = job
            job.add_done_callback(lambda _: self._forget(key, size))
        return await asyncio.shield(job)  # others may wait for it when this client has gone

    async def run(self, work: Callable[[], str]) -> str:
        """Do other work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def close(self) -> None:
        """Let go of the threads; what they do now is finished first."""
        for job in list(self._jobs.values()):
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, encode: Encode, texts: Sequence[str], size: int) -> list[bytes]:
        loop = asyncio.get_running_loop()
        if size <= LONG_CHARS:
            return await loop.run_in_executor(self._threads, _encoded, encode, texts)
        async with self._long:
            return await loop.run_in_executor(self._threads, _encoded, encode, texts)

    def _forget(self, key: Hashable, size: int) -> None:
        self.queued_chars -= size
        del self._jobs[key]


def _encoded(encode: Encode, texts: Sequence[str]) -> list[bytes]:
    return [array("I", encode(text)).tobytes() for text in texts]
