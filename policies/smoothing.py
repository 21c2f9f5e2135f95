"""Smoothing: tells a burst, and for how long its requests are held together.

A burst is one more request within a window than there are endpoints to take them. Served as they come, its first ones
would get all the room, whoever sent them; held to the end of the window they are placed in the fair order. A request
that comes alone is never held.

    holds -> the door sets `is_on` and holds whom it may, until the window `is_over`: at `until`, or when it is `cut`;
             those that are held are placed, and the door sets `is_on` back
"""

from collections import deque


class Smoothing:
    """The window of one pool.

    Args:
        window_s: 0 for none.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._arrivals: deque[float] = deque()
        self._since = self.until = float("-inf")
        self.is_on = False
        """Whether anybody is held, or was and has left."""

    def holds(self, now: float, endpoints: int) -> bool:
        """Note that a request comes; say whether it is held, until `until`."""
        if not self._window_s:
            return False
        arrivals = self._arrivals
        while arrivals and arrivals[0] <= now - self._window_s:
            arrivals.popleft()
        if len(arrivals) <= endpoints:
            arrivals.append(now)
        if now >= self.until and len(arrivals) > endpoints:
            self._since, self.until = now, now + self._window_s
        return now < self.until

    def is_over(self, now: float) -> bool:
        """Whether those that are held may go."""
        return self.is_on and now >= self.until

    def cut(self, now: float) -> None:
        """End the window before its time."""
        self.until = now

    def held(self, arrived_at: float) -> bool:
        """Whether one that came then was of the last burst."""
        return self._since <= arrived_at <= self.until
