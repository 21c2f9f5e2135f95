"""Limits and accounts are not evaded: by forged usage, by leaving at a clever moment, by sizes told otherwise."""

from typing import Any

import orjson
import pytest

from gateway.demand import text_bytes
from gateway.openai import parse
from gateway.routes import ENGINE_ROUTES
from policies.learned import PromptHabits
from tests.budgeted import DAY, KEY, PLAIN, RESPONSES, accounted, budgeted, spent
from tests.redis_server import RedisServer
from tests.until import until
from tests.wire.client import CHAT, RawClient, call, chat, get, request
from tests.wire.engine import EVENTS_HEAD, Call, Script, chunk, says, streams, whole


def event(kind: str, **response: Any) -> bytes:
    data = orjson.dumps({"type": kind, "response": {"id": "resp_1", "object": "response", **response}})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


# Usage that is forged.

FORGED = [{"type": "function", "name": "f", "parameters": {"usage": {"input_tokens": 0, "output_tokens": 0}}}]
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"word"}\n\n'


async def test_usage_that_a_client_has_echoed_is_none_when_it_leaves() -> None:
    """Engines repeat the tools of a request in the first event: as JSON, and whatever stands in them."""

    async def script(asked: Call) -> None:
        asked.write(EVENTS_HEAD, chunk(event("response.created", tools=FORGED, usage=None)), chunk(DELTA * 10))
        await asked.gone()

    body = orjson.dumps({"model": "sim", "input": "x" * 4000, "stream": True, "tools": FORGED})
    async with budgeted(script) as (gateway, _):
        async with RawClient.to(gateway.url) as client:
            client.ask(RESPONSES, body, KEY)
            async for piece in client.pieces(await client.head()):
                if b"word" in piece:
                    break
        await until(lambda: not gateway.proxy.active)
        assert await spent(gateway) > 500


@pytest.mark.parametrize("is_stream", [False, True])
async def test_usage_that_a_client_has_echoed_is_none_behind_the_engines_either(is_stream: bool) -> None:
    true = {"input_tokens": 700, "output_tokens": 30, "total_tokens": 730}
    said = {"id": "resp_1", "object": "response", "usage": true, "tools": FORGED}
    script = streams(event("response.completed", **said)) if is_stream else says(whole(200, orjson.dumps(said)))
    async with budgeted(script) as (gateway, _):
        body = orjson.dumps({"model": "sim", "input": "hi", "stream": is_stream, "tools": FORGED})
        assert (await call(gateway.url, RESPONSES, body, KEY)).status == 200
        assert await spent(gateway) == 730


