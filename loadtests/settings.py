"""Settings, Facts: what a simulated engine is told, and what it has seen."""

from collections import Counter, deque
from dataclasses import dataclass, field

from loadtests.http1 import Exchange, Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one simulated engine is run. Times are real seconds unless they are the model's."""

    models: tuple[str, ...] = ("sim",)
    """Names it answers to; the metrics bear the first."""
    profile: str = "bench-8b"
    time_scale: float = 1.0
    """Real seconds per second of the model: 0.1 is ten times faster than life, 0 takes no time."""
    max_context_tokens: int = 32_768
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    kv_tokens: int | None = None
    max_queued: int | None = None
    startup_delay_s: float = 0.0
    """Until then /health and engine calls say 503."""
    cold_requests: int = 0
    cold_factor: float = 1.0
    mean_output_tokens: int = 200
    alphabet: str = "words"
    tokenizer: str | None = None
    """A folder with a tokenizer.json, whose model writes conversations as ChatML; None is the engine's own."""
    tells_cached: bool = True
    """vLLM: --enable-prompt-tokens-details."""
    echoes_request_id: bool = False
    """vLLM: --enable-request-id-headers."""
    api_key: str | None = None
    keep_alive_s: float = 5.0
    """As uvicorn's."""
    recent: int = 1000
    """Requests whose bodies are kept."""
    seed: int = 0
    """Of the faults' chance."""
    version: str = "0.32.0"


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came."""

    method: str
    target: str
    headers: Headers
    body: bytes
    at: float
    """The loop's time."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A client that left before its answer ended."""

    path: str
    at: float
    """The loop's time at which the model forgot it."""
    phase: str
    """"waiting" until the first token, then "decoding"; "unborn" for requests that never reached the
    model."""
    tokens: int
    """Output tokens made by then."""


@dataclass(slots=True)
class Facts:
    """What a simulated engine has seen. Requests to /sim/ are not counted."""

    calls: Counter[str] = field(default_factory=Counter)
    """Requests by path, polls included."""
    recent: deque[Seen] = field(default_factory=deque)
    statuses: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Answers by path, method and class of status."""
    live: int = 0
    """Generations in the model."""
    finished: int = 0
    broken: int = 0
    """Generations that a fault ended."""
    departures: list[Departure] = field(default_factory=list)
    connections: int = 0
    connections_total: int = 0
    connections_peak: int = 0

    @property
    def aborted(self) -> int:
        """Generations whose client left."""
        return len(self.departures)

    @property
    def engine_calls(self) -> int:
        """POSTs under /v1/: what clients want of an engine."""
        return sum(count for path, count in self.calls.items() if path.startswith("/v1/") and path != "/v1/models")

    def saw(self, exchange: Exchange, at: float) -> None:
        """Note a request."""
        self.calls[exchange.path] += 1
        self.recent.append(Seen(exchange.method, exchange.target, exchange.headers, exchange.body, at))

    def connected(self) -> None:
        """Note a new connection."""
        self.connections += 1
        self.connections_total += 1
        self.connections_peak = max(self.connections_peak, self.connections)
