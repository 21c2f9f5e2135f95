"""Bookkeepers: who hears of a request that has ended, each of them apart from the others.

    limits       its tenant is charged what was really used
    record       made of the trace; without the fingerprint of its prompt where that cannot be made
    tracing      keeps its spans, or forgets them; the record learns the id of its trace
    metrics      counts it, with that id for an exemplar
    the others   in the order in which they are named: scaling, accounts, doctor, access log

All of them hear of it, whatever becomes of one: a fault in the doctor must not keep a line out of the access log, nor
an answer from its client. Whoever fails is counted each time, and logged once a minute.
"""

import logging
import time
from collections.abc import Callable, Mapping

from gateway.metrics import Metrics
from gateway.trace import Trace
from gateway.tracing import Tracing
from policies.fingerprint import Fingerprinter
from policies.record import RequestRecord

log = logging.getLogger(__name__)

COMPLAIN_EVERY_S = 60.0


class Bookkeepers:
    """Closes the books on requests.

    Args:
        prints: Makes the fingerprints of prompts; None: they get none.
        others: Who else is told of each record, by name.
        clock: As traces have it: the loop's own, to the microsecond.
    """

    def __init__(
        self,
        tracing: Tracing,
        metrics: Metrics,
        prints: Fingerprinter | None,
        others: Mapping[str, Callable[[RequestRecord], None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracing = tracing
        self._metrics = metrics
        self._prints = prints
        self._clock = clock
        self._others = tuple(others.items())
        self._complained_at: dict[str, float] = {}

    def close(self, trace: Trace) -> None:
        """Tell everybody of a request that has ended."""
        try:
            trace.ended()
        except Exception:
            self._note_fault("limits")
        now = self._clock()
        try:
            record = trace.finish(now, self._prints)
        except Exception:
            self._note_fault("record")
            record = trace.finish(now)
        try:
            record.trace_id = self._tracing.end(trace, record)
        except Exception:
            self._note_fault("tracing")
        try:
            self._metrics.observe(record, record.trace_id, has_waited=trace.has_waited)
        except Exception:
            self._note_fault("metrics")
        for name, note in self._others:
            try:
                note(record)
            except Exception:
                self._note_fault(name)

    def _note_fault(self, name: str) -> None:
        """Count the error that is being handled, and log it unless one of the same keeper was logged just now."""
        self._metrics.book_faults.add((name,))
        now = self._clock()
        if now - self._complained_at.get(name, float("-inf")) >= COMPLAIN_EVERY_S:
            self._complained_at[name] = now
            log.exception("%s failed on a request that has ended", name)
