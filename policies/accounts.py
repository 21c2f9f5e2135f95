"""What tenants have used: sums by UTC day, tenant and model.

    finished request --note--> cells of this gateway --take, every few seconds--> batches --> where they are kept

`note` is on the way of every request and costs a microsecond; everything else happens when somebody asks or flushes.
What was taken is not here any more: whoever took it adds it to what is kept, once, and sums only ever grow.

A request belongs to the day on which it arrived, as its reservation of a budget does, however late it ends. It is
charged for its tokens if an engine served it, or if its client left while an engine worked on it. What failed, was
refused or was the client's mistake is counted and costs nothing. A list of models and the like is nobody's usage.
What is cached is as the engine says, or as it was predicted where the engine is silent; limits charge the same.

Everything is a whole number, rounded once per request: weighted tokens up, as limits count them; cost to the nearest
nano-unit of the operator's money (a millionth of a millionth of a price per million would be exact, but 64 bits of it
are soon full in some currencies). So the sums are the same in whichever order and by however many gateways they are
added up.

Never happens: a number that falls; a float that is summed up; more than MAX_CELLS sums between two flushes (what comes
beyond them is of tenant `other`, model `other`, at the price of what it was).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from policies.record import Outcome, RequestRecord
from policies.tariff import MILLION, Tariff

MAX_CELLS = 5000  # a day of 500 tenants with ten models each
MAX_CODES = 32  # of refusals; the gateway has a dozen
OTHER = "other"
NO_MODEL = "none"
DAY_S = 86_400
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
REFUSED = "refused:"
"""Before the code of a refusal, in the name of a count."""

_OK, _REFUSED, _FAILED, _DISCONNECTED = Outcome.OK, Outcome.REFUSED, Outcome.FAILED, Outcome.DISCONNECTED

Who = tuple[str, str]
"""Tenant and model."""
Counts = dict[str, int]
"""By name: those of COUNTS, and `refused:CODE`. What is missing is 0."""
Sums = dict[Who, Counts]

COUNTS = (
    "served",
    "failed",
    "disconnected",
    "client_errors",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "weighted_tokens",
    "cost_nanos",
    "engine_us",
)


def is_charged(record: RequestRecord) -> bool:
    """Whether the tokens of a request are its tenant's to pay."""
    return record.tries > 0 and record.outcome in (_OK, _DISCONNECTED)


@dataclass(slots=True)
class _Cell:
    """What one tenant has used of one model, of one day, since the last take."""

    tariff: Tariff
    served: int = 0
    failed: int = 0
    disconnected: int = 0
    client_errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    weighted_tokens: int = 0
    cost_nanos: int = 0
    engine_us: int = 0
    refused: dict[str, int] | None = None

    def note(self, record: RequestRecord, tariff: Tariff) -> None:
        outcome = record.outcome
        if outcome is _OK:
            self.served += 1
        elif outcome is _REFUSED:
            self._refuse(record.code or OTHER)
        elif outcome is _DISCONNECTED:
            self.disconnected += 1
        elif outcome is _FAILED:
            self.failed += 1
        else:
            self.client_errors += 1
        if not is_charged(record):
            return
        prompt, output = record.prompt_tokens, record.output_tokens or 0
        cached = record.predicted_cached_tokens if record.cached_tokens is None else record.cached_tokens
        cached = min(cached or 0, prompt)
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.output_tokens += output
        self.weighted_tokens += tariff.weighted_tokens(prompt, cached, output)
        self.cost_nanos += tariff.cost_nanos(prompt, cached, output)
        self.engine_us += int((record.e2e_s - record.queue_s) * MILLION)

    def counts(self) -> Counts:
        """Give what is not 0."""
        counts = {name: value for name in COUNTS if (value := getattr(self, name))}
        for code, count in (self.refused or {}).items():
            counts[REFUSED + code] = count
        return counts

    def _refuse(self, code: str) -> None:
        refused = self.refused
        if refused is None:
            refused = self.refused = {}
        if code not in refused and len(refused) >= MAX_CODES:
            code = OTHER
        refused[code] = refused.get(code, 0) + 1


class Accounts:
    """What has been used since it was last taken."""

    def __init__(self, tariff_of: Callable[[str, str], Tariff], most: int = MAX_CELLS) -> None:
        """Begin with nothing.

        Args:
            tariff_of: Of a tenant and a model, as it is now; asked anew after each take.
            most: Sums that there may be, beside those of `other`.
        """
        self._tariff_of = tariff_of
        self._most = most
        self._cells: dict[tuple[float, str, str], _Cell] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def note(self, record: RequestRecord) -> None:
        """Count one finished request."""
        if record.outcome is _OK and not record.tries:
            return
        cell = self._cells.get((record.arrived_at // DAY_S, record.tenant, record.model))
        if cell is not None:
            cell.note(record, cell.tariff)
        else:
            self._note_first(record)

    def sums(self) -> dict[str, Sums]:
        """Give what there is, by day (`2027-01-31`)."""
        return {day_name(int(day)): self._sums_of(day) for day in {day for day, _, _ in self._cells}}

    def sums_of(self, day: str) -> Sums:
        """Give what there is of a day."""
        return self._sums_of(date.fromisoformat(day).toordinal() - EPOCH_ORDINAL)

    def take(self) -> dict[str, Sums]:
        """Give what there is, and begin anew."""
        days = self.sums()
        self._cells = {}
        return days

    def _sums_of(self, number: float) -> Sums:
        sums: Sums = {}
        for (day, tenant, model), cell in self._cells.items():
            if day == number:
                add(sums, {(tenant, model or NO_MODEL): cell.counts()}, self._most + 1)
        return sums

    def _note_first(self, record: RequestRecord) -> None:
        tariff = self._tariff_of(record.tenant, record.model)
        key = (record.arrived_at // DAY_S, record.tenant, record.model)
        if len(self._cells) >= self._most:
            key = (key[0], OTHER, OTHER)
        self._cells.setdefault(key, _Cell(tariff)).note(record, tariff)


# Sums.


def add(sums: Sums, more: Mapping[Who, Mapping[str, int]], most: int = MAX_CELLS) -> None:
    """Add to sums; what they have no room for is of `other`."""
    for who, counts in more.items():
        if who not in sums and len(sums) >= most:
            who = (OTHER, OTHER)
        into = sums.setdefault(who, {})
        for name, count in counts.items():
            into[name] = into.get(name, 0) + count


def parts(sums: Sums, most: int) -> Iterator[Sums]:
    """Cut sums into pieces of so many."""
    items = list(sums.items())
    for at in range(0, len(items), most):
        yield dict(items[at : at + most])


def added(counts: Iterable[Mapping[str, int]]) -> Counts:
    """Add up counts."""
    total: Counts = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


# Days.


def day_name(day: int) -> str:
    """Name a day by its number since 1970."""
    return date.fromordinal(EPOCH_ORDINAL + day).isoformat()


def days_between(first: date, last: date) -> list[str]:
    """Name every day from the first to the last, both included."""
    return [date.fromordinal(at).isoformat() for at in range(first.toordinal(), last.toordinal() + 1)]
