"""What a routing decision costs: LeastWork over a warm index, and what is charged and learned with it.

    python -m loadtests.bench.decision [--endpoints 64] [--memory]

The fleet is at work: each endpoint has 20 requests in flight, all share a system prompt of 2k tokens, and each holds
conversations of its own up to its 400k tokens of KV. Asked are turns that one endpoint holds but for the last 300
tokens (`warm`), prompts of which all hold the system prompt alone (`shared`), and prompts that nobody knows (`cold`).
`choose` is the decision; `charge` is books and index, at dispatch; `end` is first token and finish. `hash` is a
prompt hashed anew.

`--memory` sends a million unique prompts of 4 KB to 8 endpoints, and says by how much that grew the process.
"""

import argparse
import gc
import resource
from array import array
from collections.abc import Callable
from random import Random
from time import thread_time as clock  # what others do on the machine does not count

from policies import books
from policies.endpoint import Charge, Endpoint, EngineReport
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.prefix import block_hashes, root_of
from policies.request import UNIT_TOKENS, BlockHash, InferenceRequest

SEED = 1
KV_TOKENS = 400_000
SHARED_TOKENS = 2048
OWN_TAIL_TOKENS = 300
IN_FLIGHT = 20
ROUNDS = 2000
ROOT = root_of("m")


def ids(chance: Random, count: int) -> "array[int]":
    return array("I", chance.randbytes(4 * count))


class Fleet:
    """Endpoints at work, and what they hold."""

    def __init__(self, count: int, tokens: int) -> None:
        self.chance = Random(SEED)
        self.index = PrefixIndex()
        self.policy = LeastWork(self.index)
        self.endpoints = [
            Endpoint(f"e{at}", "", report=EngineReport(kv_capacity_tokens=KV_TOKENS)) for at in range(count)
        ]
        self.tokens = tokens
        self.system = block_hashes(ROOT, ids(self.chance, SHARED_TOKENS))
        self.held: list[tuple[BlockHash, ...]] = []
        for endpoint in self.endpoints:
            for at in range(KV_TOKENS // tokens):
                chain = self.after(self.system, tokens - SHARED_TOKENS)
                self.held.append(chain)
                self.index.learn(endpoint, chain, 0.0)
                if at < IN_FLIGHT:
                    charge = books.dispatch(endpoint, self.request(chain[: 4096 // UNIT_TOKENS]), 0.0, 4096)
                    books.first_token(charge, 0.1)

    def after(self, head: tuple[BlockHash, ...], count: int) -> tuple[BlockHash, ...]:
        return head + block_hashes(head[-1] if head else ROOT, ids(self.chance, count))

    def request(self, chain: tuple[BlockHash, ...]) -> InferenceRequest:
        prompt = len(chain) * UNIT_TOKENS + 30
        return InferenceRequest("r", "m", "t", prompt, 200, chain, ring_key=chain[31] if len(chain) > 31 else None)

    def warm(self) -> InferenceRequest:
        chain = self.chance.choice(self.held)
        return self.request(self.after(chain[: -(OWN_TAIL_TOKENS // UNIT_TOKENS)], OWN_TAIL_TOKENS))

    def shared(self) -> InferenceRequest:
        return self.request(self.after(self.system, self.tokens - SHARED_TOKENS))

    def cold(self) -> InferenceRequest:
        return self.request(self.after((), self.tokens))


def decide(fleet: Fleet, kind: str) -> tuple[list[float], list[float], list[float]]:
    """Give the seconds of many decisions, of what is charged with them, and of the ends of requests."""
    draw: Callable[[], InferenceRequest] = getattr(fleet, kind)
    choosing, charging, ending = [], [], []
    running: list[Charge] = []
    now = 1.0
    gc.collect()
    gc.freeze()  # as the gateway does
    for _ in range(ROUNDS):
        request = draw()
        now += 0.01
        t0 = clock()
        choice = fleet.policy.choose(request, fleet.endpoints, now)
        t1 = clock()
        charge = books.dispatch(choice.endpoint, request, now, choice.cached_tokens or 0)
        fleet.index.learn(choice.endpoint, request.prefix, now)
        t2 = clock()
        running.append(charge)
        choosing.append(t1 - t0)
        charging.append(t2 - t1)
        if len(running) > 2 * len(fleet.endpoints):
            t0 = clock()
            books.first_token(running[0], now)
            books.finish(running.pop(0), now + 1, 100)
            ending.append(clock() - t0)
    gc.unfreeze()
    return choosing, charging, ending


def measure(count: int, tokens: int, kind: str) -> None:
    """Print one row."""
    cells = "  ".join(f"{at(times, 0.5):6.1f} {at(times, 0.99):6.1f}" for times in decide(Fleet(count, tokens), kind))
    print(f"{count:9d} {tokens:7d}  {kind:7s} {cells}")


def at(times: list[float], share: float) -> float:
    """Give a percentile in microseconds."""
    return sorted(times)[int(share * len(times))] * 1e6


def hashing(tokens: int) -> None:
    """Print what hashing a prompt anew costs."""
    prompt = ids(Random(SEED), tokens)
    times = []
    for _ in range(500):
        start = clock()
        block_hashes(ROOT, prompt)
        times.append(clock() - start)
    print(f"hash {tokens:7d} tokens: p50 {at(times, 0.5):.0f} us, p99 {at(times, 0.99):.0f} us")


def memory() -> None:
    """Print what a million unique prompts leave behind."""
    index = PrefixIndex()
    endpoints = [Endpoint(f"e{each}", "", report=EngineReport(kv_capacity_tokens=KV_TOKENS)) for each in range(8)]
    filler = bytes(4 * 1020)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(1_000_000):
        chain = block_hashes(ROOT, array("I", [turn] * 4).tobytes() + filler)
        index.learn(endpoints[turn % 8], chain, float(turn))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"1,000,000 unique prompts of 4 KB on 8 endpoints: {grown:.1f} MB more, {len(index)} units")


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", type=int, default=64)
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    arguments = parser.parse_args()
    if arguments.memory:
        memory()
        return
    print("endpoints  tokens  prompt  choose us p50 p99  charge        end")
    for tokens in (4096, 16_384, 32_768):
        for kind in ("warm", "shared", "cold"):
            measure(arguments.endpoints, tokens, kind)
    for tokens in (4096, 16_384, 32_768):
        hashing(tokens)


if __name__ == "__main__":
    main()
