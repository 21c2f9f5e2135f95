"""API key -> Tenant, as things stand now.

Keys are known by their SHA-256 only. A presented key is hashed first and its digest looked up: how long a lookup takes
depends on the digest alone, which tells nothing of how near a guessed key was; what is found is compared once more, in
constant time. An expired key is refused like any other that is not good, and is told why.

All that is known is one snapshot, which `put` replaces whole: between two requests, never within one. A request keeps
the Tenant that it was given, whatever comes after. Who may be let in without a key is said by the configuration, never
by a snapshot being empty. A snapshot may say that it is not all there is (`unread`): a key that is not in it is not
wrong then, but cannot be judged, and whoever has it is asked to come back.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.errors import InvalidApiKey, ModelNotAllowed, TenantsUnknown
from gateway.tenancy import (
    ANONYMOUS_NAME,
    AnonymousConfig,
    CallerConfig,
    LimitsConfig,
    TenantConfig,
    TokenWeightsConfig,
)

NEVER = float("inf")
AGAIN_S = 1.0  # until a source that is back has been read


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who calls, and what it may."""

    name: str
    models: frozenset[str] = frozenset()
    """Models it may use; empty: all."""
    kvlane_headers: bool = True
    service_class: str | None = None
    """The best class of service that its requests may have; None: any."""
    weight: float = 1.0
    """Its share of what is served while tenants compete."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    limits_by_model: Mapping[str, LimitsConfig] = field(default_factory=dict, hash=False)
    """More limits, by the model's own name."""
    token_weights: TokenWeightsConfig = field(default_factory=TokenWeightsConfig)
    max_reserved_output_tokens: int | None = None
    """Output tokens set aside for a request, at most; None: no such cap."""
    on_redis_error: str = "local"
    """local, open or closed."""
    isolate_cache: bool = False

    @classmethod
    def of(cls, name: str, config: CallerConfig) -> "Tenant":
        """Make it of its section."""
        return cls(
            name=name,
            models=frozenset(config.models),
            kvlane_headers=config.kvlane_headers,
            service_class=config.service_class,
            weight=config.weight,
            limits=config.limits,
            limits_by_model=config.limits_by_model,
            token_weights=config.token_weights,
            max_reserved_output_tokens=config.max_reserved_output_tokens,
            on_redis_error=config.on_redis_error,
            isolate_cache=config.isolate_cache,
        )

    def may_use(self, model: str) -> bool:
        """Whether a model is open to it."""
        return not self.models or model in self.models

    def check_model(self, model: str, served_as: str) -> None:
        """Make sure that a model is open to it, by the name that it uses or by the model's own.

        Raises:
            ModelNotAllowed: it is not.
        """
        if not self.may_use(model) and not self.may_use(served_as):
            raise ModelNotAllowed(f"this key may not use the model {model!r}", param="model")


ANONYMOUS = Tenant(ANONYMOUS_NAME)


@dataclass(frozen=True, slots=True)
class Secret:
    """What a presented key is compared with."""

    digest: bytes
    tenant: Tenant
    expires_at: float
    """Seconds since 1970; infinite: never."""


def secrets_of(tenant: Tenant, config: TenantConfig) -> Iterator[Secret]:
    """Give every secret that calls as a tenant."""
    for digest in config.key_sha256:
        yield Secret(bytes.fromhex(digest), tenant, NEVER)
    for key in config.keys:
        expires_at = NEVER if key.expires_at is None else key.expires_at.timestamp()
        for digest in key.sha256:
            yield Secret(bytes.fromhex(digest), tenant, expires_at)


class Tenants:
    """Everybody who may call.

    Args:
        configs: Of tenants.
        anonymous: Of who calls without a key; None: nobody does.
        has_keys: Whether a key is asked for what it is, even while there are none.
    """

    def __init__(
        self, configs: Iterable[TenantConfig] = (), anonymous: AnonymousConfig | None = None, *, has_keys: bool = True
    ) -> None:
        self._has_keys = has_keys
        self._by_name: dict[str, Tenant] = {}
        self._secrets: dict[bytes, Secret] = {}
        self._anonymous: Tenant | None = None
        self.unread = ""
        """Where there may be more tenants, which have not been read since the start; empty: there are no others."""
        self.put(configs, anonymous)

    def put(self, configs: Iterable[TenantConfig], anonymous: AnonymousConfig | None, unread: str = "") -> None:
        """Replace all that is known. Once anybody has had a key, keys are asked for what they are, for good."""
        by_name: dict[str, Tenant] = {}
        secrets: dict[bytes, Secret] = {}
        for config in configs:
            tenant = by_name[config.name] = Tenant.of(config.name, config)
            secrets.update((secret.digest, secret) for secret in secrets_of(tenant, config))
        self._has_keys = self._has_keys or bool(by_name)
        self._by_name, self._secrets, self.unread = by_name, secrets, unread
        self._anonymous = None if anonymous is None else Tenant.of(ANONYMOUS_NAME, anonymous)

    def __iter__(self) -> Iterator[Tenant]:
        """Give every tenant, and last who calls without a key."""
        yield from self._by_name.values()
        if self._anonymous is not None:
            yield self._anonymous

    def named(self, name: str) -> Tenant | None:
        """Give a tenant as it is now; None where there is none of that name any more."""
        return self._anonymous if name == ANONYMOUS_NAME else self._by_name.get(name)

    @property
    def are_few(self) -> bool:
        """Whether there is one at the most: nothing has to be kept from others."""
        return not self.unread and len(self._by_name) + (self._anonymous is not None) <= 1

    @property
    def key_count(self) -> int:
        """How many secrets there are, expired ones included."""
        return len(self._secrets)

    @property
    def is_open(self) -> bool:
        """Whether nobody is told from anybody: who calls is anonymous, whatever key the client was made to send."""
        return self._anonymous is not None and not self._has_keys

    def identify(self, key: str | None, now: float) -> Tenant:
        """Tell whose key it is.

        Args:
            key: As presented; None: none was.
            now: Seconds since 1970.

        Raises:
            InvalidApiKey: it is nobody's, or has expired; or there is none, and it needs one.
            TenantsUnknown: it is nobody's so far, and not all tenants have been read.
        """
        if self._anonymous is not None and (key is None or not self._has_keys):
            return self._anonymous
        if not key:
            raise InvalidApiKey("an API key is required: `Authorization: Bearer KEY`")
        presented = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        secret = self._secrets.get(presented)
        if secret is None or not hmac.compare_digest(secret.digest, presented):
            if self.unread:
                raise TenantsUnknown(
                    "whose API key this is cannot be said yet: not all tenants have been read since the start",
                    retry_after_s=AGAIN_S,
                )
            raise InvalidApiKey("this API key is not valid")
        if now >= secret.expires_at:
            raise InvalidApiKey("this API key has expired")
        return secret.tenant
