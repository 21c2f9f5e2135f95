"""Portrait, Profile: what is counted of a group of requests, and of all groups of a log.

A request that nobody could have served (the client's mistake, an unknown path) counts as an outcome and no further.
What was refused or failed was asked for, so its prompt and its arrival count; times count of what was served.
"""

from collections import Counter
from collections.abc import Iterable

from gateway.profile.arrivals import Arrivals
from gateway.profile.beginnings import Beginnings
from gateway.profile.sketch import Sketch
from policies.fingerprint import marks_of
from policies.record import Outcome, RequestRecord
from policies.request import UNIT_TOKENS

MOST_GROUPS = 100  # of tenants, and of models; what comes later is counted together
OTHERS = "(others)"
GROUP_SLOTS = 4000  # of time: an hour by the second


class Portrait:
    """One group of requests."""

    def __init__(self, most_slots: int = GROUP_SLOTS) -> None:
        self.outcomes: Counter[str] = Counter()
        self.endpoints: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.arrivals = Arrivals(most_slots)
        self.prompt_tokens, self.output_tokens = Sketch(), Sketch()
        self.ttft_s, self.tpot_s, self.e2e_s = Sketch(), Sketch(), Sketch()
        self.waited_s, self.predicted_wait_s, self.wait_error_s = Sketch(), Sketch(), Sketch()
        self.retried = 0
        self.marked_tokens = 0
        """Of prompts that have a fingerprint."""
        self.reachable_tokens = 0.0
        """Of those, what a cache without end would have had."""
        self.told_tokens = self.cached_tokens = 0
        """Of prompts whose engine told what it found in its cache, and what that was."""
        self.foretold_tokens = self.predicted_tokens = 0
        """The same for what the gateway expected."""
        self.busy_s = 0.0
        """Of engines: from dispatch to end."""
        self.held_token_s = 0.0
        """Tokens in memory times how long, halfway through the answer."""

    @property
    def requests(self) -> int:
        """All there were, whatever became of them."""
        return self.outcomes.total()

    def note(self, record: RequestRecord, marked_tokens: int, reachable_tokens: float) -> None:
        """Count a request."""
        self.outcomes[record.outcome.value] += 1
        if record.outcome is Outcome.CLIENT_ERROR or not record.prompt_tokens:
            return
        self.arrivals.note(record.arrived_at)
        self.prompt_tokens.add(record.prompt_tokens)
        self.marked_tokens += marked_tokens
        self.reachable_tokens += reachable_tokens
        self.retried += record.tries > 1
        if record.waited_s is not None:
            self.waited_s.add(record.waited_s)
            if record.predicted_wait_s is not None:
                self.predicted_wait_s.add(record.predicted_wait_s)
                self.wait_error_s.add(abs(record.predicted_wait_s - record.waited_s))
        if record.outcome is Outcome.OK:
            self._note_served(record)

    def _note_served(self, record: RequestRecord) -> None:
        self.e2e_s.add(record.e2e_s)
        output_tokens = record.output_tokens or 0
        if record.output_tokens is not None:
            self.output_tokens.add(output_tokens)
        if record.ttft_s is not None:
            self.ttft_s.add(record.ttft_s)
        if record.tpot_s is not None:
            self.tpot_s.add(record.tpot_s)
        if record.cached_tokens is not None:
            self.told_tokens += record.prompt_tokens
            self.cached_tokens += min(record.cached_tokens, record.prompt_tokens)
        if record.predicted_cached_tokens is not None:
            self.foretold_tokens += record.prompt_tokens
            self.predicted_tokens += min(record.predicted_cached_tokens, record.prompt_tokens)
        if record.endpoint is not None:
            self.endpoints[record.endpoint] += 1
        if record.reason is not None:
            self.reasons[record.reason] += 1
        engine_s = max(0.0, record.e2e_s - record.queue_s)
        self.busy_s += engine_s
        self.held_token_s += engine_s * (record.prompt_tokens + output_tokens / 2)

    @property
    def in_flight(self) -> float:
        """Requests at engines at a time, in the mean (Little's law)."""
        return self.busy_s / self.arrivals.span_s

    @property
    def held_tokens(self) -> float:
        """Tokens of running requests at a time, in the mean, counted once for each request."""
        return self.held_token_s / self.arrivals.span_s

    @property
    def reached(self) -> float | None:
        """Share of prompt tokens that engines found in their caches; None where none told."""
        return self.cached_tokens / self.told_tokens if self.told_tokens else None

    @property
    def predicted(self) -> float | None:
        """Share of prompt tokens that the gateway expected there."""
        return self.predicted_tokens / self.foretold_tokens if self.foretold_tokens else None

    @property
    def reachable(self) -> float | None:
        """Share of prompt tokens that a cache without end would have had; None where no prompt has a fingerprint."""
        return min(1.0, self.reachable_tokens / self.marked_tokens) if self.marked_tokens else None


class Profile:
    """A log's portrait: of all of it, by tenant, by model and by class of service.

    Args:
        tenant, model: Count nothing else.
    """

    def __init__(self, tenant: str | None = None, model: str | None = None) -> None:
        self._tenant, self._model = tenant, model
        self.whole = Portrait(most_slots=100_000)
        self.tenants: dict[str, Portrait] = {}
        self.models: dict[str, Portrait] = {}
        self.classes: dict[str, Portrait] = {}
        self.beginnings = Beginnings()

    def draw(self, records: Iterable[RequestRecord]) -> None:
        """Count records, in whatever order."""
        for record in records:
            self.note(record)

    def note(self, record: RequestRecord) -> None:
        """Count one."""
        if self._tenant not in (None, record.tenant) or self._model not in (None, record.model):
            return
        marked_tokens, reachable_tokens = 0, 0.0
        if record.unit_tokens and record.outcome is not Outcome.CLIENT_ERROR:  # short prompts have no mark, and count
            unit_tokens = min(record.unit_tokens, 64 * UNIT_TOKENS)
            try:
                marks = marks_of(record.prefix)
            except ValueError:
                marks = []
            marked_tokens = record.prompt_tokens
            reachable_tokens = self.beginnings.note(marks, unit_tokens, record.arrived_at, record.tenant)
        groups = [self.whole, _of(self.tenants, record.tenant)]
        if record.model:
            groups.append(_of(self.models, record.model))
        if record.service_class is not None:
            groups.append(_of(self.classes, record.service_class))
        for group in groups:
            group.note(record, marked_tokens, reachable_tokens)


def _of(groups: dict[str, Portrait], name: str) -> Portrait:
    """Find a group by name, or make it; those beyond all measure are one."""
    found = groups.get(name)
    if found is None:
        name = name if len(groups) < MOST_GROUPS else OTHERS
        found = groups.setdefault(name, Portrait())
    return found
