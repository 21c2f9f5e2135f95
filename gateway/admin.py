"""The admin listener: what operators see. Never on the API's port, never reachable with a tenant's key (`guard.py`)."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import error_body
from gateway.fleet import Fleet
from gateway.guard import Guard
from gateway.members import Member
from gateway.metrics import Metrics

log = logging.getLogger(__name__)
log.addFilter(lambda record: not is_malformed(record))

CHALLENGE = {"www-authenticate": 'Basic realm="kvlane admin", charset="UTF-8"'}  # so that browsers ask for the key


def admin_app(
    fleet: Fleet,
    metrics: Metrics,
    clock: Callable[[], float],
    guard: Guard,
    more: Iterable[web.AbstractRouteDef] = (),
) -> web.Application:
    """Build the admin application: /metrics, /admin/endpoints, /healthz, and more pages behind the same guard."""

    @web.middleware
    async def guarded(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        refused = guard.refusal(request)
        if refused is None:
            return await handler(request)
        body = error_body(refused.message, refused.type, None, refused.code)
        headers = CHALLENGE if refused.status == 401 else None
        return web.Response(status=refused.status, body=body, headers=headers, content_type="application/json")

    async def page(request: web.Request) -> web.Response:
        content_type, body = await metrics.page_off_loop(request.headers.get("accept", ""))
        return web.Response(body=body, headers={"content-type": content_type})

    async def endpoints(request: web.Request) -> web.Response:
        now = clock()
        return web.Response(
            body=orjson.dumps({"endpoints": [describe(member, now) for member in fleet.members()]}),
            content_type="application/json",
        )

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def unknown(request: web.Request) -> web.Response:
        message = f"there is no {request.method} {request.path[:200]} on the admin listener"
        body = error_body(message, "invalid_request_error", None, "not_found")
        return web.Response(status=404, body=body, content_type="application/json")

    app = web.Application(middlewares=[guarded])
    app.router.add_get("/metrics", page)
    app.router.add_get("/admin/endpoints", endpoints)
    app.router.add_get("/healthz", health)
    app.router.add_routes(more)
    app.router.add_route("*", "/{path:.*}", unknown)
    return app


def is_malformed(record: logging.LogRecord) -> bool:
    """Whether a log record is about a request that cannot be read: it quotes the request, and so perhaps a key."""
    return record.exc_info is not None and isinstance(record.exc_info[1], HttpProcessingError)


def describe(member: Member, now: float) -> dict[str, Any]:
    """Say of an engine what an operator wants to know; None where the engine does not tell."""
    endpoint = member.endpoint
    report = endpoint.report
    return {
        "name": endpoint.name,
        "url": endpoint.url,
        "pool": member.pool.name,
        "kind": member.kind.value if member.kind is not None else None,
        "state": endpoint.health.state.value,
        "trouble": member.trouble,
        "cooling_s": max(0.0, endpoint.health.cool_until - now) if endpoint.health.is_cooling(now) else 0.0,
        "models": sorted(endpoint.models),
        "max_context_tokens": endpoint.max_context_tokens,
        "inflight_requests": endpoint.outstanding.requests,
        "pending_prefill_tokens": endpoint.outstanding.prefill_tokens,
        "decoding": endpoint.outstanding.decoding,
        "leases_total": member.leases_total,
        "engine": {
            "running": report.running,
            "waiting": report.waiting,
            "kv_usage": report.kv_usage,
            "kv_capacity_tokens": report.kv_capacity_tokens,
            "block_tokens": report.block_tokens,
            "prefix_hit_tokens": report.prefix_hit_tokens,
            "prefix_query_tokens": report.prefix_query_tokens,
            "age_s": now - report.at if report.at > float("-inf") else None,
        },
    }
