"""The portrait on a terminal: a table and a line or two of advice for each question."""

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gateway.profile.findings import Section

WIDE = 1000  # columns: a terminal that is too narrow wraps lines of tables, where rich would leave out names


def show(found: Iterable[Section]) -> None:
    """Print sections. Names are a log's, and a log may say anything: nothing in them is markup."""
    console, wide = Console(highlight=False), Console(width=WIDE, highlight=False)
    for section in found:
        console.print(Text.assemble((section.title, "bold"), (f"  for {section.decides}", "dim")))
        table = Table(box=None, show_header=any(section.header), header_style="dim", padding=(0, 2, 0, 0))
        for place, name in enumerate(section.header):
            is_left = place == 0 and section.name != "beginnings"
            table.add_column(Text(name), justify="left" if is_left else "right", no_wrap=True)
        for row in section.rows:
            table.add_row(*map(printable, row))
        wide.print(Padding(table, (0, 0, 0, 2), expand=False))
        for line in section.advice:
            console.print(Padding(Text(f"→ {line}"), (0, 0, 0, 2)))
        console.print()


def printable(words: str) -> Text:
    """Let nothing through that moves a terminal's cursor or colours."""
    return Text("".join(sign if sign.isprintable() else "�" for sign in words))
