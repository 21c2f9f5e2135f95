"""OutputHabits: how long answers are, by tenant and model: what is expected of the next one, and what it may come to.
PromptHabits: how many tokens the bytes of prompts make, for when nobody has counted them yet.

The mean is a moving average, of the first answers a plain one. The 90th percentile follows each answer by a step in the
logarithm, up nine times as far as down, and so settles where one in ten is longer; no answers are kept. Bounded: the
pair asked about longest ago is forgotten first.
"""

from collections import OrderedDict
from math import exp

FIRST = (256.0, 512.0, 0)  # mean, 90th percentile and answers until something has been seen
PACE = 0.05  # of the mean: some twenty answers, and all of the first few
STRIDE = 0.1  # of the percentile, in the logarithm
MAX_PAIRS = 10_000


class OutputHabits:
    """Output tokens by tenant and model."""

    def __init__(self, most: int = MAX_PAIRS) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, str], tuple[float, float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def expected_tokens(self, tenant: str, model: str, allowed_tokens: int) -> int:
        """Expect the mean, and never more than is allowed."""
        return min(allowed_tokens, round(self._seen.get((tenant, model), FIRST)[0]))

    def allowed_tokens(self, tenant: str, model: str, most: int) -> int:
        """Give what an answer without max_tokens may come to: the 90th percentile, at most `most` (context left)."""
        return min(most, round(self._seen.get((tenant, model), FIRST)[1]))

    def learn(self, tenant: str, model: str, output_tokens: int) -> None:
        """Note a finished answer."""
        pair = tenant, model
        mean, p90, seen = self._seen.get(pair, FIRST)
        seen += 1
        mean += max(PACE, 1 / seen) * (output_tokens - mean)
        p90 = max(1.0, p90 * exp(max(STRIDE, 1 / seen) * (0.9 if output_tokens > p90 else -0.1)))
        self._seen[pair] = mean, p90, seen
        self._seen.move_to_end(pair)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)


TOKENS_A_BYTE = 0.25  # English, in most vocabularies
LEAST_A_BYTE = 0.1  # whoever sends bytes that are no prompt must not make believe that prompts weigh nothing
MOST_A_BYTE = 1.0  # vocabularies have a token for each byte at the worst


class PromptHabits:
    """Tokens per byte of a body, by tenant and model."""

    def __init__(self, most: int = MAX_PAIRS) -> None:
        self._most = most
        self._seen: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def expected_tokens(self, tenant: str, model: str, length: int) -> int:
        """Expect so many of so many bytes."""
        return round(self._seen.get((tenant, model), TOKENS_A_BYTE) * length)

    def learn(self, tenant: str, model: str, length: int, prompt_tokens: int) -> None:
        """Note how many a body of so many bytes had."""
        if length <= 0:
            return
        share = max(LEAST_A_BYTE, min(MOST_A_BYTE, prompt_tokens / length))
        known = self._seen.get((tenant, model))
        self._seen[tenant, model] = share if known is None else known + PACE * (share - known)
        self._seen.move_to_end((tenant, model))
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
