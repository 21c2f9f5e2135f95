"""Metrics pages in the Prometheus text format, of which only the wanted metrics are read.

A vLLM page is 50 to 60 KB in 600 lines and is read once an endpoint and second, on the event loop; ten of its
metrics are wanted. So the page is not split: one regular expression, whose literal beginning the search can
skip by, finds the lines, and only those are parsed. Costs beside those of other ways:
`python -m tests.gateway.engines.exposition_speed`.

A name matches whole: `x_created` and `x_bucket` beside a wanted `x` are never looked at. What is not in the
format is skipped; nothing raises.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.engines import figures
from gateway.engines.adapter import Page

LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]++|\\.)*+)"[ \t]*,?')
ESCAPE = re.compile(rb"\\(.)")
PLAIN = {b"n": b"\n"}  # of the three escapes, \\ and \" stand for what they show


@dataclass(frozen=True, slots=True)
class Sample:
    """One series and its value, which may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


class Exposition:
    """The wanted samples of one page, by metric name."""

    def __init__(self, samples: Mapping[str, Sequence[Sample]]) -> None:
        self._samples = samples

    def __repr__(self) -> str:
        return f"<Exposition {', '.join(f'{name}: {len(self._samples[name])}' for name in self._samples)}>"

    def __bool__(self) -> bool:
        return bool(self._samples)

    def samples(self, name: str) -> Sequence[Sample]:
        """Give all series of a metric in the order of the page; none if the page has none."""
        return self._samples.get(name, ())

    def total(self, *names: str) -> float | None:
        """Sum the series of the first name that tells; later names are those of older versions."""
        return _first(figures.total(sample.value for sample in self.samples(name)) for name in names)

    def mean(self, *names: str) -> float | None:
        """Average the series, shares of 1, of the first name that tells."""
        return _first(figures.mean(sample.value for sample in self.samples(name)) for name in names)


def wanted(*names: str) -> re.Pattern[bytes]:
    """Prepare to look for the samples of some metrics, named as on the page with their suffix (`_total`)."""
    return re.compile(rb"\n(%b)([{ \t][^\n]*)" % b"|".join(re.escape(name.encode()) for name in names))


def read_samples(body: bytes, names: re.Pattern[bytes]) -> dict[str, list[Sample]]:
    """Read the samples of some metrics.

    Args:
        body: A page in Prometheus' text format 0.0.4 or 1.0.0.
        names: From `wanted`.
    Returns:
        For each name that has any, its samples in the order of the page.
    """
    found: dict[str, list[Sample]] = {}
    for name, rest in names.findall(b"\n" + body):
        sample = _read_sample(rest)
        if sample is not None:
            found.setdefault(name.decode(), []).append(sample)
    return found


def read_metrics(pages: Mapping[str, Page], names: re.Pattern[bytes]) -> Exposition:
    """Read some metrics from the first of the pages that has any of them, whatever its path.

    One page and not all: the same series read twice would count twice.
    """
    for page in pages.values():
        if page.status == 200:
            samples = read_samples(page.body, names)
            if samples:
                return Exposition(samples)
    return Exposition({})


START_TIME = wanted("process_start_time_seconds")


def start_time(pages: Mapping[str, Page]) -> str | None:
    """Read when the process started, in Unix seconds as text.

    Exported by prometheus_client, though not where several processes share one page
    (PROMETHEUS_MULTIPROC_DIR).
    """
    started_s = read_metrics(pages, START_TIME).total("process_start_time_seconds")
    return None if started_s is None else f"{started_s:.2f}"  # the kernel tells it in hundredths


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _read_sample(rest: bytes) -> Sample | None:
    """Read a line from behind its metric name: labels, a value, and perhaps a timestamp or an exemplar."""
    labels: dict[str, str] = {}
    rest = rest.lstrip(b" \t")
    if rest[:1] == b"{":
        at = 1
        while match := LABEL.match(rest, at):
            labels[match[1].decode()] = _unescape(match[2])
            at = match.end()
        rest = rest[at:].lstrip(b" \t")
        if rest[:1] != b"}":
            return None
        rest = rest[1:]
    number = rest.split(None, 1)[:1]
    if not number or b"_" in number[0]:  # float() takes 1_000, Prometheus does not
        return None
    try:
        return Sample(labels, float(number[0]))
    except ValueError:
        return None


def _unescape(value: bytes) -> str:
    if b"\\" in value:
        value = ESCAPE.sub(lambda match: PLAIN.get(match[1], match[1]), value)
    return value.decode(errors="replace")
