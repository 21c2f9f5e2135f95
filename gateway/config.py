"""The configuration: typed, frozen, whole. The only place that reads settings and environment.

`load(path)` gives a Config or raises ConfigError, which names every problem at once, each by path and value. Keys carry
their unit. Unknown keys are refused: a misspelt limit must not silently be no limit. `${NAME}` in a string is replaced
by the environment variable NAME, so that secrets stay out of the file; a missing one is a problem like any other.
"""

import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from yarl import URL

from gateway import document
from policies.catalog import BLIND

NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}$"  # names become header values and metric labels
VISIBLE_ASCII = re.compile(r"[!-~]+")
MEBIBYTE = 1 << 20
REPLAY_ADDRESS = re.compile(r"tcp://[^\s/]+:\d{1,5}|ipc://\S+")
ADDRESS = re.compile(rf"(?:bind:)?(?:{REPLAY_ADDRESS.pattern})|https?://\S+")
AUTO, OFF = "auto", "off"
BIND = "bind:"  # before an address that we are to bind, since the engine connects


def _no_bool(value: object) -> object:
    """Refuse `yes` and `true` where a number is meant: Python would take them for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Port = Annotated[int, Field(ge=0, le=65535), BeforeValidator(_no_bool)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]


class Kind(Enum):
    """Engine families."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    TRITON = "triton"
    LLAMACPP = "llamacpp"
    TGI = "tgi"


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` has one line each."""

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(f"{source}: " + "; ".join(self.problems))


class Section(BaseModel):
    """A part of the configuration: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Listen(Section):
    """Where the gateway listens, and how much it takes from one client."""

    host: str = Field("127.0.0.1", description="Address of the API.")
    port: Port = Field(8080, description="Port of the API: /v1/*, /healthz, /readyz. 0 takes any free one.")
    admin_host: str = Field("127.0.0.1", description="Address of the admin listener; keep it off public networks.")
    admin_port: Port = Field(8081, description="Port of the admin listener: /metrics, /admin/*.")
    max_body_bytes: Count = Field(64 * MEBIBYTE, description="A larger request body is refused with 413.")
    max_header_bytes: Count = Field(16384, description="A longer request line or header is refused.")
    max_headers: Count = Field(128, description="More header lines are refused.")
    body_timeout_s: Seconds = Field(60, description="A client that sends nothing of its body for so long gets 408.")
    keepalive_s: Seconds = Field(75, description="An idle client connection is closed after this.")
    write_timeout_s: Seconds = Field(
        600, description="A client that takes nothing of its answer for so long is cut off."
    )

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


class EndpointConfig(Section):
    """One engine."""

    name: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="Unique; in headers, metrics and logs. Host and port by default."
    )
    url: str = Field(description="Where the engine listens, without /v1.")
    kind: str = Field("auto", description="vllm, sglang, trtllm, triton, llamacpp, tgi; auto asks the engine.")
    models: tuple[str, ...] = Field((), description="Model names it serves; none: the engine is asked.")
    max_context_tokens: Count | None = Field(
        None, description="Prompt plus output it takes; none: the engine is asked."
    )
    api_key: str | None = Field(None, repr=False, description="Sent to the engine as a bearer token.")
    metrics_url: str | None = Field(
        None, description="Where its metrics page is, if not on `url` (Triton: http://host:8002/metrics)."
    )
    kv_events: str = Field(
        AUTO,
        description="Where it tells what it caches. auto: vLLM and SGLang are asked; off; tcp://host:port, ipc://path "
        "(ZeroMQ); bind:tcp://… where the engine connects to us; http://… to poll TensorRT-LLM's /kv_cache_events.",
    )
    kv_replay: str | None = Field(
        None,
        description="Where it replays what it told before, if kv_events is an address: tcp://host:port, ipc://path.",
    )

    @field_validator("kv_events", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        """Take YAML's bare `off`, which is read as false, for the word that was written."""
        return OFF if value is False else value

    @field_validator("kind")
    @classmethod
    def _is_kind(cls, value: str) -> str:
        known = ["auto", *(kind.value for kind in Kind)]
        if value not in known:
            raise ValueError("must be one of " + ", ".join(known))
        return value

    @field_validator("url", "metrics_url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = URL(value)
        except ValueError as error:
            raise ValueError(f"not a URL: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("must be http://host:port or https://host:port")
        if url.user or url.password or url.query_string or url.fragment:
            raise ValueError("must have no user, query or fragment")
        if not VISIBLE_ASCII.fullmatch(value):
            raise ValueError("must have no spaces, control characters or letters beyond ASCII")
        return value.rstrip("/")

    @field_validator("kv_events", "kv_replay")
    @classmethod
    def _is_address(cls, value: str | None, info: ValidationInfo) -> str | None:
        is_events = info.field_name == "kv_events"
        known = ADDRESS if is_events else REPLAY_ADDRESS
        if value is None or (is_events and value in (AUTO, OFF)) or known.fullmatch(value):
            return value
        raise ValueError("must be auto, off or an address" if is_events else "must be tcp://host:port or ipc://path")

    @model_validator(mode="after")
    def _replays_what_is_told(self) -> Self:
        if self.kv_replay is not None and not re.match(f"({BIND})?(tcp|ipc)://", self.kv_events):
            raise ValueError("kv_replay needs kv_events to be a tcp:// or ipc:// address")
        return self

    @field_validator("url")
    @classmethod
    def _is_root(cls, value: str) -> str:
        if value.endswith("/v1"):
            raise ValueError("must not end in /v1: paths under it are added")
        return value

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, value: str | None) -> str | None:
        key = (value or "").strip()  # secrets out of files end in a newline
        if not key:
            return None
        if not VISIBLE_ASCII.fullmatch(key):
            raise ValueError("must be visible ASCII, without spaces")
        return key

    @property
    def known_kind(self) -> Kind | None:
        """The kind that the configuration names; None where the engine is asked."""
        return None if self.kind == "auto" else Kind(self.kind)

    @property
    def label(self) -> str:
        """The endpoint's name in headers, metrics and logs."""
        url = URL(self.url)
        return self.name or f"{url.host}:{url.port}"


class PoolConfig(Section):
    """Endpoints that one policy spreads requests over."""

    name: Annotated[str, Field(pattern=NAME)] = Field("default", description="Unique; in headers and metrics.")
    policy: str = Field("least_requests", description="One of: " + ", ".join(BLIND) + ".")
    endpoints: Annotated[tuple[EndpointConfig, ...], Field(min_length=1)] = Field(description="Its engines.")

    @field_validator("policy")
    @classmethod
    def _is_policy(cls, value: str) -> str:
        if value not in BLIND:
            raise ValueError("must be one of " + ", ".join(BLIND))
        return value


class TenantConfig(Section):
    """Who may call. Without any tenant, everybody may."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="Unique; in metrics and logs.")
    key_sha256: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description="SHA-256 of each of its API keys, in hex: the keys themselves are never stored.",
        repr=False,
    )
    models: tuple[str, ...] = Field((), description="Models it may use; none: all.")
    kvlane_headers: bool = Field(True, description="Whether its answers carry x-kvlane-* headers.")

    @field_validator("key_sha256")
    @classmethod
    def _is_sha256(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"[0-9a-fA-F]{64}", digest) for digest in value):
            raise ValueError("each must be 64 hex digits")
        return tuple(digest.lower() for digest in value)


class Config(Section):
    """The whole configuration."""

    listen: Listen = Listen()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    health: Health = Health()
    connections: Connections = Connections()
    shutdown: Shutdown = Shutdown()
    access_log: AccessLog = AccessLog()
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1)]
    tenants: tuple[TenantConfig, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_defaults(cls, value: Any) -> Any:
        """Take `listen:` with nothing under it, as editing leaves it behind, for a section of defaults."""
        if not isinstance(value, dict):
            return value
        return {key: {} if item is None and key in SECTIONS else item for key, item in value.items()}

    def repetitions(self) -> dict[str, str]:
        """Give what stands twice and must not, by path."""
        pools = [(f"pools[{at}]", pool) for at, pool in enumerate(self.pools)]
        endpoints = [
            (f"{path}.endpoints[{n}]", entry) for path, pool in pools for n, entry in enumerate(pool.endpoints)
        ]
        tenants = [(f"tenants[{at}]", tenant) for at, tenant in enumerate(self.tenants)]
        return {
            **_repeated((f"{path}.name", pool.name) for path, pool in pools),
            **_repeated((f"{path}.{'name' if entry.name else 'url'}", entry.label) for path, entry in endpoints),
            **_repeated((f"{path}.name", tenant.name) for path, tenant in tenants),
            **_repeated(
                (f"{path}.key_sha256[{n}]", f"{digest[:8]}…")
                for path, tenant in tenants
                for n, digest in enumerate(tenant.key_sha256)
            ),
        }


SECTIONS = frozenset(Config.model_fields) - {"pools", "tenants"}


def _repeated(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    first: dict[str, str] = {}
    found = {}
    for path, name in names:
        if name in first:
            found[path] = f"{name!r} is there twice, first at {first[name]}"
        first.setdefault(name, path)
    return found


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something that cannot be.
    """
    try:
        return build(document.read(path), str(path), environment)
    except document.Unreadable as error:
        raise ConfigError(str(path), [str(error)]) from error


def build(content: object, source: str, environment: Mapping[str, str] = os.environ) -> Config:
    """Make a Config of what a YAML document holds.

    Raises:
        ConfigError: with every problem found, those of environment references and of types together.
    """
    if not isinstance(content, dict):
        raise ConfigError(source, [f"must be a mapping of sections, is {type(content).__name__}"])
    problems: dict[str, str] = {}
    resolved = document.resolve(content, environment, problems)
    try:
        config = Config.model_validate(resolved)
    except ValidationError as error:
        raise ConfigError(source, document.worded(error.errors(), problems)) from error
    lines = document.worded((), problems | config.repetitions())
    if lines:
        raise ConfigError(source, lines)
    return config


def quick(urls: Iterable[str]) -> Config:
    """Make the configuration of `kvlane serve --endpoint URL …`: one pool, everything else by default.

    Raises:
        ConfigError: a URL is none, or is there twice.
    """
    return build({"pools": [{"endpoints": [{"url": url} for url in urls]}]}, "--endpoint", {})
