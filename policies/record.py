"""One finished request, as the access log writes it and the simulator's trace reader reads it."""

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a request ended: a metric label."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """The client's mistake, found by us or by an engine."""
    REFUSED = "refused"
    """A limit, or overload."""
    FAILED = "failed"
    """An engine failed, before the first byte or inside the answer."""
    DISCONNECTED = "disconnected"
    """The client left."""


@dataclass(slots=True)  # not frozen: that makes twenty fields cost 2.5 us more, on every request
class RequestRecord:
    """Sizes, times and places; never text. None where it is not known or did not come so far."""

    id: str
    arrived_at: float
    """Unix seconds."""
    tenant: str
    model: str
    route: str
    status: int
    outcome: Outcome
    code: str | None
    """Of the refusal."""
    is_stream: bool
    pool: str | None
    endpoint: str | None
    reason: str | None
    tries: int
    queue_s: float
    ttft_s: float | None
    """From arrival to the first token; streams only."""
    tpot_s: float | None
    """Mean seconds per output token after the first; streams only."""
    e2e_s: float
    prompt_tokens: int
    """As the engine counted, else our estimate."""
    output_tokens: int | None
    cached_tokens: int | None
    """As the engine reported; zero is data, None is silence."""
    predicted_cached_tokens: int | None
    """As we expected when it was sent; None where nothing was known of its prompt."""
    prefix_shape: str | None = None
    """Sizes and salted hashes of what its prompt begins with: see shape.py. None where nobody looked."""
