"""Pacer: an EngineModel in real time.

Virtual time is real time divided by `scale`. The next iteration begins where the last one ended, not where
the timer fired: a late timer delays tokens by its lateness, once, and what is due meanwhile follows in the
same tick, as tokens bunch up when a real API server lags. Scale 0 takes no time at all.
"""

import asyncio
from typing import Protocol

from loadtests.engine import EngineModel
from loadtests.sequence import Generation, Refusal, What

BURST = 64  # iterations a tick at most, so that a scale of 0 leaves room for sockets

EARLY_S = 0.0005  # uvloop's timers fire up to half a millisecond early


class Listener(Protocol):
    """Who wants to know what comes of a sequence."""

    def first_token(self, id: int, cached_tokens: int) -> None:
        """The prompt is computed, the first token is made."""

    def advance(self, id: int, made: int) -> None:
        """So many tokens are made."""

    def finished(self, id: int, cached_tokens: int) -> None:
        """All tokens are made."""


class Pacer:
    """One engine that runs."""

    def __init__(self, model: EngineModel, scale: float) -> None:
        self.model = model
        self.scale = scale
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._stalled_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: dict[int, Listener] = {}
        self._decoding: dict[int, Listener] = {}
        self._next_id = 0

    @property
    def now(self) -> float:
        """Virtual seconds since the start; stands still at scale 0."""
        if not self.scale:
            return self.model.ends_at or 0.0
        at = self._loop.time() if self._stalled_at is None else self._stalled_at
        return (at - self._origin) / self.scale

    def new_id(self) -> int:
        """Give a sequence its id."""
        self._next_id += 1
        return self._next_id

    def submit(self, generation: Generation, listener: Listener) -> Refusal | None:
        """Queue a generation, or say why not."""
        assert isinstance(generation.id, int)
        refusal = self.model.submit(generation, self.now)
        if refusal is None:
            self._listeners[generation.id] = listener
            if self.model.ends_at is None:
                self.model.begin(self.now, leap=False)
                self._arm()
        return refusal

    def abort(self, id: int) -> None:
        """Drop a sequence at once."""
        self._listeners.pop(id, None)
        self._decoding.pop(id, None)
        self.model.abort(id, self.now)

    def stall(self) -> None:
        """Let no iteration end until `resume`."""
        if self._stalled_at is None:
            self._stalled_at = self._loop.time()
            self._disarm()

    def resume(self) -> None:
        """Go on where `stall` stopped."""
        if self._stalled_at is not None:
            self._origin += self._loop.time() - self._stalled_at
            self._stalled_at = None
            self._arm()

    def stop(self) -> None:
        """Stop for good; nobody is told."""
        self.stall()
        self._listeners.clear()
        self._decoding.clear()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._disarm()
        if self.model.ends_at is not None and self._stalled_at is None:
            at = self._origin + self.model.ends_at * self.scale if self.scale else self._loop.time()
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        model = self.model
        due = self.now + EARLY_S / (self.scale or 1.0)
        for _ in range(BURST):
            end = model.ends_at
            if end is None or (end > due and self.scale):
                break
            self._tell()
            model.begin(end, leap=False)
        self._arm()

    def _tell(self) -> None:
        """End an iteration and tell everybody what it made."""
        events = self.model.finish()
        finished = [event for event in events if event.what is What.FINISHED]
        for event in events:
            assert isinstance(event.id, int)
            if event.what is What.FIRST_TOKEN and event.id in self._listeners:
                self._decoding[event.id] = self._listeners[event.id]
                self._listeners[event.id].first_token(event.id, event.cached_tokens)
        for event in finished:
            assert isinstance(event.id, int)
            self._decoding.pop(event.id, None)
            listener = self._listeners.pop(event.id, None)
            if listener is not None:
                listener.finished(event.id, event.cached_tokens)
        for id, listener in list(self._decoding.items()):
            if id in self._decoding:  # a fault of one may have ended others
                listener.advance(id, self.model.generated(id))
