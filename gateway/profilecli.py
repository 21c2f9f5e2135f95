"""The command line: kvlane profile, which draws the portrait of a workload from its access log."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from gateway.loglines import LogLines
from gateway.terminal import err, give_up

if TYPE_CHECKING:
    from gateway.profile.portrait import Profile


def profile(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="ACCESSLOG...", help="Files, the oldest first; .gz is read, - is standard input."),
    ],
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    model: Annotated[str | None, typer.Option(help="Of this model alone.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts there: one file, no network.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the charts into this folder.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the numbers there, `-` for standard output.")] = None,
) -> None:
    """Draw a workload's portrait: lengths, arrivals, shared prefixes, times; and what each is to decide."""
    from gateway.profile.asjson import as_json  # here, so that `serve` starts without them
    from gateway.profile.findings import sections
    from gateway.profile.page import page
    from gateway.profile.portrait import Profile
    from gateway.profile.words import show

    charts = load_charts() if html is not None or png is not None else None
    lines, drawn = LogLines(logs), Profile(tenant, model)
    try:
        drawn.draw(lines)
    except OSError as error:
        give_up(f"{error.filename or logs[0]}: cannot be read: {error.strerror or error}")
    except zlib.error:
        give_up("a .gz is damaged, and cannot be unpacked")
    except EOFError:
        give_up("a .gz ends before its end: it was cut, or is still being written")
    if lines.broken:
        err.print(f"kvlane: {lines.broken:,} of {lines.lines:,} lines are none; {lines.first_fault}", markup=False)
    if not drawn.whole.requests:
        whose = " of this tenant and model" if tenant or model else ""
        give_up(f"{', '.join(map(str, logs))}: no request{whose} in {lines.lines:,} lines")
    found = list(sections(drawn))
    if json is not None:
        with writing(json):
            write_json(json, as_json(drawn, lines.lines, lines.broken))
    if charts is not None and png is not None:
        with writing(png):
            write_charts(charts, drawn, png)
    if charts is not None and html is not None:
        inlined = {
            name: [text for draw in draws if (text := charts.svg(draw, drawn)) is not None]
            for name, draws in charts.CHARTS.items()
        }
        title = " ".join(path.name for path in logs)
        about = " · ".join(words for words in (tenant and f"tenant {tenant}", model and f"model {model}") if words)
        with writing(html):
            html.write_text(page(drawn, title, about or "all tenants and models", found, inlined), encoding="utf-8")
    if json != Path("-"):
        show(found)


def load_charts() -> ModuleType:
    """Import what draws, which takes a second; say in a line where it is missing."""
    try:
        from gateway.profile import charts
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gateway"):
            raise
        give_up(f"charts need {error.name}, which is not installed: pip install 'kvlane[charts]'")
    return charts


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a line what could not be written."""
    try:
        yield
    except OSError as error:
        give_up(f"{error.filename or path}: cannot be written: {error.strerror or error}")


def write_charts(charts: ModuleType, drawn: "Profile", folder: Path) -> None:
    """Write each chart that has something to show.

    Raises:
        OSError: One cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for draws in charts.CHARTS.values():
        for draw in draws:
            charts.save_png(draw, drawn, folder / f"{draw.__name__}.png")


def write_json(path: Path, document: dict[str, object]) -> None:
    """Write the numbers.

    Raises:
        OSError: They cannot be written.
    """
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if path == Path("-"):
        typer.get_binary_stream("stdout").write(text)
    else:
        path.write_bytes(text)
