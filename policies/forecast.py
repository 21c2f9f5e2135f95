"""HitForecast: whether an engine's cache holds what we expect it to hold.

For each answer there is what we expected to be cached and what the engine says was. The two are summed with weights
that fade, so that a minute ago counts for little. They differ in the ordinary: units are coarser than blocks, caches
evict, other clients share the engine. When they part by more than a fair share of the prompts, and for a while,
something is wrong that no policy can make good: the template here is not the engine's, its blocks are larger than
thought, its cache is off or smaller than it says. Engines that do not tell per request have counters; those are
compared in the sum.
"""

from math import exp

FADE_S = 30.0  # the weight of an answer falls to a third in this time
FEW = 10.0  # answers, by weight: fewer prove nothing
OFF_SHARE = 0.3  # of the prompt tokens; evictions on a full cache explain a tenth
PERSISTS_S = 15.0  # so long it must last: an operator is to hear of it within a minute, and not of a burst


class HitForecast:
    """Expected and reported cached tokens of one endpoint."""

    __slots__ = (
        "_at",
        "_counted_hits",
        "_counted_queries",
        "_hits",
        "_missed",
        "_off_since",
        "_queries",
        "answers",
        "predicted",
        "prompt",
        "reported",
        "told_prompt",
    )

    def __init__(self) -> None:
        self._at = 0.0
        self.answers = self.prompt = self.predicted = 0.0
        self.told_prompt = self.reported = 0.0
        """Of answers whose engine told."""
        self._missed = 0.0
        self._counted_hits = self._counted_queries = 0.0
        self._hits: float | None = None
        self._queries: float | None = None
        self._off_since: float | None = None

    def __repr__(self) -> str:
        return f"<HitForecast {self.predicted:.0f} expected, {self.reported:.0f} told of {self.prompt:.0f} tokens>"

    def note(
        self, prompt_tokens: int, predicted_tokens: int, reported_tokens: int | None, slack_tokens: int, now: float
    ) -> None:
        """Compare one answer.

        Args:
            prompt_tokens: As the engine counted.
            predicted_tokens: Expected to be cached.
            reported_tokens: Cached, as the engine says; None where it does not.
            slack_tokens: By which they may differ without meaning anything: a unit.
        """
        self._fade(now)
        self.answers += 1
        self.prompt += prompt_tokens
        self.predicted += predicted_tokens
        if reported_tokens is not None:
            self.told_prompt += prompt_tokens
            self.reported += reported_tokens
            self._missed += max(0, abs(predicted_tokens - reported_tokens) - slack_tokens)
        self._judge(now)

    def note_counters(self, hits: float | None, queries: float | None, now: float) -> None:
        """Take the engine's own counters of cached and asked-for prompt tokens; a smaller one is of a new run."""
        self._fade(now)
        if hits is not None and queries is not None:
            if self._hits is not None and self._queries is not None and hits >= self._hits and queries >= self._queries:
                self._counted_hits += hits - self._hits
                self._counted_queries += queries - self._queries
            self._hits, self._queries = hits, queries
        self._judge(now)

    @property
    def hit_ratio(self) -> float | None:
        """Give the share of prompt tokens that were cached lately, as answers tell, else counters; None: no word."""
        if self.told_prompt >= 1:
            return min(1.0, self.reported / self.told_prompt)
        return min(1.0, self._counted_hits / self._counted_queries) if self._counted_queries >= 1 else None

    @property
    def error_ratio(self) -> float | None:
        """Give the share of prompt tokens by which expectation and report differ; None where nothing was told."""
        if self.told_prompt >= 1:
            return self._missed / self.told_prompt
        if self.prompt >= 1 and self._counted_queries >= 1:
            return abs(self.predicted / self.prompt - self._counted_hits / self._counted_queries)
        return None

    def is_off(self, now: float) -> bool:
        """Whether the two have been apart for long."""
        return self._off_since is not None and now - self._off_since >= PERSISTS_S

    def _judge(self, now: float) -> None:
        error = self.error_ratio
        if error is None or error <= OFF_SHARE or self.answers < FEW:
            self._off_since = None
        elif self._off_since is None:
            self._off_since = now

    def _fade(self, now: float) -> None:
        left = exp(-max(0.0, now - self._at) / FADE_S)
        self._at = now
        self.answers *= left
        self.prompt *= left
        self.predicted *= left
        self.told_prompt *= left
        self.reported *= left
        self._missed *= left
        self._counted_hits *= left
        self._counted_queries *= left