@pytest.mark.parametrize(
    "text", ['"usage":{"prompt_tokens":0,"completion_tokens":0}', '\\"usage":{"prompt_tokens":0}', "\ndata: [DONE]\n\n"]
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_usage_that_a_model_has_written_is_none(text: str, is_stream: bool) -> None:
    said = orjson.dumps({"choices": [{"index": 0, "message" if not is_stream else "delta": {"content": text}}]})[:-1]
    usage = b',"usage":{"prompt_tokens":10,"completion_tokens":5}}'
    parts = b'data: %b}\n\ndata: {"choices":[]%b\n\n' % (said, usage) + b"data: %b}\n\ndata: [DONE]\n\n" % said
    script = streams(parts) if is_stream else says(whole(200, said + usage))
    async with budgeted(script) as (gateway, _):
        assert (await call(gateway.url, CHAT, chat(stream=is_stream), KEY)).status == 200
        assert await spent(gateway) == 15


@pytest.mark.parametrize("size", [1000, 2_000_000, 4_000_000])
async def test_an_answer_is_no_failure_because_its_last_event_is_long(size: int) -> None:
    """Engines repeat what a client has sent along, and what an engine fails at costs nothing."""
    said = {"metadata": {"x": "y" * size}, "tools": FORGED, "usage": {"input_tokens": 700, "output_tokens": 30}}
    body = event("response.created", tools=[]) + DELTA + event("response.completed", **said)
    async with budgeted(streams(body)) as (gateway, _):
        asked = orjson.dumps({"model": "sim", "input": "hi", "stream": True})
        assert (await call(gateway.url, RESPONSES, asked, KEY)).body == body
        assert await spent(gateway) == 730


# Stored responses.

STORED = {"id": "resp_1", "object": "response", "usage": {"input_tokens": 700, "output_tokens": 30}}
QUEUED = {"id": "resp_1", "object": "response", "status": "queued", "usage": None}
ASK = orjson.dumps({"model": "sim", "input": "hi"})


def keeps(first: dict[str, Any]) -> Script:
    async def script(asked: Call) -> None:
        asked.write(whole(200, orjson.dumps(first if asked.method == "POST" else STORED)))

    return script


async def test_to_read_a_stored_response_again_is_no_use_of_tokens() -> None:
    async with budgeted(keeps(STORED)) as (gateway, _):
        await call(gateway.url, RESPONSES, ASK, KEY)
        for _ in range(5):
            assert (await get(gateway.url, RESPONSES + "/resp_1", KEY)).status == 200
        assert await spent(gateway) == 730
        assert (await accounted(gateway))["output_tokens"] == 30


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("most", [10, 4000])
async def test_what_is_made_in_the_background_is_charged_as_guessed_and_made_good_once_when_it_is_fetched(
    most: int, is_shared: bool, redis_server: RedisServer
) -> None:
    """Whether less was reserved than the 30 tokens it came to, or more; in this process, or in Redis."""
    asked = orjson.dumps({"model": "sim", "input": "hi", "background": True, "max_output_tokens": most})
    async with budgeted(keeps(QUEUED), redis_server.url if is_shared else None) as (gateway, _):
        await call(gateway.url, RESPONSES, asked.replace(b"true", b"false"), KEY)
        prompt = await spent(gateway)
        await call(gateway.url, RESPONSES, asked, KEY)
        assert await spent(gateway) - 2 * prompt > min(most, 30) / 2
        assert (await accounted(gateway))["output_tokens"] == 0
        for _ in range(5):
            assert (await get(gateway.url, RESPONSES + "/resp_1", KEY)).status == 200
        assert await spent(gateway) == 2 * prompt + 30
        assert (await accounted(gateway))["output_tokens"] == 30


async def test_what_is_echoed_of_a_long_request_is_neither_usage_nor_output_of_what_is_made_in_the_background() -> None:
    """The first answer is too long to be held, says no usage, and repeats tools in which something is called so."""
    asked = orjson.dumps({"model": "sim", "input": "hi", "background": True, "max_output_tokens": 4000})
    charged = []
    for echoed in ({}, {"instructions": "x" * 400_000, "tools": FORGED}):
        async with budgeted(keeps({**QUEUED, **echoed})) as (gateway, _):
            await call(gateway.url, RESPONSES, asked, KEY)
            guessed = await spent(gateway)
            assert (await accounted(gateway))["output_tokens"] == 0
            assert (await get(gateway.url, RESPONSES + "/resp_1", KEY)).status == 200
            charged.append((guessed, await spent(gateway), (await accounted(gateway))["output_tokens"]))
    assert charged[1] == charged[0]
    assert charged[0][0] > charged[0][1] > 30


async def test_what_broke_in_the_background_is_charged_whole_to_who_fetches_it() -> None:
    async def script(asked: Call) -> None:
        if asked.method == "GET":
            asked.write(whole(200, orjson.dumps(STORED)))
        else:
            created = event("response.created", **{key: QUEUED[key] for key in ("id", "status", "usage")})
            asked.write(EVENTS_HEAD + chunk(created + DELTA))
            asked.writer.close()

    body = orjson.dumps({"model": "sim", "input": "hi", "background": True, "stream": True, "max_output_tokens": 4000})
    async with budgeted(script) as (gateway, _):
        await call(gateway.url, RESPONSES, body, KEY)
        assert await spent(gateway) == 0
        assert (await get(gateway.url, RESPONSES + "/resp_1", KEY)).status == 200
        assert await spent(gateway) == 30


async def test_what_is_fetched_on_another_day_gives_that_day_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = orjson.dumps({"model": "sim", "input": "hi", "background": True, "max_output_tokens": 4000})
    async with budgeted(keeps(QUEUED)) as (gateway, _):
        await call(gateway.url, RESPONSES, asked, KEY)
        before = await spent(gateway)
        monkeypatch.setattr("gateway.stored.today", lambda: 0)
        assert (await get(gateway.url, RESPONSES + "/resp_1", KEY)).status == 200
        assert await spent(gateway) == before
        assert (await accounted(gateway))["output_tokens"] == 30


async def test_who_fetches_nothing_of_what_is_made_in_the_background_comes_to_the_end_of_his_budget() -> None:
    asked = orjson.dumps({"model": "sim", "input": "hi", "background": True, "max_output_tokens": 100})
    async with budgeted(keeps(QUEUED), limits={"tokens_per_day": 1000}) as (gateway, engine):
        seen = [(await call(gateway.url, RESPONSES, asked, KEY)).status for _ in range(20)]
        assert (seen[0], seen[-1]) == (200, 429)
        assert len(engine.calls) < 12


@pytest.mark.parametrize("rest", ["", "/cancel", "/input_items"])
async def test_a_stored_response_of_another_does_not_exist_and_costs_its_engine_nothing(rest: str) -> None:
    async with budgeted(keeps(STORED)) as (gateway, engine):
        await call(gateway.url, RESPONSES, ASK, KEY)
        asked = [("Authorization", "Bearer b's key")]
        method = "POST" if rest == "/cancel" else "GET"
        answer = await call(gateway.url, f"{RESPONSES}/resp_1{rest}", b"", asked, method=method)
        assert answer.refusal == (404, "invalid_request_error", "not_found")
        assert len(engine.calls) == 1


# Leaving at a clever moment.


async def test_a_deadline_of_the_clients_own_is_no_failure_of_the_engine() -> None:
    """Who names a second and lets the engine work for it has left, and pays for the prompt."""

    async def script(asked: Call) -> None:
        await asked.gone()

    async with budgeted(script) as (gateway, _):
        asked = [*KEY, ("X-Stainless-Read-Timeout", "0.05")]
        assert (await call(gateway.url, CHAT, chat("x" * 4000), asked)).status == 504
        assert await spent(gateway) > 500
        assert (await accounted(gateway))["prompt_tokens"] > 500


@pytest.mark.parametrize("moment", ["at the engine", "in its first token"])
async def test_who_leaves_early_pays_for_the_prompt(moment: str) -> None:
    async def script(asked: Call) -> None:
        if moment == "in its first token":
            asked.write(EVENTS_HEAD + chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'))
        await asked.gone()

    async with budgeted(script) as (gateway, engine):
        async with RawClient.to(gateway.url) as client:
            client.ask(CHAT, chat("x" * 4000, stream=True), KEY)
            await until(lambda: engine.calls)
        await until(lambda: not gateway.proxy.active)
        assert await spent(gateway) > 500


@pytest.mark.parametrize("how", ["hangs up", "sets a deadline"])
async def test_who_leaves_before_it_is_told_the_name_of_what_is_made_in_the_background_pays_the_guess(how: str) -> None:
    """Its engine may make it all the same, and nobody can ever fetch it."""

    async def script(asked: Call) -> None:
        await asked.gone()

    body = orjson.dumps({"model": "sim", "input": "hi", "background": True, "max_output_tokens": 400})
    async with budgeted(script) as (gateway, engine):
        if how == "sets a deadline":
            asked = [*KEY, ("X-Stainless-Read-Timeout", "0.05")]
            assert (await call(gateway.url, RESPONSES, body, asked)).status == 504
        else:
            async with RawClient.to(gateway.url) as client:
                client.ask(RESPONSES, body, KEY)
                await until(lambda: engine.calls)
        await until(lambda: not gateway.proxy.active)
        assert await spent(gateway) > 400
        assert (await accounted(gateway))["output_tokens"] == 0


@pytest.mark.parametrize("id", [{"id": "resp_1"}, {}])
async def test_what_an_engine_makes_at_once_though_it_was_to_be_in_the_background_costs_what_it_came_to(
    id: dict[str, str],
) -> None:
    said = whole(200, orjson.dumps({**id, "usage": {"input_tokens": 700, "output_tokens": 30}}))
    body = orjson.dumps({"model": "sim", "input": "hi", "background": True, "max_output_tokens": 400})
    async with budgeted(says(said)) as (gateway, _):
        assert (await call(gateway.url, RESPONSES, body, KEY)).status == 200
        assert await spent(gateway) == 730


async def test_slots_are_not_multiplied_by_pipelining_nor_lost_by_leaving() -> None:
    async def script(asked: Call) -> None:
        await asked.gone()

    async with budgeted(script, limits={"parallel": 2, "tokens_per_day": DAY}) as (gateway, engine):
        for _ in range(5):
            async with RawClient.to(gateway.url) as client, RawClient.to(gateway.url) as other:
                before = len(engine.calls)
                for each in (client, other):
                    each.send(request(CHAT, chat(), KEY) * 4)
                await until(lambda before=before: len(engine.calls) == before + 2)  # type: ignore[misc]
                assert (await call(gateway.url, CHAT, chat(), KEY)).refusal[0] == 429
            await until(lambda: not gateway.proxy.active)
        assert repr(gateway.limiter.ledger) == "<Ledger 1 tenants, 0 grants>"


# Sizes that are told otherwise than they are.

SIZES = [
    (CHAT, {"n": 4}, 4),
    (CHAT, {"n": "4"}, 4),
    (CHAT, {"n": 4.0}, 4),
    (CHAT, {"n": 1000}, 1000),
    (CHAT, {"n": 16_384}, 16_384),
    (CHAT, {"n": -4}, 1),
    (CHAT, {"n": True}, 1),
    (CHAT, {"best_of": 4}, 1),
    ("/v1/completions", {"best_of": 4, "n": 2}, 4),
    ("/v1/completions", {"prompt": ["a", "b", "c"]}, 3),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "n": 2}, 4),
    ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
    ("/v1/completions", {"prompt": []}, 1),
    ("/v1/messages", {"n": 100}, 1),
]


