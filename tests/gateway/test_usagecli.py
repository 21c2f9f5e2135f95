"""kvlane usage: a table for people, CSV and JSON for programs, and one line where it cannot be done."""

import asyncio
import csv
import hashlib
import io
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner, Result

from gateway.cli import app as kvlane
from gateway.usagecli import COLUMNS, days_of, figures
from tests.fleet_fixtures import House, house

KEY = "admin-secret"
LISTEN = {"admin_key_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}
MODELS = [{"name": "sim", "prices": {"input": 1000, "output": 1000}}]


@pytest.fixture
async def used() -> AsyncIterator[House]:
    """A gateway that has served two requests, and wants a key."""
    async with house(1, models=MODELS, listen=LISTEN) as whole:
        await whole.ask()
        await whole.ask()
        await whole.rests()
        yield whole


async def run(*args: str, key: str | None = KEY) -> Result:
    """Run the command in a thread, while the gateway runs here."""
    environment: Mapping[str, str | None] = {"KVLANE_ADMIN_KEY": key, "COLUMNS": "40"}
    return await asyncio.to_thread(CliRunner().invoke, kvlane, ["usage", *args], env=environment)


async def answer(whole: House, *args: str, key: str | None = KEY) -> str:
    result = await run("--admin", whole.gateway.admin_url, *args, key=key)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


async def complaint(*args: str, key: str | None = KEY) -> str:
    """Give the one line of a command that cannot be done."""
    result = await run(*args, key=key)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


async def test_a_table_is_for_people_whatever_the_width_of_their_terminal(used: House) -> None:
    head, row, total = (line.split() for line in (await answer(used)).splitlines() if line.strip())
    assert " ".join(head) == "day tenant model served left failed wrong refused prompt cached output weighted cost"
    assert row[1:8] == ["anonymous", "sim", "2", "0", "0", "0", "0"]
    assert total[0] == "total"
    assert total[1:] == row[3:]
    prompt, output, weighted = (int(row[at]) for at in (8, 10, 11))
    assert weighted == prompt + output
    assert row[12] == f"0.{weighted * 1000:06}"


@pytest.mark.parametrize(("by", "first"), [("month", "month"), ("total", "tenant")])
async def test_a_table_says_what_its_rows_are(used: House, by: str, first: str) -> None:
    assert (await answer(used, "--by", by)).split()[0] == first


async def test_json_is_what_the_listener_gave(used: House) -> None:
    found = json.loads(await answer(used, "--json", "--tenant", "anonymous", "--model", "sim"))
    assert (found["by"], found["rows"][0]["served"]) == ("day", 2)


async def test_csv_goes_where_it_is_told(used: House, tmp_path: Path) -> None:
    file = tmp_path / "usage.csv"
    assert await answer(used, "--csv", str(file)) == ""
    written = file.read_text()
    (row,) = csv.DictReader(io.StringIO(written))
    assert (row["tenant"], row["served"]) == ("anonymous", "2")
    printed = await run("--admin", used.gateway.admin_url, "--csv", "-")
    assert printed.stdout_bytes == written.encode().replace(b"\n", b"\r\n")


async def test_the_key_may_be_said_on_the_command_line(used: House) -> None:
    assert "anonymous" in await answer(used, "--admin-key", KEY, key=None)


async def test_nothing_used_is_said_and_no_fault(used: House) -> None:
    result = await run("--admin", used.gateway.admin_url, "--tenant", "nobody", "--month", "2026-11")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "kvlane: nothing was used from 2026-11-01 to 2026-11-30\n"


# What cannot be done.


async def test_a_key_that_is_missing_or_wrong_is_told(used: House) -> None:
    for key in (None, "wrong", "wr\nong"):
        line = await complaint("--admin", used.gateway.admin_url, key=key)
        assert line.startswith(f"kvlane: {used.gateway.admin_url}: ")
        assert "key" in line or "header" in line
        assert "wrong" not in line


async def test_what_the_listener_refuses_is_told(used: House) -> None:
    line = await complaint("--admin", used.gateway.admin_url, "--by", "week")
    assert line.endswith(": by must be day, month or total, is 'week'")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--month", "2027-13"], "--month must be like 2027-01, is '2027-13'"),
        (["--month", "0000-01"], "--month must be like 2027-01, is '0000-01'"),
        (["--month", "2027-01", "--to", "2027-01-02"], "--month stands for --from and --to: leave those out"),
        (["--json", "--csv", "-"], "--csv and --json are two ways to write the same: choose one"),
        (["--admin", "localhost:8081"], "an admin listener is at http://host:port, not 'localhost:8081'"),
        (["--admin", "http://[::1"], "an admin listener is at http://host:port, not 'http://[::1'"),
    ],
)
async def test_words_that_make_no_sense_are_told_why(args: list[str], message: str) -> None:
    assert await complaint(*args) == f"kvlane: {message}"


async def test_nobody_there_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert await complaint("--admin", url) == f"kvlane: {url}: no gateway is there: Connection refused"


@asynccontextmanager
async def saying(status: int, text: str) -> AsyncIterator[str]:
    """Run something that is no admin listener."""

    async def say(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", say)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(("status", "text"), [(404, "not found"), (200, "<html>"), (200, "[]"), (500, '{"error": 1}')])
async def test_somebody_else_there_is_one_line(status: int, text: str) -> None:
    async with saying(status, text) as url:
        line = await complaint("--admin", url)
        assert line == f"kvlane: {url}: answers {status}, which is no admin listener of Kvlane's"


async def test_a_file_that_cannot_be_written_is_told(used: House, tmp_path: Path) -> None:
    line = await complaint("--admin", used.gateway.admin_url, "--csv", str(tmp_path))
    assert line == f"kvlane: {tmp_path}: cannot be written: Is a directory"


# Words.


def test_a_month_has_its_last_day() -> None:
    assert days_of("2028-02") == ("2028-02-01", "2028-02-29")


def test_figures_are_grouped_and_money_is_exact() -> None:
    row: dict[str, Any] = {**dict.fromkeys(COLUMNS, 1234567), "weighted_tokens": 0, "cost_micros": 1_234_000_001}
    assert figures(row)[0] == "1,234,567"
    assert figures(row)[-2:] == ["0", "1,234.000001"]
    assert figures({**row, "cost_micros": 0})[-1] == "-"
