"""Sections of the configuration about who calls, what it may, and the Redis that gateways share.

A tenant has keys; a key has one active secret, or two while it is being rotated. They are here as their SHA-256 only.
Limits are per tenant, and per tenant and model beside that: a request must pass both.

Tenants come from up to three places (the configuration file, a file of their own, Redis), so what must hold among them
is not of one document: `clashes` tells of all together, before a change goes live.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.types import AwareDatetime
from yarl import URL

from gateway import document
from gateway.sections import NAME, Count, Seconds, Section, each_is_sha256, no_bool
from policies.ledger import Kind
from policies.quotas import Quota, Unit
from policies.tariff import NANO

ANONYMOUS_NAME = "anonymous"
RESERVED = {
    ANONYMOUS_NAME: "is who calls without a key",
    "unknown": "is who nobody knows, in metrics and logs",
    "other": "is all for whom metrics and accounts have no room",
}
ModelName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
MAX_SECRETS = 2  # the one in use and the one before it, while clients change over
MAX_SHOWN_CHARS = 12  # of a secret's beginning: enough to tell keys apart, nothing to guess the rest by


def _is_rfc_3339(value: object) -> object:
    """Refuse what has no time or no offset: whose midnight would it be?"""
    if isinstance(value, datetime) or (isinstance(value, str) and RFC_3339.fullmatch(value)):
        return value
    raise ValueError("must be a time with its offset, like 2027-01-31T00:00:00Z")


Moment = Annotated[AwareDatetime, BeforeValidator(_is_rfc_3339)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(no_bool)]
MOST_AMOUNT, MOST_COST = 10**15, 1e9  # Redis counts in doubles and tells 64 bits, of money in 10^-9
MOST_BURST_MINUTES = 366 * 24 * 60  # a bucket is kept as the time that it takes to fill
Cost = Annotated[float, Field(gt=0, le=MOST_COST, allow_inf_nan=False), BeforeValidator(no_bool)]
Limit = Annotated[Count, Field(le=MOST_AMOUNT)]


class PricesConfig(Section):
    """What tokens cost, per million, in whatever money the budgets are in."""

    input: Amount = Field(description="Prompt tokens that no cache had.")
    cached: Amount | None = Field(None, description="Prompt tokens that the engine had cached; none: as input.")
    output: Amount = Field(description="Output tokens.")


class LimitsConfig(Section):
    """How much a caller may; what is not named is not limited."""

    requests_per_minute: Limit | None = Field(None, description="Requests that it may send, steadily.")
    burst_requests: Limit | None = Field(
        None, description="Requests that may come at once, after a pause; none: a minute's worth."
    )
    tokens_per_minute: Limit | None = Field(None, description="Tokens, prompt and output, that it may use, steadily.")
    burst_tokens: Limit | None = Field(
        None,
        description="Tokens that may be used at once, after a pause: no request can be larger; none: a minute's worth.",
    )
    parallel: Limit | None = Field(None, description="Requests that it may have at a time.")
    tokens_per_day: Limit | None = Field(None, description="Budget of tokens; days are UTC's.")
    tokens_per_month: Limit | None = Field(None, description="Budget of tokens; months are UTC's.")
    cost_per_day: Cost | None = Field(None, description="Budget, in the money of the models' prices.")
    cost_per_month: Cost | None = Field(None, description="Budget, in the money of the models' prices.")

    @model_validator(mode="after")
    def _bursts_have_a_rate(self) -> Self:
        for what in ("requests", "tokens"):
            burst, rate = getattr(self, f"burst_{what}"), getattr(self, f"{what}_per_minute")
            if burst is not None and rate is None:
                raise ValueError(f"burst_{what} needs {what}_per_minute")
            if burst is not None and burst > MOST_BURST_MINUTES * rate:
                raise ValueError(f"burst_{what} must be no more than {what}_per_minute brings in a year")
        return self

    def quotas(self, model: str = "") -> list[Quota]:
        """Give each limit that there is; of one model, where it is named."""
        found = [
            Quota(f"{unit.value}_per_minute", Kind.RATE, unit, rate, burst or rate, model)
            for unit, rate, burst in (
                (Unit.REQUESTS, self.requests_per_minute, self.burst_requests),
                (Unit.TOKENS, self.tokens_per_minute, self.burst_tokens),
            )
            if rate is not None
        ]
        if self.parallel is not None:
            found.append(Quota("parallel", Kind.PARALLEL, Unit.SLOTS, self.parallel, model=model))
        for kind, tokens, cost in (
            (Kind.DAY, self.tokens_per_day, self.cost_per_day),
            (Kind.MONTH, self.tokens_per_month, self.cost_per_month),
        ):
            name = kind.name.lower()
            if tokens is not None:
                found.append(Quota(f"tokens_per_{name}", kind, Unit.TOKENS, tokens, model=model))
            if cost is not None:
                found.append(Quota(f"cost_per_{name}", kind, Unit.COST, round(cost * NANO), model=model))
        return found

    @property
    def has_cost(self) -> bool:
        """Whether any of it is in money."""
        return self.cost_per_day is not None or self.cost_per_month is not None


class TokenWeightsConfig(Section):
    """What a token counts for in limits and budgets of tokens; an uncached prompt token counts 1."""

    cached: Amount = Field(1.0, description="Prompt tokens that the engine had cached; 0.1 rewards shared prefixes.")
    output: Amount = Field(1.0, description="Output tokens.")


class CallerConfig(Section):
    """What somebody who calls may do."""

    models: tuple[str, ...] = Field((), description="Models it may use; none: all.")
    kvlane_headers: bool = Field(True, description="Whether its answers carry x-kvlane-* headers.")
    service_class: str | None = Field(
        None, description="The best class of service that its requests may have; none: the first."
    )
    weight: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0, description="Its share of what is served, beside others', while tenants compete."
    )
    limits: LimitsConfig = Field(LimitsConfig(), description="How much it may, over all models.")
    limits_by_model: dict[ModelName, LimitsConfig] = Field({}, description="How much it may of a model, besides.")
    token_weights: TokenWeightsConfig = Field(TokenWeightsConfig(), description="What a token counts for.")
    max_reserved_output_tokens: Count | None = Field(
        None,
        description="Output tokens set aside for a request while it runs, at most; none: what it allows itself, or "
        "what such requests are known to use, whichever is less.",
    )
    on_redis_error: Literal["local", "open", "closed"] = Field(
        "local",
        description="While Redis is away: local limits by each gateway's share, open lets all pass, closed none.",
    )
    isolate_cache: bool = Field(
        False, description="Whether its prompts share no cached prefix with others', so that nobody can time them."
    )


class AnonymousConfig(CallerConfig):
    """Who calls without a key: that there is this section lets them in."""


class KeyConfig(Section):
    """A key of a tenant."""

    name: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="Unique among the tenant's; for people: what uses it."
    )
    sha256: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_SECRETS)] = Field(
        description="SHA-256 of its secret, in hex; of two, newest first, while clients change over.", repr=False
    )
    prefix: Annotated[str, Field(max_length=MAX_SHOWN_CHARS, pattern=r"^[!-~]*$")] | None = Field(
        None, description="How the newest secret begins, as `kvlane key list` shows it."
    )
    last4: Annotated[str, Field(max_length=4, pattern=r"^[!-~]*$")] | None = Field(None, description="And how it ends.")
    expires_at: Moment | None = Field(None, description="From when on it is refused (RFC 3339); none: never.")

    _hex = field_validator("sha256")(each_is_sha256)


class TenantConfig(CallerConfig):
    """Who calls with one of these keys."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="Unique; in metrics and logs.")
    key_sha256: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        (),
        description="SHA-256 of API keys, in hex: the short way to write `keys` that have no name and do not expire.",
        repr=False,
    )
    keys: tuple[KeyConfig, ...] = Field((), description="Its API keys; without any, nobody can call as this tenant.")

    _hex = field_validator("key_sha256")(each_is_sha256)

    @field_validator("name")
    @classmethod
    def _is_free(cls, value: str) -> str:
        if value in RESERVED:
            raise ValueError(f"must be another name: {value} {RESERVED[value]}")
        return value

    def digests(self) -> list[tuple[str, str]]:
        """Give every hash of a secret, each with its path in the tenant."""
        short = [(f"key_sha256[{n}]", digest) for n, digest in enumerate(self.key_sha256)]
        return short + [
            (f"keys[{at}].sha256[{n}]", digest)
            for at, key in enumerate(self.keys)
            for n, digest in enumerate(key.sha256)
        ]


