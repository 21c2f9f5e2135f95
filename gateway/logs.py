"""Log lines that quote nobody: an error is logged by its kind and by the places it came through, never by its words.

What an exception says may hold what it choked on, and that is a prompt, or a key in a header that was none. So the
words stay out, of every library's errors too; the places are code. A line's own message is ours, and quotes nothing.
"""

import asyncio
import logging
import os
import socket
from traceback import TracebackException
from types import TracebackType
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Discreet(logging.Formatter):
    """Formats records, errors without their words."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the lines of a record, whatever another formatter has left in it."""
        kept, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = kept

    def formatException(self, ei: ExcInfo) -> str:  # the library's name
        """Give the kinds of an error and of what led to it, and where they passed."""
        if ei[1] is None:
            return ""
        told: list[str] = []
        found: TracebackException | None = TracebackException.from_exception(ei[1])
        while found is not None:
            kind = "an error" if found.exc_type is None else found.exc_type.__qualname__
            told.append("".join(found.stack.format()) + kind)
            found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        return "\nwhich led to\n".join(reversed(told))


def log_loop_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what nobody caught in a callback or a task, in place of the loop's own way, which shows their arguments."""
    error = context.get("exception")
    log.error("%s", context.get("message", "a callback failed"), exc_info=error if error is not None else None)


def reason(error: OSError) -> str:
    """Say in words what the system said."""
    if isinstance(error, socket.gaierror) or not error.errno:  # whose numbers are of a list of their own
        return error.strerror or str(error)
    return os.strerror(error.errno)
