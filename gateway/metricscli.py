"""The command line: kvlane metrics, which adds up the metrics pages of gateways that run."""

import asyncio
import sys
from typing import Annotated

import typer
from yarl import URL

from gateway.asking import Unanswered, asked, refusal, url_of
from gateway.terminal import give_up

TIMEOUT_S = 10.0
ACCEPT = "application/openmetrics-text; version=1.0.0"


def metrics(
    admin: Annotated[list[str] | None, typer.Argument(help="Admin listeners; that of this machine by default.")] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(envvar="KVLANE_ADMIN_KEY", help="Their key, if they need one; better said by the environment."),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="In Prometheus' older format, without exemplars.")] = False,
) -> None:
    """Print the metrics of several gateways as one page: sums added up, the rest with a label for each gateway."""
    from gateway.summing import NoMetricsPage, Sum

    pages = asyncio.run(fetch_all(admin or ["http://127.0.0.1:8081"], admin_key))
    try:
        whole = Sum(pages)
    except NoMetricsPage as error:
        give_up(str(error))
    sys.stdout.buffer.write(whole.page(is_openmetrics=not text))
    sys.stdout.buffer.flush()


async def fetch_all(admins: list[str], key: str | None) -> dict[str, str]:
    """Read every page, by the gateway's name, or say in one line what is not there.

    All or nothing: a sum that lacks a gateway looks like one of which all counters went back.
    """
    try:
        names = [name_of(url_of(admin)) for admin in admins]
        if len({*names}) < len(names):
            give_up("a gateway is named twice, and would be counted twice")
        pages = await asyncio.gather(*(fetch(admin, key) for admin in admins))
    except Unanswered as silence:
        give_up(str(silence))
    return dict(zip(names, pages, strict=True))


async def fetch(admin: str, key: str | None) -> str:
    """Read one page.

    Raises:
        Unanswered: there is none.
    """
    status, page = await asked(admin, key, "metrics", timeout_s=TIMEOUT_S, accept=ACCEPT)
    if status != 200:
        raise Unanswered(f"{admin}: {refusal(status, page)}")
    return page.decode(errors="replace")


def name_of(url: URL) -> str:
    """Name a gateway, as its label: host, port, and a path where it is under one."""
    return f"{url.host}:{url.port}{url.path}".rstrip("/")
