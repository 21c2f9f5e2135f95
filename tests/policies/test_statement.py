"""A statement: the sums of days, put together as somebody asks for them."""

import pytest

from policies.accounts import Sums
from policies.statement import By, Row, Usage, rows

TOTAL = "all of it"
DAYS: list[tuple[str, Sums]] = [
    ("2027-01-31", {("a", "m"): {"served": 1}, ("b", "m"): {"served": 2}}),
    ("2027-02-01", {("a", "m"): {"served": 4}, ("a", "n"): {"served": 8}}),
    ("2027-02-02", {("a", "m"): {"served": 16}}),
]


def served(found: list[Row]) -> list[tuple[str, str, str, int]]:
    return [(row.period, row.tenant, row.model, row.usage.counts["served"]) for row in found]


def test_by_day_each_day_has_its_rows() -> None:
    assert served(rows(DAYS, By.DAY, TOTAL, tenant="a", model="m")) == [
        ("2027-01-31", "a", "m", 1),
        ("2027-02-01", "a", "m", 4),
        ("2027-02-02", "a", "m", 16),
    ]


def test_by_month_days_are_added_up() -> None:
    assert served(rows(DAYS, By.MONTH, TOTAL)) == [
        ("2027-01", "a", "m", 1),
        ("2027-01", "b", "m", 2),
        ("2027-02", "a", "m", 20),
        ("2027-02", "a", "n", 8),
    ]


def test_in_total_all_are_added_up() -> None:
    assert served(rows(DAYS, By.TOTAL, TOTAL)) == [
        (TOTAL, "a", "m", 21),
        (TOTAL, "a", "n", 8),
        (TOTAL, "b", "m", 2),
    ]


@pytest.mark.parametrize(("who", "count"), [({"tenant": "b"}, 1), ({"model": "n"}, 1), ({"tenant": "nobody"}, 0)])
def test_others_rows_are_left_out(who: dict[str, str], count: int) -> None:
    assert len(rows(DAYS, By.DAY, TOTAL, **who)) == count


def test_the_sums_that_a_statement_is_made_of_stay_as_they_are() -> None:
    rows(DAYS, By.TOTAL, TOTAL)
    rows(DAYS, By.TOTAL, TOTAL)
    assert DAYS[0] == ("2027-01-31", {("a", "m"): {"served": 1}, ("b", "m"): {"served": 2}})


def test_figures_are_all_there_even_where_nothing_was() -> None:
    assert set(Usage({}).figures().values()) == {0}
    assert Usage({}).refusals == {}


def test_requests_are_all_that_came_whatever_became_of_them() -> None:
    counts = {"served": 1, "failed": 2, "disconnected": 4, "client_errors": 8, "refused:b": 16, "refused:a": 32}
    usage = Usage(counts)
    assert (usage.figures()["requests"], usage.figures()["refused"]) == (63, 48)
    assert list(usage.refusals.items()) == [("a", 32), ("b", 16)]


def test_units_are_those_that_people_read() -> None:
    counts = {"prompt_tokens": 10, "cached_tokens": 4, "cost_nanos": 1500, "engine_us": 2_500_000}
    figures = Usage(counts).figures()
    assert figures["uncached_tokens"] == 6
    assert (figures["cost_micros"], figures["engine_s"]) == (2, 2.5)
