"""kvlane top: the dashboard's figures in a terminal, and one line where there is no answer."""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from gateway.cli import app as kvlane
from gateway.topview import age, number, percent, plain, seconds, trend, view
from tests.fleet_fixtures import House, house

KEY = "admin-secret"
LISTEN = {"admin_key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}


async def run(*args: str, key: str | None = KEY) -> Result:
    """Run the command in a thread, while the gateway runs here."""
    environment: Mapping[str, str | None] = {"KVLANE_ADMIN_KEY": key, "COLUMNS": "120"}
    return await asyncio.to_thread(CliRunner().invoke, kvlane, ["top", *args], env=environment)


async def complaint(*args: str, key: str | None = KEY) -> str:
    """Give the one line of a command that cannot be done."""
    result = await run(*args, key=key)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def shown(feed: dict[str, Any], trouble: str = "", most: int | None = None, width: int = 120) -> str:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(view(feed, trouble, most))
    return capture.get()


async def feed_of(whole: House) -> dict[str, Any]:
    whole.gateway.overview.history.read()
    feed: dict[str, Any] = orjson.loads(orjson.dumps(await whole.gateway.overview.content()))  # as a client has it
    return feed


async def test_once_prints_the_page_for_scripts() -> None:
    async with house(2, listen=LISTEN) as whole:
        await whole.ask(stream=True)
        await whole.rests()
        whole.gateway.overview.history.read()
        result = await run("--once", "--admin", whole.gateway.admin_url)
        assert (result.exit_code, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert lines[0].startswith("kvlane ")
        assert "default 2 of 2 ready" in lines[0]
        assert [line.split()[:2] for line in lines if line.startswith("e")][1:] == [["e0", "ready"], ["e1", "ready"]]
        assert any(line.startswith("anonymous ") for line in lines)
        assert "\x1b" not in result.stdout


async def test_a_key_that_is_missing_is_asked_for() -> None:
    async with house(1, listen=LISTEN) as whole:
        line = await complaint("--once", "--admin", whole.gateway.admin_url, key=None)
        assert line.startswith(f"kvlane: {whole.gateway.admin_url}: ")
        assert line.endswith("say it with --admin-key or KVLANE_ADMIN_KEY")


async def test_what_is_no_admin_listener_is_told() -> None:
    async with house(1) as whole:
        assert "there is no" in (line := await complaint("--once", "--admin", whole.gateway.url)) or "404" in line


@pytest.mark.parametrize("admin", ["http://127.0.0.1:9", "not a url"])
async def test_nobody_there_is_one_line(admin: str) -> None:
    assert (await complaint("--once", "--admin", admin)).startswith("kvlane: ")


async def test_a_small_terminal_gets_what_fits() -> None:
    async with house(12) as whole:
        text = shown(await feed_of(whole), most=30)
        assert text.count("ready") <= 12
        assert len(text.splitlines()) <= 30


async def test_trouble_stands_beside_what_was_last_said() -> None:
    async with house(1) as whole:
        text = shown(await feed_of(whole), "last heard 12 s ago: connection refused")
        assert "last heard 12 s ago" in text.splitlines()[0]
        assert "e0" in text


async def test_names_steer_no_terminal_and_are_no_markup() -> None:
    async with house(1) as whole:
        feed = await feed_of(whole)
        feed["endpoints"][0].update(name="\x1b[2J[bold red]gone[/]", trouble="a\nb\x9b1m")
        text = shown(feed)
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "[bold red]gone[/]" in text


def test_figures_are_short() -> None:
    assert [number(value) for value in (None, 0, 0.25, 12.34, 1234, 12_345, 4_560_000, 2e9)] == [
        "–", "0", "0.25", "12.3", "1,234", "12.3k", "4.56M", "2G",
    ]  # fmt: skip
    assert [seconds(value) for value in (None, 0, 0.0123, 1.5, 120)] == ["–", "0 s", "12.3 ms", "1.5 s", "2 min"]
    assert [percent(value) for value in (None, 0.5)] == ["–", "50 %"]
    assert [age(value) for value in (5, 90, 4000, 1e6)] == ["5 s", "1 min", "1 h 6 min", "11 d 13 h"]
    assert plain("a\x00b") == "a�b"


def test_a_trend_rises_from_nothing_to_its_highest_and_has_gaps() -> None:
    assert trend([0.0, None, 0.5, 1.0]) == "▁ ▅█"
    assert trend([0.5], 1.0) == "▅"
    assert trend([None, 0.0]) == ""
