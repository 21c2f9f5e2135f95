"""Names of models that tenants may use, or are limited in, and that no request can have: mistyped, most likely.

A limit on a model that nobody serves limits nothing, and a model that is misspelt in `models` stays closed; no request
would ever bring it to light. So they are looked for, and told:

    kvlane check    where the configuration says of every endpoint which models it serves
    while serving   once every engine has told which it serves: a line in the log whenever what is found changes
    /admin/tenants  `unknown_models` of each tenant

Known is what engines serve, adapters among it, and what the configuration calls a model or an alias: where its engine
comes later, nothing is mistyped. Neither may be an adapter that is loaded later: so nothing is ever refused for it.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from gateway.config import Config
from gateway.fleet import Fleet
from gateway.tenants import Tenant, Tenants

log = logging.getLogger(__name__)

EVERY_S = 2.0
MAX_TOLD = 10  # tenants in one line


def unknown_of(tenant: Tenant, known: Collection[str]) -> list[str]:
    """Give the names of models in a tenant's section that are none, sorted."""
    return sorted({*tenant.models, *tenant.limits_by_model}.difference(known))


def configured(config: Config) -> set[str]:
    """Give every name that the configuration has for a model."""
    served = {name for pool in config.pools for endpoint in pool.endpoints for name in endpoint.models}
    return served | {model.name for model in config.models} | config.aliases().keys()


def is_told_in_full(config: Config) -> bool:
    """Whether the configuration says of every endpoint which models it serves: then no engine is asked."""
    return all(endpoint.models for pool in config.pools for endpoint in pool.endpoints)


def worded(unknown: Mapping[str, Sequence[str]]) -> str:
    """Say of some tenants, by name, which of their models are none."""
    told = [f"{tenant} names {', '.join(map(repr, names))}" for tenant, names in list(unknown.items())[:MAX_TOLD]]
    more = f", and {len(unknown) - MAX_TOLD} tenants more" if len(unknown) > MAX_TOLD else ""
    return f"{'; '.join(told)}{more}"


class ModelNames:
    """Looks for such names while the gateway serves."""

    def __init__(self, config: Config, fleet: Fleet, tenants: Tenants) -> None:
        self._configured = configured(config)
        self._fleet = fleet
        self._tenants = tenants
        self._said: dict[str, list[str]] = {}

    def unknown_of(self, tenant: Tenant) -> list[str] | None:
        """Give the names of models in a tenant's section that are none; None: not every engine has told yet."""
        known = self._known()
        return None if known is None else unknown_of(tenant, known)

    async def watch(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Look, and say so where something has changed."""
        known = self._known()
        if known is None:
            return
        found = {tenant.name: names for tenant in self._tenants if (names := unknown_of(tenant, known))}
        if found == self._said:
            return
        self._said = found
        if found:
            log.warning("tenants: models that no engine serves, and nothing is called so: %s", worded(found))
        else:
            log.info("tenants: all models that they name are known")

    def _known(self) -> set[str] | None:
        if not all(member.endpoint.models for member in self._fleet.members()):
            return None
        return self._configured.union(self._fleet.models())
