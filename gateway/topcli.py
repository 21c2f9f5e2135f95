"""The command line: kvlane top, the dashboard in a terminal."""

import asyncio
import time
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.live import Live

from gateway.asking import Unanswered, asked, refusal
from gateway.terminal import give_up
from gateway.topview import view

TIMEOUT_S = 10.0
LEAST_EVERY_S = 1.0
NARROWEST = 100  # columns of a page that is written to a file


def top(
    admin: Annotated[str, typer.Option(help="Where the admin listener is.")] = "http://127.0.0.1:8081",
    admin_key: Annotated[
        str | None,
        typer.Option(envvar="KVLANE_ADMIN_KEY", help="Its key, if it needs one; better said by the environment."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    every: Annotated[float, typer.Option(min=LEAST_EVERY_S, help="Seconds between looks.")] = 5.0,
) -> None:
    """Show the gateway live: latency, cache hits, endpoints, tenants, shared prefixes, refusals."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    try:
        feed = asyncio.run(overview(admin, admin_key))
        if once:
            console.print(view(feed))
        else:
            asyncio.run(watch(console, feed, admin, admin_key, every))
    except Unanswered as problem:
        give_up(str(problem))
    except KeyboardInterrupt:
        return


async def watch(console: Console, feed: dict[str, Any], admin: str, key: str | None, every_s: float) -> None:
    """Show it again and again, until somebody interrupts; what was last said stays while there is no answer."""
    heard_at = time.monotonic()
    with Live(view(feed, most=console.height), console=console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(every_s)
            trouble = ""
            try:
                feed = await overview(admin, key)
                heard_at = time.monotonic()
            except Unanswered as problem:
                trouble = f"last heard {time.monotonic() - heard_at:.0f} s ago: {problem}"
            live.update(view(feed, trouble, most=console.height), refresh=True)


async def overview(admin: str, key: str | None) -> dict[str, Any]:
    """Ask for the feed.

    Raises:
        Unanswered: there is none.
    """
    status, body = await asked(admin, key, "admin/overview", timeout_s=TIMEOUT_S)
    if status == 200:
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError:
            content = None
        if isinstance(content, dict) and "endpoints" in content:
            return content
    raise Unanswered(f"{admin}: {refusal(status, body)}")
