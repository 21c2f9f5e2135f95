"""Turns text into ids, where it costs the fewest others their time.

Short texts are encoded at once. Longer ones go to a few threads, by a call that lets go of the interpreter's lock; the
longest of them may not take all threads. What waits for a thread is bounded by its length: a prompt that would have to
wait a second for its ids is better served by an estimate now. Two requests for the same text share one job.

Large prompts also pass a turnstile, one in each round of the loop: what each does between two awaits takes
milliseconds, and a hundred that have become ready at once must not do theirs in a row.
"""

import asyncio
from array import array
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

INLINE_CHARS = 2048  # half a millisecond of new text
LONG_CHARS = 256 << 10  # 0.13 s; jobs of this length leave one thread to the others
QUEUED_CHARS = 2 << 20  # a second of one core
LARGE_BYTES = 32 << 10  # of a prompt: smaller ones are read within 0.2 ms once they are known
THREADS = 2


class Encode(Protocol):
    """A tokenizer's call: text to ids, without what goes around a prompt."""

    def __call__(self, text: str, /) -> Sequence[int]: ...


class Turnstile:
    """Lets one through in each round of the loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def pass_through(self) -> None:
        """Wait for a round of one's own; it lasts until the next await."""
        async with self._lock:
            await asyncio.sleep(0)


class Encoder:
    """Encodes for all requests of one gateway; one for all models, since they share its cores."""

    def __init__(self, *, threads: int = THREADS, max_queued_chars: int = QUEUED_CHARS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokens")
        self._long = asyncio.Semaphore(max(1, threads - 1))
        self._max_queued_chars = max_queued_chars
        self._jobs: dict[Hashable, asyncio.Task[bytes]] = {}
        self.queued_chars = 0
        self.turnstile = Turnstile()

    async def encode(
        self, encode: Encode, text: str, key: Hashable, *, inline_chars: int = INLINE_CHARS
    ) -> bytes | None:
        """Give the ids of a text, four bytes each.

        Args:
            encode: The model's.
            text: All that is new of one prompt.
            key: Names model and text.
            inline_chars: Texts up to this length are encoded here and now.
        Returns:
            None where too much waits already.
        """
        size = len(text)
        if size <= inline_chars:
            return _encoded(encode, text)
        job = self._jobs.get(key)
        if job is None:
            if self.queued_chars and self.queued_chars + size > self._max_queued_chars:
                return None
            self.queued_chars += size
            job = asyncio.create_task(self._run(encode, text))
            self._jobs[key] = job
            job.add_done_callback(lambda _: self._forget(key, size))
        return await asyncio.shield(job)  # others may wait for it when this client has gone

    async def run(self, work: Callable[[], str]) -> str:
        """Do other work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def close(self) -> None:
        """Let go of the threads; what they do now is finished first."""
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, encode: Encode, text: str) -> bytes:
        loop = asyncio.get_running_loop()
        if len(text) <= LONG_CHARS:
            return await loop.run_in_executor(self._threads, _encoded, encode, text)
        async with self._long:
            return await loop.run_in_executor(self._threads, _encoded, encode, text)

    def _forget(self, key: Hashable, size: int) -> None:
        self.queued_chars -= size
        del self._jobs[key]


def _encoded(encode: Encode, text: str) -> bytes:
    return array("I", encode(text)).tobytes()
