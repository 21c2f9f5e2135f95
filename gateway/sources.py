"""Where tenants are told of, and how a change there is noticed.

The configuration file, a file of tenants alone, Redis. A source is asked again and again; it gives what it holds when
that has changed, and else nothing. What cannot be used is a SourceError, which it raises until it can; where there is
nothing at all when it is first asked (a file that nobody has made yet, a Redis that is down or empty) it is NotThere.

A file has changed when another mtime, size or inode says so, and is read once it has stood still from one look to the
next: it may be in the middle of being written, and half a file can be a good one that lacks the other half of the
tenants. One that never stands still is read all the same, before two seconds are over. Of the configuration file
tenants and `anonymous` are taken, for nothing else can change while serving.

In Redis, a hash has each tenant's JSON by its name, and a version beside it that rises with every change. It is the
time of the change in microseconds, or one more than the last: so what was restored from an old copy, or written anew
after everything was lost, is told from what is new. A version that falls, or is gone, is a Redis that has forgotten: a
key that was revoked must not come back from there, and what was known holds on. One without a version never had
tenants, or has lost them before we came: that nobody may call is said by a version without tenants, never by silence.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from gateway import document
from gateway.config import Config, ConfigError, load
from gateway.redisline import Line
from gateway.rediswire import Answer, LineDown
from gateway.tenancy import AnonymousConfig, TenantConfig, tenant_of, tenants_of

log = logging.getLogger(__name__)

FILE_EVERY_S = 0.3  # twice that until a change is read, well below the two seconds that a revoked key may live
REDIS_EVERY_S = 0.5
MAX_RESTLESS = 3  # looks at a file that has changed each time: then it is read, for it may go on like that
LIVE = {"tenants", "anonymous"}
DOCUMENTS, VERSION = "kvlane:{tenants}:documents", "kvlane:{tenants}:version"

Signature: TypeAlias = tuple[int, ...] | None


class SourceError(Exception):
    """What a source holds cannot be used; the message is one line."""


class NotThere(SourceError):
    """There is nothing yet that could be right or wrong; `hint` says what would help, where that is known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Callers:
    """Who may call, as one source says."""

    tenants: tuple[TenantConfig, ...] = ()
    anonymous: AnonymousConfig | None = None


class Source(Protocol):
    """Where tenants are told of."""

    @property
    def name(self) -> str:
        """For metrics: the key of the configuration that leads there."""

    @property
    def title(self) -> str:
        """For people."""

    @property
    def every_s(self) -> float | None:
        """How often to read it; None: once."""

    async def read(self) -> Callers | None:
        """Give what it holds now; None: what it gave before.

        Raises:
            NotThere: there is nothing.
            SourceError: that cannot be used.
        """


class Inline:
    """Tenants of a configuration that is in no file, and so does not change."""

    name, title, every_s = "tenants", "the configuration", None

    def __init__(self, config: Config) -> None:
        self._callers = Callers(config.tenants, config.anonymous)

    async def read(self) -> Callers | None:
        """Give them."""
        return self._callers


class FileSource:
    """A file that is watched."""

    every_s = FILE_EVERY_S

    def __init__(self, name: str, path: Path, parse: Callable[[Path], Callers]) -> None:
        self.name = name
        self.title = str(path)
        self._path = path
        self._parse = parse
        self._has_looked = False
        self._seen: Signature = None
        self._taken: Signature = None
        self._restless = 0
        self._trouble = ""
        self._looking: asyncio.Task[Callers | None] | None = None

    async def read(self) -> Callers | None:
        """Look at the file, off the event loop; read it if it has changed and stands still.

        No thread can be called back: what one finds for whom would not wait is given to who asks next.
        """
        looking = self._looking = self._looking or asyncio.create_task(asyncio.to_thread(self.look))
        try:
            return await asyncio.shield(looking)
        finally:
            if looking.done():
                self._looking = None

    def look(self) -> Callers | None:
        """Do the same here and now."""
        signature = signature_of(self._path)
        self._restless = 0 if signature == self._seen else self._restless + 1
        is_still = not self._restless or self._restless > MAX_RESTLESS or not self._has_looked
        if is_still and (signature != self._taken or not self._has_looked):
            self._taken = self._seen = signature
            self._has_looked = True
            self._restless = 0
            self._trouble = "reading it failed inside the gateway"
            try:
                callers = self._parse(self._path)
            except SourceError as error:
                self._trouble = str(error)
                raise
            self._trouble = ""
            return callers
        self._seen = signature
        if self._trouble:
            raise SourceError(self._trouble)
        return None


