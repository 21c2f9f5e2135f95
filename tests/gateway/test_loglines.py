"""Access logs as records: broken lines are counted, and whatever is left is read."""

import gzip
import io
import sys
from pathlib import Path

import orjson
import pytest

from gateway.loglines import MAX_LINE_BYTES, LogLines
from tests.policies.test_record import RECORD

LINE = orjson.dumps(RECORD) + b"\n"


def test_files_are_read_one_after_the_other_packed_or_not(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "log.2.gz", "wb") as packed:
        packed.write(LINE * 2)
    (tmp_path / "log").write_bytes(LINE)
    lines = LogLines([tmp_path / "log.2.gz", tmp_path / "log"])
    assert list(lines) == [RECORD] * 3
    assert (lines.lines, lines.broken, lines.first_fault) == (3, 0, "")


def test_standard_input_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE)))
    assert list(LogLines([Path("-")])) == [RECORD]


BROKEN = {
    "cut": LINE[:40] + b"\n",
    "binary": b"\x00\xff\xfe\n",
    "another JSON": b"[1,2]\n",
    "another log": b'{"level":"info","message":"a secret"}\n',
    "not a number": LINE.replace(b'"e2e_s":1.0', b'"e2e_s":NaN'),
    "endless": b"x" * (3 * MAX_LINE_BYTES) + b"\n",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_line_that_is_none_is_counted_and_the_next_is_read(what: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LINE + b"\n" + BROKEN[what] + LINE)
    lines = LogLines([tmp_path / "log"])
    assert list(lines) == [RECORD] * 2
    assert (lines.lines, lines.broken) == (3, 1)
    assert lines.first_fault.startswith(f"{tmp_path}/log:3 ")
    assert "secret" not in lines.first_fault


def test_a_last_line_that_is_being_written_is_no_request_yet(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LINE + LINE[:-20])
    lines = LogLines([tmp_path / "log"])
    assert (len(list(lines)), lines.broken) == (1, 1)


def test_an_endless_last_line_ends_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LINE + b"x" * (2 * MAX_LINE_BYTES))
    lines = LogLines([tmp_path / "log"])
    assert (len(list(lines)), lines.broken) == (1, 1)