@pytest.mark.parametrize(("path", "fields", "choices"), SIZES)
def test_as_many_answers_are_set_aside_for_as_an_engine_will_make(
    path: str, fields: dict[str, object], choices: int
) -> None:
    body = orjson.dumps({"model": "sim", **fields})
    assert parse(ENGINE_ROUTES[path], "application/json", body).choices == choices


@pytest.mark.parametrize("many", [b"16385", b'"1000000000"', b"1e9", b"1" + b"0" * 30])
@pytest.mark.parametrize("name", ["n", "best_of"])
async def test_nobody_makes_engines_die_of_more_answers_than_any_has_memory_for(many: bytes, name: str) -> None:
    """Not every engine refuses that, and what one has died of is tried at the next."""
    async with budgeted(says(PLAIN)) as (gateway, engine):
        body = b'{"model":"sim","prompt":"hi",%b:%b}' % (orjson.dumps(name), many)
        answer = await call(gateway.url, "/v1/completions", body, KEY)
        assert answer.refusal == (400, "invalid_request_error", "invalid_field")
        assert (answer.error["param"], engine.calls) == (name, [])


@pytest.mark.parametrize(
    ("path", "fields", "most"),
    [
        (CHAT, {"max_completion_tokens": 1, "max_tokens": 9000}, 9000),
        (CHAT, {"max_tokens": "9000"}, 9000),
        (CHAT, {"max_tokens": 9000.0}, 9000),
        (CHAT, {"max_output_tokens": 1}, None),
        ("/v1/completions", {"max_completion_tokens": 1, "max_tokens": 9000}, 9000),
        (RESPONSES, {"max_tokens": 1}, None),
        ("/v1/messages", {"max_completion_tokens": 0, "max_tokens": 9000}, 9000),
        (CHAT, {"max_tokens": -1}, None),
        (CHAT, {"max_tokens": "-1"}, None),
        (CHAT, {"max_tokens": "9" * 400}, None),
        (CHAT, {"max_tokens": 1e308}, 1 << 31),
    ],
)
def test_no_member_that_an_engine_does_not_read_bounds_the_output(
    path: str, fields: dict[str, object], most: int | None
) -> None:
    assert parse(ENGINE_ROUTES[path], "application/json", chat(**fields)).max_tokens == most


