"""One finished request, as the access log writes it and everything that reads that log knows it.

A line of the log is the record's fields as one JSON object. `SCHEMA` is the version of that form: it grows when a field
changes its meaning or goes; new fields come without notice, so readers ignore what they do not know. Whoever reads
lines reads them with `record_of`, which believes nothing: a log is a file, and files are cut, mixed and edited.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

SCHEMA = 1
T = TypeVar("T")


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
    """Unix seconds, like all that ends in _at."""
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
    """From arrival to the first try; all its life, where none was made."""
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
    dispatched_at: float | None = None
    """When the first try was made."""
    first_token_at: float | None = None
    """Streams only."""
    finished_at: float | None = None
    waited_s: float | None = None
    """At the door of its pool; None where it never came there."""
    predicted_wait_s: float | None = None
    """That wait, as predicted when it came."""
    service_class: str | None = None
    trace_id: str | None = None
    """Of the trace it belongs to, 32 hex digits."""
    prefix: str = ""
    """Marks of its prompt's beginnings: see fingerprint.py. Empty where nothing is known of it."""
    unit_tokens: int | None = None
    """Tokens of the units that those marks count in."""
    ring_key: str | None = None
    """A mark of what it shares with its like: system prompt, conversation or session."""
    prefix_shape: str | None = None
    """Sizes and salted hashes of what its prompt begins with: see shape.py. None where nobody looked."""
    schema: int = SCHEMA


MOST_TOKENS = 1 << 31
MOST_S = 1e11  # after 1970: some 3,000 years
MOST_CHARS = 1 << 16  # of a fingerprint: 8,192 marks


def record_of(line: object) -> RequestRecord:
    """Read a line of the access log, as JSON told it.

    Raises:
        ValueError: It is none, of another schema, or has figures that nothing can have.
    """
    if not isinstance(line, dict):
        raise ValueError("is no object")
    told: dict[str, object] = line
    if told.get("schema") != SCHEMA:
        raise ValueError(f"is of schema {told.get('schema')!r}, not {SCHEMA}")
    return RequestRecord(
        id=_text(told, "id"),
        arrived_at=_number(told, "arrived_at"),
        tenant=_text(told, "tenant"),
        model=_text(told, "model"),
        route=_text(told, "route"),
        status=_count(told, "status"),
        outcome=Outcome(_text(told, "outcome")),
        code=_text_or_none(told, "code"),
        is_stream=told.get("is_stream") is True,
        pool=_text_or_none(told, "pool"),
        endpoint=_text_or_none(told, "endpoint"),
        reason=_text_or_none(told, "reason"),
        tries=_count(told, "tries"),
        queue_s=_number(told, "queue_s"),
        ttft_s=_number_or_none(told, "ttft_s"),
        tpot_s=_number_or_none(told, "tpot_s"),
        e2e_s=_number(told, "e2e_s"),
        prompt_tokens=_count(told, "prompt_tokens"),
        output_tokens=_count_or_none(told, "output_tokens"),
        cached_tokens=_count_or_none(told, "cached_tokens"),
        predicted_cached_tokens=_count_or_none(told, "predicted_cached_tokens"),
        dispatched_at=_number_or_none(told, "dispatched_at"),
        first_token_at=_number_or_none(told, "first_token_at"),
        finished_at=_number_or_none(told, "finished_at"),
        waited_s=_number_or_none(told, "waited_s"),
        predicted_wait_s=_number_or_none(told, "predicted_wait_s"),
        service_class=_text_or_none(told, "service_class"),
        trace_id=_text_or_none(told, "trace_id"),
        prefix=_text_or_none(told, "prefix") or "",
        unit_tokens=_count_or_none(told, "unit_tokens"),
        ring_key=_text_or_none(told, "ring_key"),
        prefix_shape=_text_or_none(told, "prefix_shape"),
    )


def _text_or_none(told: Mapping[str, object], name: str) -> str | None:
    value = told.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MOST_CHARS):
        raise ValueError(f"{name} is no text")
    return value


def _count_or_none(told: Mapping[str, object], name: str) -> int | None:
    value = told.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:  # True is no count
        raise ValueError(f"{name} is no count")
    return value


def _number_or_none(told: Mapping[str, object], name: str) -> float | None:
    value = told.get(name)
    if value is None:
        return None
    if (type(value) is not float and type(value) is not int) or not 0 <= value <= MOST_S:  # nor is NaN in there
        raise ValueError(f"{name} is no number of seconds")
    return value


def _text(told: Mapping[str, object], name: str) -> str:
    return _needed(_text_or_none(told, name), name)


def _count(told: Mapping[str, object], name: str) -> int:
    return _needed(_count_or_none(told, name), name)


def _number(told: Mapping[str, object], name: str) -> float:
    return _needed(_number_or_none(told, name), name)


def _needed(value: T | None, name: str) -> T:
    if value is None:
        raise ValueError(f"has no {name}")
    return value
