"""Builds every object once, from Config; the only place that knows all classes. Starts, and stops without losing work.

    starting --listening--> serving --SIGTERM--> draining --grace--> closing --all ended, or drain_s--> stopped

While draining, /readyz says 503 so that balancers look elsewhere, and new requests are still served: balancers take a
while to notice. While closing nothing new is accepted, and what runs is let end.
"""

import asyncio
import contextlib
import gc
import logging
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
from aiohttp import web

from gateway.accesslog import AccessLog, open_log
from gateway.accountpages import AccountPages, LimitState
from gateway.accounts import Keeper
from gateway.admin import admin_app
from gateway.admin import log as admin_log
from gateway.bookkeepers import Bookkeepers
from gateway.classes import Classes
from gateway.client import ClientServer
from gateway.config import Config, PoolConfig
from gateway.demand import Demand
from gateway.discovery import Discovery
from gateway.discovery.static import StaticDiscovery
from gateway.doctor import PrefixDoctor
from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.gauges import (
    add_cache_gauges,
    add_door_gauges,
    add_endpoint_gauges,
    add_limiter_gauges,
    add_process_gauges,
)
from gateway.guard import Guard
from gateway.homes import Homes
from gateway.intake import Intake
from gateway.kvevents import KvEvents
from gateway.limiter import Limiter
from gateway.logs import reason
from gateway.looplag import LoopLag
from gateway.members import FleetPool, Member
from gateway.metrics import Metrics
from gateway.modelnames import ModelNames
from gateway.models import Models
from gateway.overview import Overview
from gateway.probe import Probe
from gateway.proxy import Proxy
from gateway.questions import Questions
from gateway.readers import Readers
from gateway.redisline import Line
from gateway.salt import secret_of
from gateway.scaling import Scaling, aims_of
from gateway.sharedredis import line_to
from gateway.sources import tenant_sources
from gateway.stored import StoredResponses
from gateway.tariffs import Tariffs
from gateway.tenants import Tenant, Tenants
from gateway.tenantwatch import TenantWatch
from gateway.tracing import Tracing
from gateway.upstream import Upstream
from gateway.usagefiles import UsageInFiles
from gateway.usageredis import UsageInRedis
from gateway.usagestore import Memory, Store, StoreError
from policies.catalog import POLICIES
from policies.index import PrefixIndex
from policies.learned import OutputHabits
from policies.own import OwnPrefixes

log = logging.getLogger(__name__)

BACKLOG = 4096
SILENT_S = 2.0  # at an engine that is gone; a stream that still talks may end in peace
GC_THRESHOLDS = (50_000, 20, 50)  # requests make no cycles; collecting often only costs


class StartError(Exception):
    """The gateway cannot start; the message is the one line that says why."""


