"""What reading a metrics page costs: `python -m tests.gateway.engines.exposition_speed`."""

from collections.abc import Callable
from timeit import repeat

from prometheus_client.parser import text_string_to_metric_families

from gateway.engines.adapter import Kind
from gateway.engines.catalog import ADAPTERS
from gateway.engines.exposition import read_samples
from gateway.engines.vllm import METRICS
from tests.gateway.engines.pages import capture, page, pages

ROUNDS, CALLS = 15, 20
BODY = capture("vllm_metrics.txt")
NAMES = {name.encode() for name in read_samples(BODY, METRICS)}


def by_lines() -> list[bytes]:
    """Split the page and look at the beginning of each line."""
    return [line for line in BODY.split(b"\n") if line.partition(b" ")[0].partition(b"{")[0] in NAMES]


def by_name() -> list[int]:
    """Search for each name at the beginning of a line, until there are no more."""
    found = []
    for name in NAMES:
        at = -1
        while (at := BODY.find(b"\n" + name, at + 1)) >= 0:
            found.append(at)
    return found


def show(what: str, call: Callable[[], object]) -> None:
    """Print the best of some rounds: what the machine adds is noise."""
    best_s = min(repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS
    print(f"{best_s * 1e6:9.0f} µs  {what}")


if __name__ == "__main__":
    asked = pages(page("/metrics", BODY))
    print(f"a page of {len(BODY):,} bytes, {len(NAMES)} metrics wanted, best of {ROUNDS} x {CALLS} calls")
    show("read_samples", lambda: read_samples(BODY, METRICS))
    show("Vllm.read_state", lambda: ADAPTERS[Kind.VLLM].read_state(asked))
    show("all lines split, names compared, nothing parsed", by_lines)
    show("bytes.find name by name, nothing parsed", by_name)
    show("prometheus_client", lambda: list(text_string_to_metric_families(BODY.decode())))
