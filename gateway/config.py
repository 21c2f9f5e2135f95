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

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from yarl import URL

from gateway import document
from gateway.sections import (
    NAME,
    AccessLog,
    Accounting,
    Admission,
    Connections,
    Count,
    Doctor,
    Health,
    Listen,
    Retries,
    Routing,
    Scaling,
    Section,
    Shutdown,
    Timeouts,
    TracingConfig,
)
from gateway.tenancy import (
    ANONYMOUS_NAME,
    AnonymousConfig,
    ModelName,
    PricesConfig,
    RedisConfig,
    TenantConfig,
    clashes,
    repeated,
    strangers,
)
from policies.catalog import POLICIES
from policies.work import PROFILES

VISIBLE_ASCII = re.compile(r"[!-~]+")
DEFAULT_PROFILE_NAME = "bench-8b"
ASK_ENGINE = "engine"  # for a tokenizer
REPLAY_ADDRESS = re.compile(r"tcp://[^\s/]+:\d{1,5}|ipc://\S+")
ADDRESS = re.compile(rf"(?:bind:)?(?:{REPLAY_ADDRESS.pattern})|https?://\S+")
AUTO, OFF = "auto", "off"
BIND = "bind:"  # before an address that we are to bind, since the engine connects


def _one_of(known: Iterable[str], value: str) -> str:
    """Refuse a name that is none."""
    if value not in known:
        raise ValueError("must be one of " + ", ".join(known))
    return value


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


