"""The command line: kvlane serve | check | key | tenant | usage | metrics | top | profile | doctor | kv."""

import asyncio
import ctypes
import errno
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gateway import doctorcli, keycli, kvcli, metricscli, modelnames, profilecli, tenantcli, topcli, usagecli
from gateway.app import Gateway, StartError
from gateway.config import Config
from gateway.logs import Discreet, log_loop_fault, reason
from gateway.readers import unreadable
from gateway.sources import Inline, Source, tenants_file
from gateway.tenants import Tenants
from gateway.tenantwatch import TenantWatch
from gateway.terminal import WRONG_INPUT, err, give_up, out, read

app = typer.Typer(
    name="kvlane",
    help="A smart routing gateway for self-hosted LLM fleets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FEW_FILES = 4096
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
M_MMAP_THRESHOLD, LARGE_BYTES = -3, 1 << 20


@app.command()
def serve(
    file: Annotated[Path | None, typer.Argument(help="Configuration (YAML); not needed with --endpoint.")] = None,
    endpoint: Annotated[list[str] | None, typer.Option(help="Engine URL, instead of a file; repeatable.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the API; overrides the file.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API; overrides the file.", min=0, max=65535)] = None,
    admin_port: Annotated[
        int | None, typer.Option(help="Port of the admin listener; overrides the file.", min=0, max=65535)
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve the OpenAI API in front of a fleet of engines."""
    if (file is None) == (not endpoint):
        give_up("say either which FILE to serve or one --endpoint URL for each engine")
    if log_level.lower() not in ("debug", "info", "warning", "error"):
        give_up(f"--log-level must be debug, info, warning or error, is {log_level!r}")
    told = logging.StreamHandler(sys.stderr)
    told.setFormatter(Discreet("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[told])
    config = read(file, endpoint)
    changes = {"host": host, "port": port, "admin_port": admin_port}
    listen = config.listen.model_copy(update={key: value for key, value in changes.items() if value is not None})
    config = config.model_copy(update={"listen": listen})
    raise_file_limit()
    give_large_memory_back()
    try:
        uvloop.run(run(config, file))
    except StartError as error:
        give_up(str(error))


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="Configuration (YAML).")] = None,
    json_schema: Annotated[bool, typer.Option("--json-schema", help="Print the schema, for editors.")] = False,
) -> None:
    """Check a configuration; every problem is named, by path and value. What may be meant so is a note."""
    if json_schema:
        sys.stdout.write(json.dumps(Config.model_json_schema(), indent=2) + "\n")
        return
    if file is None:
        give_up("say which FILE to check, or --json-schema")
    config = read(file, None)
    tenant_problems, notes = looked_at_tenants(config)
    problems = [*unreadable(config.models), *tenant_problems]
    for problem in problems:
        err.print(f"kvlane: {file}: {problem}", markup=False)
    if problems:
        raise SystemExit(WRONG_INPUT)
    for note in notes:
        err.print(f"kvlane: {file}: note: {note}", markup=False)
    pools = len(config.pools)
    endpoints = sum(len(pool.endpoints) for pool in config.pools)
    out.print(f"{file} is good: {pools} pool{'s' * (pools > 1)}, {endpoints} endpoint{'s' * (endpoints > 1)}")


# Help lists commands in this order, after the two above; groups come last there.
app.command()(topcli.top)
app.command()(usagecli.usage)
app.command()(metricscli.metrics)
app.command()(profilecli.profile)
app.command()(doctorcli.doctor)
app.command()(kvcli.kv)
app.add_typer(keycli.app, name="key")
app.add_typer(tenantcli.app, name="tenant")


@app.callback(invoke_without_command=True)
def top(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """A smart routing gateway for self-hosted LLM fleets."""
    if show_version:
        out.print(f"kvlane {version('kvlane')}")
        raise typer.Exit


def looked_at_tenants(config: Config) -> tuple[Sequence[str], Sequence[str]]:
    """Give what is wrong with tenants, and what is worth knowing of them; Redis is not asked."""
    sources: list[Source] = [Inline(config)]
    if config.tenants_file is not None:
        sources.append(tenants_file(config.tenants_file))
    tenants = Tenants()
    watch = TenantWatch(tenants, sources, config)
    problems = asyncio.run(watch.load())
    known = modelnames.configured(config) if modelnames.is_told_in_full(config) else None
    strange = {} if known is None else {each.name: modelnames.unknown_of(each, known) for each in tenants}
    mistyped = [
        f"tenant {modelnames.worded({name: names})}: no endpoint serves that, no model or alias is called so"
        for name, names in strange.items()
        if names
    ]
    return problems, [*watch.awaited(), *mistyped]


def raise_file_limit() -> None:
    """Take as many open files as the system allows: each stream needs two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < FEW_FILES:
        logging.warning("the system allows %d open files; each stream needs two", hard)


def give_large_memory_back() -> None:
    """Let the C library keep nothing of what large bodies took: once freed it is the system's again, at once.

    Else glibc learns from the first large body to take the next from the heap, where it leaves holes that the one after
    it may not fit into.
    """
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


async def run(config: Config, file: Path | None) -> None:
    """Serve until a signal says stop: SIGTERM drains with grace, SIGINT without, a second one of either cuts off."""
    gateway = Gateway(config, file)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_fault)
    stopping: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.put_nowait, name)
    if config.access_log.path is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # logrotate sends it; the log follows its name without
    try:
        await gateway.start()
        count = sum(len(pool.endpoints) for pool in config.pools)
        err.print(
            f"kvlane {version('kvlane')}: API on {gateway.url}, admin on {gateway.admin_url}, "
            f"{count} endpoint{'s' * (count > 1)}"
        )
        first = await stopping.get()
        grace_s = config.shutdown.grace_s if first is signal.SIGTERM else 0.0
        draining = asyncio.create_task(gateway.drain(grace_s))
        second = asyncio.create_task(stopping.get())
        await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        second.cancel()
        await asyncio.gather(draining, second, return_exceptions=True)
    finally:
        await gateway.stop()


def main() -> None:
    """Run the command line; what it prints and nobody can keep ends it in one line, not in a traceback."""
    try:
        app()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail again at the exit
        give_up(f"standard output cannot be written: {reason(error)}")
