"""How long one waits: the pace at which a queue is drained, and how right predictions were."""

from collections import deque
from math import exp, pow

MEMORY_S = 10.0
MAX_RATIO = 4.0
MAX_WAIT_S = 3600.0  # where nothing gets on: as good as for ever
KEPT_ERRORS = 1024


class Drain:
    """Work per second that leaves a queue, over the last seconds in which anybody waited there.

    Without a queue there is nothing to be measured: what was learned stays. Until the first has left, the rate is not
    known, and taken for infinite: nobody is turned away on a guess.
    """

    def __init__(self) -> None:
        self._work = self._busy_s = self._at = 0.0

    def note(self, now: float, is_waiting: bool, work: float = 0.0) -> None:
        """Note the time since the last call, in which somebody waited or nobody did, and work that leaves now."""
        if is_waiting and now > self._at:
            kept = exp((self._at - now) / MEMORY_S)
            self._work *= kept
            self._busy_s = self._busy_s * kept + now - self._at
        self._at = now
        self._work += work

    @property
    def is_known(self) -> bool:
        """Whether anything has left."""
        return self._work > 0

    def seconds(self, work: float) -> float:
        """Predict how long it takes until so much has left."""
        return min(work * self._busy_s / self._work, MAX_WAIT_S) if self._work else 0.0


class Ratio:
    """Real waits over reckoned ones, of late."""

    def __init__(self) -> None:
        self._reckoned, self._real = Recent(), Recent()

    def note(self, now: float, reckoned_s: float, real_s: float) -> None:
        """Note how one turned out."""
        self._reckoned.add(now, reckoned_s)
        self._real.add(now, real_s)

    def at(self, now: float) -> float:
        """Give it, within MAX_RATIO; 1 before the first."""
        reckoned_s, real_s = self._reckoned.at(now), self._real.at(now)
        return min(max(real_s / reckoned_s, 1 / MAX_RATIO), MAX_RATIO) if reckoned_s else 1.0

    def corrected(self, now: float, reckoned_s: float) -> float:
        """Put a wait right by it; the less, the longer it is.

        How a wait of a minute turns out is known a minute late, and first of those that were the shortest: corrected by
        that in full, such waits were told four times too short after four times too long.
        """
        return reckoned_s * pow(self.at(now), MEMORY_S / (MEMORY_S + reckoned_s))


class Recent:
    """A sum that fades with time."""

    def __init__(self) -> None:
        self._sum = self._at = 0.0

    def add(self, now: float, amount: float) -> None:
        """Add to it."""
        self._sum = self.at(now) + amount
        self._at = now

    def at(self, now: float) -> float:
        """Give what is left of it."""
        return self._sum * exp((self._at - now) / MEMORY_S)


class Errors:
    """How far predicted waits were from real ones, in seconds either way; of the last thousand."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=KEPT_ERRORS)
        self.count = 0

    def __repr__(self) -> str:
        return f"<Errors {self.count}: p50 {self.quantile(0.5):.3f} s, p90 {self.quantile(0.9):.3f} s>"

    def note(self, predicted_s: float, real_s: float) -> None:
        """Note how it turned out."""
        self._last.append(abs(predicted_s - real_s))
        self.count += 1

    def quantile(self, share: float) -> float:
        """Give the error that this share of them stays within; 0 before the first."""
        ordered = sorted(self._last)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
