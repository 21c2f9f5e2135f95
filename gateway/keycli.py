"""The command line: kvlane key new | list | revoke.

A secret is written once, alone on standard output, so that a script can take it; what is said about it goes to standard
error. Tenants that are written into the configuration itself are the operator's own words: there the commands say what
to put in or take out, and where.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated, TypeVar

import typer
import yaml

from gateway import keys, keystores
from gateway.config import Config
from gateway.keys import Entry, KeyProblem
from gateway.keystores import FileStore, RedisStore, Store
from gateway.redisline import Line
from gateway.sharedredis import line_to
from gateway.tenancy import KeyConfig, TenantConfig
from gateway.terminal import err, give_up, out, read

app = typer.Typer(help="API keys of tenants.", no_args_is_help=True, pretty_exceptions_enable=False)
ConfigFile = Annotated[Path, typer.Argument(help="Configuration (YAML).")]
Result = TypeVar("Result")


@app.command()
def new(
    config: ConfigFile,
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    name: Annotated[str | None, typer.Option(help="For people: what uses it.")] = None,
    expires: Annotated[str | None, typer.Option(help="12h, 90d, 4w, or a time (RFC 3339); never by default.")] = None,
    rotate: Annotated[
        str | None,
        typer.Option(help="Give this key another secret; its old one stays good. --expires is then for both."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the tenant if need be, without limits.")] = False,
) -> None:
    """Make a key, and write its secret: this once, for only its SHA-256 is kept."""
    if name is not None and rotate is not None:
        give_up("--rotate keeps the key's name: leave out --name")
    run(_new(read(config, None), config, tenant, name, expires, rotate, create))


@app.command(name="list")
def list_(config: ConfigFile) -> None:
    """Show every key: whose it is, how its secret begins and ends, until when it is good."""
    run(_list(read(config, None), config))


@app.command()
def revoke(
    config: ConfigFile,
    key: Annotated[str, typer.Argument(help="As `list` shows it: its name, TENANT/NAME, its beginning or its end.")],
    old: Annotated[bool, typer.Option("--old", help="Drop the older of its two secrets only.")] = False,
) -> None:
    """Take a key away: it is refused everywhere within two seconds."""
    run(_revoke(read(config, None), config, key, old))


def run(command: Awaitable[None]) -> None:
    """Do it, or say in one line why not."""

    async def done() -> None:
        await command

    quiet = logging.NullHandler()  # else Python prints what the line to Redis logs, beside the one line
    logging.getLogger().addHandler(quiet)
    try:
        asyncio.run(done())
    except KeyProblem as problem:
        give_up(str(problem))
    finally:
        logging.getLogger().removeHandler(quiet)


class Inline:
    """Tenants in the configuration: to be read, and for somebody else to change."""

    def __init__(self, config: Config, file: Path) -> None:
        self.title = str(file)
        self._tenants = config.tenants

    async def tenants(self) -> tuple[TenantConfig, ...]:
        """Give them."""
        return self._tenants

    async def change(self, change: keystores.Change) -> None:
        """Say what to put in, and where."""
        known = {tenant.name: tenant for tenant in self._tenants}
        changed = change(known)
        before = known.get(changed.name)
        if before is None:
            err.print(f"put this under `tenants` in {self.title}:", markup=False)
            err.print(snippet([keystores.as_document(changed)]), markup=False)
            return
        fresh = [document(key) for key in changed.keys if key not in before.keys]
        gone = [str(entry) for entry in keys.entries([before]) if entry.key not in changed.keys and not entry.is_short]
        where = f"in the place of {gone[0]}, " if gone else ""
        err.print(f"put this {where}under `keys` of tenant {changed.name} in {self.title}:", markup=False)
        err.print(snippet(fresh), markup=False)


def stores(config: Config, file: Path, line: Line | None) -> list[Store]:
    """Give where tenants are; the last is where new ones go."""
    found: list[Store] = [Inline(config, file)]
    if line is not None:
        found.append(RedisStore(line))
    if config.tenants_file is not None:
        found.append(FileStore(config.tenants_file))
    return found


async def _new(
    config: Config, file: Path, tenant: str, name: str | None, expires: str | None, rotate: str | None, create: bool
) -> None:
    now = datetime.now(UTC)
    expires_at = None if expires is None else keys.moment(expires, now)
    secret = keys.new_secret()
    async with connected(config) as line:
        places = stores(config, file, line)
        place = await holder(tenant, places)
        if place is None and not create:
            raise KeyProblem(f"there is no tenant {tenant!r}: --create makes one, without limits")

        def change(known: Mapping[str, TenantConfig]) -> TenantConfig:
            found = known.get(tenant) or fresh_tenant(tenant)
            if rotate is None:
                return keys.with_new_key(found, secret, name, expires_at)
            entry = keys.the_one(rotate, keys.entries([found]))
            return keys.with_rotated_key(found, entry, secret, expires_at, now)

        await (place or places[-1]).change(change)
    out.print(secret, markup=False)
    until = f"until {expires_at:%Y-%m-%d %H:%M} UTC" if expires_at is not None else "until it is revoked"
    err.print(f"this is the only time that this secret of {tenant} is shown; it is good {until}", markup=False)


async def _list(config: Config, file: Path) -> None:
    now = datetime.now(UTC)
    rows = [["TENANT", "KEY", "SECRET", "EXPIRES", "STATE", "IN"]]
    async with connected(config) as line:
        for place in stores(config, file, line):
            for tenant in await place.tenants():
                rows += [[*row(entry, now), place.title] for entry in keys.entries([tenant])]
                if not tenant.keys and not tenant.key_sha256:
                    rows.append([tenant.name, "-", "-", "-", "no key", place.title])
    print_table(rows)


async def _revoke(config: Config, file: Path, key: str, old: bool) -> None:
    async with connected(config) as line:
        by_entry: dict[int, tuple[Entry, Store]] = {}
        for place in stores(config, file, line):
            by_entry |= {id(entry): (entry, place) for entry in keys.entries(await place.tenants())}
        entry = keys.the_one(key, [entry for entry, _ in by_entry.values()])
        place = by_entry[id(entry)][1]
        what = f"the older secret of {entry}" if old else str(entry)
        if isinstance(place, Inline):
            raise KeyProblem(f"{place.title} is yours to edit: take {what} out there")

        def change(known: Mapping[str, TenantConfig]) -> TenantConfig:
            tenant = known.get(entry.tenant) or fresh_tenant(entry.tenant)
            return keys.without_old_secret(tenant, entry) if old else keys.without_key(tenant, entry)

        await place.change(change)
    err.print(f"revoked {what}: gateways refuse it within two seconds", markup=False)


def print_table(rows: list[list[str]]) -> None:
    """Print rows, the first of which names the columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        out.print("  ".join(map(str.ljust, cells, widths)).rstrip(), markup=False)


