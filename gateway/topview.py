"""What `kvlane top` shows of /admin/overview, as rich draws it: one page, the most important above.

Names come from elsewhere: they are text and never markup, and what could steer a terminal is not printed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
TREND = 60  # points: five minutes
HEALTH = {"ready": "green", "ejected": "red"}
UNKNOWN = "–"
HEAD_LINES = 8  # of figures, and what separates tables
Row = Mapping[str, Any]


def view(feed: Row, trouble: str = "", most: int | None = None) -> RenderableType:
    """Make the page.

    Args:
        feed: As the listener gave it.
        trouble: Why there is no newer one.
        most: Lines that there is room for; None: any number.
    """
    room = 1000 if most is None else max(4, most - HEAD_LINES - 4)
    endpoints = feed["endpoints"][: max(2, room // 3)]
    tenants = feed["tenants"][: max(2, (room - len(endpoints)) // 2)]
    left = max(2, room - len(endpoints) - len(tenants) - 4)
    parts: list[RenderableType] = [head(feed, trouble), figures(feed), Text(), of_endpoints(endpoints)]
    if tenants:
        parts += [Text(), of_tenants(tenants)]
    sides = Table.grid(padding=(0, 4))
    sides.add_row(of_prefixes(feed["prefixes"][:left]), of_refusals(feed["refusals"], left))
    return Group(*parts, Text(), sides)


def head(feed: Row, trouble: str) -> Text:
    """Say whose figures these are."""
    line = Text("kvlane ", "bold", no_wrap=True, overflow="ellipsis")
    line.append(f"{plain(feed['version'])} · up {age(feed['uptime_s'])}", "not bold dim")
    for pool in feed["pools"]:
        line.append(f" · {plain(pool['name'])} {pool['ready']} of {pool['endpoints']} ready", "not bold")
        if pool["waiting"]:
            line.append(f", {pool['waiting']} waiting", "not bold yellow")
    if feed["is_draining"]:
        line.append(" · draining", "bold yellow")
    if trouble:
        line.append(f"  {plain(trouble)}", "bold red")
    return line


def figures(feed: Row) -> Table:
    """Show the figures of now, and how some of them went."""
    now, points = feed["now"], feed["points"]
    grid = Table.grid(padding=(0, 3))
    ttft, wait = now["ttft_s"] or {}, now["queue_wait_s"] or {}
    rows: Sequence[tuple[str, str, str, Sequence[float | None], float | None]] = (
        (
            "requests",
            f"{number(now['served_per_s'])}/s",
            f"{now['active_requests']} being served",
            points["served_per_s"],
            None,
        ),
        (
            "first token",
            f"p95 {seconds(ttft.get('p95'))}",
            f"p50 {seconds(ttft.get('p50'))}, p99 {seconds(ttft.get('p99'))}",
            points["ttft_s"]["p95"],
            None,
        ),
        (
            "queue wait",
            f"p95 {seconds(wait.get('p95'))}",
            f"{now['waiting']} waiting",
            points["queue_wait_s"]["p95"],
            None,
        ),
        (
            "cache hits",
            percent(now["hit_ratio"]),
            f"{number(now['output_tokens_per_s'])} output tokens/s",
            points["hit_ratio"],
            1.0,
        ),
    )
    for name, value, more, column, top in rows:
        grid.add_row(Text(name, "dim"), Text(value, "bold"), Text(more), Text(trend(column, top), "blue"))
    return grid


def of_endpoints(rows: Iterable[Row]) -> Table:
    """Show work and health of endpoints."""
    table = titled(("endpoint", "health"), ("in flight", "prefill", "KV", "hits", "failed"))
    for row in rows:
        state = Text(row["state"], HEALTH.get(row["state"], "yellow"))
        if row["trouble"]:
            state.append(f" {plain(row['trouble'])[:60]}", "dim")
        failed = Text(number(row["failures"]), "red" if row["failures"] else "dim")
        table.add_row(
            Text(plain(row["name"])),
            state,
            number(row["in_flight"]),
            seconds(row["prefill_s"]),
            percent(row["kv_usage"]),
            percent(row["hit_ratio"]),
            failed,
        )
    return table


def of_tenants(rows: Iterable[Row]) -> Table:
    """Show what tenants ask for, and the limit that leaves the least."""
    table = titled(("tenant",), ("in flight", "requests", "refused", "prompt", "output", "hits"))
    table.add_column("limit used", no_wrap=True, overflow="ellipsis")
    for row in rows:
        hits = row["predicted_hit_ratio"] if row["hit_ratio"] is None else row["hit_ratio"]
        used = max(((used_of(each), plain(each["name"])) for each in row["limits"] or ()), default=None)
        table.add_row(
            Text(plain(row["name"])),
            number(row["in_flight"]),
            number(row["requests"]),
            Text(number(row["refused"]), "yellow" if row["refused"] else "dim"),
            number(row["prompt_tokens"]),
            number(row["output_tokens"]),
            percent(hits),
            Text("" if used is None else f"{percent(used[0])} {used[1].replace('_', ' ')}"),
        )
    return table


def of_prefixes(rows: Iterable[Row]) -> Table:
    """Show which prefixes prompts share, and where they are."""
    table = titled(("shared prefix",), ("tokens", "prompts"))
    table.add_column("homes", no_wrap=True, overflow="ellipsis")
    for row in rows:
        homes = Text(", ".join(map(plain, row["homes"])) or "nowhere")
        table.add_row(Text(plain(row["mark"])), number(row["tokens"]), number(round(row["weight"])), homes)
    return table


def of_refusals(refusals: Mapping[str, Sequence[Row]], most: int) -> Table:
    """Show refusals by code."""
    table = titled(("refused for",), ("requests",))
    for row in refusals["codes"][:most]:
        table.add_row(Text(plain(row["code"]).replace("_", " ")), number(row["count"]))
    if not refusals["codes"]:
        table.add_row(Text("nothing", "dim"), "")
    return table


def titled(words: Sequence[str], figures: Sequence[str]) -> Table:
    """Begin a table: columns of words, then of figures."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for title in words:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for title in figures:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def trend(column: Sequence[float | None], top: float | None = None) -> str:
    """Draw the last points as blocks, from 0 to `top` or their own highest."""
    values = column[-TREND:]
    most = top or max((value for value in values if value is not None), default=0.0)
    if not most:
        return ""
    last = len(BLOCKS) - 1
    return "".join(" " if value is None else BLOCKS[min(last, int(value / most * last + 0.5))] for value in values)


def used_of(limit: Row) -> float:
    """Give the share of a limit that is used."""
    return 1 - limit["remaining"] / limit["limit"] if limit["limit"] else 1.0


def number(value: float | None) -> str:
    """Word a count or a rate: 1,234, 12.3k, 4.56M, 0.25."""
    if value is None:
        return UNKNOWN
    for least, size, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Word seconds: 12 ms, 1.5 s, 2 min."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1000:.3g} ms" if value else "0 s"
    return f"{value:.3g} s" if value < 90 else f"{value / 60:.3g} min"


def percent(share: float | None) -> str:
    """Word a share."""
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def age(value_s: float) -> str:
    """Word how long something has lasted."""
    minutes, hours, days = int(value_s // 60), int(value_s // 3600), int(value_s // 86400)
    if not minutes:
        return f"{value_s:.0f} s"
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"


def plain(text: object) -> str:
    """Keep what could steer a terminal out of a text."""
    return "".join(each if each.isprintable() else "�" for each in str(text))
