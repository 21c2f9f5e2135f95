"""Findings: advice follows from the figures, by rules that are told."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from gateway.profile.findings import Section, duration, percent, seconds, sections
from gateway.profile.portrait import Profile
from policies.record import Outcome, RequestRecord
from tests.gateway.profile.test_portrait import ASKED, PRINTS, drawn


def told(records: Iterable[RequestRecord]) -> dict[str, Section]:
    return {section.name: section for section in sections(drawn(*records))}


def advice(records: Iterable[RequestRecord], name: str) -> str:
    return " ".join(told(records)[name].advice)


def poisson(count: int, **changes: object) -> list[RequestRecord]:
    chance, at, found = Random(1), 0.0, []
    for _ in range(count):
        at += chance.expovariate(2)
        found.append(replace(ASKED, arrived_at=at, **changes))  # type: ignore[arg-type]  # fields of a record
    return found


def own(records: list[RequestRecord]) -> list[RequestRecord]:
    chance = Random(2)
    return [replace(each, prefix=PRINTS.of([chance.getrandbits(64) for _ in range(15)])) for each in records]  # type: ignore[misc]  # hashes


def test_every_section_says_what_it_decides_and_its_rows_fit_its_header() -> None:
    found = told(poisson(50))
    assert list(found) == [
        "traffic", "lengths", "pools", "caching", "beginnings", "times", "tenants", "models",
    ]  # fmt: skip
    for section in found.values():
        assert section.decides
        assert {len(row) for row in section.rows} <= {len(section.header)}


def test_nothing_but_mistakes_has_traffic_and_no_more() -> None:
    found = told([replace(ASKED, outcome=Outcome.CLIENT_ERROR)])
    assert list(found) == ["traffic"]
    assert found["traffic"].rows == [("requests", "1"), ("over", "-"), ("of them client_error", "1")]


def test_a_few_long_prompts_that_are_much_of_the_work_get_a_pool() -> None:
    long = poisson(5, prompt_tokens=50_000)
    assert "From 4,096 tokens on, 4.8 % of the requests" in advice(poisson(100) + long, "pools")
    assert "one pool is enough" in advice(poisson(100), "pools")


def test_bursts_get_a_queue() -> None:
    bursts = [replace(each, arrived_at=each.arrived_at // 20 * 20) for each in poisson(200)]
    assert "bursts" in advice(bursts, "traffic")
    assert "even" in advice(poisson(200), "traffic")
    assert not {"bursts", "even"} & set(advice([*poisson(200), *poisson(200)], "traffic").split())


def test_prompts_that_share_nothing_are_routed_by_load() -> None:
    assert "next to nothing" in advice(own(poisson(50)), "caching")


def test_what_was_computed_again_is_told() -> None:
    again = advice(poisson(50, cached_tokens=0), "caching")
    assert "94.1 % of all prompt tokens were computed again" in again
    assert "find what there is" in advice(poisson(50, cached_tokens=940), "caching")


def test_without_fingerprints_nothing_is_claimed() -> None:
    assert "not known" in advice(poisson(50, unit_tokens=None), "caching")


def test_engines_that_do_not_tell_are_not_blamed() -> None:
    words = advice(poisson(50, cached_tokens=None), "caching")
    assert "computed again" not in words
    assert "find what" not in words


def test_waits_speak_of_engines_and_classes() -> None:
    assert "One in twenty waits over 3" in advice(poisson(50, waited_s=3.0), "times")
    assert "Hardly anybody" in advice(poisson(50), "times")
    assert "prefill is what takes time" in advice(poisson(50, ttft_s=9.0), "times")
    assert advice(poisson(50, waited_s=None, ttft_s=9.0), "times") == ""


def test_classes_are_set_side_by_side_where_there_are_several() -> None:
    rows = told([*poisson(5), *poisson(5, service_class="interactive")])["times"].rows
    assert [row[0] for row in rows[-2:]] == ["queue wait, batch", "queue wait, interactive"]


def test_lengths_say_what_the_work_is() -> None:
    assert "prefill is the work" in advice(poisson(5, prompt_tokens=9000), "lengths")
    assert "decoding is the work" in advice(poisson(5, prompt_tokens=100), "lengths")
    assert told(poisson(5, output_tokens=None))["lengths"].advice == []


def test_the_largest_tenants_come_first_and_the_rest_is_counted() -> None:
    rows = told([replace(ASKED, tenant=f"t{at}", prompt_tokens=1000 + at) for at in range(15)])["tenants"].rows
    assert (rows[0][0], rows[-1][0], len(rows)) == ("t14", "and 5 more", 11)


@pytest.mark.parametrize(
    ("value", "words"), [(0.0, "0 s"), (12.34, "12.3 s"), (130.0, "2.2 min"), (9000.0, "2.5 h"), (200_000.0, "2.3 d")]
)
def test_times_are_worded_in_the_unit_that_reads_best(value: float, words: str) -> None:
    assert duration(value) == words


def test_short_times_and_shares() -> None:
    assert (seconds(0.0123), seconds(2.0), percent(None), percent(0.1234)) == ("12.3 ms", "2 s", "-", "12.3 %")


def test_an_empty_profile_has_something_to_say() -> None:
    assert [section.name for section in sections(Profile())] == ["traffic"]
