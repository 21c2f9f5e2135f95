"""The access log: every line whole and once, and never a request's time."""

import io
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gateway import accesslog
from gateway.accesslog import MAX_PENDING, AccessLog, open_log
from gateway.sections import AccessLog as Section
from policies.fingerprint import Fingerprinter
from policies.record import RequestRecord
from tests.policies.test_record import RECORD

PRINTS = Fingerprinter(b"test")


class Drops:
    """Counts the lines that were dropped."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def drops() -> Drops:
    return Drops()


def test_a_record_is_one_line_of_json(tmp_path: Path, drops: Drops) -> None:
    path = tmp_path / "log"
    log = AccessLog(open(path, "ab"), drops, PRINTS)  # noqa: SIM115  # closed by the log
    log.write(RECORD)
    log.write(replace(RECORD, id="é\n", code="x", ttft_s=0.5))
    log.close()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["r", "é\n"]
    assert json.loads(lines[0]) == {
        **{field.name: getattr(RECORD, field.name) for field in fields(RequestRecord)},
        "outcome": "ok",
    }
    assert drops.count == 0


def test_an_existing_file_is_appended_to(tmp_path: Path, drops: Drops) -> None:
    path = tmp_path / "log"
    for _ in range(2):
        log = AccessLog(open(path, "ab"), drops, PRINTS)  # noqa: SIM115  # closed by the log
        log.write(RECORD)
        log.close()
    assert len(path.read_text().splitlines()) == 2


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let threads take turns as often as can be, and the writer write all the time."""
    monkeypatch.setattr(accesslog, "FLUSH_S", 0.0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_no_line_is_lost_while_the_writer_takes_them(tmp_path: Path, drops: Drops) -> None:
    """R = 40,000 lines, while the writer takes them as often as it can: each is there, once, in order, or counted."""
    path = tmp_path / "log"
    log = AccessLog(open(path, "ab"), drops, PRINTS)  # noqa: SIM115  # closed by the log
    for at in range(40_000):
        log.write(replace(RECORD, status=at))
    log.close()
    seen = [json.loads(line)["status"] for line in path.read_text().splitlines()]
    assert len(seen) + drops.count == 40_000
    assert seen == sorted(set(seen))


class Hanging(io.BytesIO):
    """A disk that does not answer until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.lines = 0

    def write(self, data: object) -> int:
        self.may_write.wait(30)
        assert isinstance(data, bytes)
        self.lines += data.count(b"\n")
        return len(data)


def test_a_disk_that_hangs_costs_lines_which_are_counted(monkeypatch: pytest.MonkeyPatch, drops: Drops) -> None:
    monkeypatch.setattr(accesslog, "FLUSH_S", 0.0)
    file = Hanging()
    log = AccessLog(file, drops, PRINTS)
    for _ in range(MAX_PENDING + 5000):
        log.write(RECORD)
    assert drops.count >= 1
    file.may_write.set()
    log.close()
    assert file.lines + drops.count == MAX_PENDING + 5000


class Full(io.BytesIO):
    """A disk without room."""

    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_costs_lines_which_are_counted_and_nothing_else(drops: Drops) -> None:
    log = AccessLog(Full(), drops, PRINTS)
    for _ in range(10):
        log.write(RECORD)
    log.close()
    assert drops.count == 10


def test_standard_output_is_left_open(drops: Drops, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    log = AccessLog(sys.stdout.buffer, drops, PRINTS)
    log.write(RECORD)
    log.close()
    assert not sys.stdout.buffer.closed
    assert json.loads(capsysbinary.readouterr().out)["id"] == "r"


def test_the_key_of_fingerprints_is_made_once_and_kept_for_its_owner_alone(tmp_path: Path, drops: Drops) -> None:
    marks = []
    for _ in range(2):
        log = open_log(Section(path=str(tmp_path / "log")), drops)
        assert log is not None
        marks.append(log.prints.mark(1))
        log.close()
    assert marks[0] == marks[1]
    assert (tmp_path / "log.key").stat().st_mode & 0o077 == 0


def test_logs_with_a_key_of_the_configuration_can_be_compared(tmp_path: Path, drops: Drops) -> None:
    marks = set()
    for name in ("a", "b"):
        log = open_log(Section(path=str(tmp_path / name), key="a secret of many".replace(" ", "-")), drops)
        assert log is not None
        marks.add(log.prints.mark(1))
        log.close()
    assert len(marks) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_key_that_was_cut_short_is_an_error_and_no_other_key(tmp_path: Path, drops: Drops) -> None:
    (tmp_path / "log.key").write_bytes(b"short")
    with pytest.raises(OSError, match="has 5 bytes, and a key has 32"):
        open_log(Section(path=str(tmp_path / "log")), drops)


def test_without_a_path_there_is_no_log(drops: Drops) -> None:
    assert open_log(Section(), drops) is None


def test_on_standard_output_the_key_is_made_up_and_forgotten(drops: Drops) -> None:
    logs = [open_log(Section(path="-"), drops) for _ in range(2)]
    assert len({log.prints.mark(1) for log in logs if log is not None}) == 2
    for log in logs:
        assert log is not None
        log.close()