def _is_redis(value: str) -> str:
    """Refuse what is no URL of a Redis; what is wrong with it is not quoted, for it may hold a password."""
    try:
        url = URL(value)
    except ValueError:
        url = URL()
    is_there = url.path if url.scheme == "unix" else url.host and (url.path.strip("/") or "0").isdecimal()
    if url.scheme not in ("redis", "rediss", "unix") or not is_there:
        raise ValueError("must be redis://host:port/database, rediss://… (TLS) or unix:///path")
    return value


RedisUrl = Annotated[str, AfterValidator(_is_redis)]


class SentinelConfig(Section):
    """Sentinels, who know which Redis is the master."""

    service: Annotated[str, Field(min_length=1)] = Field(description="What they call it: mymaster.")
    urls: Annotated[tuple[RedisUrl, ...], Field(min_length=1)] = Field(
        repr=False,
        description="Where they are: redis://host:26379; rediss:// (TLS) then holds for Redis too.",
    )


class RedisConfig(Section):
    """The Redis that gateways share; without it each limits alone."""

    url: RedisUrl | None = Field(
        None,
        repr=False,
        description="redis://host:6379, rediss:// (TLS) or unix:///path, with user, password and database if need be "
        "(redis://user:password@host:6379/0); none: no Redis.",
    )
    sentinel: SentinelConfig | None = Field(None, description="Sentinels to ask where Redis is, instead of a url.")
    is_cluster: bool = Field(False, description="Whether it is a Redis Cluster; `url` is any node of it.")
    username: str = Field("", description="If not in the url.")
    password: str = Field("", repr=False, description="If not in the url.")
    database: Annotated[int, Field(ge=0)] = Field(0, description="If not in the url.")
    ca_file: str | None = Field(None, description="Who signed its certificate; none: those whom the system trusts.")
    op_timeout_s: Seconds = Field(0.1, description="For an answer; later the gateway goes on without it.")

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if self.sentinel is not None and (self.url is not None or self.is_cluster):
            raise ValueError("sentinel stands instead of url and is_cluster")
        if self.is_cluster and self.url is None:
            raise ValueError("is_cluster needs a url")
        return self

    @property
    def is_there(self) -> bool:
        """Whether there is a Redis at all."""
        return self.url is not None or self.sentinel is not None


