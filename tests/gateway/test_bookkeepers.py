"""Bookkeepers: whichever of them fails, the others hear of the request, its client has its answer, and it is said."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from gateway.app import running
from gateway.bookkeepers import COMPLAIN_EVERY_S, Bookkeepers
from gateway.metrics import Metrics
from gateway.sections import TracingConfig
from gateway.trace import Trace
from gateway.tracing import Tracing
from loadtests.cluster import Cluster
from policies.fingerprint import Fingerprinter
from policies.record import RequestRecord
from tests.fleet_fixtures import CHAT, FAST, config, prompt
from tests.until import PATIENCE_S, until
from tests.wire.client import call


class Office:
    """Bookkeepers of which some fail, a clock that is put forward, and what the others heard."""

    def __init__(self, *failing: str, prints: Fingerprinter | None = None) -> None:
        self.now = 100.0
        self.heard: list[tuple[str, RequestRecord]] = []
        self.metrics = Metrics()
        self.tracing = Tracing(TracingConfig(), self.metrics, Random(1), lambda *_: ())
        others = {name: self._keeper(name, name in failing) for name in ("accounts", "doctor", "log")}
        self.books = Bookkeepers(self.tracing, self.metrics, prints, others, lambda: self.now)

    def _keeper(self, name: str, fails: bool) -> Callable[[RequestRecord], None]:
        def note(record: RequestRecord) -> None:
            if fails:
                raise ZeroDivisionError("what it choked on")
            self.heard.append((name, record))

        return note

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.heard]

    def faults(self) -> dict[str, float]:
        return {name: cell[0] for (name,), cell in self.metrics.book_faults.cells.items()}

    def counted(self) -> float:
        return sum(cell[0] for cell in self.metrics.requests.cells.values())


def trace() -> Trace:
    return Trace("r", CHAT, 99.0, model="m")


def fails(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_each_is_told_in_order_of_the_same_record() -> None:
    office = Office()
    office.books.close(trace())
    assert office.names == ["accounts", "doctor", "log"]
    assert len({id(record) for _, record in office.heard}) == 1
    assert (office.counted(), office.faults()) == (1, {})


@pytest.mark.parametrize("failing", ["accounts", "doctor", "log"])
def test_one_that_fails_hides_nothing_from_the_others(failing: str) -> None:
    office = Office(failing)
    office.books.close(trace())
    assert office.names == [name for name in ("accounts", "doctor", "log") if name != failing]
    assert (office.counted(), office.faults()) == (1, {failing: 1})


@pytest.mark.parametrize("failing", ["limits", "record", "tracing", "metrics"])
def test_nor_does_what_comes_before_them(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office(prints=Fingerprinter(b"key"))
    ended = trace()
    if failing == "limits":
        ended.on_end = fails
    else:
        broken = {
            "record": (Fingerprinter, "of"),
            "tracing": (Tracing, "end"),
            "metrics": (Metrics, "observe"),
        }[failing]
        monkeypatch.setattr(*broken, fails)
    office.books.close(ended)
    assert office.names == ["accounts", "doctor", "log"]
    assert office.faults() == {failing: 1}


def test_who_fails_on_and_on_is_counted_each_time_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    office = Office("doctor", "log")
    for _ in range(50):
        office.books.close(trace())
    assert [record.getMessage() for record in caplog.records] == [
        "doctor failed on a request that has ended",
        "log failed on a request that has ended",
    ]
    assert all(record.exc_info for record in caplog.records), "and where"
    assert office.faults() == {"doctor": 50, "log": 50}
    caplog.clear()
    office.now += COMPLAIN_EVERY_S
    office.books.close(trace())
    assert len(caplog.records) == 2


async def test_with_a_broken_doctor_a_gateway_answers_charges_counts_and_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole at once: each request has its answer, its line, its place in the accounts and its slot given back."""
    logging.getLogger("gateway.bookkeepers").setLevel(logging.CRITICAL)
    monkeypatch.setattr("gateway.doctor.PrefixDoctor.note", fails)
    path = tmp_path / "access.log"
    anonymous = {"limits": {"parallel": 1}}
    body = json.dumps(prompt("hello")).encode()
    try:
        async with (
            Cluster(1, FAST) as cluster,
            running(config(cluster.urls, access_log={"path": str(path)}, anonymous=anonymous)) as gateway,
        ):
            await until(gateway.fleet.is_serving, "ready", PATIENCE_S)
            for _ in range(3):
                assert (await call(gateway.url, CHAT, body)).status == 200
            await until(lambda: gateway.metrics.book_faults.cell(("doctor",))[0] == 3, "counted")
            (day,) = await gateway._keeper.usage([gateway._keeper.today])
            assert day[1]["anonymous", "sim"]["served"] == 3
    finally:
        logging.getLogger("gateway.bookkeepers").setLevel(logging.NOTSET)
    assert len(path.read_text().splitlines()) == 3
