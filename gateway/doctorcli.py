"""The command line: kvlane doctor, which reads an access log and says what keeps prompts out of prefix caches."""

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.doctor import GENERATING, told
from gateway.loglines import lines_of, opened
from gateway.terminal import WIDE, err, give_up, out
from policies.doctor import Doctor
from policies.findings import Finding

FOUND = 1  # exit status
MEMORY = 1 << 18  # a log of days has more prompts to remember than a gateway needs to
NO_SHAPES = "has no prefix_shape: the doctor was switched off where it was written, or the gateway is too old"
MAX_TEXT = 200  # characters of a name


def doctor(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="ACCESSLOG...", help="Files, the oldest first; .gz is read, - is standard input."),
    ],
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what ruins prefix-cache hits: a clock on top, tools in random order. Exit status 1 if something is found."""
    seen = Doctor(MEMORY)
    for log in logs:
        broken = sum(not note(seen, line, tenant) for line in read(log))
        if broken:
            err.print(f"kvlane: {log}: lines that are no record of a request: {broken}", markup=False)
    if not seen.looked_at:
        whose = " of this tenant" if tenant else ""
        why = NO_SHAPES if seen.requests else f"no request{whose} to a model in it"
        give_up(f"{', '.join(map(str, logs))}: {why}")
    findings = seen.findings()
    if json:
        sys.stdout.buffer.write(orjson.dumps(told(seen, findings, {}), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    else:
        show(seen, findings)
    if findings:
        raise typer.Exit(FOUND)


def read(log: Path) -> Iterator[bytes | None]:
    """Read a log line by line, or say why that cannot be; None for a line that is too long for a record."""
    try:
        with opened(log) as file:
            yield from lines_of(file)
    except OSError as error:
        give_up(f"{log}: cannot be read: {error.strerror or error}")
    except zlib.error:
        give_up(f"{log}: is damaged, and cannot be unpacked")
    except EOFError:
        give_up(f"{log}: ends before its end: it was cut, or is still being written")


def note(seen: Doctor, line: bytes | None, tenant: str | None) -> bool:
    """Let the doctor see a line; False: it is no record of a request."""
    if line is None:
        return False
    try:
        record = orjson.loads(line)
        whose, model, route = record["tenant"], record["model"], record["route"]
        at, tries, shape = record["arrived_at"], record["tries"], record.get("prefix_shape")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return not line.strip()
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in (whose, model, route)):
        return False
    if not isinstance(at, int | float) or not (shape is None or isinstance(shape, str)):
        return False
    if tries and route in GENERATING and tenant in (None, whose):
        seen.note(whose, model, float(at), shape)
    return True


def show(seen: Doctor, findings: list[Finding]) -> None:
    """Print a table, and what to do."""
    count = f"{seen.requests:,} requests, {seen.looked_at:,} prompts looked at"
    if not findings:
        out.print(f"{count}: nothing keeps prompts out of prefix caches", markup=False)
        return
    table = Table(box=None, header_style="bold")
    for title in ("", "tenant", "model", "finding", "where"):
        table.add_column(title, no_wrap=True)
    for title in ("at token", "new in", "wasted tokens", "a day", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    for at, finding in enumerate(findings, 1):
        table.add_row(
            str(at),
            Text(finding.tenant),
            Text(finding.model),
            finding.fault.value,
            f"{finding.place}, line {finding.line}",
            f"{finding.position_tokens:,}",
            f"{finding.breaks:,} of {finding.requests:,}",
            f"{finding.wasted_tokens:,}",
            "-" if finding.wasted_tokens_per_day is None else f"{finding.wasted_tokens_per_day:,.0f}",
            f"{100 * finding.share:.0f} %",
        )
    Console(width=WIDE, highlight=False).print(table)
    for at, finding in enumerate(findings, 1):
        out.print(f"\n{at}. {finding.what}, {finding.variants:,} variants", markup=False)
        if finding.example:
            out.print(f"   {finding.example}", markup=False)
        out.print(f"   {finding.advice}", markup=False)
    out.print(f"\n{count}. Tokens are estimated: four bytes each.", markup=False)
