"""Instruments: sums, distributions and values read on demand, each by labels, as prometheus_client renders them.

The hot path writes to plain lists and dictionaries: 0.1 us, where prometheus_client's own counters cost ten times that.
All that is kept can be added up over gateways: sums, and counts by bucket.

A distribution can keep an exemplar for each bucket: the last value that fell into it of a request whose trace is
recorded, with the trace's id. Only pages in OpenMetrics' format show them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

MAX_SERIES = 2000  # per instrument: beyond it everything new is counted as `other`

Labels = tuple[str, ...]


Cell = list[float]


class Counter:
    """A sum by labels, each kept in a cell of its own that the hot path can hold on to."""

    def __init__(self, name: str, documentation: str, labels: Labels) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.cells: dict[Labels, Cell] = {}

    def cell(self, labels: Labels) -> Cell:
        """Give the one-number list that holds the sum for these label values."""
        cell = self.cells.get(labels)
        if cell is None:
            if len(self.cells) >= MAX_SERIES:
                labels = ("other",) * len(self.labels)
            cell = self.cells.setdefault(labels, [0.0])
        return cell

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add to the series with these label values."""
        self.cell(labels)[0] += amount

    def collect(self) -> Metric:
        """Give the series as prometheus_client renders them."""
        family = CounterMetricFamily(self.name.removesuffix("_total"), self.documentation, labels=self.labels)
        for labels, cell in self.cells.items():
            family.add_metric(labels, cell[0])
        return family


class Seen(NamedTuple):
    """Whose value it was: what links a bucket to a trace."""

    trace_id: str
    """32 hex digits."""
    at: float
    """Unix seconds."""


class Distribution:
    """The values of one series: how many in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: dict[int, tuple[float, Seen]] = {}
        """The last of each bucket."""

    def observe(self, value: float, seen: Seen | None = None) -> None:
        """Count one value; `seen` where somebody can look at what it was."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if seen is not None:
            self.exemplars[bucket] = value, seen

    def link(self, value: float, seen: Seen) -> None:
        """Say whose a value was that has been counted: it is not always known at once whether anybody can look."""
        self.exemplars[bisect_left(self.bounds, value)] = value, seen


class Histogram:
    """A distribution by labels."""

    def __init__(self, name: str, documentation: str, labels: Labels, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self._bounds = bounds
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self.series: dict[Labels, Distribution] = {}

    def distribution(self, labels: Labels) -> Distribution:
        """Give the series with these label values."""
        found = self.series.get(labels)
        if found is None:
            if len(self.series) >= MAX_SERIES:
                labels = ("other",) * len(self.labels)
            found = self.series.setdefault(labels, Distribution(self._bounds))
        return found

    def collect(self) -> Metric:
        """Give the series as prometheus_client renders them."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, values in self.series.items():
            counts = zip(self._names, map(float, accumulate(values.counts)), strict=True)
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(counts)
            for at, (value, seen) in values.exemplars.items():
                buckets[at] = (*buckets[at][:2], Exemplar({"trace_id": seen.trace_id}, value, seen.at))
            family.add_metric(labels, buckets, values.sum)
        return family


class Gauge:
    """Values that are read when somebody asks; of a name in `_total`, sums that others keep."""

    def __init__(
        self, name: str, documentation: str, labels: Labels, read: Callable[[], Iterable[tuple[Labels, float]]]
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self._read = read
        self._family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily

    def collect(self) -> Metric:
        """Read, and give the series as prometheus_client renders them."""
        family = self._family(self.name.removesuffix("_total"), self.documentation, labels=self.labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        return family
