"""Tally, Result: what one stage of a simulation came to.

A request is *good* when its first token and its pace met the objective; refused ones are not. Output per second is what
the fleet made while requests were counted, the imbalance the busiest engine's share of the requests in flight over an
even share, averaged over that time.
"""

from dataclasses import dataclass, field

from loadtests.report import Spread
from loadtests.scenario import Objective


@dataclass(frozen=True, slots=True)
class Result:
    """A stage of one policy and seed."""

    policy: str
    seed: int
    gateways: int
    share: str
    rate: float
    requests: int
    hit_rate: float
    """Of prompt tokens, as the engines found them in their caches."""
    ttft_s: Spread
    tpot_s: Spread
    """Over requests: mean seconds per output token after the first."""
    e2e_s: Spread
    output_tokens_per_s: float
    goodput_per_s: float
    slo_attainment: float
    refused: int
    imbalance: float
    normal_ttft_s: Spread
    """Of prompts that are not long by the objective."""
    normal_tpot_s: Spread
    long_slo_attainment: float | None
    """Of long prompts, by their time to the first token alone; None where there were none."""


@dataclass(slots=True)
class Tally:
    """What is counted of a stage."""

    objective: Objective
    requests: int = 0
    refused: int = 0
    good: int = 0
    bad: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    imbalances: list[float] = field(default_factory=list)
    normal_ttft_s: list[float] = field(default_factory=list)
    normal_tpot_s: list[float] = field(default_factory=list)
    long: list[bool] = field(default_factory=list)
    """Whether the first token of a long prompt came in time."""

    def refuse(self) -> None:
        """Count a request that no engine took."""
        self.refused += 1
        self.bad += 1

    def finish(self, prompt_tokens: int, output_tokens: int, cached_tokens: int, ttft_s: float, e2e_s: float) -> None:
        """Count a request that was served."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s)
        tpot_s = (e2e_s - ttft_s) / (output_tokens - 1) if output_tokens > 1 else 0.0
        if output_tokens > 1:
            self.tpot_s.append(tpot_s)
        if prompt_tokens < self.objective.long_from_tokens:
            self.normal_ttft_s.append(ttft_s)
            self.normal_tpot_s.append(tpot_s)
        else:
            self.long.append(ttft_s <= self.objective.long_ttft_s)
        if ttft_s <= self.objective.ttft_for(prompt_tokens) and tpot_s <= self.objective.tpot_s:
            self.good += 1
        else:
            self.bad += 1

    def sample(self, in_flight: list[int]) -> None:
        """Look at how the engines share what is in flight."""
        if total := sum(in_flight):
            self.imbalances.append(max(in_flight) * len(in_flight) / total)

    def result(
        self,
        *,
        policy: str,
        seed: int,
        gateways: int,
        share: str,
        rate: float,
        counted_s: float,
        output_tokens_per_s: float,
    ) -> Result:
        """Sum up; `counted_s` is for how long arrivals were counted."""
        return Result(
            policy=policy,
            seed=seed,
            gateways=gateways,
            share=share,
            rate=rate,
            requests=self.requests,
            hit_rate=self.cached_tokens / max(1, self.prompt_tokens),
            ttft_s=Spread.of(self.ttft_s),
            tpot_s=Spread.of(self.tpot_s),
            e2e_s=Spread.of(self.e2e_s),
            output_tokens_per_s=output_tokens_per_s,
            goodput_per_s=self.good / counted_s,
            slo_attainment=self.good / max(1, self.requests),
            refused=self.refused,
            normal_ttft_s=Spread.of(self.normal_ttft_s),
            normal_tpot_s=Spread.of(self.normal_tpot_s),
            long_slo_attainment=sum(self.long) / len(self.long) if self.long else None,
            imbalance=sum(self.imbalances) / len(self.imbalances) if self.imbalances else 1.0,
        )