def signature_of(path: Path) -> Signature:
    """Give what changes when a file does; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def tenants_file(path: Path) -> FileSource:
    """Watch a file of tenants alone."""
    return FileSource("tenants_file", path, lambda path: Callers(read_tenants(path)))


def read_tenants(path: Path) -> tuple[TenantConfig, ...]:
    """Read a file of tenants alone.

    Raises:
        NotThere: there is no such file.
        SourceError: it cannot be read, or says something that cannot be.
    """
    try:
        return tenants_of(document.read(path))
    except document.Missing as error:
        raise NotThere(str(error), "`kvlane key new CONFIG TENANT --create` makes it") from error
    except (document.Unreadable, ValueError) as error:
        raise SourceError(str(error)) from error


def configuration_file(path: Path) -> FileSource:
    """Watch the configuration file for its tenants; say so, once, where something else has changed."""
    return FileSource("tenants", path, _Configuration().callers)


class _Configuration:
    """The configuration file as it was first read, to tell what has changed in it."""

    def __init__(self) -> None:
        self._first: Config | None = None
        self._said: list[str] = []

    def callers(self, path: Path) -> Callers:
        """Read the file; give who may call.

        Raises:
            SourceError: it is no good configuration.
        """
        try:
            config = load(path)
        except ConfigError as error:
            raise SourceError("; ".join(error.problems)) from error
        self._first = first = self._first or config
        changed = [
            name for name in Config.model_fields if name not in LIVE and getattr(config, name) != getattr(first, name)
        ]
        if changed and changed != self._said:
            log.warning("%s has changed in %s, which needs a restart", path, ", ".join(changed))
        self._said = changed
        return Callers(config.tenants, config.anonymous)


class RedisSource:
    """Tenants in Redis."""

    name, title, every_s = "tenants_in_redis", "Redis", REDIS_EVERY_S

    def __init__(self, line: Line) -> None:
        self._line = line
        self._version = -1
        self._silence = ""
        """What the first of the questions that got no answer met with: trouble that goes on is one trouble."""

    async def read(self) -> Callers | None:
        """Look at the version, and where it has risen read all."""
        try:
            version = version_of(await self._line.ask("GET", VERSION))
            if version < self._version:
                raise SourceError(f"it has forgotten tenants: their version is {version}, and was {self._version}")
            documents = None if version == self._version else await documents_in(self._line)
            self._silence = ""
            if documents is None:
                return None
            if not version and not documents:
                raise NotThere("it has no tenants", "`kvlane tenant put` and `kvlane key new --create` put some there")
            callers = Callers(parse_documents(documents))
        except LineDown as error:
            self._silence = self._silence or f"{error}"
            raise NotThere(self._silence) from error
        except ValueError as error:
            raise SourceError(str(error)) from error
        self._version = version
        return callers


async def documents_in(line: Line) -> dict[str, str]:
    """Give the JSON of each tenant in Redis, by name.

    Raises:
        LineDown: there is no answer.
    """
    answer = await line.ask("HGETALL", DOCUMENTS)
    assert isinstance(answer, list)
    words = [word.decode("utf-8", "replace") for word in answer if isinstance(word, bytes)]
    return dict(zip(words[::2], words[1::2], strict=True))


def parse_documents(documents: Mapping[str, str]) -> tuple[TenantConfig, ...]:
    """Make tenants of their JSON.

    Raises:
        ValueError: with every problem found, in one line.
    """
    found, problems = [], []
    for name, content in sorted(documents.items()):
        try:
            tenant = tenant_of(content)
            if tenant.name != name:
                raise ValueError(f"calls itself {tenant.name}")
            found.append(tenant)
        except ValueError as error:
            problems.append(f"tenant {name[:100]!r}: {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(found)


def version_of(answer: Answer) -> int:
    """Read the version; none is 0.

    Raises:
        ValueError: it is no number.
    """
    return int(answer) if isinstance(answer, bytes) else 0


def tenant_sources(config: Config, file: Path | None, line: Line | None) -> list[Source]:
    """Give every place where the configuration says that tenants are."""
    sources: list[Source] = [Inline(config) if file is None else configuration_file(file)]
    if config.tenants_file is not None:
        sources.append(tenants_file(config.tenants_file))
    if config.tenants_in_redis and line is not None:
        sources.append(RedisSource(line))
    return sources
