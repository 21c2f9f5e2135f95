"""Workloads: seeded requests for virtual time, by size and shared beginnings, without any text.

A text is a range of block ids that nobody else has, so that equal ids mean equal prefixes, as the simulated engine
wants it. A prompt takes the full blocks of the text it begins with, and goes on with ids of its own: the block in which
the two meet belongs to it alone. A conversation is one such text that grows.

What arrives does not depend on who serves it, but for one thing: the next turn of a conversation comes when the answer
to the last one is read. How many turns there are, how long they are and how long people think is drawn from a seed of
each conversation's own, and so the same for all policies.
"""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol

from loadtests.kvcache import BLOCK_TOKENS
from loadtests.scenario import Dirty, Groups, Overload, Singles, Swelling, Systems, Talks
from loadtests.traffic import arrivals

TEXT_BLOCKS = 1 << 14  # ids of one text: 262,144 tokens, twice the longest context
INTERACTIVE, BATCH = "interactive", "batch"  # classes of service
SERVED_S, SERVED_TOKEN_S = 0.3, 0.012  # how long answers are taken to have lasted in conversations' past


class Text(NamedTuple):
    """A beginning that requests share."""

    tokens: int
    blocks: tuple[int, ...]
    """Of its full blocks."""


class Job(NamedTuple):
    """One request to be."""

    at: float
    """Seconds after the start of the stage."""
    tenant: str
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the full blocks of prompt and output; may end early where nobody will ever share the rest."""
    system_tokens: int
    """How much of the prompt is the system prompt."""
    opening_tokens: int
    """System prompt and first user turn: what tells a conversation from others."""
    talk: "Talk | None" = None
    """The conversation it is a turn of."""
    service_class: str = ""
    ring: int | None = None
    """What it goes by on the ring, where that is known and has not to be reckoned."""

    def beginning(self, tokens: int) -> int:
        """Name its first `tokens` tokens by the last full block of them."""
        return self.blocks[tokens // BLOCK_TOKENS - 1] if tokens >= BLOCK_TOKENS else -1


class Source(Protocol):
    """Makes the requests of one seed."""

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give what arrives by itself, in order; `Talk.next` gives the turns that follow an answer."""
        ...