class Gateway:
    """One gateway process."""

    def __init__(self, config: Config, file: Path | None = None) -> None:
        """Not yet listening: see `start`.

        Args:
            config: Of this gateway.
            file: Where it is from, to follow what it says of tenants; None: that does not change.
        """
        loop = asyncio.get_running_loop()
        self._config = config
        self._clock = loop.time
        self._is_draining = False
        self._listener: asyncio.Server | None = None
        self._admin_runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._chance = Random(secrets.randbits(64))
        self.metrics = Metrics()
        self.fleet = Fleet(self._clock)
        self.upstream = Upstream(
            connect_s=config.timeouts.connect_s,
            idle_s=config.connections.idle_s,
            max_idle=config.connections.max_idle,
        )
        self._access_log = self._open_access_log()
        self.tracing = Tracing(config.tracing, self.metrics, self._chance, self.fleet.explain)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=config.connections.idle_s)
        )
        self._knocking = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        self._probe = Probe(
            self.fleet, self._session, self._knocking, config.health, self._clock, self._chance, self._gone
        )
        self.kv_events = KvEvents(
            self._session, self.fleet.root_at, lambda member: member.endpoint.unit_tokens, self._clock
        )
        classes = Classes(config.admission)
        self.gate = Gate(
            self.fleet,
            self.metrics,
            self._clock,
            classes=classes.rules,
            flow=classes.flow,
            smoothing_s=config.admission.smoothing_s,
            is_open=not config.admission.enabled,
        )
        self.tenants = tenants = Tenants(has_keys=config.has_keys)
        self._line = self._line_to_redis()
        self._tenant_watch = TenantWatch(tenants, tenant_sources(config, file, self._line), config)
        self._tenant_watch.show(self.metrics)
        self._model_names = ModelNames(config, self.fleet, tenants)
        self._cache_root = (config.cache_secret or secrets.token_hex(32)).encode()
        self._doctor = PrefixDoctor(config.doctor, self._cache_root, self.metrics, self._clock)
        self.limiter = Limiter(self.metrics, lambda: time.time_ns() // 1000, self._line)
        habits = OutputHabits()
        tariffs = Tariffs(tenants, config.models)
        self._keeper = Keeper(
            usage_store(config, self._line, self.limiter),
            tariffs.of,
            self.metrics,
            time.time,
            config.accounting.days,
        )
        self._account_pages = AccountPages(
            self._keeper,
            tenants,
            self._tenant_watch.configs,
            self._look_at,
            lambda tenant: self.proxy.in_flight[tenant],
            self._model_names.unknown_of,
            time.time,
        )
        self.scaling = Scaling(
            self.fleet, self.gate, self._clock, classes.flow, aims_of(config.scaling, config.admission)
        )
        self.scaling.show(self.metrics)
        told = {"scaling": self.scaling.note, "accounts": self._keeper.note, "doctor": self._doctor.note}
        prints = None
        if self._access_log is not None:
            told["access log"], prints = self._access_log.write, self._access_log.prints
        self.readers = Readers(config.models, Questions(self.fleet, self._session, self._clock))
        self.proxy = Proxy(
            fleet=self.fleet,
            tenants=tenants,
            upstream=self.upstream,
            stored=StoredResponses(Homes(), self.fleet, tenants, self.upstream),
            tracing=self.tracing,
            models=Models(self.fleet, config.aliases(), int(time.time())),
            own=OwnPrefixes(secrets.randbits(64)),
            intake=Intake(
                self.fleet,
                self.readers.of,
                classes,
                config.routing.session_header,
                habits,
                self._cache_secret,
                self._doctor.shape_of,
            ),
            demand=Demand(tariffs.of, habits),
            limiter=self.limiter,
            gate=self.gate,
            keepalive_s=config.admission.keepalive_s,
            metrics=self.metrics,
            books=Bookkeepers(self.tracing, self.metrics, prints, told),
            is_draining=lambda: self._is_draining,
            new_id=self._new_id,
            listen=config.listen,
            timeouts=config.timeouts,
            retries=config.retries,
        )
        self._server = ClientServer(
            self.proxy.handle,
            new_id=self._new_id,
            write_timeout_s=config.listen.write_timeout_s,
            keepalive_timeout=config.listen.keepalive_s,
            max_line_size=config.listen.max_header_bytes,
            max_field_size=config.listen.max_header_bytes,
            max_headers=config.listen.max_headers,
        )
        add_endpoint_gauges(self.metrics, self.fleet, classes.flow, self._clock)
        add_cache_gauges(self.metrics, self.fleet, self.kv_events, self._clock)
        add_door_gauges(self.metrics, self.gate, self._clock)
        add_process_gauges(self.metrics, lambda: self.proxy.active)
        add_limiter_gauges(self.metrics, self.limiter, self._line)
        self.lag = LoopLag(self._clock, self.metrics.loop_lag.distribution(()))
        self.overview = Overview(
            self.metrics, self.fleet, self.gate, tenants, self._look_at, self._clock, self.proxy, self.lag
        )

    # Life.

    async def start(self) -> None:
        """Listen, and begin to watch the engines.

        Raises:
            StartError: an address cannot be listened on, a tokenizer or the tenants cannot be read.
        """
        if self._line is not None:
            await self._line.start()
        self.limiter.start()
        problems = [*await self.readers.start(), *await self._tenant_watch.load()]
        if problems:
            raise StartError("; ".join(problems))
        try:
            await self._keeper.start()
        except StoreError as error:
            raise StartError(str(error)) from error
        listen = self._config.listen
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._server, listen.host, listen.port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise StartError(f"cannot listen on {listen.host}:{listen.port}: {reason(error)}") from error
        pages = [*self._account_pages.routes(), *self._doctor.routes(), *self.overview.routes()]
        app = admin_app(self.fleet, self.metrics, self._clock, Guard(listen), pages)
        self._admin_runner = web.AppRunner(app, access_log=None, logger=admin_log)
        await self._admin_runner.setup()
        try:
            await web.TCPSite(self._admin_runner, listen.admin_host, listen.admin_port).start()
        except OSError as error:
            raise StartError(
                f"cannot listen on {listen.admin_host}:{listen.admin_port} (admin): {reason(error)}"
            ) from error
        for pool_config in self._config.pools:
            index = PrefixIndex()
            policy = POLICIES[pool_config.policy](self._chance, index)
            pool = self.fleet.add_pool(
                pool_config.name,
                policy,
                index,
                max_context_tokens=pool_config.max_context_tokens,
                max_uncached_tokens=pool_config.max_uncached_tokens,
                classes=pool_config.classes,
                lends=pool_config.lends,
            )
            await self._follow_once(pool, pool_config)
        parts = (self.lag, self.scaling, self._tenant_watch, self._model_names, self.overview.history)
        self._tasks += [asyncio.create_task(part.watch()) for part in parts]
        self.tracing.start()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.collect()
        gc.freeze()

    async def drain(self, grace_s: float) -> None:
        """Say that this gateway is going, serve on for `grace_s`, then let what runs end."""
        self._is_draining = self.overview.is_draining = True
        log.info("draining: serving on for %g s, %d requests in flight", grace_s, self.proxy.active)
        await asyncio.sleep(grace_s)
        if self._listener is not None:
            self._listener.close()
        self._server.pre_shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown.drain_s):
                await self.proxy.idle()

    async def stop(self) -> None:
        """Close everything, at once."""
        if self._listener is not None:
            self._listener.close()
        await self._server.shutdown(timeout=0.1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.gate.close()
        await self._probe.close()
        await self.kv_events.close()
        await self.readers.close()
        if self._admin_runner is not None:
            await self._admin_runner.cleanup()
        await self.limiter.close()
        await self._keeper.close()
        if self._line is not None:
            await self._line.close()
        await self._session.close()
        await self._knocking.close()
        self.upstream.close()
        await self.tracing.close()
        if self._access_log is not None:
            self._access_log.close()

    @property
    def url(self) -> str:
        """Where the API is."""
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def admin_url(self) -> str:
        """Where the admin listener is."""
        assert self._admin_runner is not None
        host, port = self._admin_runner.addresses[0][:2]
        return f"http://{host}:{port}"

    # Parts.

    async def _follow_once(self, pool: FleetPool, config: PoolConfig) -> None:
        """Let the endpoints that a source lists join the pool, and those it no longer lists leave."""
        discovery: Discovery = StaticDiscovery(config.endpoints)
        async for listed in discovery.watch():
            names = {endpoint.label for endpoint in listed}
            for member in [member for member in pool.members if member.config.label not in names]:
                self._probe.forget(member)
                self.kv_events.forget(member)
                self.fleet.remove(member)
                self.upstream.forget(member.config.url)
            known = {member.config.label for member in pool.members}
            for endpoint in listed:
                if endpoint.label not in known:
                    member = self.fleet.add(pool, endpoint)
                    self._probe.watch(member)
                    self.kv_events.follow(member)

    def _gone(self, member: Member) -> None:
        """Give up on what hangs at an engine that takes no more connections: some fall silent under SIGTERM."""
        self.upstream.forget(member.endpoint.url)
        for answer in list(member.in_flight):
            answer.give_up_if_silent(SILENT_S)

    async def _look_at(self, tenant: Tenant) -> list[LimitState] | None:
        """Say how the limits of a tenant stand; None where nobody knows."""
        looked = await self.limiter.look(tenant)
        return None if looked is None else [LimitState.of(quota, allowance) for quota, allowance in looked]

    def _cache_secret(self, tenant: Tenant) -> bytes | None:
        """Give the secret by which the caches of a tenant are kept apart; None: they need not be."""
        return secret_of(self._cache_root, tenant.name) if tenant.isolate_cache else None

    def _new_id(self) -> str:
        """Name a request as nobody can foresee: engines refuse a name that runs already, whoever's it is."""
        return f"req_{secrets.token_hex(10)}"

    def _line_to_redis(self) -> Line | None:
        try:
            return line_to(self._config.redis, self._chance)
        except ValueError as error:
            raise StartError(str(error)) from error

    def _open_access_log(self) -> AccessLog | None:
        config = self._config.access_log
        try:
            return open_log(config, lambda: self.metrics.log_drops.add(()))
        except OSError as error:
            raise StartError(f"cannot write the access log {config.path}: {reason(error)}") from error


def usage_store(config: Config, line: Line | None, limiter: Limiter) -> Store:
    """Say where usage is kept, and without Redis what budgets have used."""
    if line is not None:
        return UsageInRedis(line, secrets.token_hex(8), config.accounting.days, config.accounting.path)
    if config.accounting.path is not None:
        return UsageInFiles(config.accounting.path, config.accounting.days, limiter.budgets, limiter.restore)
    return Memory(config.accounting.days)


@contextlib.asynccontextmanager
async def running(config: Config, file: Path | None = None) -> AsyncIterator[Gateway]:
    """Run a gateway inside another program: a test, a demo."""
    gateway = Gateway(config, file)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()
