"""One structured line a request, written off the loop.

Lines are made on the loop (orjson, half a microsecond) and written by a thread in batches. The queue between them is
bounded: a disk that hangs costs lines, which are counted, never a request its time.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

import orjson

from policies.record import RequestRecord

FLUSH_S = 0.5
MAX_PENDING = 20_000  # lines, some 10 MB


class AccessLog:
    """Appends records to a file."""

    def __init__(self, file: BinaryIO, on_drop: Callable[[], None]) -> None:
        self._file = file
        self._on_drop = on_drop
        self._pending: deque[bytes] = deque()  # the loop appends, the thread takes: each one step, so no lock
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def write(self, record: RequestRecord) -> None:
        """Queue one line; never waits."""
        if len(self._pending) >= MAX_PENDING:
            self._on_drop()
            return
        self._pending.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Write what is left and close the file."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(timeout=5)
        if self._file is not sys.stdout.buffer:
            self._file.close()

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(FLUSH_S)
            self._flush()
        self._flush()

    def _flush(self) -> None:
        pending = self._pending
        lines = [pending.popleft() for _ in range(len(pending))]
        if lines:
            try:
                self._file.write(b"".join(lines))
                self._file.flush()
            except OSError:
                for _ in lines:
                    self._on_drop()
