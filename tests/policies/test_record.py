"""One finished request, as the access log and the simulator's trace reader both know it."""

from dataclasses import fields

from policies.record import Outcome, RequestRecord

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
    assert texts == {"id", "tenant", "model", "route", "code", "pool", "endpoint", "reason", "prefix_shape"}


def test_outcomes_are_metric_labels() -> None:
    assert {outcome.value for outcome in Outcome} == {"ok", "client_error", "refused", "failed", "disconnected"}
