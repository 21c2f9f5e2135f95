"""GET /admin/overview: the state of the gateway on one page of JSON, for the dashboard and `kvlane top`.

    at, uptime_s, window_s   Unix seconds; since the start; what tables count
    now                      figures of this moment
    points                   columns for charts, oldest first: `history.py` says of what
    pools, endpoints         load, work and health
    tenants, refusals        of the window; tenants with how their limits stand
    prefixes                 what prompts share, by a keyed hash, and where it is held; never text

Bounded, whatever a fleet or its tenants come to, and made at most once a second, however many look: 1 ms, or 7 ms in
slices where there are 2,000 tenants and 128 endpoints. null is what nobody knows. Names are as they were configured or
told by engines: who shows them has to escape them.
"""

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from importlib.metadata import version
from math import isnan
from typing import Any, Protocol

import orjson
from aiohttp import web

from gateway.accountpages import LimitState, Look
from gateway.dashboard import dashboard
from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.history import EVERY_S, History, short
from gateway.instruments import Counter
from gateway.looplag import LoopLag
from gateway.members import FleetPool, Member
from gateway.metrics import Metrics
from gateway.tenants import Tenants
from policies.hot import HotPrefix
from policies.request import BlockHash

FRESH_S = 1.0
MAX_ENDPOINTS = 256
MAX_POOLS = 64
MAX_TENANTS = 50
MAX_REASONS = 20
MAX_PREFIXES = 12
MAX_HOMES = 16
MAX_CHARS = 200  # of a name
MARK_BYTES = 6
SHARE_NAMES = ("p50", "p95", "p99")
RATES = ("served_per_s", "refused_per_s", "failed_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
OWN_FAILURES = frozenset({"connect", "cut", "stalled", "broken"})  # an endpoint's: neither full nor a client's mistake
COLUMNS = (*RATES, "hit_ratio", "in_flight", "waiting")

Rows = list[dict[str, Any]]


class Busy(Protocol):
    """Serves requests."""

    @property
    def active(self) -> int:
        """How many."""
        ...

    @property
    def in_flight(self) -> Mapping[str, int]:
        """How many of each tenant."""
        ...


class Overview:
    """Makes the feed, and serves it beside the page that shows it.

    Args:
        look: At a tenant's limits.
        clock: Monotonic seconds.
        busy: The proxy.
        lag: Of the loop.
        wall: Seconds since 1970.
        key: Of the hashes by which prefixes are named; None: one that is made up.
    """

    def __init__(
        self,
        metrics: Metrics,
        fleet: Fleet,
        gate: Gate,
        tenants: Tenants,
        look: Look,
        clock: Callable[[], float],
        busy: Busy,
        lag: LoopLag,
        *,
        wall: Callable[[], float] = time.time,
        key: bytes | None = None,
    ) -> None:
        self.history = History(metrics, fleet, gate, clock, wall)
        self._metrics = metrics
        self._fleet = fleet
        self._gate = gate
        self._tenants = tenants
        self._look = look
        self._clock = clock
        self._busy = busy
        self._lag = lag
        self.is_draining = False
        self._wall = wall
        self._key = key or secrets.token_bytes(32)
        self._version = version("kvlane")
        self._made: bytes | None = None
        self._made_at = 0.0
        self._lock = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Give the feed and the page with their paths."""
        return [web.get("/admin/overview", self._page), *dashboard()]

    async def _page(self, request: web.Request) -> web.Response:
        async with self._lock:
            if self._made is None or self._clock() - self._made_at >= FRESH_S:
                self._made = orjson.dumps(await self.content())
                self._made_at = self._clock()
        return web.Response(body=self._made, content_type="application/json", headers={"cache-control": "no-store"})

    async def content(self) -> dict[str, Any]:
        """Make it anew."""
        history = self.history
        feed: dict[str, Any] = {
            "version": self._version,
            "at": round(self._wall(), 3),
            "uptime_s": round(history.uptime_s, 1),
            "every_s": EVERY_S,
            "window_s": round(history.window_s, 1),
            "is_draining": self.is_draining,
            "now": self._now(),
            "points": self._points(),
            "pools": self._pools(),
            "endpoints": self._endpoints(),
            "endpoints_total": sum(1 for _ in self._fleet.members()),
        }
        await asyncio.sleep(0)  # each part takes a millisecond or two where there is much: streams go first
        feed |= await self._by_tenant()
        await asyncio.sleep(0)
        return {**feed, "refusals": self._refusals(), "prefixes": self._prefixes()}

    # Parts.

    def _now(self) -> dict[str, Any]:
        points = self.history.points
        last = points[-1] if points else None
        return {
            "active_requests": self._busy.active,
            "in_flight": sum(member.endpoint.outstanding.requests for member in self._fleet.members()),
            "waiting": sum(queue.waiting for queue in self._gate.queues.values()),
            "loop_lag_s": known(self._lag.last_s),
            **{rate: None if last is None else known(getattr(last, rate)) for rate in RATES},
            "hit_ratio": None if last is None else known(last.hit_ratio),
            "ttft_s": None if last is None else by_share(last.ttft_s),
            "queue_wait_s": None if last is None else by_share(last.wait_s),
        }

    def _points(self) -> dict[str, Any]:
        points = self.history.points
        return {
            "at": [round(point.at, 1) for point in points],
            "ttft_s": columns(point.ttft_s for point in points),
            "queue_wait_s": columns(point.wait_s for point in points),
            **{name: [getattr(point, name) for point in points] for name in COLUMNS},
        }

    def _pools(self) -> Rows:
        now = self._clock()
        return [self._describe_pool(pool, now) for pool in self._fleet.pools[:MAX_POOLS]]

    def _describe_pool(self, pool: FleetPool, now: float) -> dict[str, Any]:
        queue = self._gate.queues.get(pool.pool)
        return {
            "name": cut(pool.name),
            "endpoints": len(pool.members),
            "ready": sum(member.endpoint.health.is_ready(now) for member in pool.members),
            "saturation": None if queue is None else known(queue.saturation(now)),
            "waiting": 0 if queue is None else queue.waiting,
            "predicted_wait_s": {
                name: None if queue is None else known(queue.predicted_wait_s(name, now))
                for name in self._gate.class_names
            },
        }

    def _endpoints(self) -> Rows:
        now = self._clock()
        sent = self.history.added_by(self._metrics.endpoint_requests, "endpoint")
        failed: defaultdict[str, float] = defaultdict(float)
        for (endpoint, kind), amount in self.history.added(self._metrics.endpoint_failures):
            failed[endpoint] += amount * (kind in OWN_FAILURES)
        members = [member for pool in self._fleet.pools for member in pool.members][:MAX_ENDPOINTS]
        return [describe(member, now, sent, failed) for member in members]

    async def _by_tenant(self) -> dict[str, Any]:
        """List the tenants that asked for most within the window."""
        metrics = self._metrics
        requests, refused, prompt, output = [
            await self._added_by_tenant(counter)
            for counter in (metrics.requests, metrics.refusals, metrics.prompt_tokens, metrics.output_tokens)
        ]
        cached = {"reported": dict[str, float](), "predicted": dict[str, float]()}
        for (source, _, tenant), amount in self.history.added(metrics.cached_tokens):
            sums = cached.get(source, cached["predicted"])
            sums[tenant] = sums.get(tenant, 0.0) + amount
        await asyncio.sleep(0)
        names = sorted(requests, key=lambda name: (-requests[name], name))
        shown = names[:MAX_TENANTS]
        limits = await asyncio.gather(*map(self._limits, shown))
        told = {tenant for source, _, tenant in metrics.cached_tokens.cells if source == "reported"}
        rows = [
            {
                "name": cut(name),
                "requests": int(requests[name]),
                "refused": int(refused.get(name, 0)),
                "in_flight": self._busy.in_flight.get(name, 0),
                "prompt_tokens": int(prompt.get(name, 0)),
                "output_tokens": int(output.get(name, 0)),
                "hit_ratio": share(cached["reported"].get(name, 0.0), prompt.get(name)) if name in told else None,
                "predicted_hit_ratio": share(cached["predicted"].get(name, 0.0), prompt.get(name)),
                "limits": None if states is None else [{**asdict(each), "name": cut(each.name)} for each in states],
            }
            for name, states in zip(shown, limits, strict=True)
        ]
        return {"tenants": rows, "tenants_active": len(names)}

    async def _added_by_tenant(self, counter: Counter) -> dict[str, float]:
        await asyncio.sleep(0)
        return self.history.added_by(counter, "tenant")

    async def _limits(self, name: str) -> Sequence[LimitState] | None:
        """Give how a tenant's limits stand; None where nobody knows."""
        tenant = self._tenants.named(name)
        return () if tenant is None else await self._look(tenant)

    def _refusals(self) -> Mapping[str, Rows]:
        """Count refusals within the window: by code, and of two codes by what was behind them."""
        added, metrics = self.history.added_by, self._metrics
        return {
            "codes": ranked(added(metrics.refusals, "code"), "code"),
            "overload": ranked(added(metrics.admission_refusals, "reason"), "reason"),
            "limits": ranked(added(metrics.limit_refusals, "limit"), "limit"),
        }

    def _prefixes(self) -> Rows:
        """List the prefixes that prompts share most."""
        now = self._clock()
        found = [(pool, prefix) for pool, hot in self.history.hot.items() for prefix in hot.top(MAX_PREFIXES, now)]
        rows = [self._describe_prefix(pool, prefix) for pool, prefix in found]
        return sorted(rows, key=lambda row: -row["tokens"] * row["weight"])[:MAX_PREFIXES]

    def _describe_prefix(self, pool: FleetPool, prefix: HotPrefix) -> dict[str, Any]:
        homes = pool.index.matched((prefix.last,))
        unit = pool.members[0].endpoint.unit_tokens if pool.members else 0
        return {
            "mark": self._mark(prefix.last),
            "pool": cut(pool.name),
            "model": cut(prefix.label),
            "tokens": prefix.units * unit,
            "weight": known(prefix.prompts),
            "homes": sorted(cut(endpoint.name) for endpoint in homes)[:MAX_HOMES],
            "homes_total": len(homes),
        }

    def _mark(self, last: BlockHash) -> str:
        """Name a prefix by a keyed hash: by the chain's own hash prompts could be guessed."""
        return blake2b(last.to_bytes(8, "little"), digest_size=MARK_BYTES, key=self._key).hexdigest()


def describe(member: Member, now: float, sent: Mapping[str, float], failed: Mapping[str, float]) -> dict[str, Any]:
    """Say of an endpoint what it does and how it is."""
    endpoint = member.endpoint
    books, report = endpoint.outstanding, endpoint.report
    return {
        "name": cut(endpoint.name),
        "pool": cut(member.pool.name),
        "kind": member.kind.value if member.kind is not None else None,
        "state": endpoint.health.state.value,
        "is_cooling": endpoint.health.is_cooling(now),
        "trouble": cut(member.trouble),
        "models": [cut(model) for model in sorted(endpoint.models)[:8]],
        "in_flight": books.requests,
        "decoding": books.decoding,
        "prefill_s": known(books.prefill_s),
        "prefill_tokens": books.prefill_tokens,
        "kv_usage": known(report.kv_usage),
        "engine_running": report.running,
        "engine_waiting": report.waiting,
        "hit_ratio": known(member.forecast.hit_ratio),
        "is_forecast_off": member.forecast.is_off(now),
        "held_tokens": member.pool.index.held_tokens(endpoint),
        "tries": int(sent.get(endpoint.name, 0)),
        "failures": int(failed.get(endpoint.name, 0)),
    }


def ranked(counts: Mapping[str, float], name: str) -> Rows:
    """List the largest counts."""
    found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]
    return [{name: cut(key), "count": int(count)} for key, count in found]


def share(part: float, whole: float | None) -> float | None:
    """Give a share of what there is."""
    return known(min(1.0, part / whole)) if whole else None


def columns(values: Iterable[Sequence[float]]) -> dict[str, list[float]]:
    """Turn percentiles of moments into columns."""
    found = list(values)
    return {name: [each[at] for each in found] for at, name in enumerate(SHARE_NAMES)}


def by_share(values: Iterable[float]) -> dict[str, float | None]:
    """Name percentiles."""
    return dict(zip(SHARE_NAMES, map(known, values), strict=True))


def known(value: float | None) -> float | None:
    """Give a figure as JSON can hold it, in four digits."""
    if value is None or isnan(value):
        return None
    return value if isinstance(value, int) else short(value)


def cut(name: str) -> str:
    """Keep a name within bounds."""
    return name if len(name) <= MAX_CHARS else f"{name[: MAX_CHARS - 1]}…"
