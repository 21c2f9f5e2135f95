"""What routing may know of an engine, and the named sets in which engines serve.

An Endpoint is one incarnation of an engine: one that restarts, or leaves and comes back, is a new Endpoint with clean
books, and leases on the old one end on the old one. `eq=False`: identity is what counts.

Who writes: `gateway/lease.py` the books (`outstanding`), `gateway/fleet.py` what an engine reports and the unit of its
prompts, `gateway/probe.py` its models, its limits and what it can; `lease.py` and `probe.py` tell health what they met.
Policies only read.
"""

from dataclasses import dataclass, field
from math import exp

from policies.health import Health
from policies.request import UNIT_TOKENS, BlockHash, InferenceRequest
from policies.work import WorkModel

PREFILL_MEMORY_S = 10.0  # shorter and one long prompt closes an endpoint, longer and a burst is seen too late
MAX_HEAD_DONE = 0.8  # of the oldest prefill: it is not done before its first token is seen
MAX_PREFILL_SHARE = 0.9  # beyond it, what is left for decodes is a guess
UNKNOWN_CAPACITY = float("inf")  # tokens: where the engine does not say, nothing is ever full


@dataclass(slots=True)
class EngineReport:
    """What an engine last said of itself. None means it did not say: missing is not zero."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache held by live requests, 0 to 1."""
    kv_capacity_tokens: int | None = None
    block_tokens: int | None = None
    is_asleep: bool | None = None
    """Whether its weights are put away: it answers health checks and serves nothing."""
    prefix_hit_tokens: float | None = None
    prefix_query_tokens: float | None = None
    at: float = float("-inf")
    """Monotonic seconds of the report."""


@dataclass(eq=False, slots=True)
class Charge:
    """What one request in flight was charged on one endpoint; `policies/books.py` makes, moves and ends it."""

    endpoint: "Endpoint"
    request: InferenceRequest
    cached_tokens: int
    """Prompt tokens that were expected to be in the KV cache."""
    uncached_tokens: int
    prefill_s: float
    """Predicted seconds of engine time for the uncached tokens."""
    dispatched_at: float
    was_first: bool
    """Nothing else was waiting for its prefill: the time to the first token is this prompt's own."""
    first_token_at: float | None = None
    was_seen: bool = True
    """Whether the first token was seen, and not only thought to have come by now."""
    prefilled_s: float = 0.0
    """The endpoint's `prefilled_s` at the first token."""
    step_s: float = 0.0
    """Predicted seconds per token at the first token."""
    begun_steps: float = 0.0
    """The endpoint's `steps` at the first token."""

    @property
    def is_decoding(self) -> bool:
        """Whether its first token has come."""
        return self.first_token_at is not None


@dataclass(slots=True)
class Outstanding:
    """What was sent to an endpoint and has not come back. Exact under every way out; never negative."""

    requests: int = 0
    prefill_tokens: int = 0
    """Prompt tokens, without those expected to be cached, of requests that have not shown a first token."""
    decoding: int = 0
    """Requests past their first token."""
    prefill_s: float = 0.0
    """Predicted engine time of those prompt tokens."""
    context_tokens: int = 0
    """Prompt tokens of all in flight, and half the expected output of those that decode."""
    growth_tokens: int = 0
    """What they add to the KV cache: uncached tokens and half the expected output of all in flight."""
    pinned_tokens: int = 0
    """Prompt tokens that cannot be evicted from the KV cache: distinct ones of all in flight."""
    steps: float = field(default=0.0, compare=False)
    """Decode steps made so far, by prediction; counted on when something changes."""
    stepped_at: float = field(default=0.0, compare=False)
    begun_steps: float = field(default=0.0, compare=False)
    """Sum over decodes of `steps` at their first token: with it goes what all of them have streamed."""
    pinned: dict[BlockHash, int] = field(default_factory=dict, repr=False)
    """Requests in flight that hold each unit; along a prompt the counts only fall."""
    prefilling: dict[Charge, None] = field(default_factory=dict, repr=False)
    """Charges before their first token, oldest first."""
    head_since: float = field(default=0.0, compare=False)
    """When the oldest of them got its turn."""
    prefilled_s: float = field(default=0.0, compare=False)
    """Engine time of all prefills done so far."""
    prefill_share: float = field(default=0.0, compare=False)
    """Share of the time before `shared_at` that went into prefills; see `share_of_prefill`."""
    shared_at: float = field(default=0.0, compare=False)
    slip: float = field(default=1.0, compare=False)
    """Measured over predicted seconds per token, prefills of others included: a moving average of finished streams."""

    def share_of_prefill(self, now: float) -> float:
        """Give the share of its time that the engine lately spent on prefills, 0 to MAX_PREFILL_SHARE."""
        return min(MAX_PREFILL_SHARE, self.prefill_share * exp((self.shared_at - now) / PREFILL_MEMORY_S))

    @property
    def streamed_tokens(self) -> float:
        """What the decodes have streamed, by prediction."""
        return max(0.0, self.decoding * self.steps - self.begun_steps)