TENANTS = TypeAdapter(tuple[TenantConfig, ...])


def tenants_of(content: object) -> tuple[TenantConfig, ...]:
    """Make tenants of what a file of them holds: a mapping of `tenants`.

    Raises:
        ValueError: with every problem found, in one line.
    """
    if not isinstance(content, dict) or set(content) != {"tenants"}:
        raise ValueError("must be a mapping of `tenants` alone")
    try:
        return TENANTS.validate_python(content["tenants"] or ())
    except ValidationError as error:
        lines = document.worded(({**item, "loc": ("tenants", *item["loc"])} for item in error.errors()), {})
        raise ValueError("; ".join(lines)) from error


def tenant_of(content: bytes | str) -> TenantConfig:
    """Make a tenant of its JSON.

    Raises:
        ValueError: with every problem found, in one line.
    """
    try:
        return TenantConfig.model_validate_json(content)
    except ValidationError as error:
        raise ValueError("; ".join(document.worded(error.errors(), {}))) from error


def clashes(
    tenants: Iterable[tuple[str, TenantConfig]],
    classes: Collection[str],
    aliases: Mapping[str, str],
    priced: Collection[str],
) -> dict[str, str]:
    """Give what stands twice among tenants and must not, and what they name that is not there, by path.

    Args:
        tenants: Each with its path.
        classes: Of service, that there are.
        aliases: Of models, each with the name that limits go by.
        priced: Models that have prices.
    """
    found = list(tenants)
    problems = {
        **repeated((f"{path}.name", tenant.name) for path, tenant in found),
        **repeated((f"{path}.{place}", digest) for path, tenant in found for place, digest in tenant.digests()),
    }
    for path, tenant in found:
        problems |= repeated(
            (f"{path}.keys[{at}].name", key.name) for at, key in enumerate(tenant.keys) if key.name is not None
        )
        problems |= strangers(path, tenant, classes, aliases, priced)
    return problems


def strangers(
    path: str,
    caller: CallerConfig,
    classes: Collection[str],
    aliases: Mapping[str, str],
    priced: Collection[str],
) -> dict[str, str]:
    """Give what a caller's section names that is not there, by path; arguments as those of `clashes`."""
    problems = {}
    if caller.service_class is not None and caller.service_class not in classes:
        told = ", ".join(sorted(classes))
        problems[f"{path}.service_class"] = f"{caller.service_class!r} is no class of admission; there are {told}"
    if caller.limits.has_cost and not priced:
        problems[f"{path}.limits"] = "a budget in money needs models that have prices"
    for model, limits in caller.limits_by_model.items():
        where = f"{path}.limits_by_model.{model}"
        if model in aliases:
            problems[where] = f"is an alias of {aliases[model]!r}: limits go by that name"
        elif limits.has_cost and model not in priced:
            problems[where] = "a budget in money needs a model that has prices"
    return problems


def repeated(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Give the names that stand twice, by the path of the second; of what is long only the beginning is told."""
    first: dict[str, str] = {}
    found = {}
    for path, name in names:
        if name in first:
            told = f"{name[:8]}…" if len(name) == 64 else name
            found[path] = f"{told!r} is there twice, first at {first[name]}"
        first.setdefault(name, path)
    return found
