"""Keeper: keeps what tenants have used, over restarts and over several gateways.

    note --> Accounts --take--> unsaved batches --add, in order, each until it is in--> Store

Requests are counted in memory. Every few seconds what was counted since becomes batches, and those are added to what is
kept; nothing is taken anew before the last batch is in, so that a place which is away costs no more memory than the
bounds of Accounts. A batch leaves the list when the store says that it has it; a batch is never made twice.

What somebody asks for is what is kept, and what this gateway has not saved yet. Of other gateways it lacks the last
seconds.

One task saves, and ends by itself when it is told to stop: to cancel it in the middle would leave a thread at work, and
nobody who knows of what.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from gateway.instruments import Labels
from gateway.metrics import Metrics
from gateway.usagestore import Batch, Store, StoreError
from policies.accounts import DAY_S, Accounts, Sums, add, added, day_name, parts
from policies.statement import Usage
from policies.tariff import Tariff

log = logging.getLogger(__name__)

BATCH_CELLS = 100  # of some ten counts each: a millisecond of a Redis that others wait for as well
STOP_S = 5.0  # for the last save: a disk that hangs must not keep the process from ending
AGAIN_S = 0.2  # between the last tries


class Keeper:
    """The accounts of this gateway, and where they are kept."""

    def __init__(
        self,
        store: Store,
        tariff_of: Callable[[str, str], Tariff],
        metrics: Metrics,
        wall: Callable[[], float],
        days: int,
    ) -> None:
        """Not yet saving: see `start`.

        Args:
            store: Where usage is kept.
            tariff_of: Of a tenant and a model, as it is now.
            metrics: Let show what was charged, and whether it can be saved.
            wall: Seconds since 1970.
            days: How many are kept.
        """
        self.days = days
        self._accounts = Accounts(tariff_of)
        self._store = store
        self._wall = wall
        self._unsaved: deque[Batch] = deque()
        self._number = 0
        self._lock = asyncio.Lock()
        """Held while the store is at work: what is being added is in neither place for certain."""
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._taken: Sums = {}
        """All that this process ever counted, but for what is in the accounts; for metrics."""
        self._show(metrics)
        self.note = self._accounts.note
        """Count one finished request."""

    @property
    def today(self) -> str:
        """Name the day that it is, by UTC."""
        return day_name(int(self._wall() // DAY_S))

    async def start(self) -> None:
        """Begin to save.

        Raises:
            StoreError: the place is of no use.
        """
        await self._store.open()
        self._task = asyncio.create_task(self._run(), name="accounts")

    async def close(self) -> None:
        """Save what there is, and end."""
        if self._task is None:
            return
        self._stopping.set()
        done, _ = await asyncio.wait([self._task], timeout=STOP_S)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._trouble = self._trouble or f"not done within {STOP_S:g} s"
        self._take()
        if not await self._store.close(self._unsaved):
            log.error("accounting: what could not be saved is lost, %s: %s", self._told_unsaved(), self._trouble)

    async def save(self) -> bool:
        """Save what was counted since the last time; what cannot be is kept, and tried again the next time."""
        async with self._lock:
            trouble = ""
            try:
                if not self._unsaved:
                    self._take()
                while self._unsaved:
                    await self._store.add(self._unsaved[0])
                    self._unsaved.popleft()
                await self._store.tend()
            except StoreError as error:
                trouble = str(error)
            except Exception as error:
                log.exception("accounting: saving failed inside the gateway")
                trouble = f"it failed inside the gateway: {type(error).__name__}"
        self._say(trouble)
        return not trouble

    async def usage(self, days: Sequence[str]) -> list[tuple[str, Sums]]:
        """Give the sums of days, as far as they are known here.

        Raises:
            StoreError: what is kept cannot be read.
        """
        found = []
        for day in days:
            async with self._lock:
                kept = await self._store.read(day)
                for batch in self._unsaved:
                    if batch.day == day and batch.number > kept.number:
                        add(kept.sums, batch.sums)
                add(kept.sums, self._accounts.sums_of(day))
                found.append((day, kept.sums))
        return found

    def _take(self) -> None:
        """Make batches of what was counted."""
        for day, sums in self._accounts.take().items():
            add(self._taken, sums)
            for part in parts(sums, BATCH_CELLS):
                self._number += 1
                self._unsaved.append(Batch(self._number, day, part))

    def _show(self, metrics: Metrics) -> None:
        def charged(name: str, unit: float) -> Iterator[tuple[Labels, float]]:
            every: Sums = {}
            for sums in (self._taken, *self._accounts.sums().values()):
                add(every, sums)
            for (tenant, model), counts in every.items():
                if name in counts:
                    yield (model, tenant), counts[name] / unit

        by = ("model", "tenant")
        weighted, cost = "Tokens as limits count them.", "Cost of tokens, in the money of the models' prices."
        metrics.gauge("kvlane_weighted_tokens_total", weighted, by, lambda: charged("weighted_tokens", 1))
        metrics.gauge("kvlane_cost_total", cost, by, lambda: charged("cost_nanos", 1e9))
        metrics.gauge(
            "kvlane_accounting_unsaved",
            "1 while usage cannot be saved, and is kept in memory alone.",
            (),
            lambda: [((), float(bool(self._trouble)))],
        )

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._store.every_s):
                    await self._stopping.wait()
            except TimeoutError:
                await self.save()
        while True:  # `close` waits no longer than STOP_S
            if not await self.save():
                await asyncio.sleep(AGAIN_S)
            elif not self._unsaved and not len(self._accounts):
                return

    def _told_unsaved(self) -> str:
        """Say how much is here alone."""
        every = Usage(added(counts for batch in self._unsaved for counts in batch.sums.values()))
        figures = every.figures()
        return f"{figures['requests']} requests of {figures['weighted_tokens']} weighted tokens"

    def _say(self, trouble: str) -> None:
        """Say that usage cannot be saved, or can again; once."""
        if trouble and not self._trouble:
            log.warning("accounting: usage cannot be saved, and is kept in memory: %s", trouble)
        elif self._trouble and not trouble:
            log.info("accounting: usage is saved again")
        self._trouble = trouble
