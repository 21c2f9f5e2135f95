"""What tenants have used: whole numbers, by the day on which a request came, each request once."""

from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import pairwise
from random import Random

import pytest

from policies.accounts import (
    DAY_S,
    MAX_CODES,
    OTHER,
    Accounts,
    Sums,
    add,
    added,
    day_name,
    days_between,
    is_charged,
    parts,
)
from policies.record import Outcome, RequestRecord
from policies.tariff import MILLION, Tariff
from tests.policies.test_record import RECORD

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()
DAY = "2027-01-31"
SERVED = replace(
    RECORD, arrived_at=NOON, prompt_tokens=1000, cached_tokens=600, output_tokens=50, queue_s=0.5, e2e_s=2.5
)
TARIFF = Tariff.of(cached_weight=0.1, output_weight=2, input_price=0.15, cached_price=0.075, output_price=0.6)
"""Of each served request: 400 + 60 + 100 tokens, and 60 + 45 + 30 millionths."""


def noted(*records: RequestRecord, tariff: Tariff = TARIFF, most: int = 100) -> Accounts:
    accounts = Accounts(lambda tenant, model: tariff, most)
    for record in records:
        accounts.note(record)
    return accounts


def counts(*records: RequestRecord, tariff: Tariff = TARIFF) -> dict[str, int]:
    """Note records of one tenant, model and day."""
    return noted(*records, tariff=tariff).take()[DAY]["t", "m"]


# A request.


def test_a_served_request_is_counted_with_all_it_used() -> None:
    assert counts(SERVED) == {
        "served": 1,
        "prompt_tokens": 1000,
        "cached_tokens": 600,
        "output_tokens": 50,
        "weighted_tokens": 560,
        "cost_nanos": 135_000,
        "engine_us": 2_000_000,
    }


def test_requests_add_up() -> None:
    once, twice = counts(SERVED), counts(SERVED, SERVED)
    assert twice == {name: 2 * count for name, count in once.items()}


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (replace(SERVED, outcome=Outcome.FAILED, status=502), "failed"),
        (replace(SERVED, outcome=Outcome.FAILED, status=200, code="stream_broken"), "failed"),
        (replace(SERVED, outcome=Outcome.CLIENT_ERROR, status=400), "client_errors"),
        (replace(SERVED, outcome=Outcome.REFUSED, status=429, code="insufficient_quota"), "refused:insufficient_quota"),
        (replace(SERVED, outcome=Outcome.REFUSED, status=503, code=None), "refused:other"),
        (replace(SERVED, outcome=Outcome.DISCONNECTED, status=499, tries=0), "disconnected"),
    ],
)
def test_what_nobody_served_is_counted_and_costs_nothing(record: RequestRecord, name: str) -> None:
    assert not is_charged(record)
    assert counts(record) == {name: 1}


def test_a_client_that_leaves_an_engine_at_work_pays_for_what_is_known() -> None:
    found = counts(replace(SERVED, outcome=Outcome.DISCONNECTED, status=499, output_tokens=None, cached_tokens=None))
    assert (found["disconnected"], found["prompt_tokens"], found["weighted_tokens"]) == (1, 1000, 1000)
    assert not {"served", "output_tokens", "cached_tokens"} & found.keys()


def test_a_list_of_models_is_nobodys_usage() -> None:
    assert noted(replace(SERVED, tries=0)).take() == {}


def test_what_is_cached_is_as_predicted_where_the_engine_is_silent() -> None:
    silent = replace(SERVED, cached_tokens=None, predicted_cached_tokens=500)
    assert counts(silent)["cached_tokens"] == 500
    assert "cached_tokens" not in counts(replace(silent, cached_tokens=0))


def test_no_more_is_cached_than_there_is() -> None:
    assert counts(replace(SERVED, prompt_tokens=10, cached_tokens=600))["cached_tokens"] == 10


def test_a_request_without_a_model_is_of_none() -> None:
    lost = replace(SERVED, model="", outcome=Outcome.CLIENT_ERROR, tries=0)
    assert noted(lost, replace(lost, model="none")).take() == {DAY: {("t", "none"): {"client_errors": 2}}}


def test_refusals_of_more_codes_than_there_can_be_are_others() -> None:
    refused = replace(SERVED, outcome=Outcome.REFUSED, tries=0)
    found = counts(*(replace(refused, code=f"c{at}") for at in range(MAX_CODES + 5)))
    assert len(found) == MAX_CODES + 1
    assert found["refused:other"] == 5


# Tariffs.


def test_tokens_count_one_each_and_cost_nothing_unless_it_is_said() -> None:
    assert (Tariff().weighted_tokens(1000, 600, 50), Tariff().cost_nanos(1000, 600, 50)) == (1050, 0)
    assert Tariff.of() == Tariff()


def test_weighted_tokens_are_rounded_up() -> None:
    assert Tariff.of(cached_weight=0.1).weighted_tokens(11, 11, 0) == 2
    assert Tariff.of(cached_weight=0.1).weighted_tokens(10, 10, 0) == 1


