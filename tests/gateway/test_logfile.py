"""The file of a log: it makes room by itself, and follows whoever moves it away."""

import errno
import os
from pathlib import Path

import pytest

from gateway.logfile import LogFile

LINE = b"0123456789\n"


def texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_full_file_moves_on_and_the_oldest_goes(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log", max_bytes=2 * len(LINE), keep=2)
    for at in range(7):
        file.write(b"%d" % at + LINE[1:])
    file.close()
    two = [b"".join(b"%d" % at + LINE[1:] for at in pair) for pair in ((4, 5), (2, 3))]
    assert texts(tmp_path) == {"log": b"6" + LINE[1:], "log.1": two[0], "log.2": two[1]}


def test_what_was_there_counts(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LINE)
    file = LogFile(tmp_path / "log", max_bytes=2 * len(LINE))
    file.write(LINE)
    file.close()
    assert texts(tmp_path) == {"log": b"", "log.1": LINE * 2}


def test_without_a_limit_it_stays(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log")
    file.write(LINE * 1000)
    file.close()
    assert texts(tmp_path) == {"log": LINE * 1000}


@pytest.mark.parametrize("is_new_there", [False, True])
def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path, is_new_there: bool) -> None:
    file = LogFile(tmp_path / "log")
    file.write(b"a\n")
    (tmp_path / "log").rename(tmp_path / "old")
    if is_new_there:
        (tmp_path / "log").touch()
    file.write(b"b\n")
    file.close()
    assert texts(tmp_path) == {"log": b"b\n", "old": b"a\n"}


def test_a_file_that_was_cut_is_written_to_from_its_beginning(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log")
    file.write(b"a\n")
    os.truncate(tmp_path / "log", 0)
    file.write(b"b\n")
    file.close()
    assert texts(tmp_path) == {"log": b"b\n"}


def test_a_folder_that_is_gone_costs_no_line_of_the_old_file(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogFile(folder / "log", max_bytes=1)
    folder.rename(tmp_path / "moved")
    file.write(b"a\n")
    file.write(b"b\n")
    file.close()
    assert texts(tmp_path / "moved") == {"log": b"a\nb\n"}


def test_a_pipe_is_never_moved(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    file = LogFile(tmp_path / "pipe", max_bytes=1)
    file.write(b"a\n")
    file.write(b"b\n")
    assert os.read(end, 100) == b"a\nb\n"
    file.close()
    os.close(end)
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]


def test_a_line_that_was_cut_short_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LogFile(tmp_path / "log")
    write = os.write
    room = [3]

    def full(fd: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: room.pop()])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        file.write(b"abcdef\n")
    monkeypatch.undo()
    file.write(b"g\n")
    file.close()
    assert texts(tmp_path) == {"log": b"abc\ng\n"}


def test_others_may_not_read_it(tmp_path: Path) -> None:
    LogFile(tmp_path / "log").close()
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0
