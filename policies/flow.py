"""Flow: whether an endpoint has room for one more request, from our own books.

An engine takes hundreds of requests without a word and then serves all of them badly. So what counts is not how many
there are but what one more would do to the others:

    pace      slip * step / (1 - share of time in prefills) stays within TIGHT of the objective for seconds per token.
              All in flight count as decodes, those in prefill too: they will be when it matters
    backlog   prefills not yet done there come to at most MAX_BACKLOG_S: more would wait there for their turn, and they
              wait better here, where they can still go elsewhere or be told no
    memory    tokens pinned and streamed, and what this request adds, stay within ROOM of the KV cache: tokens that
              are cached count once, and of the output only half of what is expected. Never max_tokens
    places    requests in flight stay within `max_inflight`, where the configuration names it

An endpoint with nothing to do has room for anything, and one whose size is unknown is never short of memory.
"""

from dataclasses import dataclass

from policies.endpoint import UNKNOWN_CAPACITY, Endpoint
from policies.request import InferenceRequest

TPOT_SLO_S = 0.05
TIGHT = 0.9
MAX_BACKLOG_S = 1.0
ROOM = 0.95


@dataclass(slots=True)
class Promised:
    """What an endpoint was promised and is not in its books yet."""

    requests: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0


NOTHING = Promised()


@dataclass(frozen=True, slots=True)
class Flow:
    """The room of endpoints."""

    tpot_slo_s: float = TPOT_SLO_S
    max_inflight: int | None = None
    """Requests that one endpoint may have; None for no such limit."""
    is_measured: bool = True
    """Whether pace, backlog and memory count, and not only places."""

    def load(self, endpoint: Endpoint, now: float, promised: Promised = NOTHING) -> float:
        """Say how full an endpoint is: below 1 it has room for another."""
        books, work = endpoint.outstanding, endpoint.work
        requests = books.requests + promised.requests
        if not requests:
            return 0.0
        full = requests / self.max_inflight if self.max_inflight else 0.0
        if not self.is_measured:
            return full
        step_s = work.step_s(requests, books.context_tokens + promised.prompt_tokens)
        pace = books.slip * step_s / (1 - books.share_of_prefill(now)) / (TIGHT * self.tpot_slo_s)
        backlog = (books.prefill_s + work.p1 * promised.uncached_tokens) / MAX_BACKLOG_S
        return max(full, pace, backlog)

    def fits(
        self, endpoint: Endpoint, request: InferenceRequest, uncached_tokens: int, promised: Promised = NOTHING
    ) -> bool:
        """Whether the KV cache of an endpoint has room for a request of whose prompt so much is not there yet."""
        books = endpoint.outstanding
        capacity = endpoint.report.kv_capacity_tokens or UNKNOWN_CAPACITY
        if not self.is_measured or not books.requests + promised.requests:
            return True
        held = books.pinned_tokens + books.streamed_tokens + promised.uncached_tokens
        return held + uncached_tokens + request.output_tokens / 2 <= ROOM * capacity