def test_a_cost_is_to_the_nearest_nano_unit() -> None:
    assert Tariff.of(input_price=0.02).cost_nanos(10, 0, 0) == 200
    assert Tariff.of(input_price=0.0004).cost_nanos(1, 0, 0) == 0
    assert Tariff.of(input_price=0.0005).cost_nanos(1, 0, 0) == 1


def test_a_million_requests_cost_exactly_a_million_times_as_much() -> None:
    """N = 1,000,000 prompts of 7 tokens at 0.1 a million; floats would be off by then."""
    tiny = replace(SERVED, prompt_tokens=7, cached_tokens=0, output_tokens=0)
    taken = noted(*[tiny] * 1000, tariff=Tariff.of(input_price=0.1)).take()[DAY]
    sums: Sums = {}
    for _ in range(1000):
        add(sums, taken)
    assert sums["t", "m"]["cost_nanos"] == 700 * MILLION


def test_a_tariff_that_changed_counts_after_the_next_take() -> None:
    tariff = [Tariff.of(input_price=1)]
    accounts = Accounts(lambda tenant, model: tariff[0])
    plain = replace(SERVED, prompt_tokens=10, cached_tokens=0, output_tokens=0)
    accounts.note(plain)
    tariff[0] = Tariff.of(input_price=2)
    accounts.note(plain)
    assert accounts.take()[DAY]["t", "m"]["cost_nanos"] == 20_000
    accounts.note(plain)
    assert accounts.take()[DAY]["t", "m"]["cost_nanos"] == 20_000


# Days, and who.


def test_a_request_is_of_the_day_on_which_it_came() -> None:
    midnight = datetime(2027, 2, 1, tzinfo=UTC).timestamp()
    accounts = noted(replace(SERVED, arrived_at=midnight - 0.001, e2e_s=600), replace(SERVED, arrived_at=midnight))
    assert [(day, sums["t", "m"]["served"]) for day, sums in accounts.take().items()] == [(DAY, 1), ("2027-02-01", 1)]


def test_tenants_and_models_are_told_apart() -> None:
    accounts = noted(SERVED, replace(SERVED, model="n"), replace(SERVED, tenant="u"))
    assert set(accounts.sums_of(DAY)) == {("t", "m"), ("t", "n"), ("u", "m")}
    assert accounts.sums_of("2027-02-01") == {}


def test_what_is_taken_is_gone_and_what_is_only_read_is_not() -> None:
    accounts = noted(SERVED)
    assert accounts.sums() == accounts.take()
    assert (len(accounts), accounts.take()) == (0, {})


def test_more_than_there_is_room_for_is_of_other_and_nothing_is_lost() -> None:
    """R = 500 tenants, where there is room for 50; each at a price of its own."""
    accounts = Accounts(lambda tenant, model: Tariff.of(input_price=int(tenant[1:])), most=50)
    for _ in range(2):
        for at in range(500):
            accounts.note(replace(SERVED, tenant=f"t{at}", prompt_tokens=1, cached_tokens=0, output_tokens=0))
    sums = accounts.take()[DAY]
    assert len(sums) == 51
    assert sums[OTHER, OTHER]["served"] == 900
    assert sum(each.get("cost_nanos", 0) for each in sums.values()) == 2 * sum(range(500)) * 1000


# Sums.


def test_sums_are_the_same_in_any_order_and_any_parts() -> None:
    """N = 400 records of 3 tenants and 3 models over 3 days, R = 20 orders, seed 7."""
    chance = Random(7)
    records = [
        replace(
            SERVED,
            tenant=f"t{chance.randrange(3)}",
            model=f"m{chance.randrange(3)}",
            arrived_at=NOON + DAY_S * chance.randrange(3),
            prompt_tokens=chance.randrange(5000),
            outcome=chance.choice(list(Outcome)),
        )
        for _ in range(400)
    ]
    whole = noted(*records).take()
    for _ in range(20):
        chance.shuffle(records)
        cuts = [0, *sorted(chance.sample(range(1, 400), 5)), 400]
        days: dict[str, Sums] = {}
        for start, end in pairwise(cuts):
            for day, sums in noted(*records[start:end]).take().items():
                for part in parts(sums, 2):
                    add(days.setdefault(day, {}), part)
        assert days == whole


def test_sums_without_room_go_to_other() -> None:
    sums: Sums = {("a", "m"): {"served": 1}}
    add(sums, {("a", "m"): {"served": 1}, ("b", "m"): {"served": 2}, ("c", "m"): {"failed": 3}}, most=1)
    assert sums == {("a", "m"): {"served": 2}, (OTHER, OTHER): {"served": 2, "failed": 3}}


def test_counts_add_up_name_by_name() -> None:
    assert added([{"served": 1}, {"served": 2, "failed": 1}]) == {"served": 3, "failed": 1}
    assert added([]) == {}


def test_days_have_names() -> None:
    assert (day_name(0), day_name(int(NOON // DAY_S))) == ("1970-01-01", DAY)
    assert days_between(date(2028, 2, 28), date(2028, 3, 1)) == ["2028-02-28", "2028-02-29", "2028-03-01"]
    assert days_between(date(2028, 2, 2), date(2028, 2, 1)) == []
