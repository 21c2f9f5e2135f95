"""One measurement of one request, told to metrics, the access log, spans and the response headers alike.

A Trace collects facts and times while a request lives; `finish` makes the record of it. Times are monotonic seconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gateway.hops import SETTLE, STREAM, Hop, Hops
from gateway.usage import Usage
from policies.fingerprint import Fingerprinter
from policies.policy import Choice, Reason
from policies.record import Outcome, RequestRecord
from policies.request import BlockHash

CLIENT_LEFT = 499  # nobody is told; it is how logs and metrics call it
_OUTCOMES = {429: Outcome.REFUSED, 503: Outcome.REFUSED, CLIENT_LEFT: Outcome.DISCONNECTED}
"""By status; other 4xx are the client's, other 5xx are failures."""
_PREFIX = Reason.PREFIX


@dataclass(slots=True)
class Trace:
    """What is known so far of one request."""

    id: str
    route: str
    arrived_at: float
    tenant: str = "unknown"
    model: str = ""
    is_stream: bool = False
    pool: str | None = None
    choice: Choice | None = None
    tries: int = 0
    dispatched_at: float | None = None
    predicted_wait_s: float | None = None
    """In the queue, as predicted when it came."""
    waited_s: float | None = None
    """In the queue; None where it never came there."""
    has_waited: bool = False
    """Whether there was no room for it when it came, and it was let in all the same."""
    service_class: str | None = None
    prefix: tuple[BlockHash, ...] = ()
    unit_tokens: int | None = None
    ring_key: BlockHash | None = None
    first_token_at: float | None = None
    last_byte_at: float | None = None
    prompt_tokens: int = 0
    prefix_shape: str | None = None
    counted_tokens: int = 0
    """Of output, as they were seen to pass: all that is known where the engine does not tell."""
    reserved_output_tokens: int = 0
    """Of its tenant's limits; 0 where there are none."""
    advance_tokens: int = 0
    """Of output, what limits are charged beside what is known, since it is made in the background; below 0 where it is
    known now, and was charged so before."""
    limit_lines: bytes = b""
    """x-ratelimit headers of its answer."""
    usage: Usage | None = None
    status: int = 0
    code: str | None = None
    has_left: bool = False
    """Whether its client has set itself a time to leave, and that has come: it is told so, and pays as who leaves."""
    on_end: Callable[[], None] | None = None
    """Called once it is known how it ended."""
    outcome: Outcome = Outcome.DISCONNECTED
    """Until something else is known: a request that ends without a word has lost its client."""
    hops: Hops | None = None
    """Where its time went; None where nobody would ever be told."""

    def begin(self, hop: Hop) -> None:
        """Note that a stage of its life begins."""
        if self.hops is not None:
            self.hops.begin(hop)

    def admitted(self, predicted_wait_s: float | None, waited_s: float) -> None:
        """Note that it was let in, what its wait was predicted to be, and what the door says it was (0: none)."""
        self.predicted_wait_s = predicted_wait_s
        self.has_waited = waited_s > 0
        if self.has_waited:
            self.waited_s = waited_s
        if self.hops is not None:
            self.hops.admitted(has_waited=self.has_waited)

    def tried(self, choice: Choice, pool: str, kind: Enum | None, at: float) -> None:
        """Note that a try begins, at an engine of such a kind."""
        self.tries += 1
        self.choice, self.pool = choice, pool
        if self.dispatched_at is None:
            self.dispatched_at = at
        if self.hops is not None:
            self.hops.attempt(choice, kind, at)

    def failed(self, failure: str, status: int) -> None:
        """Note why the try that runs did not serve, and the status of its engine's answer; 0: there was none."""
        if self.hops is not None:
            self.hops.failed(failure, status)

    def relayed(
        self, usage: Usage | None, counted_tokens: int, first_token_at: float | None, last_byte_at: float
    ) -> None:
        """Note what came of an answer that was handed over, to the end or not."""
        self.usage, self.counted_tokens = usage, counted_tokens
        self.first_token_at, self.last_byte_at = first_token_at, last_byte_at
        if self.hops is not None:
            if first_token_at is not None:
                self.hops.begin(STREAM, first_token_at)
            self.hops.begin(SETTLE)

    def ended(self) -> None:
        """Call `on_end`, once; what it holds is let go of."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def finish(self, now: float, prints: Fingerprinter | None = None) -> RequestRecord:
        """Make the record of a request that has ended.

        Args:
            prints: Makes the fingerprint of its prompt; None: it gets none.
        """
        usage = self.usage
        output_tokens = usage.output_tokens if usage is not None else None
        if output_tokens is None:
            output_tokens = self.counted_tokens or None
        prompt_tokens = usage.prompt_tokens if usage is not None else None
        unix_s = time.time() - now  # of what is told in Unix time
        ttft_s = tpot_s = first_token_at = None
        if self.is_stream and self.first_token_at is not None:
            first_token_at = unix_s + self.first_token_at
            ttft_s = self.first_token_at - self.arrived_at
            if self.last_byte_at is not None and output_tokens is not None and output_tokens > 1:
                tpot_s = (self.last_byte_at - self.first_token_at) / (output_tokens - 1)
        return RequestRecord(
            id=self.id,
            arrived_at=unix_s + self.arrived_at,
            tenant=self.tenant,
            model=self.model,
            route=self.route,
            status=self.status,
            outcome=self.outcome,
            code=self.code,
            is_stream=self.is_stream,
            pool=self.pool,
            endpoint=self.choice.endpoint.name if self.choice is not None else None,
            reason=self.choice.reason.label if self.choice is not None else None,
            tries=self.tries,
            queue_s=(self.dispatched_at or now) - self.arrived_at,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            e2e_s=now - self.arrived_at,
            prompt_tokens=self.prompt_tokens if prompt_tokens is None else prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            predicted_cached_tokens=self.choice.cached_tokens if self.choice is not None else None,
            dispatched_at=None if self.dispatched_at is None else unix_s + self.dispatched_at,
            first_token_at=first_token_at,
            finished_at=unix_s + now,
            waited_s=self.waited_s,
            predicted_wait_s=self.predicted_wait_s,
            service_class=self.service_class,
            prefix="" if prints is None else prints.of(self.prefix),
            unit_tokens=self.unit_tokens,
            ring_key=None if prints is None or self.ring_key is None else prints.mark(self.ring_key),
            prefix_shape=self.prefix_shape,
        )


def own_lines(trace: Trace) -> bytes:
    """Give the headers that every answer has: the request's name, and what its tenant's limits allow."""
    return b"x-request-id: %b\r\n%b" % (trace.id.encode(), trace.limit_lines)


def kvlane_lines(trace: Trace, own_tokens: int | None = None) -> bytes:
    """Give the headers that say where a request went and why.

    Args:
        own_tokens: Of its prompt, what its tenant has sent before: of what is cached it is told no more, since that
            would tell it what others send. None: there are no others.
    """
    choice = trace.choice
    assert choice is not None
    assert trace.dispatched_at is not None
    cached_tokens, reason = choice.cached_tokens, choice.reason
    if own_tokens is not None:
        if cached_tokens is not None and own_tokens < cached_tokens:
            cached_tokens = own_tokens
        if not cached_tokens and reason is _PREFIX:  # which would tell that there is something
            reason = Reason.LEAST_WORK
    queue_ms = int((trace.dispatched_at - trace.arrived_at) * 1000)
    lines = (
        f"x-kvlane-endpoint: {choice.endpoint.name}\r\nx-kvlane-pool: {trace.pool or ''}\r\n"
        f"x-kvlane-reason: {reason.label}\r\nx-kvlane-queue-ms: {queue_ms}\r\n"
        f"x-kvlane-prompt-tokens: {trace.prompt_tokens}\r\n"
    )
    if trace.predicted_wait_s is not None:
        lines += f"x-kvlane-predicted-queue-ms: {int(trace.predicted_wait_s * 1000)}\r\n"
    if cached_tokens is not None:
        lines += f"x-kvlane-cached-tokens: {cached_tokens}\r\n"
    return lines.encode()


def outcome_of(status: int) -> Outcome:
    """Say what a status means for metrics and logs."""
    return _OUTCOMES.get(status, Outcome.CLIENT_ERROR if status < 500 else Outcome.FAILED)
