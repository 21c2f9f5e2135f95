"""OutputHabits: how long answers are, by tenant and model: what is expected of the next one, and what it may come to.

The mean is a moving average. The 90th percentile follows each answer by a step in the logarithm, up nine times as far
as down, and so settles where one in ten is longer; no answers are kept. Bounded: the pair asked about longest ago is
forgotten first.
"""

from collections import OrderedDict
from math import exp

FIRST_MEAN = 256.0  # until something has been seen
FIRST_P90 = 512.0
PACE = 0.05  # of the mean: some twenty answers
STRIDE = 0.1  # of the percentile, in the logarithm
MAX_PAIRS = 10_000


class OutputHabits:
    """Output tokens by tenant and model."""

    def __init__(self, most: int = MAX_PAIRS) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def expected_tokens(self, tenant: str, model: str, allowed_tokens: int) -> int:
        """Expect the mean, and never more than is allowed."""
        return min(allowed_tokens, round(self._get(tenant, model)[0]))

    def allowed_tokens(self, tenant: str, model: str, most: int) -> int:
        """Give what an answer without max_tokens may come to: the 90th percentile, at most `most` (context left)."""
        return min(most, round(self._get(tenant, model)[1]))

    def learn(self, tenant: str, model: str, output_tokens: int) -> None:
        """Note a finished answer."""
        mean, p90 = self._get(tenant, model)
        mean += PACE * (output_tokens - mean)
        p90 = max(1.0, p90 * exp(STRIDE * (0.9 if output_tokens > p90 else -0.1)))
        self._seen[tenant, model] = (mean, p90)
        self._seen.move_to_end((tenant, model))
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def _get(self, tenant: str, model: str) -> tuple[float, float]:
        return self._seen.get((tenant, model), (FIRST_MEAN, FIRST_P90))
