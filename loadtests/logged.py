"""Logged: what a simulation would have written into the access log of its gateway.

Lines are the gateway's own, by its own record and fingerprints, so that whatever reads the one reads the other. Times
are virtual seconds; the key of the fingerprints is no secret here.
"""

from dataclasses import dataclass
from pathlib import Path

import orjson

from loadtests.replica import MODEL, UNIT_BLOCKS, Placement
from loadtests.workloads import Job
from policies.fingerprint import Fingerprinter
from policies.record import Outcome, RequestRecord
from policies.request import UNIT_TOKENS, BlockHash

PRINTS = Fingerprinter(b"simulation")


@dataclass(slots=True)
class Life:
    """What happened to one request, in virtual seconds; None where it did not come so far."""

    job: Job
    arrived_at: float
    sent_at: float | None = None
    first_at: float | None = None
    placement: Placement | None = None
    expected_tokens: int | None = None
    """Of its prompt, in the engine's cache."""
    cached_tokens: int | None = None
    """As the engine found them."""


def record_of(id: int, life: Life, now: float) -> RequestRecord:
    """Make the record of a request that has ended."""
    job, first_at, placement = life.job, life.first_at, life.placement
    is_served = first_at is not None
    ticket = placement.ticket if placement is not None else None
    ring_key = placement.request.ring_key if placement is not None else None
    units = job.prompt_tokens // UNIT_TOKENS
    prefix = tuple(map(BlockHash, job.blocks[UNIT_BLOCKS - 1 : units * UNIT_BLOCKS : UNIT_BLOCKS]))
    return RequestRecord(
        id=f"sim_{id}",
        arrived_at=life.arrived_at,
        tenant=job.tenant,
        model=MODEL,
        route="/v1/chat/completions",
        status=200 if is_served else 503,
        outcome=Outcome.OK if is_served else Outcome.REFUSED,
        code=None if is_served else "overloaded",
        is_stream=is_served,
        pool=None,
        endpoint=None if placement is None else f"e{placement.place}",
        reason=None,
        tries=0 if placement is None else 1,
        queue_s=(now if life.sent_at is None else life.sent_at) - life.arrived_at,
        ttft_s=None if first_at is None else first_at - life.arrived_at,
        tpot_s=None if first_at is None or job.output_tokens < 2 else (now - first_at) / (job.output_tokens - 1),
        e2e_s=now - life.arrived_at,
        prompt_tokens=job.prompt_tokens,
        output_tokens=job.output_tokens if is_served else None,
        cached_tokens=life.cached_tokens,
        predicted_cached_tokens=life.expected_tokens,
        dispatched_at=life.sent_at,
        first_token_at=first_at,
        finished_at=now,
        waited_s=None if ticket is None else ticket.waited_s,
        predicted_wait_s=None if ticket is None else ticket.predicted_wait_s,
        service_class=job.service_class or None,
        prefix=PRINTS.of(prefix),
        unit_tokens=UNIT_TOKENS,
        ring_key=None if ring_key is None else PRINTS.mark(ring_key),
    )


class Log:
    """A log that is written anew; used with `with`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, record: RequestRecord) -> None:
        """Append a line."""
        self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
