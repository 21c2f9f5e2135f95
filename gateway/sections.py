"""Sections of the configuration that stand alone: how the gateway listens, waits, watches, stops and writes.

Frozen, and strict about unknown keys; keys carry their unit. `config.py` puts them together.
"""

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

MEBIBYTE = 1 << 20
NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}$"  # names become header values and metric labels


def no_bool(value: object) -> object:
    """Refuse `yes` and `true` where a number is meant: Python would take them for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Port = Annotated[int, Field(ge=0, le=65535), BeforeValidator(no_bool)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(no_bool)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(no_bool)]
Count = Annotated[int, Field(ge=1), BeforeValidator(no_bool)]


def each_is_sha256(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what cannot be a SHA-256 in hex: somebody's key, perhaps."""
    if not all(re.fullmatch(r"[0-9a-fA-F]{64}", value) for value in values):
        raise ValueError("each must be 64 hex digits")
    return tuple(value.lower() for value in values)


class Section(BaseModel):
    """A part of the configuration: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Listen(Section):
    """Where the gateway listens, and how much it takes from one client."""

    host: str = Field("127.0.0.1", description="Address of the API.")
    port: Port = Field(8080, description="Port of the API: /v1/*, /healthz, /readyz. 0 takes any free one.")
    admin_host: str = Field("127.0.0.1", description="Address of the admin listener; keep it off public networks.")
    admin_port: Port = Field(8081, description="Port of the admin listener: /metrics, /ui, /admin/*.")
    max_body_bytes: Count = Field(64 * MEBIBYTE, description="A larger request body is refused with 413.")
    max_header_bytes: Count = Field(16384, description="A longer request line or header is refused.")
    max_headers: Count = Field(128, description="More header lines are refused.")
    body_timeout_s: Seconds = Field(60, description="A client that sends nothing of its body for so long gets 408.")
    keepalive_s: Seconds = Field(75, description="An idle client connection is closed after this.")
    write_timeout_s: Seconds = Field(
        600, description="A client that takes nothing of its answer for so long is cut off."
    )
    admin_key_sha256: tuple[str, ...] = Field(
        (),
        repr=False,
        description="SHA-256 of each admin key, in hex; without any, /ui and /admin/* answer this machine alone.",
    )
    metrics_need_key: bool = Field(False, description="Whether /metrics needs an admin key as well.")

    _hex = field_validator("admin_key_sha256")(each_is_sha256)

    @model_validator(mode="after")
    def _metrics_can_be_read(self) -> Self:
        if self.metrics_need_key and not self.admin_key_sha256:
            raise ValueError("metrics_need_key needs an admin_key_sha256")
        return self

    @model_validator(mode="after")
    def _listeners_differ(self) -> Self:
        if self.port and (self.host, self.port) == (self.admin_host, self.admin_port):
            raise ValueError("port and admin_port must differ")
        return self


class Timeouts(Section):
    """How long the gateway waits for engines. There is no total timeout: a slow stream may last for hours."""

    connect_s: Seconds = Field(2, description="To open a connection to an engine.")
    first_byte_s: Seconds = Field(300, description="From sending a request to the first byte of the answer's body.")
    idle_s: Seconds = Field(120, description="Between bytes of an answer that has begun.")
    deadline_s: Seconds = Field(
        600,
        description="From a request's arrival to the first byte, over all tries; "
        "a client's own x-stainless-read-timeout shortens it.",
    )


class Retries(Section):
    """Second chances on other endpoints, before the first byte."""

    max_tries: Count = Field(3, description="Endpoints tried for one request, the first included.")
    budget: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="Retries as a share of requests, at most: an outage must not double the load."
    )
    window_s: Seconds = Field(10, description="Over how long that share is counted.")
    floor: Annotated[int, Field(ge=0)] = Field(
        10, description="Retries that are always allowed within the window, for when there is little traffic."
    )


class Health(Section):
    """How endpoints are watched."""

    interval_s: Seconds = Field(1, description="Between health checks of an endpoint.")
    timeout_s: Seconds = Field(3, description="A slower answer counts as none; SGLang's takes a second by design.")
    state_interval_s: Seconds = Field(1, description="Between readings of an engine's load and cache figures.")


class Connections(Section):
    """Connections to engines."""

    idle_s: Seconds = Field(
        3, description="An idle one is closed after this; engines close theirs after 5 s, so stay below."
    )
    max_idle: Count = Field(1024, description="Idle ones kept per endpoint.")


class Shutdown(Section):
    """What SIGTERM starts."""

    grace_s: Annotated[float, Field(ge=0)] = Field(
        5,
        description="/readyz says 503 at once, but new requests are served for so long: balancers need to notice.",
    )
    drain_s: Annotated[float, Field(ge=0)] = Field(
        600, description="Running requests may take so long to end; then they are cut off."
    )


class AccessLog(Section):
    """One JSON line a request."""

    path: str | None = Field(None, description="File to append to, `-` for standard output; none by default.")
    max_bytes: Annotated[int, Field(ge=4096), BeforeValidator(no_bool)] | None = Field(
        256 * MEBIBYTE,
        description="A file of so many bytes is moved to FILE.1, that to FILE.2, and so on. None: only others move it, "
        "logrotate for one; that is followed either way, without a signal.",
    )
    keep: Annotated[Count, Field(le=1000)] = Field(4, description="Files kept beside it; older ones are deleted.")
    key: Annotated[str, Field(pattern=r"^[!-~]{16,64}$")] | None = Field(
        None,
        repr=False,
        description="By which fingerprints of prompts are hashed: logs with the same can be compared. None: one that "
        "is made up once, and kept in FILE.key.",
    )


class TracingConfig(Section):
    """Spans of requests, sent to a collector."""

    endpoint: str | None = Field(
        None,
        description="Where it takes OTLP over HTTP, http://host:4318; /v1/traces is added where there is no path. "
        "None: no tracing.",
    )
    headers: dict[str, str] = Field({}, repr=False, description="Sent along: a token, mostly.")
    timeout_s: Seconds = Field(10, description="For a batch to be taken, further tries included; then it is lost.")
    ratio: Share = Field(
        0.01, description="Of requests that are recorded from the start; engines are told, in traceparent."
    )
    slow_s: Seconds | None = Field(
        10, description="Whatever takes longer to its first token is recorded at its end, like all that fails."
    )
    honors_clients: bool = Field(
        True, description="Whether a client's own traceparent goes before `ratio`. Off: where strangers call."
    )
    service_name: Annotated[str, Field(min_length=1)] = Field("kvlane", description="Whose spans these are.")
    max_queued: Count = Field(2048, description="Requests whose spans wait to be sent; more are dropped, and counted.")

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("must be http://host:port or https://host:port, without a user")
        return value if parts.path.strip("/") else value.rstrip("/") + "/v1/traces"

    @field_validator("headers")
    @classmethod
    def _fit_a_header(cls, value: dict[str, str]) -> dict[str, str]:
        if not all(re.fullmatch(r"[A-Za-z0-9-]+", name) and re.fullmatch(r"[ -~]*", value[name]) for name in value):
            raise ValueError("must be names of headers, each with one line of visible ASCII")
        return value


class Doctor(Section):
    """Who looks for what keeps prompts from being found in prefix caches."""

    enabled: bool = Field(True, description="Off: nothing is computed, logged or found.")
    per_second: Seconds = Field(
        20, description="Prompts looked at, at most; never more than 1 % of a core goes into it."
    )
    examples: bool = Field(
        False, description="Whether lines that vary are kept as text, with what varies masked, for /admin/doctor."
    )


class Accounting(Section):
    """What tenants have used, day by day."""

    path: Path | None = Field(
        None,
        description="Directory for it, of this gateway alone, and for what budgets have used; none: it is forgotten at "
        "the end. With Redis it is kept there, and here only what could not be saved when the gateway stopped.",
    )
    days: Annotated[Count, Field(le=4000)] = Field(400, description="How many days are kept.")


class Routing(Section):
    """What requests go by, beside their prompts."""

    session_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = Field(
        None, description="A request header that names a session: it takes the place of the system prompt on the ring."
    )


class Scaling(Section):
    """What the signals for an autoscaler aim at."""

    ttft_slo_s: Seconds = Field(
        2.0, description="To the first token, of a stream; per token it is admission.tpot_slo_s."
    )
    attainment: Share = Field(
        0.95, description="Share of streams that should keep to each; of fewer, more is asked for."
    )
    utilization: Annotated[Share, Field(gt=0)] = Field(0.8, description="How busy engines should be.")
    drain_s: Seconds = Field(10, description="Within so long all that waits should be done.")
    calm_s: Seconds = Field(300, description="For so long fewer engines must have done before fewer are asked for.")
    min_replicas: Count = Field(1, description="Of a pool; fewer are never asked for.")
    max_replicas: Count | None = Field(None, description="Of a pool; more are never asked for. None: no such bound.")

    @model_validator(mode="after")
    def _bounds_leave_room(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas must not be less than min_replicas")
        return self


class ClassConfig(Section):
    """A class of service."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="Unique; in metrics, logs and headers.")
    max_queued: Count = Field(10_000, description="Requests that may wait; more are refused.")
    max_queue_wait_s: Seconds = Field(
        30, description="Longer none waits: refused on arrival where the prediction says so."
    )
    crowded_wait_s: Seconds | None = Field(
        None, description="The same for newcomers once somebody has been waiting for 2 s without a break."
    )
    ceiling: Annotated[Share, Field(gt=0)] = Field(
        1.0, description="How full an endpoint may be to take another of this class."
    )
    floor: Share = Field(0.0, description="Share of the work that it gets while it waits, whatever else does.")


