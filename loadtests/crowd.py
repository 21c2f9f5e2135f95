"""Crowd: the jobs of a workload as requests over HTTP, and what came of them, counted as virtual time counts.

A block of a prompt is sixteen token ids made of the block's own: equal blocks are equal ids, and neither gateway nor
engines need a tokenizer. A tenant is an API key. As in virtual time the gateway is not told how long an answer will be:
`max_tokens` is the same for all, and the engine alone knows where each ends.

Requests are rendered beforehand and sent when they are due, whether or not earlier ones have been answered. All times
count from when they were due; how late they were sent is told, since a busy machine makes every figure worse.

A limit on how many may be open is that of a proxy before the gateway (nginx: limit_conn): who comes beyond it is told
no, and never seen by the gateway. The gateway's own `max_inflight` is another rule: it counts at each endpoint, and
what comes while nearly all are full goes wherever a place is free. With 30 places each at three times the capacity
.33 of the prompt tokens were found cached then, where the rule of virtual time finds .53.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import orjson

from loadtests.client import Outcome
from loadtests.drive import Target
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.replay import fetch, note_delays
from loadtests.report import percentile
from loadtests.results import Tally
from loadtests.scenario import Objective
from loadtests.workloads import Job

DIGIT_BITS = 15  # of a block's id in one token: the ids of a vocabulary are no longer, and neither are bodies
DIGITS = 3
FILL = (1,) * (BLOCK_TOKENS - DIGITS)
MAX_TOKENS = 2048  # more than the longest answer of `overload`
CLASS_HEADER = "x-kvlane-class"
TOO_LONG, OVERLOADED = 400, 503  # status; nothing else about these requests can be wrong
NO_WAIT_S = 0.02  # reading a prompt takes as long on a busy machine; who was let in at once is predicted to wait 0


def api_key(tenant: str) -> str:
    """Give the key that a tenant calls with."""
    return f"key-of-{tenant}"


def tenants_section(jobs: Iterable[Job]) -> list[dict[str, object]]:
    """Give the part of the gateway's configuration that knows everybody who calls."""
    names = dict.fromkeys(job.tenant for job in jobs)
    return [{"name": name, "key_sha256": [hashlib.sha256(api_key(name).encode()).hexdigest()]} for name in names]


def token_ids(job: Job) -> list[int]:
    """Give a prompt whose blocks are equal where the job's are."""
    full = job.prompt_tokens // BLOCK_TOKENS
    assert len(job.blocks) >= full, "who would know what is shared of the rest?"
    ids: list[int] = []
    for block in job.blocks[:full]:
        assert block < 1 << DIGITS * DIGIT_BITS
        ids += [block >> at * DIGIT_BITS & (1 << DIGIT_BITS) - 1 for at in range(DIGITS)]
        ids += FILL
    return ids + [1] * (job.prompt_tokens - len(ids))


def rendered(target: Target, job: Job) -> bytes:
    """Render the whole request of a job."""
    body = {
        "model": target.model,
        "prompt": token_ids(job),
        "max_tokens": max(MAX_TOKENS, job.output_tokens),
        "stream": True,
        "stream_options": {"include_usage": True},
        "sim": {"output_tokens": job.output_tokens},
    }
    headers = {CLASS_HEADER: job.service_class} if job.service_class else {}
    caller = replace(target, api_key=api_key(job.tenant))
    return caller.request(orjson.dumps(body), "/v1/completions", headers)


@dataclass(slots=True)
class Crowd:
    """What came of all."""

    tally: Tally
    """Of those that came after the warm-up."""
    came: int = 0
    open: int = 0
    """Sent and not answered to the end."""
    ended: Counter[str] = field(default_factory=Counter)
    """Those that came: served, refused, too long; or what went wrong."""
    late_s: list[float] = field(default_factory=list)
    """How late each was sent."""
    delays_s: list[float] = field(default_factory=list)
    """How late this process was woken up."""

    @property
    def failed(self) -> dict[str, int]:
        """What went wrong, and how often; in the tally it counts as refused."""
        return {what: count for what, count in self.ended.items() if what not in ("served", "refused", "too long")}

    def late(self, share: float = 0.99) -> float:
        """Give the seconds that so many of the requests were at most late."""
        return percentile(sorted(self.late_s), share) if self.late_s else 0.0

    def delay(self, share: float = 0.95) -> float:
        """Give the seconds that this process was at most woken up late, so many times."""
        return percentile(sorted(self.delays_s), share) if self.delays_s else 0.0

    def arrive(self, job: Job, is_counted: bool) -> None:
        """Count a request that comes."""
        self.came += 1
        if is_counted:
            self.tally.arrive(job)

    def turn_away(self, is_counted: bool) -> None:
        """Count a request that is not even sent."""
        self.ended["refused"] += 1
        if is_counted:
            self.tally.refuse()

    def end(self, job: Job, outcome: Outcome, is_counted: bool) -> None:
        """Count what became of a request that was sent."""
        self.ended[_word(outcome)] += 1
        if not is_counted:
            return
        if outcome.error is not None or outcome.first_at is None:
            self.tally.refuse(outcome.status == TOO_LONG)
            return
        if outcome.predicted_queue_s is not None and outcome.queue_s is not None:
            has_waited = outcome.predicted_queue_s > 0 or outcome.queue_s > NO_WAIT_S
            self.tally.wait(job, outcome.queue_s if has_waited else 0.0, outcome.predicted_queue_s)
        ttft_s, e2e_s = outcome.first_at - outcome.due_at, outcome.last_at - outcome.due_at
        self.tally.finish(job, outcome.cached_tokens or 0, ttft_s, e2e_s)


def _word(outcome: Outcome) -> str:
    if outcome.error is None:
        return "served" if outcome.first_at is not None else "no token"
    return {TOO_LONG: "too long", OVERLOADED: "refused"}.get(outcome.status, outcome.error)


async def press(
    target: Target, jobs: Sequence[Job], objective: Objective, *, warm_up_s: float = 0.0, most_open: int | None = None
) -> Crowd:
    """Send all jobs when they are due, and wait for the last answer.

    Args:
        warm_up_s: What is due before is not counted.
        most_open: While so many are open whoever comes is turned away; None for no limit.
    """
    requests = [(job, rendered(target, job)) for job in jobs]
    crowd = Crowd(Tally(objective, max(job.at for job in jobs)))
    start = monotonic()

    async def one(job: Job, request: bytes, is_counted: bool) -> None:
        outcome = Outcome(start + job.at)
        crowd.late_s.append(monotonic() - outcome.due_at)
        try:
            crowd.end(job, await fetch(target, request, outcome), is_counted)
        finally:
            crowd.open -= 1

    watch = asyncio.create_task(note_delays(crowd.delays_s))
    try:
        async with asyncio.TaskGroup() as group:
            for job, request in requests:
                delay = start + job.at - monotonic()
                if delay > 0:
                    await asyncio.sleep(delay)
                is_counted = job.at >= warm_up_s
                crowd.arrive(job, is_counted)
                if most_open is not None and crowd.open >= most_open:
                    crowd.turn_away(is_counted)
                else:
                    crowd.open += 1
                    group.create_task(one(job, request, is_counted))
    finally:
        watch.cancel()
    return crowd
