"""What KV events cost: `python -m tests.gateway.engines.kvevents_speed`. It prints a table: CPU time, best of three.

A full cache in steady state: each message stores the new blocks of one prompt and removes as many old ones.
"""

import time
import tracemalloc
from array import array
from collections.abc import Callable

import msgspec

from gateway.engines.kvevents import decode
from policies.blocks import EngineBlocks
from policies.endpoint import Endpoint
from policies.index import PrefixIndex
from policies.prefix import root_of
from policies.request import BlockHash

RUNS = 3
CACHE_TOKENS = 400_000
PROMPT_TOKENS = 2048
MESSAGES = 50
ROOT = root_of("m")


def root(adapter: str, salt: str) -> BlockHash:
    return ROOT


def name(prompt: int, block: int) -> int:
    return hash((prompt, block)) & ((1 << 64) - 1)


def message(prompt: int, block: int, gone: int | None, *, is_each_alone: bool) -> bytes:
    """Tell that a prompt is stored, and one before it removed, tail first, a block an event as engines do."""
    count = PROMPT_TOKENS // block
    tokens = [(prompt * 31 + at) % 150_000 for at in range(PROMPT_TOKENS)]
    events: list[object] = []
    if gone is not None:
        events += [
            {"type": "BlockRemoved", "block_hashes": [name(gone, at)], "medium": "GPU", "group_idx": 0}
            for at in reversed(range(count))
        ]
    names = [name(prompt, at) for at in range(count)]
    for first in range(count) if is_each_alone else (0,):
        last = first + 1 if is_each_alone else count
        events.append(
            {
                "type": "BlockStored",
                "block_hashes": names[first:last],
                "parent_block_hash": names[first - 1] if first else None,
                "token_ids": tokens[first * block : last * block],
                "block_size": block,
                "lora_id": None,
                "medium": "GPU",
            }
        )
    return msgspec.msgpack.encode([1.0, events, 0])


def take_in(payload: bytes, blocks: EngineBlocks, index: PrefixIndex, endpoint: Endpoint) -> None:
    batch = decode(payload)
    assert batch is not None
    for event in batch.events():
        gone, held = blocks.apply(event)
        if gone:
            index.removed(endpoint, gone)
        for run in held:
            index.stored(endpoint, run, 0.0)


def best_of(runs: int, run: Callable[[], float]) -> float:
    return min(run() for _ in range(runs))


def measure(block: int, unit: int, *, is_each_alone: bool) -> None:
    prompts = CACHE_TOKENS // PROMPT_TOKENS
    fill = [message(at, block, None, is_each_alone=is_each_alone) for at in range(prompts)]
    steady = [message(prompts + at, block, at, is_each_alone=is_each_alone) for at in range(MESSAGES)]
    kept: list[float] = []

    def run() -> float:
        blocks, index, endpoint = EngineBlocks(unit, root), PrefixIndex(), Endpoint("e", "http://e", unit_tokens=unit)
        index.follow(endpoint)
        for payload in fill:
            take_in(payload, blocks, index, endpoint)
        began = time.process_time()
        for payload in steady:
            take_in(payload, blocks, index, endpoint)
        return time.process_time() - began

    seconds = best_of(RUNS, run)
    tracemalloc.start()
    blocks = EngineBlocks(unit, root)
    before = tracemalloc.get_traced_memory()[0]
    for payload in fill:
        batch = decode(payload)
        assert batch is not None
        for event in batch.events():
            blocks.apply(event)
        del batch
    kept.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    count = PROMPT_TOKENS // block
    print(
        f"{block:6} {unit:5} {'one' if is_each_alone else 'all':>10} {seconds / MESSAGES * 1e6:10.0f} "
        f"{seconds / MESSAGES / count / 2 * 1e6:12.2f} {len(blocks):9} {kept[0] / len(blocks):11.0f}"
    )


def main() -> None:
    """Print the table."""
    assert array("I").itemsize == 4
    print(" block  unit  per event us/message us/block (stored or removed) blocks bytes/block")
    for block, unit, is_each_alone in (
        (16, 64, False),
        (32, 64, False),
        (128, 128, False),
        (64, 64, True),
        (1, 64, True),
    ):
        measure(block, unit, is_each_alone=is_each_alone)


if __name__ == "__main__":
    main()
