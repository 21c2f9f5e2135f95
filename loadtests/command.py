"""Command: how those of kvlane-sim run that stand up a fleet, and where the numbers go that any of them found."""

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, TypeVar

import orjson
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from loadtests.stand import NotReady, until_stopped

STANDARD_OUTPUT = Path("-")
WIDE = 100
NumbersFile = Annotated[Path | None, typer.Option(help="Write the numbers there; - is standard output.")]

Result = TypeVar("Result")


def console_beside(numbers: Path | None) -> Console:
    """Give where to talk to people: standard error, if the numbers have standard output."""
    return Console(stderr=numbers == STANDARD_OUTPUT, highlight=False)


def show(console: Console, table: Table) -> None:
    """Show a table of up to WIDE columns with all its figures, also where the other end is narrower, or no terminal."""
    Console(file=console.file, width=max(console.width, WIDE)).print(table)  # what rich takes for too wide it cuts


def write_numbers(file: Path, document: object) -> None:
    """Write the numbers as JSON."""
    data = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if file == STANDARD_OUTPUT:
        sys.stdout.buffer.write(data)
    else:
        file.write_bytes(data)


def outcome_of(work: Coroutine[None, None, Result], console: Console) -> Result:
    """Do the work, and give what it gives.

    Raises:
        typer.Exit: Something did not come up, or somebody asked to stop; the console says which.
    """
    try:
        result = uvloop.run(until_stopped(work))
    except NotReady as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
    if result is None:
        console.print("stopped")
        raise typer.Exit(1)
    return result
