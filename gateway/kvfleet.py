"""What the engines of a fleet say that their KV caches hold, beside what the sheet says of one."""

import asyncio
from collections.abc import Iterator, Mapping

import orjson

from gateway.asking import Unanswered, asked, refusal
from gateway.kvsheet import Held
from policies.capacity import Plan, capacity
from policies.layers import Shape

TIMEOUT_S = 10.0


def held(admin: str, key: str | None, model: str | None, shape: Shape, plan: Plan) -> list[Held]:
    """Ask a gateway's admin listener what its engines report, and compute the same for each.

    Args:
        admin: Where the listener is.
        key: Of an admin, if it needs one.
        model: Served under this name; None: of all, as if they served the same.
        shape: The model of the sheet.
        plan: That of the sheet.
    Raises:
        Unanswered: the listener has no answer, or no endpoint that serves the model.
    """
    found = []
    for endpoint in asyncio.run(endpoints(admin, key)):
        models = tuple(str(each) for each in rows_of(endpoint.get("models")))
        if model is not None and model not in models:
            continue
        engine = endpoint.get("engine")
        tokens = engine.get("kv_capacity_tokens") if isinstance(engine, dict) else None
        limit = endpoint.get("max_context_tokens")
        longest = shape.max_context or plan.block
        context = min(limit, longest) if isinstance(limit, int) and limit > 0 else longest
        expected = capacity(shape, plan, [context]).rows[0].tokens
        found.append(Held(str(endpoint.get("name")), models, tokens if isinstance(tokens, int) else None, expected))
    if not found:
        raise Unanswered(f"{admin}: no endpoint serves {model}" if model else f"{admin}: has no endpoints")
    return found


async def endpoints(admin: str, key: str | None) -> list[Mapping[str, object]]:
    """Ask for the endpoints.

    Raises:
        Unanswered: there is no answer, or none that is a list of endpoints.
    """
    status, body = await asked(admin, key, "admin/endpoints", timeout_s=TIMEOUT_S)
    if status == 200:
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError:
            content = None
        if isinstance(content, dict) and isinstance(content.get("endpoints"), list):
            return [each for each in content["endpoints"] if isinstance(each, dict)]
    raise Unanswered(f"{admin}: {refusal(status, body)}")


def rows_of(value: object) -> Iterator[object]:
    """Give what is in a list; of anything else nothing."""
    yield from value if isinstance(value, list) else ()
