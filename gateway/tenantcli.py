"""The command line: kvlane tenant list | put | remove.

Tenants in files are edited there. In Redis nobody should have to write JSON by hand: what is wrong with it is noticed
by gateways alone, which then hold on to what they had, and without a new version beside it they notice nothing at all.
So what is put there comes from a file such as `tenants_file` names, is checked as a gateway would, beside the tenants
that are elsewhere, and arrives whole: gateways see all of it or nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gateway.config import Config
from gateway.keycli import ConfigFile, connected, print_table, run, stores
from gateway.keys import KeyProblem, entries
from gateway.keystores import RedisStore
from gateway.sources import SourceError, read_tenants
from gateway.tenancy import TenantConfig
from gateway.terminal import err, read

app = typer.Typer(help="Tenants and their limits.", no_args_is_help=True, pretty_exceptions_enable=False)


@app.command(name="list")
def list_(config: ConfigFile) -> None:
    """Show every tenant: where it is, how many keys it has, what it may."""
    run(_list(read(config, None), config))


@app.command()
def put(
    config: ConfigFile,
    tenants: Annotated[Path, typer.Argument(help="YAML: `tenants:`, as in tenants_file.")],
) -> None:
    """Put tenants into Redis, in the place of those of their names; they keep their keys where the file names none."""
    run(_put(read(config, None), config, tenants))


@app.command()
def remove(
    config: ConfigFile,
    tenants: Annotated[list[str], typer.Argument(help="Names.")],
) -> None:
    """Take tenants out of Redis, with their keys."""
    run(_remove(read(config, None), tenants))


async def _list(config: Config, file: Path) -> None:
    rows = [["TENANT", "KEYS", "CLASS", "WEIGHT", "MODELS", "LIMITS", "IN"]]
    async with connected(config) as line:
        for place in stores(config, file, line):
            rows += [[*row(tenant), place.title] for tenant in await place.tenants()]
    print_table(rows)


async def _put(config: Config, file: Path, given: Path) -> None:
    try:
        wanted = read_tenants(given)
    except SourceError as error:
        raise KeyProblem(f"{given}: {error}") from error
    if not wanted:
        raise KeyProblem(f"{given}: has no tenants; `kvlane tenant remove` takes some out")
    async with connected(config) as line:
        elsewhere = []
        redis = None
        for place in stores(config, file, line):
            if isinstance(place, RedisStore):
                redis = place
            else:
                elsewhere += [(f"{place.title}: {tenant.name}", tenant) for tenant in await place.tenants()]
        redis = in_redis(config, redis)

        def change(known: Mapping[str, TenantConfig]) -> Sequence[TenantConfig]:
            merged = [with_keys_of(known.get(tenant.name), tenant) for tenant in wanted]
            names = {tenant.name for tenant in wanted}
            others = [(f"Redis: {name}", tenant) for name, tenant in known.items() if name not in names]
            ours = [(f"tenants[{at}]", tenant) for at, tenant in enumerate(merged)]
            found = config.clashes([*elsewhere, *others, *ours], None)
            problems = [f"{path}: {problem}" for path, problem in found.items() if path.startswith("tenants[")]
            if problems:
                raise KeyProblem(f"{given}: {'; '.join(problems)}")
            return merged

        await redis.change_all(change)
    err.print(f"put {count(len(wanted))} into Redis: gateways follow within two seconds", markup=False)


async def _remove(config: Config, names: Sequence[str]) -> None:
    async with connected(config) as line:
        redis = in_redis(config, None if line is None else RedisStore(line))
        await redis.remove(names)
    err.print(f"removed {count(len(set(names)))}: gateways refuse their keys within two seconds", markup=False)


def in_redis(config: Config, store: RedisStore | None) -> RedisStore:
    """Give where tenants can be put.

    Raises:
        KeyProblem: they are in files.
    """
    if store is None:
        where = "the configuration" if config.tenants_file is None else f"{config.tenants_file}"
        raise KeyProblem(f"tenants are in {where}, which is yours to edit; this is for tenants_in_redis")
    return store


def with_keys_of(before: TenantConfig | None, tenant: TenantConfig) -> TenantConfig:
    """Let a tenant keep the keys that it had, unless some are named: it may be none (`keys: []`)."""
    if before is None or tenant.model_fields_set & {"keys", "key_sha256"}:
        return tenant
    kept: dict[str, object] = before.model_dump(include={"keys", "key_sha256"}, exclude_unset=True)
    return TenantConfig.model_validate({**tenant.model_dump(exclude_unset=True), **kept})


def row(tenant: TenantConfig) -> list[str]:
    """Show a tenant."""
    told = [
        f"{model}{name}={value:,}"
        for model, limits in [("", tenant.limits), *((f"{at}:", its) for at, its in tenant.limits_by_model.items())]
        for name, value in limits.model_dump(exclude_none=True).items()
    ]
    return [
        tenant.name,
        str(len(list(entries([tenant])))),
        tenant.service_class or "-",
        f"{tenant.weight:g}",
        " ".join(tenant.models) or "all",
        " ".join(told) or "none",
    ]


def count(tenants: int) -> str:
    """Say how many."""
    return f"{tenants} tenant{'s' * (tenants > 1)}"
