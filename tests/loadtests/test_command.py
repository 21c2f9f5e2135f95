"""How commands end, and where their numbers go."""

import asyncio
import io
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path

import orjson
import pytest
import typer
from rich.console import Console
from rich.table import Table

from loadtests.command import WIDE, console_beside, outcome_of, show, write_numbers
from loadtests.stand import NotReady


async def four() -> int:
    return 4


async def not_up() -> int:
    raise NotReady("is a port taken?\n[error] in its log")


async def stopped() -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()
    return 0


def test_what_the_work_gives_is_the_outcome() -> None:
    assert outcome_of(four(), Console(file=io.StringIO())) == 4


@pytest.mark.parametrize(("work", "said"), [(not_up, "is a port taken?\n[error] in its log\n"), (stopped, "stopped\n")])
def test_a_command_that_does_not_come_to_its_end_says_why(
    work: Callable[[], Coroutine[None, None, int]], said: str
) -> None:
    told = io.StringIO()
    with pytest.raises(typer.Exit) as ended:
        outcome_of(work(), Console(file=told))
    assert ended.value.exit_code == 1
    assert told.getvalue() == said


def test_numbers_go_to_a_file_or_to_standard_output_alone(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "numbers.json"
    for numbers in (file, Path("-")):
        console_beside(numbers).print("words")
        write_numbers(numbers, {"a": 1})
    told = capsysbinary.readouterr()
    assert (told.out, told.err) == (b'words\n{\n  "a": 1\n}\n', b"words\n")
    assert orjson.loads(file.read_bytes()) == {"a": 1}


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_has_all_its_figures_however_narrow_it_is_where_it_goes(width: int) -> None:
    wide, out = Table("a", "b", box=None, padding=0), io.StringIO()
    wide.add_row("1" * (WIDE - 20), "2" * 20)
    show(Console(file=out, width=width), wide)
    assert "1" * (WIDE - 20) + "2" * 20 in out.getvalue()
