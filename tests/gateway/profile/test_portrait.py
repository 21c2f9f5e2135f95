"""Portrait, Profile: whose requests count for what."""

from dataclasses import replace

import pytest

from gateway.profile.portrait import MOST_GROUPS, OTHERS, Profile
from policies.fingerprint import Fingerprinter
from policies.record import Outcome, RequestRecord
from policies.request import BlockHash
from tests.policies.test_record import FULL

PRINTS = Fingerprinter(b"test")
ASKED = replace(
    FULL,
    prompt_tokens=1000,
    output_tokens=100,
    cached_tokens=640,
    predicted_cached_tokens=512,
    prefix=PRINTS.of(tuple(map(BlockHash, range(15)))),
    queue_s=0.5,
    e2e_s=4.5,
)


def drawn(*records: RequestRecord, tenant: str | None = None, model: str | None = None) -> Profile:
    profile = Profile(tenant, model)
    profile.draw(records)
    return profile


def test_a_request_counts_for_all_its_tenant_its_model_and_its_class() -> None:
    profile = drawn(ASKED, replace(ASKED, tenant="u"), replace(ASKED, model="", service_class=None))
    assert profile.whole.requests == 3
    assert {name: each.requests for name, each in profile.tenants.items()} == {"t": 2, "u": 1}
    assert {name: each.requests for name, each in profile.models.items()} == {"m": 2}
    assert {name: each.requests for name, each in profile.classes.items()} == {"batch": 2}


def test_what_is_asked_for_is_all_that_counts() -> None:
    records = [replace(ASKED, tenant=tenant, model=model) for tenant in "tu" for model in "mn"]
    assert drawn(*records, tenant="t").whole.requests == 2
    assert drawn(*records, model="n").whole.requests == 2
    assert drawn(*records, tenant="t", model="n").whole.requests == 1


def test_hit_rates_are_shares_of_the_prompts_of_which_they_are_told() -> None:
    whole = drawn(ASKED, replace(ASKED, cached_tokens=None, predicted_cached_tokens=None)).whole
    assert (whole.reached, whole.predicted) == (0.64, 0.512)
    assert whole.reachable == 15 * 64 / 2000  # the second finds the units of the first


def test_an_engine_that_tells_of_more_than_there_is_is_not_believed() -> None:
    assert drawn(replace(ASKED, cached_tokens=5000)).whole.reached == 1.0


def test_nothing_told_is_no_rate() -> None:
    whole = drawn(replace(ASKED, cached_tokens=None, predicted_cached_tokens=None, unit_tokens=None, prefix="")).whole
    assert (whole.reached, whole.predicted, whole.reachable) == (None, None, None)


def test_a_fingerprint_that_is_none_costs_nothing_but_itself() -> None:
    whole = drawn(replace(ASKED, prefix="odd")).whole
    assert (whole.requests, whole.reachable) == (1, 0.0)


def test_a_clients_mistake_is_an_outcome_and_no_more() -> None:
    whole = drawn(replace(ASKED, outcome=Outcome.CLIENT_ERROR)).whole
    assert (whole.requests, whole.arrivals.count, whole.prompt_tokens.count, whole.reachable) == (1, 0, 0, None)


def test_what_was_refused_was_asked_for_and_not_served() -> None:
    whole = drawn(replace(ASKED, outcome=Outcome.REFUSED, output_tokens=None)).whole
    assert (whole.arrivals.count, whole.prompt_tokens.count, whole.waited_s.count) == (1, 1, 1)
    assert (whole.output_tokens.count, whole.e2e_s.count, whole.told_tokens) == (0, 0, 0)


def test_waits_are_compared_with_what_was_predicted() -> None:
    whole = drawn(ASKED).whole
    assert whole.wait_error_s.mean == pytest.approx(0.05)


def test_requests_at_a_time_are_their_time_at_engines_over_the_time() -> None:
    whole = drawn(ASKED, replace(ASKED, arrived_at=9.0)).whole
    assert (whole.arrivals.span_s, whole.in_flight, whole.held_tokens) == (8.0, 1.0, 1050.0)


def test_tenants_beyond_all_measure_are_counted_together() -> None:
    profile = drawn(*(replace(ASKED, tenant=f"t{at}") for at in range(MOST_GROUPS + 50)))
    assert len(profile.tenants) == MOST_GROUPS + 1
    assert profile.tenants[OTHERS].requests == 50
