"""Watches the engines: are they well, what do they serve, how loaded are they?

One task an engine, with jitter, so that a fleet is not asked in step. In each round:

    unknown kind?   ask what it is (engines/detect)
    health page     well -> answered, else unanswered: health.py decides what follows
    models, limits  when it becomes ready, and every MODELS_EVERY_S: adapters come and go
    state pages     every state interval: running, waiting, KV use, prefix hits, and which run of the process it is

A different run is a new Endpoint with clean books. So is an engine that said it was shutting down, went away, and
answers again, or is still well half a minute later.

Health is asked over a new connection each time: an engine that is going away closes its door first, and may still talk
to those inside. One that is ejected and whose door is closed is reported as gone, again in each round, so that requests
which hang there can be given up. Only this file writes what engines say of themselves.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random

import aiohttp

from gateway.config import Health
from gateway.engines.adapter import Adapter, Page
from gateway.engines.catalog import ADAPTERS
from gateway.engines.detect import DETECT_PATHS, detect
from gateway.fleet import Fleet, Member
from policies.health import State

log = logging.getLogger(__name__)

MODELS_EVERY_S = 30.0
DRAINING_DOUBT_S = 30.0  # an engine that said it was shutting down and is still well after this was misunderstood
JITTER = 0.1  # of the interval, up or down
MAX_PAGE_BYTES = 8 << 20  # vLLM's metrics page has 60 KB


class Probe:
    """Asks engines how they are."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        knocking: aiohttp.ClientSession,
        config: Health,
        clock: Callable[[], float],
        chance: Random,
        on_gone: Callable[[Member], None],
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._knocking = knocking
        self._config = config
        self._clock = clock
        self._chance = chance
        self._on_gone = on_gone
        self._tasks: dict[Member, asyncio.Task[None]] = {}
        self._state_at: dict[Member, float] = {}
        self._models_at: dict[Member, float] = {}
        self._runs: dict[Member, str] = {}
        self._went_away: set[Member] = set()
        self._draining_since: dict[Member, float] = {}
        self._refused: set[Member] = set()

    def watch(self, member: Member) -> None:
        """Begin to watch an engine."""
        self._tasks[member] = asyncio.create_task(self._run(member), name=f"probe {member.endpoint.name}")

    def forget(self, member: Member) -> None:
        """Stop watching an engine that has left."""
        self._tasks.pop(member).cancel()
        for known in (self._state_at, self._models_at, self._draining_since):
            known.pop(member, None)
        self._runs.pop(member, None)
        self._went_away.discard(member)
        self._refused.discard(member)

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, member: Member) -> None:
        while True:
            started = self._clock()
            before = member.endpoint.health.state
            try:
                await self._round(member)
            except Exception:
                log.exception("probing %s failed inside the gateway", member.endpoint.name)
                member.endpoint.health.unanswered()
            after = member.endpoint.health.state
            if after is not before:
                level = logging.INFO if after is State.READY else logging.WARNING
                log.log(level, "endpoint %s is %s (was %s)", member.endpoint.name, after.value, before.value)
            if after is State.EJECTED and member in self._refused:
                self._on_gone(member)
            interval = self._config.interval_s * (1 + JITTER * (2 * self._chance.random() - 1))
            await asyncio.sleep(max(0.05, started + interval - self._clock()))

    async def _round(self, member: Member) -> None:
        """Ask once around."""
        if not await self._is_well(member):
            member.endpoint.health.unanswered()
            self._went_away.add(member)
            return
        now = self._clock()
        came_back = member in self._went_away
        self._went_away.discard(member)
        adapter = ADAPTERS[member.kind] if member.kind is not None else None
        if member.endpoint.health.state is State.DRAINING:
            since = self._draining_since.setdefault(member, now)
            if came_back or now - since >= DRAINING_DOUBT_S:
                log.warning("endpoint %s is well, and asked again", member.endpoint.name)
                self._fleet.renew(member)
        if member.endpoint.health.state is not State.DRAINING:
            self._draining_since.pop(member, None)
        interval_s = max(self._config.state_interval_s, adapter.min_state_interval_s if adapter is not None else 0.0)
        state_is_due = now - self._state_at.get(member, float("-inf")) >= interval_s
        pages = await self._pages(member, adapter, now, is_new=came_back, state_is_due=state_is_due)
        if adapter is not None and pages:
            run = adapter.incarnation(pages)
            if run is not None and self._runs.setdefault(member, run) != run:
                self._runs[member] = run
                self._fleet.renew(member)
                log.warning("endpoint %s has restarted", member.endpoint.name)
            self._note(member, adapter, pages, now, state_is_due=state_is_due)
        if member.endpoint.report.is_asleep:
            member.endpoint.health.unanswered()
        else:
            member.endpoint.health.answered()

    async def _is_well(self, member: Member) -> bool:
        if member.kind is None:
            pages: dict[str, Page] = {}
            for path in DETECT_PATHS:
                page = await self._get(member, path)
                if page is None:
                    return False
                pages[path] = page
                member.kind = detect(pages)
                if member.kind is not None:
                    log.info("endpoint %s is %s", member.endpoint.name, member.kind.value)
                    break
            else:
                return any(page.status == 200 for page in pages.values())
        adapter = ADAPTERS[member.kind]
        self._refused.discard(member)
        page = await self._get(member, adapter.health_path, self._knocking)
        return page is not None and page.status == 200

    async def _pages(
        self, member: Member, adapter: Adapter | None, now: float, *, is_new: bool, state_is_due: bool
    ) -> dict[str, Page]:
        """Read the pages that are due."""
        paths: list[str] = []
        model_paths = adapter.model_paths if adapter is not None else ("/v1/models",)
        if is_new or now - self._models_at.get(member, float("-inf")) >= MODELS_EVERY_S:
            paths += model_paths
        if adapter is not None and state_is_due:
            paths += adapter.state_paths
            if member.config.metrics_url is not None:
                paths.append(member.config.metrics_url)
        pages: dict[str, Page] = {}
        for path in dict.fromkeys(paths):
            page = await self._get(member, path)
            if page is not None:
                pages[path] = page
        return pages

    def _note(
        self, member: Member, adapter: Adapter, pages: dict[str, Page], now: float, *, state_is_due: bool
    ) -> None:
        """Write down what the pages say."""
        endpoint = member.endpoint
        if state_is_due:
            self._state_at[member] = now
            endpoint.report = adapter.read_state(pages)
            endpoint.report.at = now
        if any(path in pages for path in adapter.model_paths):
            served = adapter.read_models(pages)
            if served:
                self._models_at[member] = now
                if not member.config.models:
                    endpoint.models = frozenset(model.id for model in served)
                if member.config.max_context_tokens is None:
                    limits = [model.max_context_tokens for model in served if model.max_context_tokens is not None]
                    endpoint.max_context_tokens = min(limits, default=None)

    async def _get(self, member: Member, path: str, session: aiohttp.ClientSession | None = None) -> Page | None:
        """Ask for a page; None where there is no answer at all."""
        url = path if "://" in path else member.endpoint.url + path
        key = member.config.api_key
        try:
            async with (session or self._session).get(
                url,
                headers={"authorization": f"Bearer {key}"} if key else {},
                timeout=aiohttp.ClientTimeout(total=self._config.timeout_s),
                allow_redirects=False,
            ) as response:
                body = await response.content.read(MAX_PAGE_BYTES) if response.content_length != 0 else b""
                while len(body) < MAX_PAGE_BYTES and (more := await response.content.read(MAX_PAGE_BYTES)):
                    body += more
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Page(path, response.status, body, headers)
        except ConnectionRefusedError:
            self._refused.add(member)
            return None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                self._refused.add(member)
            return None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None
