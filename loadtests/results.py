"""Tally, Result: what one stage of a simulation came to.

A request is *good* when its first token and its pace met the objective; refused ones are not. Output per second is what
the fleet made while requests were counted, the imbalance the busiest engine's share of the requests in flight over an
even share, averaged over that time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from loadtests.report import Spread, percentile
from loadtests.scenario import Objective
from loadtests.workloads import BATCH, Job

OUTPUT_WORK = 2  # of an output token, where one of a prompt that is computed is 1


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
    """Of prompts that are not long by the objective, batch aside."""
    normal_tpot_s: Spread
    long_slo_attainment: float | None
    """Of long prompts, by their time to the first token alone; None where there were none."""
    too_long: int
    """Of those refused: no engine takes them."""
    admitted_slo: float
    """Share of the requests served that were served well."""
    wait_s: Spread
    """In the gateway's queue, of those that it let in; batch aside."""
    wait_error_s: tuple[float, float] | None
    """Predicted against real wait, either way, of those that waited and were let in, batch aside: p50 and p90.

    Of those that were to start, and did, while others still came: after that what waits has the fleet to itself.
    """
    batch_wait_error_s: tuple[float, float] | None
    batch_wait_s: Spread
    """Of the same as the error before."""
    jain: float
    """Jain's index over tenants: requests served over their fair part of all that were served; batch aside."""
    jain_share: float
    """The same over the share of their own requests that were served: 1 where all tenants lose alike."""
    batch_share: float
    """Of the work served."""
    batch_refused_share: float
    batch_ttft_s: Spread


@dataclass(slots=True)
class Tally:
    """What is counted of a stage."""

    objective: Objective
    arrivals_s: float = inf
    """When the last one comes."""
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
    too_long: int = 0
    wait_s: list[float] = field(default_factory=list)
    wait_error_s: list[float] = field(default_factory=list)
    batch_wait_error_s: list[float] = field(default_factory=list)
    batch_wait_s: list[float] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Requests by tenant, batch aside."""
    served: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    work: int = 0
    batch_work: int = 0
    batch: int = 0
    batch_ttft_s: list[float] = field(default_factory=list)

    def arrive(self, job: Job) -> None:
        """Count a request."""
        self.requests += 1
        if job.service_class == BATCH:
            self.batch += 1
        elif job.system_tokens:  # not the very long ones, which nobody may take
            self.asked[job.tenant] += 1

    def refuse(self, is_too_long: bool = False) -> None:
        """Count a request that was not taken."""
        self.refused += 1
        self.too_long += is_too_long
        self.bad += 1

    def wait(self, job: Job, wait_s: float, predicted_s: float) -> None:
        """Count a request that the gateway lets in."""
        is_batch = job.service_class == BATCH
        if not is_batch:
            self.wait_s.append(wait_s)
        if wait_s and job.at + max(wait_s, predicted_s) <= self.arrivals_s:
            (self.batch_wait_error_s if is_batch else self.wait_error_s).append(abs(predicted_s - wait_s))
            if is_batch:
                self.batch_wait_s.append(wait_s)

    def finish(self, job: Job, cached_tokens: int, ttft_s: float, e2e_s: float) -> None:
        """Count a request that was served."""
        prompt_tokens, output_tokens = job.prompt_tokens, job.output_tokens
        is_batch = job.service_class == BATCH
        work = prompt_tokens - cached_tokens + OUTPUT_WORK * output_tokens
        self.work += work
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s)
        tpot_s = (e2e_s - ttft_s) / (output_tokens - 1) if output_tokens > 1 else 0.0
        if output_tokens > 1:
            self.tpot_s.append(tpot_s)
        if is_batch:
            self.batch_work += work
            self.batch_ttft_s.append(ttft_s)
        elif prompt_tokens < self.objective.long_from_tokens:
            self.served[job.tenant] += 1
            self.normal_ttft_s.append(ttft_s)
            self.normal_tpot_s.append(tpot_s)
        else:
            self.long.append(ttft_s <= self.objective.long_ttft_s)
        most_s = self.objective.batch_ttft_s if is_batch else self.objective.ttft_for(prompt_tokens)
        if ttft_s <= most_s and tpot_s <= self.objective.tpot_s:
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
            too_long=self.too_long,
            admitted_slo=self.good / max(1, len(self.ttft_s)),
            wait_s=Spread.of(self.wait_s),
            wait_error_s=_errors(self.wait_error_s),
            batch_wait_error_s=_errors(self.batch_wait_error_s),
            batch_wait_s=Spread.of(self.batch_wait_s),
            jain=jain([self.served[name] / part for name, part in fair_parts(self.asked, sum(self.served.values()))]),
            jain_share=jain([self.served[name] / asked for name, asked in self.asked.items()]),
            batch_share=self.batch_work / max(1, self.work),
            batch_refused_share=1 - len(self.batch_ttft_s) / self.batch if self.batch else 0.0,
            batch_ttft_s=Spread.of(self.batch_ttft_s),
            imbalance=sum(self.imbalances) / len(self.imbalances) if self.imbalances else 1.0,
        )


def fair_parts(asked: Mapping[str, int], served: float) -> list[tuple[str, float]]:
    """Share out what was served: to each what it asked for, or an equal part of what the others leave (max-min)."""
    parts = []
    left = served
    for rank, (name, wanted) in enumerate(sorted(asked.items(), key=lambda item: item[1])):
        part = min(wanted, left / (len(asked) - rank))
        left -= part
        parts.append((name, part))
    return parts


def jain(values: Sequence[float]) -> float:
    """Give Jain's index of fairness: 1 where all have alike, 1/n where one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _errors(values: list[float]) -> tuple[float, float] | None:
    values.sort()
    return (percentile(values, 0.5), percentile(values, 0.9)) if values else None
