"""Hops: where the time of one request goes, noted while it lives. Spans are made of it after its end (`spans.py`).

A hop is a tuple: its name and when it began, in monotonic seconds. It ends where the next one begins, so that each
moment is looked at once and no hop is left open, whichever way a request ends.

    authenticate  receive  limit  tokenize  pool  queue  choose  (connect  first_byte  first_token  stream)  settle
                                                         choose  (connect  ...) one pair for each try

What stands in brackets is one try at one endpoint, a span of its own: it begins with connect, and what comes next that
is none of the four ends it. Where nobody had to wait there is no queue; where the answer is no stream, no first_token.
"""

from collections.abc import Sequence
from enum import Enum
from random import Random
from time import monotonic

from gateway.tracecontext import SAMPLED, Parent, lines_of
from policies.explained import Candidate
from policies.policy import Choice


class Hop(Enum):
    """A stage of a request's life; the value is the name of its span."""

    AUTHENTICATE = "authenticate"
    """The head: whose is it, and what does it ask for?"""
    RECEIVE = "receive"
    """The body: read, parsed, and whether its model may be used."""
    LIMIT = "limit"
    """What it may come to is reserved of its tenant's limits."""
    TOKENIZE = "tokenize"
    """How long is its prompt, and what does it begin with?"""
    POOL = "pool"
    """Which pools may take it?"""
    QUEUE = "queue"
    """It waits until there is room."""
    CHOOSE = "choose"
    """An endpoint is chosen, and charged."""
    CONNECT = "connect"
    """A connection is taken or opened, and the request sent."""
    FIRST_BYTE = "first_byte"
    """Until it is known what the engine's answer is: by its first event, or by the whole of a JSON body."""
    FIRST_TOKEN = "first_token"
    """From the first event of a stream to the first one with content."""
    STREAM = "stream"
    """The answer passes to the client."""
    SETTLE = "settle"
    """What was borrowed is given back, what was used is charged."""


AUTHENTICATE, RECEIVE, LIMIT, TOKENIZE, POOL, QUEUE, CHOOSE, CONNECT, FIRST_BYTE, FIRST_TOKEN, STREAM, SETTLE = Hop
# each by its own name: before Python 3.12, to ask the class takes 0.2 us
OF_A_TRY = frozenset((CONNECT, FIRST_BYTE, FIRST_TOKEN, STREAM))


class Attempt:
    """One try at one endpoint."""

    __slots__ = ("choice", "failure", "kind", "span_id", "status")

    def __init__(self, choice: Choice, kind: Enum | None, span_id: int) -> None:
        self.choice = choice
        self.kind = kind
        """Of the engine, as the configuration knows kinds; None where it is not known."""
        self.span_id = span_id
        self.failure: str | None = None
        self.status: int | None = None
        """Of the answer of its engine; None or 0 where there was none."""


class Hops:
    """What tracing knows of one request.

    Args:
        parent: Whose trace it belongs to; None: it begins one of its own.
        is_sampled: Whether its spans are to be recorded whatever becomes of it; engines are told.
    """

    __slots__ = (
        "_chance",
        "_flags",
        "attempts",
        "explained",
        "is_sampled",
        "method",
        "noted",
        "parent",
        "span_id",
        "trace_id",
    )

    def __init__(
        self, parent: Parent | None, trace_id: int, method: str, arrived_at: float, chance: Random, *, is_sampled: bool
    ) -> None:
        self.parent = parent
        self.trace_id = trace_id
        self.span_id = _new_span_id(chance)
        self.method = method
        self.is_sampled = is_sampled
        self._chance = chance
        self._flags = (0 if parent is None else parent.flags & ~SAMPLED) | (SAMPLED if is_sampled else 0)
        self.noted: list[tuple[Hop, float]] = [(AUTHENTICATE, arrived_at)]
        self.attempts: list[Attempt] = []
        self.explained: dict[int, tuple[float, Sequence[Candidate]]] = {}
        """By number of the try: when the endpoints were looked at for its choice, and how they stood then."""

    def begin(self, hop: Hop, at: float | None = None) -> None:
        """Note that a hop begins, and with it that the one before has ended; one that runs already runs on."""
        if self.noted[-1][0] is not hop:
            self.noted.append((hop, monotonic() if at is None else at))

    def admitted(self, *, has_waited: bool) -> None:
        """Note that it was let in: who did not have to wait was not in a queue, but chosen for."""
        if has_waited:
            self.begin(CHOOSE)
        else:
            self.noted[-1] = (CHOOSE, self.noted[-1][1])

    def explain(self, candidates: Sequence[Candidate]) -> None:
        """Note how the endpoints stand for the choice that is being made."""
        self.explained[len(self.attempts)] = monotonic(), candidates

    def attempt(self, choice: Choice, kind: Enum | None, at: float) -> None:
        """Note that a try begins."""
        self.noted.append((CONNECT, at))
        self.attempts.append(Attempt(choice, kind, _new_span_id(self._chance)))

    def failed(self, failure: str, status: int | None = None) -> None:
        """Note why the try that runs did not serve."""
        self.attempts[-1].failure = failure
        self.attempts[-1].status = status

    @property
    def lines_to_engine(self) -> bytes:
        """The header lines that make the try that runs the parent of what its engine does."""
        state = "" if self.parent is None else self.parent.state
        return lines_of(self.trace_id, self.attempts[-1].span_id, self._flags, state)


def _new_span_id(chance: Random) -> int:
    return chance.getrandbits(64) or 1  # 0 is no span
