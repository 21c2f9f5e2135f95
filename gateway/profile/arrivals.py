"""Arrivals: how many requests came when, whatever the order in which they are told.

A log is in order of ends, not of arrivals, so they are counted by the second. Seconds are merged in pairs, and those in
pairs again, where a log is so long (or its times so odd) that there would be too many.
"""

from math import floor

MOST_SLOTS = 100_000  # 28 hours by the second, some 10 MB


class Arrivals:
    """Counts by time.

    Args:
        most_slots: Beyond so many, slots of time are made twice as wide.
    """

    def __init__(self, most_slots: int = MOST_SLOTS) -> None:
        self._most_slots = most_slots
        self._slots: dict[int, int] = {}
        self.width_s = 1
        self.count = 0
        self.first = self.last = 0.0

    def note(self, at: float) -> None:
        """Note one, in Unix seconds."""
        self.first = min(self.first, at) if self.count else at
        self.last = max(self.last, at) if self.count else at
        self.count += 1
        slot = floor(at / self.width_s)
        self._slots[slot] = self._slots.get(slot, 0) + 1
        while len(self._slots) > self._most_slots:
            self._widen()

    def _widen(self) -> None:
        self.width_s *= 2
        before, self._slots = self._slots, {}
        for slot, count in before.items():
            self._slots[slot // 2] = self._slots.get(slot // 2, 0) + count

    @property
    def span_s(self) -> float:
        """From the first to the last; at least one slot."""
        return max(self.last - self.first, float(self.width_s))

    @property
    def rate(self) -> float:
        """Requests per second, in the mean."""
        return self.count / self.span_s

    @property
    def peak(self) -> float:
        """Requests per second, in the busiest slot."""
        return max(self._slots.values(), default=0) / self.width_s

    @property
    def burstiness(self) -> float:
        """Variance over mean of the counts by slot: 1 where arrivals know nothing of each other (Poisson).

        Independent of the load, and the number by which a queue for the mean is too short for the bursts.
        """
        slots = floor(self.last / self.width_s) - floor(self.first / self.width_s) + 1
        mean = self.count / slots
        squares = sum(count * count for count in self._slots.values()) / slots
        return (squares - mean * mean) / mean if mean else 0.0

    def over_time(self, points: int) -> list[tuple[float, float, float]]:
        """Give at most `points` stretches of time: seconds after the first, the mean rate and the highest in it."""
        if not self.count:
            return []
        begin, end = floor(self.first / self.width_s), floor(self.last / self.width_s)
        each = max(1, -(-(end - begin + 1) // points))
        totals: dict[int, int] = {}
        peaks: dict[int, int] = {}
        for slot, count in self._slots.items():
            place = (slot - begin) // each
            totals[place] = totals.get(place, 0) + count
            peaks[place] = max(peaks.get(place, 0), count)
        found = []
        for place in range((end - begin) // each + 1):
            slots = min(each, end - begin + 1 - place * each)
            mean = totals.get(place, 0) / (slots * self.width_s)
            found.append((float(place * each * self.width_s), mean, peaks.get(place, 0) / self.width_s))
        return found