class Admission(Section):
    """Who waits in the gateway, how long, and who is told no."""

    enabled: bool = Field(True, description="Off: engines queue for themselves, without a limit.")
    tpot_slo_s: Seconds = Field(
        0.05, description="Seconds per output token: an endpoint has room while its streams keep to it."
    )
    max_inflight: Count | None = Field(
        None, description="Requests that an endpoint may have besides; none: work and memory alone decide."
    )
    smoothing_s: Annotated[float, Field(ge=0, le=1), BeforeValidator(no_bool)] = Field(
        0.0,
        description="More requests within so long than a pool has endpoints are a burst: held to the end of it, and "
        "placed in fair order then. 0: each is placed as it comes.",
    )
    keepalive_s: Seconds | None = Field(
        None,
        description="A stream that waits gets `: ping` so often. That commits its status to 200: refusals and failures "
        "come as events of the stream then.",
    )
    classes: Annotated[tuple[ClassConfig, ...], Field(min_length=1)] = Field(
        (
            ClassConfig(name="interactive"),
            ClassConfig(name="batch", max_queue_wait_s=600, ceiling=0.9, floor=0.1),
        ),
        description="The first before the second.",
    )
    service_tiers: dict[str, str] = Field(
        {"flex": "batch", "batch": "batch"}, description="Class of requests by their `service_tier`."
    )
    class_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] = Field(
        "x-kvlane-class", description="A request header that names the class."
    )

    @model_validator(mode="after")
    def _classes_are_known(self) -> Self:
        names = [each.name for each in self.classes]
        if len(set(names)) < len(names):
            raise ValueError("two classes have the same name")
        unknown = sorted(set(self.service_tiers.values()) - set(names))
        if unknown and "service_tiers" in self.model_fields_set:
            raise ValueError(f"service_tiers names classes that are none: {', '.join(unknown)}")
        return self
