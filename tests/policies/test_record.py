"""One finished request, as the access log and the simulator's trace reader both know it."""

from dataclasses import asdict, fields, replace

import pytest

from policies.record import MOST_CHARS, Outcome, RequestRecord, record_of

RECORD = RequestRecord(
    id="r",
    arrived_at=1.0,
    tenant="t",
    model="m",
    route="/v1/completions",
    status=200,
    outcome=Outcome.OK,
    code=None,
    is_stream=False,
    pool="p",
    endpoint="e",
    reason="only",
    tries=1,
    queue_s=0.0,
    ttft_s=None,
    tpot_s=None,
    e2e_s=1.0,
    prompt_tokens=3,
    output_tokens=2,
    cached_tokens=0,
    predicted_cached_tokens=None,
)


def test_a_record_has_no_place_for_text() -> None:
    texts = {field.name for field in fields(RequestRecord) if "str" in str(field.type)}
    places = {"id", "trace_id", "tenant", "model", "route", "service_class", "code", "pool", "endpoint", "reason"}
    assert texts == places | {"prefix", "ring_key", "prefix_shape"}


def test_outcomes_are_metric_labels() -> None:
    assert {outcome.value for outcome in Outcome} == {"ok", "client_error", "refused", "failed", "disconnected"}


FULL = replace(
    RECORD,
    is_stream=True,
    ttft_s=0.5,
    tpot_s=0.01,
    cached_tokens=1,
    predicted_cached_tokens=2,
    dispatched_at=1.1,
    first_token_at=1.5,
    finished_at=2.0,
    waited_s=0.05,
    predicted_wait_s=0.1,
    service_class="batch",
    trace_id="0" * 32,
    prefix="AAAAAAAA",
    unit_tokens=64,
    ring_key="BBBBBBBB",
    prefix_shape="1;CCCC;s,10.DDDD",
)


def line(record: RequestRecord = FULL, **changes: object) -> dict[str, object]:
    return {**asdict(record), "outcome": record.outcome.value, **changes}


@pytest.mark.parametrize("record", [RECORD, FULL])
def test_a_line_becomes_the_record_that_it_was(record: RequestRecord) -> None:
    assert record_of(line(record)) == record


def test_no_field_is_forgotten_by_the_reader() -> None:
    unset = {field.name for field in fields(RequestRecord) if getattr(FULL, field.name) in (None, "")}
    assert unset == {"code"}, "set it above, so that reading a line must give it back"


def test_fields_that_are_new_are_not_minded() -> None:
    assert record_of(line(colour="red")) == FULL


def test_fields_that_were_not_known_may_be_missing() -> None:
    told = line(RECORD)
    for name in ("pool", "code", "ttft_s", "output_tokens", "prefix", "is_stream"):
        del told[name]
    assert record_of(told) == replace(RECORD, pool=None, output_tokens=None)


WRONG: dict[str, object] = {
    "nothing": None,
    "a list": [],
    "no schema": {key: value for key, value in line().items() if key != "schema"},
    "a newer schema": line(schema=2),
    "no id": line(id=None),
    "an id of bytes": line(id=5),
    "a tenant without end": line(tenant="x" * (MOST_CHARS + 1)),
    "an outcome of its own": line(outcome="fine"),
    "no time": line(arrived_at=None),
    "a time before time": line(arrived_at=-1.0),
    "a time that is none": line(e2e_s=float("nan")),
    "a time without end": line(e2e_s=1e300),
    "a time in words": line(ttft_s="soon"),
    "a yes for a count": line(prompt_tokens=True),
    "half a token": line(output_tokens=0.5),
    "fewer tokens than none": line(cached_tokens=-1),
    "more tokens than can be": line(prompt_tokens=1 << 40),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_line_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r"is no|is of schema|has no|not a valid"):
        record_of(WRONG[what])
