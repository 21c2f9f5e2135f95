"""The command line: kvlane usage, which asks the admin listener of a gateway that runs."""

import asyncio
import calendar
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.asking import Unanswered, asked, refusal
from gateway.terminal import WIDE, err, give_up

TIMEOUT_S = 60.0  # a year of many tenants takes seconds
MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
MICROS = 1_000_000
COLUMNS = {
    "served": "served",
    "disconnected": "left",
    "failed": "failed",
    "client_errors": "wrong",
    "refused": "refused",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "weighted_tokens": "weighted",
    "cost_micros": "cost",
}
"""Of the table, by figure; CSV and JSON have all. Whose client left has used tokens as well as whom was served."""


def usage(
    admin: Annotated[str, typer.Option(help="Where the admin listener is.")] = "http://127.0.0.1:8081",
    admin_key: Annotated[
        str | None,
        typer.Option(envvar="KVLANE_ADMIN_KEY", help="Its key, if it needs one; better said by the environment."),
    ] = None,
    first: Annotated[str | None, typer.Option("--from", help="First day (UTC); the month's first by default.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day, included; today by default.")] = None,
    month: Annotated[str | None, typer.Option(help="A month, like 2027-01, instead of both.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    model: Annotated[str | None, typer.Option(help="Of this model alone.")] = None,
    by: Annotated[str, typer.Option(help="Rows by day, month or total.")] = "day",
    csv: Annotated[str | None, typer.Option(help="Write CSV to this file, `-` for standard output.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON that the listener gave.")] = False,
) -> None:
    """Show what tenants have used: requests, tokens, cost, refusals."""
    if csv is not None and json:
        give_up("--csv and --json are two ways to write the same: choose one")
    if month is not None:
        if first is not None or last is not None:
            give_up("--month stands for --from and --to: leave those out")
        first, last = days_of(month)
    filters = {"from": first, "to": last, "tenant": tenant, "model": model, "by": by}
    parameters = {name: value for name, value in filters.items() if value is not None}
    body = asyncio.run(fetch(admin, admin_key, {**parameters, "format": "json" if csv is None else "csv"}))
    if csv is None and not json:
        show(orjson.loads(body))
    elif csv is None or csv == "-":
        sys.stdout.buffer.write(body if csv else body + b"\n")
        sys.stdout.buffer.flush()
    else:
        write(Path(csv), body)


def days_of(month: str) -> tuple[str, str]:
    """Give the first and the last day of a month."""
    found = MONTH.fullmatch(month)
    if found is None or found[1] == "0000":
        give_up(f"--month must be like 2027-01, is {month!r}")
    return f"{month}-01", f"{month}-{calendar.monthrange(int(found[1]), int(found[2]))[1]}"


async def fetch(admin: str, key: str | None, parameters: Mapping[str, str]) -> bytes:
    """Ask the admin listener, or say in one line why there is no answer."""
    try:
        status, body = await asked(admin, key, "admin/usage", parameters, timeout_s=TIMEOUT_S)
    except Unanswered as silence:
        give_up(str(silence))
    if (problem := problem_of(status, body, parameters["format"])) is not None:
        give_up(f"{admin}: {problem}")
    return body


def problem_of(status: int, body: bytes, form: str) -> str | None:
    """Say in one line what is wrong with an answer; None where nothing is."""
    if status == 200 and form == "csv" and body.startswith(b"period,tenant,model,"):
        return None
    with suppress(orjson.JSONDecodeError, TypeError):
        if status == 200 and "rows" in orjson.loads(body):
            return None
    return refusal(status, body)


def show(content: Mapping[str, Any]) -> None:
    """Print a table."""
    if not content["rows"]:
        err.print(f"kvlane: nothing was used from {content['from']} to {content['to']}", markup=False)
        return
    is_whole = content["by"] == "total"
    table = Table(box=None, header_style="bold")
    for title in ("tenant", "model") if is_whole else (content["by"], "tenant", "model"):
        table.add_column(title, no_wrap=True)
    for title in COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for row in content["rows"]:
        names = [row["tenant"], row["model"]] if is_whole else [row["period"], row["tenant"], row["model"]]
        table.add_row(*map(Text, names), *figures(row))
    names = ["total", ""] if is_whole else ["total", "", ""]
    table.add_section()
    table.add_row(*names, *figures(content["total"]), style="bold")
    Console(width=WIDE, highlight=False).print(table)


def figures(row: Mapping[str, Any]) -> list[str]:
    """Word the figures of a row; money to a millionth, where there is any."""
    words = [f"{row[name]:,}" for name in COLUMNS if name != "cost_micros"]
    micros = row["cost_micros"]
    return [*words, f"{micros // MICROS:,}.{micros % MICROS:06}" if micros else "-"]


def write(file: Path, body: bytes) -> None:
    """Write a file, or say why not."""
    try:
        file.write_bytes(body)
    except OSError as error:
        give_up(f"{file}: cannot be written: {error.strerror or error}")