def row(entry: Entry, now: datetime) -> list[str]:
    """Show a key."""
    expires_at = entry.key.expires_at
    until = "never" if expires_at is None else f"{expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return [entry.tenant, entry.key.name or "-", entry.shown, until, entry.state(now)]


@asynccontextmanager
async def connected(config: Config) -> AsyncIterator[Line | None]:
    """Give the line to Redis, if there are tenants in it."""
    try:
        line = line_to(config.redis, Random()) if config.tenants_in_redis else None
    except ValueError as error:
        raise KeyProblem(str(error)) from error
    if line is None:
        yield None
        return
    await line.start()
    try:
        yield line
    finally:
        await line.close()


async def holder(tenant: str, places: list[Store]) -> Store | None:
    """Give the place that has a tenant."""
    for place in places:
        if any(known.name == tenant for known in await place.tenants()):
            return place
    return None


def fresh_tenant(name: str) -> TenantConfig:
    """Make a tenant that has nothing yet.

    Raises:
        KeyProblem: nobody can be called that.
    """
    try:
        return TenantConfig.model_validate({"name": name})
    except ValueError as error:
        raise KeyProblem(f"no tenant can be called {name!r}") from error


def document(key: KeyConfig) -> dict[str, object]:
    """Give a key as the configuration has it."""
    return key.model_dump(mode="json", exclude_unset=True)


def snippet(entries: list[dict[str, object]]) -> str:
    """Write a part of a configuration."""
    return yaml.safe_dump(entries, sort_keys=False, allow_unicode=True).rstrip()
