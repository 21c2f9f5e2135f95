"""Scenario: one experiment of `kvlane-sim simulate`, as its YAML file tells it.

A file says what the traffic is like, what serves it, and what counts as served well. Lengths are tokens, rates are
requests per second over the whole fleet, further turns of a conversation included. Unknown keys are errors.
"""

from enum import Enum
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from loadtests.engine import EngineModel
from loadtests.profiles import PROFILES
from loadtests.traffic import lognormal

STAGE_REQUESTS = 1500  # where a rate is asked for that no stage of the file has: twice the 750 prompts of b2b


class Part(BaseModel):
    """What all parts of a scenario have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Lengths(Part):
    """A lognormal distribution of token counts, cut at both ends; the mean is that of the uncut one."""

    mean: float
    sigma: float
    least: int
    most: int

    def draw(self, chance: Random) -> int:
        """Draw a length."""
        return lognormal(self.mean, self.sigma, self.least, self.most, chance)


class Systems(Part):
    """System prompts that requests share, the popular ones more often."""

    count: int
    zipf: float
    """How popularity falls with rank."""
    tokens: Lengths
    header_tokens: int = 0
    """What all of them begin with."""


class Singles(Part):
    """Requests that come once: a system prompt (or a document) and a turn of their own."""

    kind: Literal["singles"]
    systems: Systems
    user: Lengths
    output: Lengths


class Talks(Part):
    """Conversations: every turn holds all turns before it."""

    kind: Literal["talks"]
    systems: Systems
    user: Lengths
    output: Lengths
    turns_mean: float
    turns_most: int
    think_s: float
    """The least time between an answer and the next turn."""
    think_mean_s: float
    """The mean of what comes on top of it, exponential."""


class Swelling(Part):
    """Traffic that comes in bursts, and now and then a very long prompt that shares nothing."""

    long_share: float
    """Of all requests."""
    long_least: int
    long_most: int
    long_output: Lengths
    burst_factor: float
    """How many times as fast requests arrive in a burst."""
    burst_share: float
    """Of the time."""
    burst_mean_s: float


class Dirty(Swelling):
    """Singles and conversations in bursts, and very long prompts."""

    kind: Literal["dirty"]
    singles: Singles
    talks: Talks


class Overload(Swelling):
    """Singles in bursts, each system prompt a tenant of its own, some of them batch; and very long prompts."""

    kind: Literal["overload"]
    singles: Singles
    batch_share: float
    """Of the singles."""


class Groups(Part):
    """A fixed set of prompts that is gone through again and again in a shuffled order, in groups with one beginning."""

    kind: Literal["groups"]
    groups: int
    prompts: int
    """In each group."""
    system_tokens: int
    question_tokens: int
    output_tokens: int


class Mooncake(Part):
    """The trace of that name, with its own prefixes."""

    kind: Literal["mooncake"]


class Azure(Part):
    """The trace of that name, with prefixes drawn for it."""

    kind: Literal["azure"]
    systems: Systems
    least_user_tokens: int
    """What at least of a prompt is not shared."""


class Logged(Part):
    """What an access log tells of."""

    kind: Literal["log"]
    path: Path


Workload = Annotated[
    Singles | Talks | Dirty | Overload | Groups | Mooncake | Azure | Logged, Field(discriminator="kind")
]


class Fleet(Part):
    """What serves."""

    endpoints: int = 8
    profile: str = "bench-8b"
    """What the gateways take the engines for, to begin with; and what they are, where `mix` does not say otherwise."""
    mix: tuple[str, ...] = ()
    """Profiles of the engines, in turn."""
    kv_tokens: int | None = None
    """In place of the profile's."""
    max_context_tokens: int = 131_072

    def engine(self, place: int = 0) -> EngineModel:
        """Build one of its engines."""
        profile = self.mix[place % len(self.mix)] if self.mix else self.profile
        return EngineModel(PROFILES[profile], kv_tokens=self.kv_tokens, max_context_tokens=self.max_context_tokens)


class Objective(Part):
    """What a request must meet to count as served well."""

    ttft_s: float = 2.0
    long_ttft_s: float = 20.0
    long_from_tokens: int = 32_768
    """Prompts of so many tokens may take `long_ttft_s`."""
    tpot_s: float = 0.05
    batch_ttft_s: float = 60.0
    """The most that a first token of batch may take."""

    def ttft_for(self, prompt_tokens: int) -> float:
        """Give the most a first token may take."""
        return self.ttft_s if prompt_tokens < self.long_from_tokens else self.long_ttft_s


class RingKey(Enum):
    """What requests go by on the ring."""

    NATURAL = "natural"
    """A conversation's own beginning, else the system prompt: what one would choose who knows the traffic."""
    SYSTEM = "system"
    OPENING = "opening"
    """System prompt and first user turn."""
    ANSWERED = "answered"
    """The opening once the prompt holds an answer, else the system prompt: as `policies/keys.py` says."""


class Stage(Part):
    """A time of arrivals at one rate."""

    rate: float
    arrivals_s: float
    warm_up_s: float = 0.0
    """Requests that arrive before are served, not counted."""
    is_counted: bool = True
    is_drained: bool = False
    """Output is counted until the last request is done, and not only while requests arrive."""


class Scenario(Part):
    """One experiment."""

    name: str
    about: str
    workload: Workload
    fleet: Fleet = Fleet()
    objective: Objective = Objective()
    ring_key: RingKey = RingKey.ANSWERED
    stages: tuple[Stage, ...]
    """One after the other; each begins when the one before is drained."""
    bracket: tuple[float, float]
    """Rates between which the highest one within the objective is looked for first."""

    def at(self, rate: float) -> tuple[Stage, ...]:
        """Give what comes before the counted stages, and one counted stage at `rate`."""
        counted = [stage for stage in self.stages if stage.is_counted]
        before = tuple(stage for stage in self.stages if not stage.is_counted)
        alike = [stage for stage in counted if stage.rate == rate]
        if alike or len(counted) > 1:
            stage = alike[0] if alike else counted[0].model_copy(update={"arrivals_s": STAGE_REQUESTS / rate})
        else:
            stage = counted[0]
        return (*before, stage.model_copy(update={"rate": rate}))

    def replaying(self, path: Path, rate: float, span_s: float) -> "Scenario":
        """Give the same with the requests of a log, all of them counted."""
        changes = {
            "name": path.name,
            "about": f"the requests of {path}",
            "workload": Logged(kind="log", path=path),
            "stages": (Stage(rate=rate, arrivals_s=span_s),),
            "bracket": (rate / 2, rate * 2),
        }
        return self.model_copy(update=changes)


BARE = Scenario(name="bare", about="nothing yet", workload=Mooncake(kind="mooncake"), stages=(), bracket=(1.0, 2.0))
"""A fleet for a log: engines and objective as they are where nothing is said."""


def names() -> list[str]:
    """List the scenarios that ship with Kvlane."""
    folder = files("loadtests") / "scenarios"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load(name: str) -> Scenario:
    """Read a scenario that ships with Kvlane, or a file.

    Raises:
        LookupError: There is neither.
        ValueError: The file is not a scenario.
    """
    if name in names():
        return Scenario.model_validate(yaml.safe_load((files("loadtests") / "scenarios" / f"{name}.yaml").read_text()))
    if Path(name).is_file():
        return Scenario.model_validate(yaml.safe_load(Path(name).read_text()))
    raise LookupError(f"no scenario {name!r}: {', '.join(names())}, or a YAML file")