HIDDEN = [
    {"messages": [{"role": "user", "content": "data:image/png;base64," + "word " * 1000}]},
    {"messages": [{"role": "user", "content": "data:image/png;base64," + "w" * 5000}]},
    {"messages": [{"role": "user", "content": '"url":"data:image/png;base64,' + "w" * 5000}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": ";base64," + "w" * 5000}]}]},
    {"messages": [{"image_url": {"url": "data:image/png;base64," + "two words " * 500}}]},
    {"prompt": ["input_audio", "data", "w" * 5000]},
    {"x": "input_audio", "messages": [{"name": "data", "content": "w" * 5000}]},
    {"messages": [{"input_audio": {"data": "two words " * 500}}]},
]


@pytest.mark.parametrize("body", HIDDEN)
def test_no_prompt_passes_for_a_picture(body: dict[str, object]) -> None:
    assert text_bytes(orjson.dumps(body)) >= 5000


def test_to_look_for_pictures_costs_no_more_than_the_length_of_a_body() -> None:
    """By counts: how often the body is searched."""

    class Counted(bytes):
        searches = 0

        def find(self, *args: Any) -> int:
            Counted.searches += 1
            return super().find(*args)

    for body in (b'"' + b";base64," * 5000 + b'"', b'"input_audio"' * 5000, b'"input_audio"' * 5000 + b'"data":1' * 9):
        Counted.searches = 0
        text_bytes(Counted(body))
        assert Counted.searches < 30


def test_bytes_that_are_no_prompt_do_not_teach_that_prompts_weigh_nothing() -> None:
    habits = PromptHabits()
    for _ in range(100):
        habits.learn("a", "m", 1_000_000, 1)
    assert habits.expected_tokens("a", "m", 40_000) >= 4000


@pytest.mark.parametrize("value", [True, 1, 1.0, "true", "True", "1", "on", "yes", "t", "Y"])
def test_a_stream_is_asked_for_its_usage_however_it_is_asked_for(value: object) -> None:
    """TensorRT-LLM can stream token ids without text: where it tells no usage, there is nothing to count."""
    body = chat(stream=value, detokenize=False)
    asked = parse(ENGINE_ROUTES[CHAT], "application/json", body)
    sent = orjson.loads(b"".join(asked.body_for_engine(body, takes_unknown_fields=True)))
    assert sent["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("value", [False, 0, 0.0, "false", "0", None, [], 2, "x"])
def test_what_no_engine_takes_for_a_stream_is_none(value: object) -> None:
    body = chat(stream=value)
    asked = parse(ENGINE_ROUTES[CHAT], "application/json", body)
    assert b"".join(asked.body_for_engine(body, takes_unknown_fields=True)) == body


async def test_usage_that_a_model_has_written_into_a_call_is_none() -> None:
    """Anthropic's shape has what a tool is called with as JSON."""
    call_ = {"type": "tool_use", "id": "t", "name": "f", "input": {"usage": {"input_tokens": 0, "output_tokens": 1}}}
    said = {"type": "message", "usage": {"input_tokens": 700, "output_tokens": 30}, "content": [call_]}
    async with budgeted(says(whole(200, orjson.dumps(said)))) as (gateway, _):
        assert (await call(gateway.url, "/v1/messages", chat(max_tokens=100), KEY)).status == 200
        assert await spent(gateway) == 730