class Texts:
    """Gives out block ids."""

    def __init__(self) -> None:
        self._count = 0

    def begin(self) -> int:
        """Give the first id of a text that is new."""
        self._count += 1
        return self._count * TEXT_BLOCKS

    def shared(self, tokens: int, head: Text | None = None) -> Text:
        """Make a text that others can begin with; it may begin with one itself, and be so much longer."""
        before = head or Text(0, ())
        tokens += before.tokens
        return Text(tokens, self.extend(before.blocks, self.begin(), tokens))

    def extend(self, blocks: tuple[int, ...], base: int, tokens: int) -> tuple[int, ...]:
        """Go on from `blocks` with the ids of the text at `base`, up to `tokens` in all."""
        return blocks + tuple(range(base + len(blocks), base + tokens // BLOCK_TOKENS))


class Library:
    """The system prompts of a workload, drawn by popularity."""

    def __init__(self, systems: Systems, texts: Texts, chance: Random) -> None:
        head = texts.shared(systems.header_tokens) if systems.header_tokens else None
        self.all = [texts.shared(systems.tokens.draw(chance), head) for _ in range(systems.count)]
        self._shares = list(accumulate(1 / rank**systems.zipf for rank in range(1, systems.count + 1)))

    def draw(self, chance: Random) -> Text:
        """Draw one, the popular ones more often."""
        return self.all[bisect_left(self._shares, chance.random() * self._shares[-1])]


class SingleSource:
    """Requests that come once."""

    def __init__(self, spec: Singles, seed: str, texts: Texts) -> None:
        self._spec, self._seed, self._texts = spec, seed, texts
        self._library = Library(spec.systems, texts, Random(f"systems {seed}"))

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give them as they arrive."""
        return self.arriving(arrivals(rate, duration_s, Random(f"arrivals {self._seed}")))

    def arriving(self, times: Iterator[float]) -> Iterator[Job]:
        """Give one for each arrival."""
        chance = Random(f"jobs {self._seed}")
        for at in times:
            system = self._library.draw(chance)
            prompt = system.tokens + self._spec.user.draw(chance)
            output = self._spec.output.draw(chance)
            blocks = self._texts.extend(system.blocks, self._texts.begin(), prompt + output)
            yield Job(at, "singles", prompt, output, blocks, system.tokens, prompt)


class Talk:
    """One conversation. It draws from a seed of its own, so that no policy changes what is said in it."""

    def __init__(self, spec: Talks, system: Text, texts: Texts, chance: Random) -> None:
        self._spec, self._texts, self._chance = spec, texts, chance
        self._base = texts.begin()
        self._system = system
        self._blocks = system.blocks
        self._tokens = system.tokens  # all that was said so far
        self._opening_tokens = 0
        self.turns_left = 1
        while self.turns_left < spec.turns_most and chance.random() >= 1 / spec.turns_mean:
            self.turns_left += 1

    def next(self, at: float) -> Job:
        """Take the next turn."""
        prompt, output = self._take()
        self._blocks = self._texts.extend(self._blocks, self._base, prompt + output)
        return Job(at, "talks", prompt, output, self._blocks, self._system.tokens, self._opening_tokens, self)

    def skip(self) -> float:
        """Take a turn in the past; say how many seconds the answer took."""
        _, output = self._take()
        return SERVED_S + output * SERVED_TOKEN_S

    def think_s(self) -> float:
        """Draw the time between the answer and the next turn."""
        return self._spec.think_s + self._chance.expovariate(1 / self._spec.think_mean_s)

    def _take(self) -> tuple[int, int]:
        assert self.turns_left, "it is over"
        self.turns_left -= 1
        prompt = self._tokens + self._spec.user.draw(self._chance)
        output = self._spec.output.draw(self._chance)
        self._tokens = prompt + output
        self._opening_tokens = self._opening_tokens or prompt
        return prompt, output


class TalkSource:
    """Conversations that begin, and those that were under way before the start."""

    def __init__(self, spec: Talks, seed: str, texts: Texts) -> None:
        self._spec, self._seed, self._texts = spec, seed, texts
        self._library = Library(spec.systems, texts, Random(f"systems {seed}"))
        self._count = 0

    @property
    def turns_mean(self) -> float:
        """Turns of a conversation, as they are cut off at the most."""
        go_on = 1 - 1 / self._spec.turns_mean
        return float(self._spec.turns_mean * (1 - go_on**self._spec.turns_most))

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give first turns as they arrive, and the next turns of what is under way; `rate` counts every turn."""
        begin = rate / self.turns_mean
        first = self.arriving(arrivals(begin, duration_s, Random(f"arrivals {self._seed}")))
        return merge(self.under_way(begin, duration_s), first, key=lambda job: job.at)

    def arriving(self, times: Iterator[float]) -> Iterator[Job]:
        """Give the first turn of a conversation for each arrival."""
        for at in times:
            yield self._talk().next(at)

    def under_way(self, begin: float, duration_s: float) -> list[Job]:
        """Give what follows of conversations that began in the past, `begin` of them in a second."""
        mean = self._spec.output.mean
        longest = self._spec.turns_most * (SERVED_S + 2 * mean * SERVED_TOKEN_S + self._spec.think_mean_s * 2)
        jobs = []
        for ago in arrivals(begin, longest, Random(f"past {self._seed}")):
            talk = self._talk()
            at = -ago
            while at < 0 and talk.turns_left:
                at += talk.skip() + talk.think_s()
            if talk.turns_left and at < duration_s:
                jobs.append(talk.next(at))
        return sorted(jobs, key=lambda job: job.at)

    def _talk(self) -> Talk:
        self._count += 1
        chance = Random(f"talk {self._seed} {self._count}")
        return Talk(self._spec, self._library.draw(chance), self._texts, chance)


class Swell:
    """Arrivals that swell together, and the very long prompts among them."""

    def __init__(self, spec: Swelling, seed: str, texts: Texts) -> None:
        self._spec, self._seed, self._texts = spec, seed, texts

    def bursts(self, duration_s: float) -> list[float]:
        """Draw when bursts begin and end, in turn."""
        spec = self._spec
        chance = Random(f"bursts {self._seed}")
        quiet_s = spec.burst_mean_s * (1 - spec.burst_share) / spec.burst_share
        edges = [chance.expovariate(1 / quiet_s)]
        while edges[-1] < duration_s:
            edges.append(edges[-1] + chance.expovariate(1 / (quiet_s if len(edges) % 2 == 0 else spec.burst_mean_s)))
        return edges

    def arrivals(self, name: str, rate: float, duration_s: float, bursts: list[float]) -> Iterator[float]:
        """Give arrivals of which `rate` is the mean over bursts and quiet."""
        factor = self._spec.burst_factor
        quiet = rate / (1 + (factor - 1) * self._spec.burst_share)
        chance = Random(f"{name} arrivals {self._seed}")
        for at in arrivals(quiet * factor, duration_s, chance):
            if bisect_left(bursts, at) % 2 == 1 or chance.random() * factor < 1:
                yield at

    def long(self, times: Iterator[float]) -> Iterator[Job]:
        spec = self._spec
        chance = Random(f"long {self._seed}")
        for at in times:
            prompt = chance.randint(spec.long_least, spec.long_most)
            output = spec.long_output.draw(chance)
            blocks = self._texts.extend((), self._texts.begin(), prompt)
            yield Job(at, "long", prompt, output, blocks, 0, prompt)


class DirtySource:
    """Singles, conversations and very long prompts, which all swell together."""

    def __init__(self, spec: Dirty, seed: str, texts: Texts) -> None:
        self._spec = spec
        self._swell = Swell(spec, seed, texts)
        self._singles = SingleSource(spec.singles, seed, texts)
        self._talks = TalkSource(spec.talks, seed, texts)

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give half singles, half conversations by number of arrivals; `rate` counts every turn."""
        spec, swell = self._spec, self._swell
        each = rate * (1 - spec.long_share) / (1 + self._talks.turns_mean)
        bursts = swell.bursts(duration_s)
        streams = [
            self._singles.arriving(swell.arrivals("singles", each, duration_s, bursts)),
            self._talks.arriving(swell.arrivals("talks", each, duration_s, bursts)),
            iter(self._talks.under_way(each, duration_s)),
            swell.long(swell.arrivals("long", rate * spec.long_share, duration_s, bursts)),
        ]
        return merge(*streams, key=lambda job: job.at)


class OverloadSource:
    """Singles of many tenants and two classes and very long prompts, which all swell together."""

    def __init__(self, spec: Overload, seed: str, texts: Texts) -> None:
        self._spec, self._seed = spec, seed
        self._swell = Swell(spec, seed, texts)
        self._singles = SingleSource(spec.singles, seed, texts)

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give them as they arrive."""
        spec, swell = self._spec, self._swell
        bursts = swell.bursts(duration_s)
        short = swell.arrivals("singles", rate * (1 - spec.long_share), duration_s, bursts)
        long = swell.arrivals("long", rate * spec.long_share, duration_s, bursts)
        return merge(self._named(self._singles.arriving(short)), swell.long(long), key=lambda job: job.at)

    def _named(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Name tenants by their system prompts, and draw who is batch."""
        chance = Random(f"classes {self._seed}")
        for job in jobs:
            service_class = BATCH if chance.random() < self._spec.batch_share else INTERACTIVE
            yield job._replace(tenant=f"t{job.beginning(job.system_tokens)}", service_class=service_class)


class GroupSource:
    """Prompts of a fixed set, over and over; the place in the order is kept from one stage to the next."""

    def __init__(self, spec: Groups, seed: str, texts: Texts) -> None:
        self._spec, self._seed = spec, seed
        self._stages = self._next = 0
        prompt = spec.system_tokens + spec.question_tokens
        self._prompts = [
            texts.extend(system.blocks, texts.begin(), prompt)
            for system in [texts.shared(spec.system_tokens) for _ in range(spec.groups)]
            for _ in range(spec.prompts)
        ]
        Random(f"order {seed}").shuffle(self._prompts)

    def jobs(self, rate: float, duration_s: float) -> Iterator[Job]:
        """Give the next prompts."""
        spec = self._spec
        prompt = spec.system_tokens + spec.question_tokens
        self._stages += 1
        for at in arrivals(rate, duration_s, Random(f"arrivals {self._seed} {self._stages}")):
            blocks = self._prompts[self._next % len(self._prompts)]
            self._next += 1
            yield Job(at, "groups", prompt, spec.output_tokens, blocks, spec.system_tokens, prompt)
