"""API key -> Tenant.

Keys are known by their SHA-256 only. A presented key is hashed first and its digest looked up: how long a lookup takes
depends on the digest alone, which tells nothing of how near a guessed key was. Without any tenant in the configuration
everybody is `anonymous`: a trusted network.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.config import TenantConfig
from gateway.errors import InvalidApiKey, ModelNotAllowed


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


ANONYMOUS = Tenant("anonymous")


class Tenants:
    """Everybody who may call."""

    def __init__(self, configs: Iterable[TenantConfig]) -> None:
        self._by_digest: dict[bytes, Tenant] = {}
        for config in configs:
            tenant = Tenant(
                config.name, frozenset(config.models), config.kvlane_headers, config.service_class, config.weight
            )
            for digest in config.key_sha256:
                self._by_digest[bytes.fromhex(digest)] = tenant

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._by_digest

    def identify(self, key: str | None) -> Tenant:
        """Tell whose key it is.

        Raises:
            InvalidApiKey: there is none, or nobody's.
        """
        if self.is_open:
            return ANONYMOUS
        if not key:
            raise InvalidApiKey("an API key is required: `Authorization: Bearer KEY`")
        presented = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        tenant = self._by_digest.get(presented)
        if tenant is None:
            raise InvalidApiKey("this API key is not valid")
        return tenant
