"""What a request may come to, and what it came to in the end."""

from typing import Any

import orjson
import pytest

from gateway import openai
from gateway.demand import Demand, Guess, text_bytes
from gateway.exchange import Exchange
from gateway.routes import ENGINE_ROUTES
from gateway.tenants import Tenant
from gateway.trace import Trace
from gateway.usage import Usage
from policies.endpoint import Endpoint
from policies.learned import OutputHabits
from policies.policy import Choice, Reason
from policies.record import Outcome
from policies.request import InferenceRequest
from policies.tariff import NOTHING, Amounts, Tariff

CHAT = "/v1/chat/completions"
PRICED = Tariff.of(input_price=1.0, output_price=2.0)
TARIFFS = {"cheap": Tariff.of(cached_weight=0.5)}
GUESS = Guess(NOTHING, NOTHING, 0)


def exchange(body: dict[str, Any], tenant: Tenant, path: str = CHAT) -> Exchange:
    data = orjson.dumps({"model": "m", **body})
    route = ENGINE_ROUTES[path]
    call = openai.parse(route, "application/json", data)
    return Exchange(route, "POST", path, b"", data, call, tenant, InferenceRequest("r", "m"))


def demand() -> Demand:
    return Demand(lambda tenant, model: TARIFFS.get(tenant, PRICED), OutputHabits())


def ended(outcome: Outcome, *, tries: int = 1, usage: Usage | None = None, counted: int = 0) -> Trace:
    return Trace(
        "r", CHAT, 0.0, model="m", prompt_tokens=100, outcome=outcome, tries=tries, usage=usage, counted_tokens=counted
    )


def test_a_prompt_is_guessed_from_its_bytes_and_output_from_habits() -> None:
    asked = exchange({"messages": [{"role": "user", "content": "x" * 4000}]}, Tenant("t"))
    estimate, kept, *_ = demand().guess(asked, "m")
    assert kept.tokens == pytest.approx(1020, abs=10)
    assert estimate.tokens == kept.tokens + 512
    assert estimate.cost == 1000 * (kept.tokens + 2 * 512)


def test_what_is_set_aside_is_what_the_request_allows_and_the_tenants_cap() -> None:
    asked = {"messages": [], "max_tokens": 50, "n": 3}
    least, kept, *_ = demand().guess(exchange(asked, Tenant("t")), "m")
    assert least.tokens - kept.tokens == 150
    least, kept, *_ = demand().guess(exchange(asked, Tenant("t", max_reserved_output_tokens=70)), "m")
    assert least.tokens - kept.tokens == 70


def test_what_generates_nothing_has_no_output_and_what_computes_nothing_no_prompt() -> None:
    estimate, kept, *_ = demand().guess(exchange({"input": "x" * 400}, Tenant("t"), "/v1/embeddings"), "m")
    assert estimate == kept
    assert kept.tokens > 100
    assert demand().guess(exchange({"prompt": "x" * 400}, Tenant("t"), "/tokenize"), "m")[0] == Amounts(1, 0, 0)


def test_the_guess_learns_how_many_tokens_a_tenants_bytes_are() -> None:
    its = demand()
    asked = exchange({"messages": [{"role": "user", "content": "語" * 1000}]}, Tenant("t"))
    for _ in range(5):
        its.came_to(asked.tenant, ended(Outcome.OK, usage=Usage(1500, 1, None)), its.guess(asked, "m"))
    assert its.guess(asked, "m").kept.tokens == pytest.approx(1500, rel=0.01)


@pytest.mark.parametrize(
    ("trace", "amounts"),
    [
        (ended(Outcome.OK, usage=Usage(90, 20, None)), Amounts(1, 110, 130000)),
        (ended(Outcome.OK, usage=Usage(90, 0, 0)), Amounts(1, 90, 90000)),
        (ended(Outcome.OK, counted=7), Amounts(1, 107, 114000)),
        (ended(Outcome.DISCONNECTED, counted=10), Amounts(1, 110, 120000)),
        (ended(Outcome.DISCONNECTED, tries=0), Amounts(1, 0, 0)),
        (ended(Outcome.CLIENT_ERROR, tries=0), Amounts(1, 0, 0)),
        (ended(Outcome.FAILED, counted=50), NOTHING),
        (ended(Outcome.REFUSED, tries=0), NOTHING),
    ],
)
def test_what_is_charged_depends_on_how_it_ended(trace: Trace, amounts: Amounts) -> None:
    assert demand().came_to(Tenant("t"), trace, GUESS) == amounts


def test_what_the_engine_does_not_say_is_cached_is_what_was_predicted() -> None:
    tenant = Tenant("cheap")
    trace = ended(Outcome.OK, usage=Usage(100, 10, None))
    trace.choice = Choice(Endpoint("e", "http://e"), Reason.PREFIX, 80)
    assert demand().came_to(tenant, trace, GUESS).tokens == 20 + 40 + 10
    trace.usage = Usage(100, 10, 0)
    assert demand().came_to(tenant, trace, GUESS).tokens == 110


def test_pictures_and_sound_are_no_text() -> None:
    picture = b'{"url":"data:image/png;base64,' + b"A" * 100_000 + b'"}'
    sound = b'{"type":"input_audio","input_audio":{"data":"' + b"B" * 50_000 + b'","format":"wav"}}'
    assert text_bytes(picture + sound + b"text") < 150
    assert text_bytes(b'"input_audio" and nothing behind it') == 35
    assert text_bytes(b"data;base64,AAAA") == 16
