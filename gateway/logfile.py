"""A file that is appended to for years: it makes room by itself, and follows whoever else moves it away.

    full       at `max_bytes` it becomes FILE.1, what was FILE.1 becomes FILE.2, and so on; of those `keep` are kept
    moved      logrotate or a hand renamed or removed it: it is opened anew by its name before the next write
    truncated  (copytruncate) nothing has to be done, since every write goes to the end

The new file is open before the old one is closed, so a folder that cannot be written to any more costs no line: they go
on into the old file. Whatever is no regular file (a pipe, a terminal) is never moved. Two processes must not share one
file that moves itself; each would count its own bytes.
"""

import contextlib
import os
import stat
from pathlib import Path

MODE = 0o640  # not for everybody: whose requests, how long and when


class LogFile:
    """One such file.

    Args:
        max_bytes: None: it never moves by itself.
        keep: How many files are kept beside it, at least 1.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, max_bytes: int | None = None, keep: int = 1) -> None:
        self._path, self._max_bytes, self._keep = path, max_bytes, keep
        self._fd = self._open()
        self._is_torn = False

    def write(self, data: bytes) -> None:
        """Append whole lines, to the file that has the name now; move it away once it is full.

        Raises:
            OSError: It could not, or not all of them.
        """
        with contextlib.suppress(OSError):  # it goes on in the old one
            if not self._is_in_place():
                self._renew()
        left = memoryview(b"\n" + data if self._is_torn else data)  # what was cut short must not spoil the next line
        try:
            while left:
                left = left[os.write(self._fd, left) :]
                self._is_torn = True
        finally:
            if not left:
                self._is_torn = False
        if self._max_bytes is not None and os.fstat(self._fd).st_size >= self._max_bytes:
            with contextlib.suppress(OSError):  # it grows on
                self._move_away()

    def flush(self) -> None:
        """Do nothing: whatever was written is the system's."""

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _move_away(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return
        if self._is_in_place():
            for place in range(self._keep - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._numbered(place).replace(self._numbered(place + 1))
            self._path.replace(self._numbered(1))
        self._renew()

    def _numbered(self, place: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{place}")

    def _renew(self) -> None:
        fd = self._open()
        os.close(self._fd)
        self._fd = fd
