"""Watches the engines: are they well, what do they serve, how loaded are they?

One task an engine, with jitter, so that a fleet is not asked in step. In each round:

    unknown kind?   ask what it is (engines/detect)
    health page     well -> answered, else unanswered: health.py decides what follows
    models, limits  when it becomes ready, and every MODELS_EVERY_S: adapters come and go
    state pages     every state interval: running, waiting, KV use, prefix hits, and which run of the process it is

A different run is a new Endpoint with clean books. So is an engine that said it was shutting down, went away, and
answers again, or is still well half a minute later.

What keeps an engine from being ready is said once, in the log and on /admin/endpoints, and again when it changes: a
certificate, a name that does not resolve, a path that is not there, no models.

Health is asked over a new connection each time: an engine that is going away closes its door first, and may still talk
to those inside. One that is ejected and whose door is closed is reported as gone, again in each round, so that requests
which hang there can be given up. Only this file tells what engines say of themselves.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import aiohttp

from gateway.engines.adapter import Adapter, Page
from gateway.engines.catalog import ADAPTERS
from gateway.engines.detect import DETECT_PATHS, detect
from gateway.engines.models import LIST_PATH, read_list
from gateway.fleet import Fleet
from gateway.members import Member
from gateway.patience import Patience
from gateway.sections import Health
from policies.health import State

log = logging.getLogger(__name__)

MODELS_EVERY_S = 30.0
DRAINING_DOUBT_S = 30.0  # an engine that said it was shutting down and is still well after this was misunderstood
JITTER = 0.1  # of the interval, up or down
MAX_PAGE_BYTES = 1 << 20  # vLLM's metrics page has 60 KB
MAX_MODELS = 1000  # of one engine: they are listed to clients, and labels of metrics
LATEST = 3.0  # times as long an engine has to answer where it is our own loop that is late
NEVER = float("-inf")
UNLIMITED = aiohttp.ClientTimeout(total=None)  # `Patience` is


@dataclass(eq=False, slots=True)
class _Watch:
    """What is remembered of one engine between rounds."""

    member: Member
    told_state: State = State.STARTING
    """The last state that was logged: requests move it between rounds as well."""
    state_at: float = NEVER
    models_at: float = NEVER
    draining_since: float | None = None
    run: str | None = None
    is_away: bool = True
    """Whether it did not answer last time, or was never asked."""
    is_refusing: bool = False
    """Whether it takes no connections."""
    trouble: str = ""
    """Why it did not answer last."""
    is_off: bool = False
    """Whether its cache was last said not to hold what it should."""
    task: asyncio.Task[None] | None = None


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
        self._watches: dict[Member, _Watch] = {}

    def watch(self, member: Member) -> None:
        """Begin to watch an engine."""
        watch = self._watches[member] = _Watch(member)
        watch.task = asyncio.create_task(self._run(watch), name=f"probe {member.endpoint.name}")

    def forget(self, member: Member) -> None:
        """Stop watching an engine that has left."""
        task = self._watches.pop(member).task
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop watching."""
        tasks = [watch.task for watch in self._watches.values() if watch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, watch: _Watch) -> None:
        member = watch.member
        while True:
            started = self._clock()
            try:
                await self._round(watch)
            except Exception:
                watch.trouble = "the gateway failed on what it answered"
                if member.trouble != watch.trouble:
                    log.exception("probing %s failed inside the gateway", member.endpoint.name)
                member.endpoint.health.unanswered()
            self._tell(watch)
            self._compare(watch)
            if member.endpoint.health.state is State.EJECTED and watch.is_refusing:
                self._on_gone(member)
            interval = self._config.interval_s * (1 + JITTER * (2 * self._chance.random() - 1))
            await asyncio.sleep(max(0.05, started + interval - self._clock()))

    def _tell(self, watch: _Watch) -> None:
        """Log what is new: a state, or the reason why an engine is in none that serves."""
        member = watch.member
        state = member.endpoint.health.state
        is_new = watch.trouble != member.trouble and state is not State.READY
        member.trouble = watch.trouble
        if state is not watch.told_state:
            level = logging.INFO if state is State.READY else logging.WARNING
            why = f": {watch.trouble}" if watch.trouble else ""
            log.log(
                level, "endpoint %s is %s (was %s)%s", member.endpoint.name, state.value, watch.told_state.value, why
            )
            watch.told_state = state
            member.entered[state] += 1
        elif is_new and watch.trouble and state is State.STARTING:
            log.warning("endpoint %s is not ready: %s", member.endpoint.name, watch.trouble)

    def _compare(self, watch: _Watch) -> None:
        """Log when an engine's cache has long held other than it should, and when it does again."""
        member, forecast = watch.member, watch.member.forecast
        is_off = forecast.is_off(self._clock())
        if is_off is watch.is_off:
            return
        watch.is_off = is_off
        if is_off:
            log.warning(
                "endpoint %s: cached prompt tokens are not what they should be: expected %.0f %%, reported %.0f %%; "
                "is its prefix caching on, and the tokenizer and chat template here the engine's own?",
                member.endpoint.name,
                min(100.0, 100 * forecast.predicted / max(1.0, forecast.prompt)),
                100 * (forecast.hit_ratio or 0.0),
            )
        else:
            log.info("endpoint %s: cached prompt tokens are again what they should be", member.endpoint.name)

    async def _round(self, watch: _Watch) -> None:
        """Ask once around."""
        member = watch.member
        watch.trouble = ""
        if not await self._is_well(watch):
            member.endpoint.health.unanswered()
            watch.is_away = True
            return
        now = self._clock()
        came_back, watch.is_away = watch.is_away, False
        self._doubt_draining(watch, now, came_back=came_back)
        adapter = ADAPTERS[member.kind] if member.kind is not None else None
        interval_s = max(self._config.state_interval_s, adapter.min_state_interval_s if adapter is not None else 0.0)
        state_is_due = adapter is not None and now - watch.state_at >= interval_s
        models_are_due = came_back or now - watch.models_at >= MODELS_EVERY_S
        pages = await self._pages(watch, adapter, state_is_due=state_is_due, models_are_due=models_are_due)
        if adapter is not None and pages:
            run = adapter.incarnation(pages)
            if run is not None and watch.run not in (None, run):
                self._fleet.renew(member)
                member.restarts += 1
                watch.models_at = NEVER  # it may serve others now
                log.warning("endpoint %s has restarted", member.endpoint.name)
            watch.run = run or watch.run
        if adapter is not None and state_is_due:
            watch.state_at = now
            report = adapter.read_state(pages)
            report.at = now
            self._fleet.hear(member, report)
        if models_are_due:
            self._note_models(watch, adapter, pages, now)
        if member.endpoint.report.is_asleep:
            watch.trouble = "it is asleep"
            member.endpoint.health.unanswered()
        elif not member.endpoint.models:
            watch.trouble = watch.trouble or "it serves no models"
            watch.is_away = True  # models are asked for again next time
            member.endpoint.health.unanswered()
        else:
            watch.trouble = ""  # a page that is missing keeps nobody from serving
            member.endpoint.health.answered()

    def _doubt_draining(self, watch: _Watch, now: float, *, came_back: bool) -> None:
        """Take an engine that said it was shutting down for a new one, when it is back or has stayed well for long."""
        member = watch.member
        if member.endpoint.health.state is not State.DRAINING:
            watch.draining_since = None
            return
        if watch.draining_since is None:
            watch.draining_since = now
        if came_back or now - watch.draining_since >= DRAINING_DOUBT_S:
            watch.draining_since = None
            self._fleet.renew(member)

    async def _is_well(self, watch: _Watch) -> bool:
        member = watch.member
        if member.kind is None:
            pages: dict[str, Page] = {}
            for path in DETECT_PATHS:
                page = await self._get(watch, path)
                if page is None:
                    return False
                pages[path] = page
                member.kind = detect(pages)
                if member.kind is not None:
                    log.info("endpoint %s is %s", member.endpoint.name, member.kind.value)
                    break
            else:
                return any(page.status == 200 for page in pages.values())
        path = ADAPTERS[member.kind].health_path
        watch.is_refusing = False
        page = await self._get(watch, path, self._knocking)
        return page is not None and page.status == 200

    async def _pages(
        self, watch: _Watch, adapter: Adapter | None, *, state_is_due: bool, models_are_due: bool
    ) -> dict[str, Page]:
        """Read the pages that are due."""
        paths: list[str] = []
        if models_are_due:
            paths += adapter.model_paths if adapter is not None else (LIST_PATH,)
        if adapter is not None and state_is_due:
            paths += adapter.state_paths
            if watch.member.config.metrics_url is not None:
                paths.append(watch.member.config.metrics_url)
        pages: dict[str, Page] = {}
        for path in dict.fromkeys(paths):
            page = await self._get(watch, path)
            if page is not None:
                pages[path] = page
        return pages

    def _note_models(self, watch: _Watch, adapter: Adapter | None, pages: dict[str, Page], now: float) -> None:
        """Write down which models are served, and how long a request may be; the configuration has the first word."""
        member = watch.member
        member.endpoint.can = adapter.salted_paths if adapter is not None else frozenset()
        served = adapter.read_models(pages) if adapter is not None else read_list(pages)
        if not served:
            return
        watch.models_at = now
        endpoint = member.endpoint
        before = (endpoint.models, endpoint.max_context_tokens, endpoint.cuts_output, member.listed)
        member.listed = served[:MAX_MODELS]
        endpoint.cuts_output = adapter is not None and adapter.cuts_output
        if not member.config.models:
            endpoint.models = frozenset(model.id for model in member.listed)
        if member.config.max_context_tokens is None:
            limits = [model.max_context_tokens for model in served if model.max_context_tokens is not None]
            endpoint.max_context_tokens = min(limits, default=None)
        if before != (endpoint.models, endpoint.max_context_tokens, endpoint.cuts_output, member.listed):
            self._fleet.changed()

    async def _get(self, watch: _Watch, path: str, session: aiohttp.ClientSession | None = None) -> Page | None:
        """Ask for a page; None where there is no answer at all, and then, or where it is a bad one, say why."""
        member = watch.member
        url = path if "://" in path else member.endpoint.url + path
        key = member.config.api_key
        try:
            async with (
                Patience(self._config.timeout_s, LATEST * self._config.timeout_s),
                (session or self._session).get(
                    url,
                    headers={"authorization": f"Bearer {key}"} if key else {},
                    timeout=UNLIMITED,
                    allow_redirects=False,
                ) as response,
            ):
                body = await response.content.read(MAX_PAGE_BYTES) if response.content_length != 0 else b""
                while len(body) < MAX_PAGE_BYTES and (more := await response.content.read(MAX_PAGE_BYTES)):
                    body += more
                if response.status != 200:
                    watch.trouble = f"GET {path} says {response.status}"
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Page(path, response.status, body, headers)
        except TimeoutError:
            watch.trouble = f"GET {path} did not answer within {self._config.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            watch.is_refusing = watch.is_refusing or isinstance(cause, ConnectionRefusedError)
            watch.trouble = f"GET {path} failed: {_in_words(cause)}"
        return None


def _in_words(error: Exception) -> str:
    """Say in one line what went wrong."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split())[:200] or type(error).__name__
