"""Keeps Tenants as the sources say, while they change.

Each source is read in a task of its own, so that one that hangs holds up no other. What it gives is taken if it can
stand beside what the others have given (no name and no secret twice, no class or model that is none); else it waits
until it can, and what was taken of that source before holds on. So does what was taken of a source that cannot be
read. Trouble is said once, in the log and as a gauge, and once more when it is over.

At the start, what is wrong keeps the gateway from starting: somebody is there to mend it. What is not there does not (a
Redis that is down, a file that nobody has made yet): a fleet whose gateways are restarted while Redis is away must come
back by itself. Until such a source has been read once, the gateway serves those whom it knows, asks the others to come
back (503: a key that it cannot know is not wrong), and is not ready, so that balancers look for one that knows all. No
copy is kept on disk to start from: a key that was revoked meanwhile would be good again.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence

from gateway.config import Config
from gateway.metrics import Metrics
from gateway.sources import Callers, NotThere, Source, SourceError
from gateway.tenancy import TenantConfig
from gateway.tenants import Tenants

log = logging.getLogger(__name__)

FIRST_WITHIN_S = 5.0  # a source that is slower at the start counts as not there


class _Origin:
    """A source, and what is known of it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.taken = Callers()
        self.waiting: Callers | None = None
        """What it has given, and could not be taken."""
        self.trouble = ""
        self.is_awaited = False
        """Whether it was not there at the start, and nothing was taken of it yet."""
        self.hint = ""
        """What would help then."""

    @property
    def wait(self) -> str:
        """What it is waited for, and what that means, in a line."""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.source.title}: {self.trouble}; until it can be read, keys that are nobody's yet get 503{hint}"


class TenantWatch:
    """Follows the sources.

    Args:
        tenants: To keep.
        sources: In the order in which they are thought right when they contradict each other at the start.
        config: As this gateway runs.
    """

    def __init__(self, tenants: Tenants, sources: Iterable[Source], config: Config) -> None:
        self._tenants = tenants
        self._origins = [_Origin(source) for source in sources]
        self._config = config
        self._is_loaded = False

    async def load(self) -> Sequence[str]:
        """Read every source once; give what keeps the gateway from starting, a line each."""
        await asyncio.gather(*(self._first(origin) for origin in self._origins))
        self._take()
        self._is_loaded = True
        wrong = [origin for origin in self._origins if origin.trouble and not origin.is_awaited]
        return [f"{origin.source.title}: {origin.trouble}" for origin in wrong]

    def awaited(self) -> Sequence[str]:
        """Give what was not there at the start and has not come yet, a line each."""
        return [origin.wait for origin in self._origins if origin.is_awaited]

    async def watch(self) -> None:
        """Follow every source, until cancelled."""
        for line in self.awaited():
            log.warning("tenants: not ready: %s", line)
        async with asyncio.TaskGroup() as group:
            for origin in self._origins:
                if (every_s := origin.source.every_s) is not None:
                    group.create_task(self._follow(origin, every_s), name=f"tenants of {origin.source.title}")

    def configs(self) -> Iterator[TenantConfig]:
        """Give what is said of every tenant, as it is taken now."""
        for origin in self._origins:
            yield from origin.taken.tenants

    def show(self, metrics: Metrics) -> None:
        """Let the metrics page tell how many there are, and where what is known is not what is there."""
        metrics.gauge("kvlane_tenants", "Tenants that there are.", (), lambda: [((), len(list(self._tenants)))])
        metrics.gauge("kvlane_api_keys", "Secrets of tenants.", (), lambda: [((), self._tenants.key_count)])
        metrics.gauge(
            "kvlane_tenants_stale",
            "1 where a source of tenants cannot be read or used, so that what it said before holds on.",
            ("source",),
            lambda: (((origin.source.name,), float(bool(origin.trouble))) for origin in self._origins),
        )
        metrics.gauge(
            "kvlane_tenants_unread",
            "1 where a source of tenants was not there at the start and is not yet, so that the gateway is not ready.",
            ("source",),
            lambda: (((origin.source.name,), float(origin.is_awaited)) for origin in self._origins),
        )

    # One source.

    async def _first(self, origin: _Origin) -> None:
        try:
            async with asyncio.timeout(FIRST_WITHIN_S):
                origin.waiting = await origin.source.read()
        except NotThere as error:
            origin.trouble, origin.hint, origin.is_awaited = str(error), error.hint, True
        except SourceError as error:
            origin.trouble = str(error)
        except TimeoutError:
            origin.trouble, origin.is_awaited = f"no answer within {FIRST_WITHIN_S:g} s", True

    async def _follow(self, origin: _Origin, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.look(origin)

    async def look(self, origin: _Origin) -> None:
        """Read a source once more."""
        try:
            given = await origin.source.read()
        except SourceError as error:
            origin.hint = error.hint if isinstance(error, NotThere) else ""
            self._note(origin, str(error))
            return
        except Exception:
            log.exception("tenants: reading %s failed inside the gateway", origin.source.title)
            self._note(origin, "reading it failed inside the gateway")
            return
        if given is not None:
            origin.waiting = given
        elif origin.waiting is None:
            self._note(origin, "")
        self._take()

    # All of them.

    def _take(self) -> None:
        """Take what waits and can stand beside the others; one that is taken may make room for another."""
        taken: list[_Origin] = []
        while (origin := self._next()) is not None:
            assert origin.waiting is not None
            origin.taken, origin.waiting, origin.is_awaited = origin.waiting, None, False
            taken.append(origin)
        if not taken:
            return
        every = [origin.taken for origin in self._origins]
        anonymous = next((callers.anonymous for callers in every if callers.anonymous is not None), None)
        unread = ", ".join(origin.source.name for origin in self._origins if origin.is_awaited)
        self._tenants.put([tenant for callers in every for tenant in callers.tenants], anonymous, unread)
        if self._is_loaded:
            told = ", ".join(origin.source.title for origin in taken)
            count = sum(len(callers.tenants) for callers in every)
            log.info("tenants: %d with %d secrets, since %s has changed", count, self._tenants.key_count, told)
        for origin in taken:
            self._note(origin, "")

    def _next(self) -> _Origin | None:
        for origin in self._origins:
            if origin.waiting is not None:
                problems = self._problems(origin)
                if not problems:
                    return origin
                own = f"{origin.source.title}: "  # whoever tells of the trouble says this
                told = (f"{path.removeprefix(own)}: {problem}" for path, problem in problems.items())
                self._note(origin, "; ".join(told))
        return None

    def _problems(self, origin: _Origin) -> dict[str, str]:
        """Give what speaks against taking what waits."""
        assert origin.waiting is not None
        callers = [each.waiting if each is origin else each.taken for each in self._origins]
        paths = [each.source.title for each in self._origins]
        tenants = [
            (f"{path}: tenants[{at}]", tenant)
            for path, one in zip(paths, callers, strict=True)
            if one is not None
            for at, tenant in enumerate(one.tenants)
        ]
        return self._config.clashes(tenants, origin.waiting.anonymous)

    def _note(self, origin: _Origin, trouble: str) -> None:
        """Say that a source cannot be used, or can again; once."""
        if trouble == origin.trouble:
            return
        origin.trouble = trouble
        if not self._is_loaded:  # who starts the gateway says so
            pass
        elif trouble and origin.is_awaited:
            log.warning("tenants: not ready: %s", origin.wait)
        elif trouble:
            log.warning("tenants: %s cannot be used, what it said before holds on: %s", origin.source.title, trouble)
        else:
            log.info("tenants: %s is good again", origin.source.title)
