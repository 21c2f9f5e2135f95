"""One structured line a request, written off the loop.

Lines are made on the loop (orjson, a microsecond) and written by a thread in batches. The queue between them is
bounded: a disk that hangs costs lines, which are counted, never a request its time.

A line is a RequestRecord as JSON; `policies/record.py` has the fields and the version of the form. Fingerprints of
prompts are keyed, so that nobody can guess prompts by a log; the key is the configuration's or made up at the first
start, and kept beside the log, so that the fingerprints of next year can be compared with today's.
"""

import os
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import orjson

from gateway.logfile import LogFile
from gateway.sections import AccessLog as Section
from policies.fingerprint import Fingerprinter
from policies.record import RequestRecord

FLUSH_S = 0.5
MAX_PENDING = 20_000  # lines, some 20 MB
KEY_BYTES = 32
KEY_SUFFIX = ".key"


class Sink(Protocol):
    """Where lines go."""

    def write(self, data: bytes, /) -> object:
        """Take whole lines."""
        ...

    def flush(self) -> None:
        """Keep nothing back."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class AccessLog:
    """Appends records.

    Args:
        on_drop: Told of each line that is lost.
        prints: Makes the fingerprints of what is logged here.
    """

    def __init__(self, sink: Sink, on_drop: Callable[[], None], prints: Fingerprinter) -> None:
        self.prints = prints
        self._sink = sink
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
        if self._sink is not sys.stdout.buffer:
            self._sink.close()

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
                self._sink.write(b"".join(lines))
                self._sink.flush()
            except OSError:
                for _ in lines:
                    self._on_drop()


def open_log(config: Section, on_drop: Callable[[], None]) -> AccessLog | None:
    """Open the access log that the configuration asks for.

    Raises:
        OSError: It, or its key, cannot be read or written.
    """
    if config.path is None:
        return None
    if config.path == "-":
        key = config.key.encode() if config.key else secrets.token_bytes(KEY_BYTES)
        return AccessLog(sys.stdout.buffer, on_drop, Fingerprinter(key))
    path = Path(config.path)
    sink = LogFile(path, config.max_bytes, config.keep)
    key = config.key.encode() if config.key else kept_key(path.with_name(path.name + KEY_SUFFIX))
    return AccessLog(sink, on_drop, Fingerprinter(key))


def kept_key(path: Path) -> bytes:
    """Read the key of a log's fingerprints, or make one and keep it, for its owner alone.

    Raises:
        OSError: It can neither be read nor written.
    """
    made = secrets.token_bytes(KEY_BYTES)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        kept = path.read_bytes()
        if len(kept) == KEY_BYTES:
            return kept
        raise OSError(f"{path} has {len(kept)} bytes, and a key has {KEY_BYTES}") from None
    with os.fdopen(fd, "wb") as file:
        file.write(made)
    return made
