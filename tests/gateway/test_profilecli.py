"""kvlane profile: its words, its files, and how it gives up."""

import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from policies.record import RequestRecord
from tests.gateway.profile.test_findings import own, poisson
from tests.gateway.profile.test_portrait import ASKED

HOSTILE = '<script>alert("$x$")</script>\x1b[31m'
PNG = b"\x89PNG\r\n"


def profile(*words: object) -> Result:
    return CliRunner().invoke(app, ["profile", *map(str, words)])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log"
    write(file, [*poisson(50), *own(poisson(30, tenant="u", model="n"))])
    return file


def write(file: Path, records: list[RequestRecord], noise: bytes = b"") -> None:
    file.write_bytes(noise + b"".join(orjson.dumps(each) + b"\n" for each in records))


def test_it_tells_each_figure_and_what_it_decides(log: Path) -> None:
    shown = profile(log)
    assert shown.exit_code == 0
    for words in ("Lengths", "prompt tokens", "mean rate", "hit rate reachable", "Long prompts", "By tenant", "→ "):
        assert words in shown.stdout
    assert shown.stderr == ""


def test_it_tells_of_a_tenant_and_a_model_alone(log: Path) -> None:
    for words in (["--tenant", "u"], ["--model", "n"]):
        numbers = orjson.loads(profile(log, *words, "--json", "-").stdout)
        assert (numbers["requests"], list(numbers["tenants"])) == (30, ["u"])


def test_broken_lines_are_counted_and_told_without_what_they_say(log: Path, tmp_path: Path) -> None:
    write(tmp_path / "mixed", poisson(5), noise=b"a secret\n{}\n")
    shown = profile(tmp_path / "mixed", "--json", tmp_path / "json")
    assert shown.exit_code == 0
    assert "2 of 7 lines are none" in shown.stderr
    assert "secret" not in shown.stderr
    assert orjson.loads((tmp_path / "json").read_bytes())["broken_lines"] == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gone"], "gone: cannot be read: No such file or directory"),
        (["empty"], "empty: no request in 0 lines"),
        (["log", "--tenant", "nobody"], "no request of this tenant and model in 80 lines"),
        (["log", "--html", "no/such/folder.html"], "folder.html: cannot be written: No such file or directory"),
        (["log", "--json", "."], ".: cannot be written: Is a directory"),
        (["cut.gz"], "cut, or is still being written"),
        (["damaged.gz"], "damaged, and cannot be unpacked"),
        (["odd.gz"], "odd.gz: cannot be read: Not a gzipped file"),
    ],
)
def test_it_gives_up_in_one_line(words: list[str], told: str, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    monkeypatch.chdir(log.parent)
    Path("empty").touch()
    Path("cut.gz").write_bytes(gzip.compress(log.read_bytes())[:-9])
    packed = gzip.compress(log.read_bytes())
    Path("damaged.gz").write_bytes(packed[:200] + b"\xff" * 200 + packed[400:])
    Path("odd.gz").write_bytes(log.read_bytes())
    shown = profile(*words)
    assert shown.exit_code == 2
    assert told in shown.stderr
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_without_matplotlib_charts_are_refused_in_one_line_and_figures_are_told(
    option: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gateway.profile.charts", raising=False)
    import gateway.profile

    monkeypatch.delattr(gateway.profile, "charts", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = profile(log, option, tmp_path / "out")
    assert shown.exit_code == 2
    assert shown.stderr == "kvlane: charts need matplotlib, which is not installed: pip install 'kvlane[charts]'\n"
    assert profile(log).exit_code == 0


def test_charts_are_pictures_in_a_folder(log: Path, tmp_path: Path) -> None:
    assert profile(log, "--png", tmp_path / "charts").exit_code == 0
    files = {file.name: file.read_bytes() for file in (tmp_path / "charts").iterdir()}
    assert set(files) == {
        f"{name}.png" for name in ("traffic", "lengths", "pools", "caching", "reuse", "beginnings", "times")
    }
    assert all(data.startswith(PNG) for data in files.values())


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_page_has_every_section_with_its_charts_and_fetches_nothing(log: Path, tmp_path: Path) -> None:
    assert profile(log, "--html", tmp_path / "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert (page.tags.count("section"), page.tags.count("svg")) == (8, 7)
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert "default-src 'none'" in text
    assert "url(http" not in text


def test_what_a_log_says_is_never_markup_nor_mathematics_nor_moves_the_terminal(tmp_path: Path) -> None:
    hostile = poisson(20, tenant=HOSTILE, model=HOSTILE, service_class=HOSTILE)
    write(tmp_path / "log", [*hostile, *poisson(20), *poisson(3, service_class="[bold]x[/bold]")])
    shown = profile(tmp_path / "log", "--html", tmp_path / "page.html")
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    assert "[bold]x[/bold]" in shown.output
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert '<script>alert("$x$")' in page.words
    for chart in text.split("<figure>")[1:]:
        ElementTree.fromstring(chart.split("</figure>")[0])  # our own


def test_logs_of_one_request_can_be_drawn(tmp_path: Path) -> None:
    write(tmp_path / "log", [ASKED])
    assert profile(tmp_path / "log", "--png", tmp_path / "charts", "--html", tmp_path / "page.html").exit_code == 0


def test_logs_of_nothing_but_mistakes_can_be_drawn(tmp_path: Path) -> None:
    write(tmp_path / "log", [replace(ASKED, prompt_tokens=0, unit_tokens=None)])
    assert profile(tmp_path / "log", "--png", tmp_path / "charts", "--html", tmp_path / "page.html").exit_code == 0
    assert list((tmp_path / "charts").iterdir()) == []


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_full_disk_is_told_with_the_name_of_the_file(option: str, log: Path) -> None:
    result = profile(log, option, "/dev/full")
    assert (result.exit_code, result.stderr) == (2, "kvlane: /dev/full: cannot be written: No space left on device\n")


@pytest.mark.parametrize("command", ["profile", "doctor", "kv"])
def test_output_that_has_no_room_is_told_in_one_line(command: str, log: Path) -> None:
    """`kvlane doctor` in a pipeline ends with 1 where it finds something: a full disk must not look like that."""
    words: dict[str, list[str]] = {
        "profile": ["profile", str(log)],
        "doctor": ["doctor", str(log)],
        "kv": ["kv", "--help"],
    }
    write(log, [replace(each, prefix_shape="1;CCCC;s,10.DDDD") for each in poisson(20)])
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "gateway", *words[command]], stdout=full, stderr=subprocess.PIPE, check=False
        )
    told = b"kvlane: standard output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, told)