class EndpointConfig(Section):
    """One engine."""

    name: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="Unique; in headers, metrics and logs. Host and port by default."
    )
    url: str = Field(description="Where the engine listens, without /v1.")
    kind: str = Field(AUTO, description="vllm, sglang, trtllm, triton, llamacpp, tgi; auto asks the engine.")
    models: tuple[str, ...] = Field((), description="Model names it serves; none: the engine is asked.")
    max_context_tokens: Count | None = Field(
        None, description="Prompt plus output it takes; none: the engine is asked."
    )
    api_key: str | None = Field(None, repr=False, description="Sent to the engine as a bearer token.")
    metrics_url: str | None = Field(
        None, description="Where its metrics page is, if not on `url` (Triton: http://host:8002/metrics)."
    )
    profile: str = Field(
        DEFAULT_PROFILE_NAME,
        description="What its work is first thought to cost, until it is learned: " + ", ".join(PROFILES) + ".",
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
        return _one_of((AUTO, *(kind.value for kind in Kind)), value)

    @field_validator("profile")
    @classmethod
    def _is_profile(cls, value: str) -> str:
        return _one_of(PROFILES, value)

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
        return None if self.kind == AUTO else Kind(self.kind)

    @property
    def label(self) -> str:
        """The endpoint's name in headers, metrics and logs."""
        url = URL(self.url)
        return self.name or f"{url.host}:{url.port}"


class PoolConfig(Section):
    """Endpoints that one policy spreads requests over."""

    name: Annotated[str, Field(pattern=NAME)] = Field("default", description="Unique; in headers and metrics.")
    policy: str = Field("least_work", description="One of: " + ", ".join(POLICIES) + ".")
    max_context_tokens: Count | None = Field(
        None, description="Prompt plus output it takes, if not more than its largest engine; none: what that takes."
    )
    max_uncached_tokens: Count | None = Field(
        None, description="Prompts with more that is not cached go to a pool with a larger limit, where there is one."
    )
    classes: tuple[str, ...] = Field((), description="Classes of service that it is for; none: all.")
    lends: bool = Field(True, description="Whether requests that are not its own may have endpoints that are idle.")
    endpoints: Annotated[tuple[EndpointConfig, ...], Field(min_length=1)] = Field(description="Its engines.")

    @field_validator("policy")
    @classmethod
    def _is_policy(cls, value: str) -> str:
        return _one_of(POLICIES, value)


class ModelConfig(Section):
    """What is known of a model beside what its engines say. Models need no entry to be served."""

    name: ModelName = Field(description="As the engines call it.")
    aliases: tuple[ModelName, ...] = Field(
        (), description="Other names by which clients may ask for it; engines see its own."
    )
    tokenizer: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="A tokenizer.json, a directory with one, a hub id (org/name), or `engine` to ask the engine's own "
        "/tokenize; none: tokens are estimated from bytes.",
    )
    chat_template: str | None = Field(None, description="A Jinja file; none: the one that comes with the tokenizer.")
    chat_template_kwargs: dict[str, Any] = Field(
        {},
        description="Variables of the template, as the engines are started with them (vLLM: "
        "--default-chat-template-kwargs).",
    )
    prices: PricesConfig | None = Field(None, description="What its tokens cost; none: nothing.")
    image_tokens: Annotated[Count, Field(le=100_000)] = Field(
        1024, description="What an image, a sound or a file counts for: nobody decodes them here."
    )

    @field_validator("tokenizer", "chat_template")
    @classmethod
    def _is_there(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuse paths to nothing; a hub id is no path."""
        if value is None or (info.field_name == "tokenizer" and value == ASK_ENGINE):
            return value
        is_path = info.field_name == "chat_template" or value.startswith((".", "/", "~")) or value.endswith(".json")
        if is_path and not Path(value).expanduser().exists():
            raise ValueError("there is no such file or folder")
        return value

    @model_validator(mode="after")
    def _template_has_a_tokenizer(self) -> Self:
        if self.tokenizer in (None, ASK_ENGINE) and (self.chat_template is not None or self.chat_template_kwargs):
            raise ValueError("a chat template, or variables of one, need a tokenizer that is loaded here")
        return self


class Config(Section):
    """The whole configuration."""

    listen: Listen = Listen()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    health: Health = Health()
    connections: Connections = Connections()
    shutdown: Shutdown = Shutdown()
    access_log: AccessLog = AccessLog()
    tracing: TracingConfig = TracingConfig()
    accounting: Accounting = Accounting()
    doctor: Doctor = Doctor()
    routing: Routing = Routing()
    admission: Admission = Admission()
    scaling: Scaling = Scaling()
    pools: Annotated[tuple[PoolConfig, ...], Field(min_length=1)]
    models: tuple[ModelConfig, ...] = ()
    redis: RedisConfig = RedisConfig()
    anonymous: AnonymousConfig | None = None
    tenants: tuple[TenantConfig, ...] = ()
    tenants_file: Annotated[Path, Field(description="More tenants, in a file that `kvlane key` writes.")] | None = None
    tenants_in_redis: bool = False
    cache_secret: Annotated[
        str | None,
        Field(
            min_length=16,
            repr=False,
            description="Of tenants with isolate_cache: all gateways before the same engines need the same, or they "
            "share no cache. None: one that is made up at each start.",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_defaults(cls, value: Any) -> Any:
        """Take `listen:` with nothing under it, as editing leaves it behind, for a section of defaults."""
        if not isinstance(value, dict):
            return value
        return {key: {} if item is None and key in SECTIONS else item for key, item in value.items()}

    def aliases(self) -> dict[str, str]:
        """Give the names that clients may use beside the models' own, each with that."""
        return {alias: model.name for model in self.models for alias in model.aliases}

    @property
    def has_keys(self) -> bool:
        """Whether anybody has a key, or may be given one: then a key that is nobody's is refused."""
        return bool(self.tenants) or self.tenants_file is not None or self.tenants_in_redis

    def clashes(self, tenants: Iterable[tuple[str, TenantConfig]], anonymous: AnonymousConfig | None) -> dict[str, str]:
        """Give what cannot be of who calls, wherever that is told, beside this configuration; by path."""
        classes = {each.name for each in self.admission.classes}
        priced = {model.name for model in self.models if model.prices is not None}
        found = clashes(tenants, classes, self.aliases(), priced)
        if anonymous is not None:
            found |= strangers(ANONYMOUS_NAME, anonymous, classes, self.aliases(), priced)
        return found

    def strangers(self) -> dict[str, str]:
        """Give what is named and is not there, by path."""
        classes = {each.name for each in self.admission.classes}
        told = ", ".join(sorted(classes))
        problems = {
            f"pools[{at}].classes[{n}]": f"{name!r} is no class of admission; there are {told}"
            for at, pool in enumerate(self.pools)
            for n, name in enumerate(pool.classes)
            if name not in classes
        }
        if self.tenants_in_redis and not self.redis.is_there:
            problems["tenants_in_redis"] = "needs redis.url or redis.sentinel"
        return problems

    def repetitions(self) -> dict[str, str]:
        """Give what stands twice and must not, by path."""
        pools = [(f"pools[{at}]", pool) for at, pool in enumerate(self.pools)]
        endpoints = [
            (f"{path}.endpoints[{n}]", entry) for path, pool in pools for n, entry in enumerate(pool.endpoints)
        ]
        models = [(f"models[{at}]", model) for at, model in enumerate(self.models)]
        return {
            **repeated((f"{path}.name", pool.name) for path, pool in pools),
            **repeated((f"{path}.{'name' if entry.name else 'url'}", entry.label) for path, entry in endpoints),
            **repeated(
                entry
                for path, model in models
                for entry in (
                    (f"{path}.name", model.name),
                    *((f"{path}.aliases[{n}]", alias) for n, alias in enumerate(model.aliases)),
                )
            ),
            **self.clashes(((f"tenants[{at}]", tenant) for at, tenant in enumerate(self.tenants)), self.anonymous),
        }


NO_SECTIONS = {"pools", "models", "anonymous", "tenants", "tenants_file", "tenants_in_redis", "cache_secret"}
SECTIONS = frozenset(Config.model_fields) - NO_SECTIONS
DOORS = ("anonymous", "tenants", "tenants_file", "tenants_in_redis")
WHO_MAY_CALL = "who may call? Name tenants (`kvlane key` makes keys), or write `anonymous: {}` to let everybody in"


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something that cannot be.
    """
    try:
        config = build(document.read(path), str(path), environment)
    except document.Unreadable as error:
        raise ConfigError(str(path), [str(error)]) from error
    if config.tenants_file is None:
        return config
    return config.model_copy(update={"tenants_file": path.parent / config.tenants_file.expanduser()})


def build(content: object, source: str, environment: Mapping[str, str] = os.environ) -> Config:
    """Make a Config of what a YAML document holds.

    Raises:
        ConfigError: with every problem found, those of environment references and of types together.
    """
    if not isinstance(content, dict):
        raise ConfigError(source, [f"must be a mapping of sections, is {type(content).__name__}"])
    problems: dict[str, str] = {}
    resolved = document.resolve(content, environment, problems)
    if all(content.get(door) in (None, False, [], "") for door in DOORS):
        problems[ANONYMOUS_NAME] = WHO_MAY_CALL
    try:
        config = Config.model_validate(resolved)
    except ValidationError as error:
        raise ConfigError(source, document.worded(error.errors(), problems)) from error
    lines = document.worded((), problems | config.strangers() | config.repetitions())
    if lines:
        raise ConfigError(source, lines)
    return config


def quick(urls: Iterable[str]) -> Config:
    """Make the configuration of `kvlane serve --endpoint URL …`: one pool for everybody, all else by default.

    Raises:
        ConfigError: a URL is none, or is there twice.
    """
    return build({"pools": [{"endpoints": [{"url": url} for url in urls]}], "anonymous": {}}, "--endpoint", {})
