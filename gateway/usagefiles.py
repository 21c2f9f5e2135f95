"""Usage in files, of one gateway without Redis; and with it what its budgets have used, over a restart.

    DIRECTORY/usage-2027-01-31.json   a day
    DIRECTORY/budgets.json            what the limits' budgets have used
    DIRECTORY/lock                    held by the one gateway that writes here

A file a day, so that what is written every few seconds stays small however long usage is kept, and what breaks is one
day. Each is replaced whole, off the event loop; nobody ever reads half a file. One that makes no sense, because a disk
lost it, is set aside as FILE.broken, with one line in the log, and begun anew.
"""

import asyncio
import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TextIO

import orjson

from gateway.usagestore import Batch, Kept, StoreError
from policies.accounts import Sums, add

log = logging.getLogger(__name__)

VERSION = 1
DAY_FILE = re.compile(r"usage-\d{4}-\d\d-\d\d\.json")
BUDGETS, LOCK = "budgets.json", "lock"


class UsageInFiles:
    """The days in a directory."""

    every_s = 10.0

    def __init__(
        self,
        directory: Path,
        days: int,
        snapshot: Callable[[], dict[str, object]],
        restore: Callable[[dict[str, object]], None],
    ) -> None:
        """Use a directory, which `open` makes if need be.

        Args:
            directory: Of this gateway alone.
            days: How many are kept.
            snapshot: Gives what budgets have used, as JSON can hold it.
            restore: Takes what `snapshot` gave before a restart; if it is not that it raises AttributeError, KeyError,
                TypeError or ValueError.
        """
        self._directory = directory
        self._days = days
        self._snapshot = snapshot
        self._restore = restore
        self._budgets: bytes | None = None
        """As they are in the file."""
        self._lock: TextIO | None = None

    async def open(self) -> None:
        """Take the directory for this gateway, and restore the budgets."""
        try:
            await asyncio.to_thread(self._take)
            budgets = await asyncio.to_thread(self._load, self._directory / BUDGETS)
        except OSError as error:
            await self.close()
            raise StoreError(f"accounting.path {self._directory}: {error.strerror or error}") from error
        if budgets is not None:
            try:
                self._restore(budgets)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self._set_aside(self._directory / BUDGETS, error)

    async def add(self, batch: Batch) -> None:
        """Add it to the day's file."""
        try:
            await asyncio.to_thread(self._add, batch)
        except OSError as error:
            raise StoreError(f"{self._directory}: {error.strerror or error}") from error

    async def read(self, day: str) -> Kept:
        """Read the day's file."""
        try:
            return Kept(await asyncio.to_thread(self._read, self._file(day)))
        except OSError as error:
            raise StoreError(f"{self._directory}: {error.strerror or error}") from error

    async def tend(self) -> None:
        """Save the budgets if they have changed."""
        budgets = orjson.dumps(self._snapshot())
        if budgets == self._budgets:
            return
        try:
            await asyncio.to_thread(replace, self._directory / BUDGETS, budgets)
            self._budgets = budgets
        except OSError as error:
            raise StoreError(f"{self._directory}: {error.strerror or error}") from error

    async def close(self, unsaved: Sequence[Batch] = ()) -> bool:
        """Leave the directory to others."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        return not unsaved

    # In a thread.

    def _take(self) -> None:
        """Lock the directory; the lock ends with the process, however that ends."""
        self._directory.mkdir(parents=True, exist_ok=True)
        lock = open(self._directory / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  # held until `close`
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read(20).strip()
            lock.close()
            raise StoreError(
                f"accounting.path {self._directory} is in use by another gateway (process {holder or 'unknown'}): "
                "give each its own, or let them share a Redis"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _add(self, batch: Batch) -> None:
        file = self._file(batch.day)
        if not file.exists():
            self._prune()
        sums = self._read(file)
        add(sums, batch.sums)
        replace(file, json.dumps({"version": VERSION, "day": batch.day, **entries_of(sums)}).encode())

    def _read(self, file: Path) -> Sums:
        content = self._load(file)
        try:
            return {} if content is None else sums_of(content)
        except (KeyError, TypeError, ValueError) as error:
            self._set_aside(file, error)
            return {}

    def _load(self, file: Path) -> dict[str, object] | None:
        """Read a JSON object; None where there is no file, or none that makes sense."""
        try:
            content = json.loads(file.read_bytes())  # not orjson: counts may be longer than 64 bits
            if isinstance(content, dict):
                return content
            self._set_aside(file, TypeError("no JSON object"))
        except FileNotFoundError:
            pass
        except ValueError as error:
            self._set_aside(file, error)
        return None

    def _set_aside(self, file: Path, error: Exception) -> None:
        names = (f"{file.name}.broken{at or ''}" for at in count())
        aside = next(path for name in names if not (path := file.with_name(name)).exists())
        os.replace(file, aside)
        log.error("accounting: %s makes no sense (%s): set aside as %s, begun anew", file, error, aside.name)

    def _prune(self) -> None:
        """Make room for a day. The clock is not asked: one that is wrong must not cost what was kept."""
        files = sorted(name for name in os.listdir(self._directory) if DAY_FILE.fullmatch(name))
        for name in files[: max(0, len(files) - self._days + 1)]:
            (self._directory / name).unlink()

    def _file(self, day: str) -> Path:
        return self._directory / f"usage-{day}.json"


def entries_of(sums: Sums) -> dict[str, object]:
    """Write sums as a file holds them."""
    entries = [{"tenant": tenant, "model": model, "counts": counts} for (tenant, model), counts in sums.items()]
    return {"usage": entries}


def sums_of(content: dict[str, object]) -> Sums:
    """Make sums of what a day's file holds.

    Raises:
        KeyError, TypeError, ValueError: it is not that.
    """
    if content["version"] != VERSION:
        raise ValueError(f"of version {content['version']!r}, not {VERSION}")
    entries = content["usage"]
    if not isinstance(entries, list):
        raise TypeError("usage is no list")
    sums: Sums = {}
    for entry in entries:
        counts = entry["counts"]
        if not isinstance(counts, dict) or not all(type(count) is int and count >= 0 for count in counts.values()):
            raise ValueError("counts are no numbers of things")
        add(sums, {(str(entry["tenant"]), str(entry["model"])): counts}, most=len(entries))
    return sums


def replace(file: Path, content: bytes) -> None:
    """Put a file in another's place, whole."""
    fresh = file.with_name(f".{file.name}.new")  # one writer, so one name: a crash leaves no more than one behind
    with open(fresh, "wb") as new:
        new.write(content)
        new.flush()
        os.fsync(new.fileno())
    os.replace(fresh, file)
