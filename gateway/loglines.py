"""Access logs as records: one after the other, however long the files; a line that is none is counted, never fatal.

Files are read in the order in which they are named, so name what was rotated away first; `.gz` is unpacked, `-` is
standard input.
"""

import gzip
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import orjson

from policies.record import RequestRecord, record_of

MAX_LINE_BYTES = 1 << 18  # a record with the longest fingerprint has under 4 KB


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
            if str(path) == "-":
                yield from self._records(sys.stdin.buffer, "standard input")
            elif path.suffix == ".gz":
                with gzip.open(path, "rb") as unpacked:
                    yield from self._records(unpacked, str(path))  # type: ignore[arg-type]  # reads as any file does
            else:
                with open(path, "rb") as file:
                    yield from self._records(file, str(path))

    def _records(self, file: BinaryIO, name: str) -> Iterator[RequestRecord]:
        place = 0
        while line := file.readline(MAX_LINE_BYTES):
            place += 1
            if line == b"\n":
                continue
            self.lines += 1
            if len(line) == MAX_LINE_BYTES and line[-1:] != b"\n":
                while (rest := file.readline(MAX_LINE_BYTES)) and rest[-1:] != b"\n":
                    pass
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
