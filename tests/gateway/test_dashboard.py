"""GET /ui: the page is whole, comes from here alone, and lets nothing that it shows become markup."""

import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.dashboard import FILES, HEADERS, PAGE
from tests.fleet_fixtures import house

ADMIN_KEY = "admin-secret"
LIBRARY = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of the chart library's files as uPlot 1.6.32 has them on npm, without the head that says so."""
OWN = sorted(file.name for file in FILES.iterdir() if file.name not in LIBRARY)
SCRIPTS = [name for name in OWN if name.endswith(".js")]
NODE = shutil.which("node")
MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "setAttribute(")


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the text of each by its tag."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def elements() -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed((FILES / PAGE).read_text())
    return parser.found


async def test_the_page_and_all_it_names_are_served_under_a_strict_policy(
    elements: list[tuple[str, dict[str, str | None]]],
) -> None:
    named = {path for _, attrs in elements for name in ("src", "href") if (path := attrs.get(name)) is not None}
    assert {"ui/app.js", "ui/uplot.js", "ui/style.css"} <= named
    async with house(1, waits=False) as whole:
        for path in ("ui", *named, *(f"ui/{script}" for script in SCRIPTS)):
            answer = await whole.get(f"/{path}", admin=True)
            assert answer.status == 200, path
            assert HEADERS.items() <= answer.headers.items()


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in HEADERS["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors", "trusted-types")} == {"'none'"}
    assert rules["require-trusted-types-for"] == "'script'"


def test_the_page_has_nothing_inline(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    for tag, attrs in elements:
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
        assert tag != "style"
        assert tag != "script" or attrs.get("src")


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_asked_of_other_places(name: str) -> None:
    text = (FILES / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_shown_never_becomes_markup(name: str) -> None:
    text = (FILES / name).read_text()
    assert not [each for each in MARKUP if each in text]


def test_the_chart_library_makes_no_markup_of_text_either() -> None:
    text = (FILES / "uplot.js").read_text()
    assert not [each for each in MARKUP if each in text]


@pytest.mark.parametrize("name", LIBRARY)
def test_the_chart_library_is_as_its_makers_published_it(name: str) -> None:
    text = (FILES / name).read_bytes()
    if name != "uplot.LICENSE":
        head, _, text = text.partition(b"*/\n")
        assert b"uPlot 1.6.32, MIT" in head
    assert hashlib.sha256(text).hexdigest() == LIBRARY[name]


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_parse(name: str, tmp_path: Path) -> None:
    assert NODE is not None
    module = tmp_path / "script.mjs"
    module.write_bytes((FILES / name).read_bytes())
    subprocess.run([NODE, "--check", str(module)], check=True, timeout=60)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("duration(0)", "0 s"),
        ("duration(0.0004)", "0.40 ms"),
        ("duration(0.0123)", "12.3 ms"),
        ("duration(0.9996)", "1.00 s"),
        ("duration(59.94)", "59.9 s"),
        ("duration(90)", "1.50 min"),
        ("duration(null)", "–"),
        ("trimmed(duration(0.04))", "40 ms"),
        ("trimmed(rate(5))", "5"),
        ("trimmed(percent(1))", "100 %"),
        ("count(9999)", "9,999"),
        ("count(12345)", "12.3k"),
        ("count(999999)", "1.00M"),
        ("count(undefined)", "–"),
        ("percent(0.004)", "<1 %"),
        ("percent(0.995)", ">99 %"),
        ("age(59.9)", "59 s"),
        ("age(4000)", "1 h 6 min"),
        ("age(1e6)", "11 d 13 h"),
        ("spelt('queue_full')", "queue full"),
    ],
)
def test_figures_are_worded_as_people_read_them(call: str, words: str, tmp_path: Path) -> None:
    assert NODE is not None
    (tmp_path / "words.mjs").write_bytes((FILES / "words.js").read_bytes())
    names = "duration, trimmed, rate, percent, count, age, spelt"
    script = f"import {{ {names} }} from {str(tmp_path / 'words.mjs')!r}; process.stdout.write({call});"
    command = [NODE, "--input-type=module", "--eval", script]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.replace("\u00a0", " ") == words


async def test_a_file_that_is_the_same_is_not_sent_again() -> None:
    async with house(1, waits=False) as whole:
        tag = (await whole.get("/ui/app.js", admin=True)).headers["etag"]
        url = f"{whole.gateway.admin_url}/ui/app.js"
        async with whole.session.get(url, headers={"if-none-match": tag}) as again:
            assert (again.status, await again.read()) == (304, b"")


async def test_the_page_is_behind_the_guard_like_all_others() -> None:
    listen = {"admin_key_sha256": [hashlib.sha256(ADMIN_KEY.encode()).hexdigest()]}
    async with house(1, waits=False, listen=listen) as whole:
        for path in ("/ui", "/ui/app.js", "/admin/overview"):
            answer = await whole.get(path, admin=True)
            assert (answer.status, "www-authenticate" in answer.headers) == (401, True)
            headers = {"authorization": f"Bearer {ADMIN_KEY}"}
            async with whole.session.get(whole.gateway.admin_url + path, headers=headers) as opened:
                assert opened.status == 200


@pytest.mark.parametrize("path", ["/ui/", "/ui/../admin", "/ui/page.htm", "/ui/uplot.LICENSE", "/ui/%2e%2e/app.py"])
async def test_nothing_else_is_served(path: str) -> None:
    async with house(1, waits=False) as whole:
        assert (await whole.get(path, admin=True)).status == 404
