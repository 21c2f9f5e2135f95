"""Traffic: seeded arrivals and prompts, the same for every run with the same seed.

Arrivals are Poisson and do not wait for answers (open loop): a slow system gets no mercy. A prompt is one of
a few system prompts, the popular ones more often (Zipf), and a turn of its own; lengths are lognormal. Words
are one token each to a simulated engine, and about one to a real one.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import log
from random import Random

import orjson

from loadtests.tokens import Language


@dataclass(frozen=True, slots=True)
class Mix:
    """What the prompts are like."""

    system_prompts: int = 20
    system_tokens: int = 1000
    """Mean; sigma .7, within a fifth and two and a half times of it."""
    zipf: float = 1.0
    """How popularity falls with rank; 0 makes all alike."""
    turn_tokens: int = 100
    """Mean of what only this request has; sigma .8."""
    output_tokens: int = 100
    """Mean of max_tokens; sigma .8, at most ten times the mean."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to be."""

    at: float
    """Seconds after the start."""
    system: int
    """Which system prompt it has."""
    system_text: str
    turn_text: str
    max_tokens: int

    def body(self, model: str, ignore_eos: bool) -> bytes:
        """Render it as a streamed chat completion that asks for usage."""
        body = {
            "model": model,
            "messages": [
                {"role": "system", "content": self.system_text},
                {"role": "user", "content": self.turn_text},
            ],
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return orjson.dumps({**body, "ignore_eos": True} if ignore_eos else body)


def arrivals(rate: float, duration_s: float, chance: Random) -> Iterator[float]:
    """Give Poisson arrivals, in seconds after the start."""
    at = chance.expovariate(rate)
    while at < duration_s:
        yield at
        at += chance.expovariate(rate)


def lognormal(mean: float, sigma: float, least: int, most: int, chance: Random) -> int:
    """Draw a length."""
    return max(least, min(most, int(chance.lognormvariate(log(mean) - sigma * sigma / 2, sigma))))


class Traffic:
    """The calls of one run."""

    def __init__(self, mix: Mix, seed: int) -> None:
        self._mix = mix
        self._seed = seed
        chance = Random(f"systems {seed}")
        mean = mix.system_tokens
        self._systems = [
            Language(chance.getrandbits(48)).text(lognormal(mean, 0.7, mean // 5, mean * 5 // 2, chance))
            for _ in range(mix.system_prompts)
        ]
        self._shares = list(accumulate(1 / rank**mix.zipf for rank in range(1, mix.system_prompts + 1)))

    def calls(self, rate: float, duration_s: float) -> Iterator[Call]:
        """Give the calls in the order of their arrival."""
        mix = self._mix
        chance = Random(f"calls {self._seed}")
        for at in arrivals(rate, duration_s, Random(f"arrivals {self._seed}")):
            system = bisect_left(self._shares, chance.random() * self._shares[-1])
            turn_tokens = lognormal(mix.turn_tokens, 0.8, 1, mix.turn_tokens * 10, chance)
            turn = Language(chance.getrandbits(48)).text(turn_tokens)
            most = lognormal(mix.output_tokens, 0.8, 1, mix.output_tokens * 10, chance)
            yield Call(at, system, self._systems[system], turn, most)
