"""budgeted: a gateway before a scripted engine, whose tenant a has a budget; what is gone of it, what accounts know."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.app import Gateway
from policies.ledger import Kind
from tests.wire.client import get
from tests.wire.engine import Script, ScriptedEngine, whole
from tests.wire.house import serving, tenant

DAY = 1_000_000
KEY = [("Authorization", "Bearer a's key")]
PLAIN = whole(200, b'{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5}}')
RESPONSES = "/v1/responses"


@asynccontextmanager
async def budgeted(
    script: Script, redis: str | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, ScriptedEngine]]:
    """Serve tenants a and b, of which a has a budget of tokens; kept in the Redis of that URL, if there is one."""
    tenants = [tenant("a", **{"limits": {"tokens_per_day": DAY}, **settings}), tenant("b")]
    async with ScriptedEngine(script) as engine, serving(engine.url, tenants=tenants, redis={"url": redis}) as gateway:
        yield gateway, engine


async def spent(gateway: Gateway) -> int:
    """Say what of the budget of tenant a is gone."""
    (a,) = [each for each in gateway.tenants if each.name == "a"]
    looked = await gateway.limiter.look(a)
    (left,) = [allowance.remaining for quota, allowance in looked or () if quota.kind is Kind.DAY]
    return DAY - left


async def accounted(gateway: Gateway) -> dict[str, Any]:
    """Say what accounts know of everybody."""
    found: dict[str, Any] = (await get(gateway.admin_url, "/admin/usage?by=total")).json["total"]
    return found
