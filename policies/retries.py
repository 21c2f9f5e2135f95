"""The retry budget: an outage must not double the load.

Retries are at most a share of the requests seen over a sliding window, and a small floor beside it for quiet times. The
window is kept as slices, so that its memory does not grow with traffic.
"""

from collections import deque

SLICES = 10  # a tenth of the window is how coarsely the past is forgotten


class RetryBudget:
    """Counts requests and retries over the last `window_s`."""

    def __init__(self, share: float, window_s: float, floor: int) -> None:
        self._share = share
        self._slice_s = window_s / SLICES
        self._floor = floor
        self._slices: deque[list[float]] = deque()  # [start, requests, retries]
        self._requests = 0
        self._retries = 0

    def note_request(self, now: float) -> None:
        """Count one request, however often it will be tried."""
        self._current(now)[1] += 1
        self._requests += 1

    def try_spend(self, now: float) -> bool:
        """Take one retry, if there is one left."""
        current = self._current(now)
        if self._retries + 1 > self._floor + self._share * self._requests:
            return False
        current[2] += 1
        self._retries += 1
        return True

    def _current(self, now: float) -> list[float]:
        slices = self._slices
        while slices and slices[0][0] <= now - SLICES * self._slice_s:
            _, requests, retries = slices.popleft()
            self._requests -= int(requests)
            self._retries -= int(retries)
        if not slices or now >= slices[-1][0] + self._slice_s:
            slices.append([now, 0, 0])
        return slices[-1]