Outlook = tuple[float, float, float, float, float, float, int, int, int, float, float, float]
"""What the books mean in seconds: asked of every endpoint for every request, so reckoned on changes only.

    p1, p2     of the work model
    fill       share of the KV cache that is pinned; 0 where the capacity is unknown
    step_s     of an iteration of its decodes
    strain_s   what decodes and their context there cost each output token
    steps_s    what any request waits there for steps at least
    decoding   requests past their first token
    pending    prompt tokens that wait for their prefill
    budget     tokens of one iteration
    queue_s    what the prefills there take at least from now on, and
    done_at    when they are done if they take more
    room       uncached and output tokens that a request may have and wait neither for memory nor for a place

A plain tuple, since Python takes one apart five times as fast as a named one.
"""


@dataclass(eq=False, slots=True)
class Endpoint:
    """One engine, in one incarnation."""

    name: str
    url: str
    models: frozenset[str] = frozenset()
    """Model names it serves, as clients call them. Empty until it has told, when the configuration names none."""
    max_context_tokens: int | None = None
    """Prompt plus output it takes; None when neither engine nor configuration says."""
    unit_tokens: int = UNIT_TOKENS
    """Tokens of a unit of its prompts: a multiple of its KV block."""
    cuts_output: bool = False
    """Whether it ends an answer at its limit, where others refuse a request that may come to more."""
    can: frozenset[str] = frozenset()
    """What it can do that not every engine can, and that requests may need."""
    health: Health = field(default_factory=Health)
    outstanding: Outstanding = field(default_factory=Outstanding)
    report: EngineReport = field(default_factory=EngineReport)
    work: WorkModel = field(default_factory=WorkModel)
    outlook: Outlook | None = field(default=None, init=False)
    """What `reckon` found, until books or report change: None then. So a policy that does not ask pays nothing."""

    def __post_init__(self) -> None:
        self.work.listener = self.forget_outlook

    def forget_outlook(self) -> None:
        """Have the outlook reckoned anew when it is asked for."""
        self.outlook = None

    def __repr__(self) -> str:
        return f"<Endpoint {self.name} {self.health.state.value} {self.outstanding.requests} in flight>"

    def reckon(self) -> Outlook:
        """Give the outlook by books, work model and reported capacity; ask for `endpoint.outlook or` this."""
        books, work = self.outstanding, self.work
        decoding, profile = books.decoding, work.profile
        capacity = self.report.kv_capacity_tokens or UNKNOWN_CAPACITY
        strain_s = work.d1 * decoding + work.d2 * books.context_tokens
        step_s = work.d0 + strain_s
        queue_s, done_at = 0.0, float("-inf")
        if books.prefilling:
            head = next(iter(books.prefilling))
            queue_s = max(0.0, books.prefill_s - MAX_HEAD_DONE * head.prefill_s)
            done_at = books.head_since + books.prefill_s
        self.outlook = outlook = (
            work.p1,
            work.p2,
            (books.pinned_tokens + books.streamed_tokens) / capacity,
            step_s,
            strain_s,
            step_s * (0.5 + max(1.0, books.prefill_tokens / profile.budget_tokens)),
            decoding,
            books.prefill_tokens,
            profile.budget_tokens,
            queue_s,
            done_at,
            capacity - books.growth_tokens if books.requests < profile.max_num_seqs else -1,
        )
        return outlook


@dataclass(eq=False, slots=True)
class Pool:
    """A named set of endpoints that one policy spreads requests over."""

    name: str
    endpoints: list[Endpoint] = field(default_factory=list)
    max_context_tokens: int | None = None
    """Prompt plus output it takes; None: what its largest engine takes."""
    max_uncached_tokens: int | None = None
    """Prompts with more to prefill go to a longer pool, where there is one."""
    classes: frozenset[str] = frozenset()
    """Classes of service that it is for; empty: all."""
    lends: bool = True
    """Whether others may have endpoints of it that are idle."""
