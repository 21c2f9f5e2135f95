"""The command line: kvlane metrics, which adds up the metrics pages of gateways that run."""

import asyncio
import sys
from typing import Annotated

import aiohttp
import typer
from yarl import URL

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
    urls = {name_of(url): url for url in map(url_of, admins)}
    if len(urls) < len(admins):
        give_up("a gateway is named twice, and would be counted twice")
    headers = {"accept": ACCEPT, **({} if key is None else {"authorization": f"Bearer {key}"})}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), headers=headers) as session:
        pages = await asyncio.gather(*(fetch(session, url) for url in urls.values()), return_exceptions=True)
    found = {}
    for name, page in zip(urls, pages, strict=True):
        if isinstance(page, BaseException):
            why = f"no answer within {TIMEOUT_S:g} s" if isinstance(page, TimeoutError) else str(page)
            give_up(f"{name}: {why}")
        found[name] = page
    return found


async def fetch(session: aiohttp.ClientSession, url: URL) -> str:
    """Read one page.

    Raises:
        ValueError: the answer is none.
        aiohttp.ClientError, TimeoutError: nobody answers.
    """
    async with session.get(url / "metrics") as response:
        page = await response.text(errors="replace")
        if response.status == 401:
            raise ValueError("it needs an admin key; say it with --admin-key or KVLANE_ADMIN_KEY")
        if response.status != 200:
            raise ValueError(f"answers {response.status}, which is no admin listener of Kvlane's")
        return page


def name_of(url: URL) -> str:
    """Name a gateway, as its label: host, port, and a path where it is under one."""
    return f"{url.host}:{url.port}{url.path}".rstrip("/")


def url_of(admin: str) -> URL:
    """Read where an admin listener is."""
    try:
        url = URL(admin)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError
    except ValueError:
        give_up(f"an admin listener is at http://host:port, not {admin!r}")
    return url
