"""Where tenants are kept that `kvlane key` and `kvlane tenant` may change: a file of them, or Redis.

A change is a function of the tenants as they are to the one that shall be there instead. Two who write at a time never
lose what the other wrote: the file is changed under a lock on its directory, in Redis a change goes in only if what it
began with is still there, and begins anew if not. Nobody ever reads half a file: a new one takes the old one's place.
"""

import asyncio
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

import orjson
import yaml

from gateway.keys import KeyProblem
from gateway.redisline import Line
from gateway.rediswire import LineDown, Part, Script
from gateway.sources import DOCUMENTS, VERSION, SourceError, documents_in, parse_documents, read_tenants
from gateway.tenancy import TenantConfig

Change: TypeAlias = Callable[[Mapping[str, TenantConfig]], TenantConfig]
LOCK_WITHIN_S, LOCK_EVERY_S = 10.0, 0.05  # others write for milliseconds
TRIES = 10  # each lost one is a change that somebody else has made meanwhile
HEAD = "# Tenants. `kvlane key` rewrites this file: comments do not survive that, everything else does.\n"
COMPARE_AND_SET = Script(
    """
for at = 1, #ARGV, 3 do
    if (redis.call('HGET', KEYS[1], ARGV[at]) or '') ~= ARGV[at + 1] then return 0 end
end
local now = redis.call('TIME')
local version = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, now[1] * 1000000 + now[2])
for at = 1, #ARGV, 3 do
    if ARGV[at + 2] == '' then
        redis.call('HDEL', KEYS[1], ARGV[at])
    else
        redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 2])
    end
end
redis.call('SET', KEYS[2], string.format('%.0f', version))
return 1
"""
)


class Store(Protocol):
    """Tenants that can be changed."""

    @property
    def title(self) -> str:
        """For people."""

    async def tenants(self) -> tuple[TenantConfig, ...]:
        """Give all there are.

        Raises:
            KeyProblem: they cannot be read.
        """

    async def change(self, change: Change) -> None:
        """Put in what `change` gives, as the tenant of that name.

        Raises:
            KeyProblem: they cannot be read or written; or `change` raises it.
        """


class FileStore:
    """Tenants in a file of their own. A file that is not there yet has none."""

    def __init__(self, path: Path) -> None:
        self.title = str(path)
        self._path = Path(os.path.realpath(path))  # it may be a link: what it leads to is what is replaced

    async def tenants(self) -> tuple[TenantConfig, ...]:
        """Read the file."""
        return await asyncio.to_thread(self._read)

    async def change(self, change: Change) -> None:
        """Rewrite the file under the lock."""
        await asyncio.to_thread(self._rewrite, change)

    def _read(self) -> tuple[TenantConfig, ...]:
        try:
            return read_tenants(self._path) if self._path.exists() else ()
        except SourceError as error:
            raise KeyProblem(f"{self.title}: {error}") from error

    def _rewrite(self, change: Change) -> None:
        try:
            with locked(self._path.parent):
                known = {tenant.name: tenant for tenant in self._read()}
                changed = change(known)
                known[changed.name] = changed
                content = {"tenants": [as_document(tenant) for tenant in known.values()]}
                replace(self._path, HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        except OSError as error:
            raise KeyProblem(f"{self.title}: cannot be written: {error.strerror or error}") from error


class RedisStore:
    """Tenants in Redis."""

    title = "Redis"

    def __init__(self, line: Line) -> None:
        self._line = line

    async def tenants(self) -> tuple[TenantConfig, ...]:
        """Read them."""
        return self._parsed(await self._documents())

    async def change(self, change: Change) -> None:
        """Write the tenant's JSON, if it still is what `change` was given."""
        await self.change_all(lambda known: [change(known)])

    async def change_all(self, change: Callable[[Mapping[str, TenantConfig]], Sequence[TenantConfig]]) -> None:
        """Do the same for several, at once: all of them, or none.

        Raises:
            KeyProblem: as `change`.
        """

        def after(documents: Mapping[str, str]) -> dict[str, bytes]:
            changed = change({tenant.name: tenant for tenant in self._parsed(documents)})
            return {tenant.name: orjson.dumps(as_document(tenant)) for tenant in changed}

        await self._replace(after)

    async def remove(self, names: Iterable[str]) -> None:
        """Take tenants out, all of them, or none; one whose JSON makes no sense as well.

        Raises:
            KeyProblem: one is not there, or Redis does not answer.
        """

        def after(documents: Mapping[str, str]) -> dict[str, bytes]:
            if missing := [name for name in names if name not in documents]:
                raise KeyProblem(f"Redis: there is no tenant {missing[0]!r}")
            return dict.fromkeys(names, b"")

        await self._replace(after)

    async def _replace(self, after: Callable[[Mapping[str, str]], Mapping[str, bytes]]) -> None:
        """Write what `after` makes of all documents as they are, if they still are; else let it begin anew."""
        for _ in range(TRIES):
            documents = await self._documents()
            if await self._set(documents, after(documents)):
                return
        raise KeyProblem("Redis: others change this tenant all the time")

    async def _set(self, before: Mapping[str, str], after: Mapping[str, bytes]) -> bool:
        """Write JSON by names, nothing where one shall go, if all is as before."""
        args: list[Part] = [part for name, text in after.items() for part in (name, before.get(name, ""), text)]
        try:
            return bool(await self._line.script(COMPARE_AND_SET, [DOCUMENTS, VERSION], args))
        except LineDown as error:
            raise KeyProblem(str(error)) from error

    async def _documents(self) -> dict[str, str]:
        try:
            return await documents_in(self._line)
        except LineDown as error:
            raise KeyProblem(str(error)) from error

    def _parsed(self, documents: Mapping[str, str]) -> tuple[TenantConfig, ...]:
        try:
            return parse_documents(documents)
        except ValueError as error:
            raise KeyProblem(f"Redis: {error}") from error


def as_document(tenant: TenantConfig) -> dict[str, object]:
    """Give what was said of a tenant, without what is so by default."""
    told = tenant.model_dump(mode="json", exclude_unset=True)
    return {"name": told.pop("name"), **told}


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep others from writing in a directory as we do.

    Raises:
        KeyProblem: somebody else has been at it for too long.
        OSError: there is no such directory.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        ends_at = time.monotonic() + LOCK_WITHIN_S
        while not _is_locked(descriptor):
            if time.monotonic() > ends_at:
                raise KeyProblem(f"{directory}: another `kvlane key` has been writing there for {LOCK_WITHIN_S:g} s")
            time.sleep(LOCK_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace(path: Path, text: str) -> None:
    """Put a file in another's place, whole, with its permissions and owner; a new one is for its owner alone."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if path.exists():
                status = path.stat()
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), status.st_mode & 0o777)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # a key that was revoked is so even if the power fails now
    finally:
        os.close(directory)
