"""Access logs as records: one after the other, however long the files; a line that is none is counted, never fatal.

Files are read in the order in which they are named, so name what was rotated away first; `.gz` is unpacked, `-` is
standard input. A line without end, which is no record of ours, is never held as a whole.
"""

import gzip
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from policies.record import RequestRecord, record_of

MAX_LINE_BYTES = 1 << 18  # a record with the longest fingerprint has under 4 KB


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a log, whatever it is packed in.

    Raises:
        OSError: It cannot be read.
    """
    if str(path) == "-":
        yield sys.stdin.buffer
    elif path.suffix == ".gz":
        with gzip.open(path, "rb") as unpacked:
            yield unpacked  # type: ignore[misc]  # reads as any file does
    else:
        with open(path, "rb") as file:
            yield file


def lines_of(file: BinaryIO) -> Iterator[bytes | None]:
    """Give one line after the other; None for each that has more bytes than a record could."""
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES and line[-1:] != b"\n":
            while (rest := file.readline(MAX_LINE_BYTES)) and rest[-1:] != b"\n":
                pass
            yield None
        else:
            yield line


class LogLines:
    """The records of some files; `lines` and `broken` count while they are read."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = list(files)
        self.lines = 0
        """Without empty ones."""
        self.broken = 0
        self.first_fault = ""
        """Where the first broken line is and what is wrong with it; none of what it says."""

    def __iter__(self) -> Iterator[RequestRecord]:
        """Read them.

        Raises:
            OSError: A file cannot be read.
        """
        for path in self._files:
            with opened(path) as file:
                yield from self._records(file, "standard input" if str(path) == "-" else str(path))

    def _records(self, file: BinaryIO, name: str) -> Iterator[RequestRecord]:
        for place, line in enumerate(lines_of(file), 1):
            if line == b"\n":
                continue
            self.lines += 1
            if line is None:
                self._note_broken(name, place, f"has more than {MAX_LINE_BYTES:,} bytes")
                continue
            try:
                record = record_of(orjson.loads(line))
            except orjson.JSONDecodeError:
                self._note_broken(name, place, "is no JSON")
            except ValueError as error:
                self._note_broken(name, place, str(error))
            else:
                yield record

    def _note_broken(self, name: str, place: int, fault: str) -> None:
        self.broken += 1
        self.first_fault = self.first_fault or f"{name}:{place} {fault[:200]}"
