"""/v1/responses: a stored response is found at the engine that holds it, by its owner and by nobody else."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.app import Gateway
from loadtests.cluster import Cluster
from loadtests.server import SimulatedEngine
from loadtests.settings import Settings
from tests.until import until
from tests.wire.client import Answer, call, events, get
from tests.wire.house import asked, metric, no_generation, ready_endpoints, serving, tenant

ROUTE = "/v1/responses"
TENANTS = [tenant("a"), tenant("b")]
A = [("Authorization", "Bearer a's key")]
B = [("Authorization", "Bearer b's key")]
VERBS = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Four engines that answer at once."""
    async with Cluster(4, Settings(time_scale=0, mean_output_tokens=5)) as cluster:
        yield cluster
        await no_generation(cluster)


@pytest.fixture
async def gateway(cluster: Cluster) -> AsyncIterator[Gateway]:
    """A gateway in front of all four, which by itself would take them in turns."""
    async with serving(*cluster.urls, policy="round_robin") as gateway:
        yield gateway


def ask(text: str = "Hello", **fields: Any) -> bytes:
    return orjson.dumps({"model": "sim", "input": text, **fields})


def id_of(answer: Answer) -> str:
    """Read the id of a response, streamed or not."""
    assert answer.status == 200, answer
    if answer.head["content-type"].startswith("text/event-stream"):
        first = orjson.loads(next(events(answer.body)))
        return str(first["response"]["id"])
    return str(answer.json["id"])


def calls(cluster: Cluster) -> list[int]:
    """Count what each engine was asked."""
    return [len(asked(engine)) for engine in cluster]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_each_turn_goes_to_the_engine_that_holds_the_one_before(
    gateway: Gateway, cluster: Cluster, is_stream: bool
) -> None:
    """Eight conversations, their turns in turns."""
    before: dict[int, tuple[str, str]] = {}
    for turn in range(4):
        for conversation in range(8):
            previous = {"previous_response_id": before[conversation][0]} if turn else {}
            answer = await call(gateway.url, ROUTE, ask(f"{conversation} {turn}", stream=is_stream, **previous))
            where = answer.head["x-kvlane-endpoint"]
            if turn:
                assert where == before[conversation][1]
                assert answer.head["x-kvlane-reason"] == "holds"
            before[conversation] = id_of(answer), where
    assert {where for _, where in before.values()} == {"E0", "E1", "E2", "E3"}
    assert sum(calls(cluster)) == 32


@pytest.mark.parametrize(("method", "rest"), VERBS)
async def test_a_stored_response_is_served_by_its_holder(
    gateway: Gateway, cluster: Cluster, method: str, rest: str
) -> None:
    """One request, one engine call (R13), and the answer as the engine gave it."""
    made = [await call(gateway.url, ROUTE, ask(str(at))) for at in range(4)]
    before = calls(cluster)
    for answer in made:
        found = await call(gateway.url, f"{ROUTE}/{id_of(answer)}{rest}?limit=5", method=method)
        assert found.status == 200
        assert found.head["x-kvlane-endpoint"] == answer.head["x-kvlane-endpoint"]
        if method == "GET" and not rest:
            assert found.json == answer.json
        holder = cluster[int(answer.head["x-kvlane-endpoint"][1])]
        seen = asked(holder)[-1]
        assert (seen.method, seen.target) == (method, f"{ROUTE}/{id_of(answer)}{rest}?limit=5")
    assert calls(cluster) == [count + 1 for count in before]


async def test_a_deleted_response_is_gone(gateway: Gateway) -> None:
    made = id_of(await call(gateway.url, ROUTE, ask()))
    gone = await call(gateway.url, f"{ROUTE}/{made}", method="DELETE")
    assert gone.json == {"id": made, "object": "response", "deleted": True}
    for method, rest in VERBS:
        assert (await call(gateway.url, f"{ROUTE}/{made}{rest}", method=method)).status == 404
    assert (await call(gateway.url, ROUTE, ask(previous_response_id=made))).status == 404


@pytest.mark.parametrize(("method", "rest"), VERBS)
async def test_an_unknown_id_is_404(gateway: Gateway, method: str, rest: str) -> None:
    answer = await call(gateway.url, f"{ROUTE}/resp_nobody{rest}", method=method, headers=[("x-request-id", "mine")])
    assert answer.refusal == (404, "invalid_request_error", "not_found")
    assert answer.head["x-request-id"] == "mine"


@pytest.mark.parametrize("id", ["", "a%2Fb", "a.b", "%00", "resp_" + "a" * 500, "..", "a b"])
async def test_an_id_that_can_be_none_reaches_no_engine(gateway: Gateway, cluster: Cluster, id: str) -> None:
    if " " not in id:
        assert (await get(gateway.url, f"{ROUTE}/{id}")).status == 404
    for method in ("GET", "DELETE"):
        assert (await call(gateway.url, f"{ROUTE}/{id.replace(' ', '%20')}/input_items", method=method)).status == 404
    assert calls(cluster) == [0] * 4


@pytest.mark.parametrize("previous", ["resp_nobody", "../../sleep", "a" * 5000, ""])
async def test_an_unknown_previous_response_is_404_in_someones_words(gateway: Gateway, previous: str) -> None:
    answer = await call(gateway.url, ROUTE, ask(previous_response_id=previous))
    assert answer.status == 404
    assert answer.json["error"]["message"]


@pytest.mark.parametrize("previous", [None, 7, ["a"], {"id": "a"}, True])
async def test_an_odd_previous_response_is_the_engines_to_judge(
    gateway: Gateway, cluster: Cluster, previous: object
) -> None:
    body = ask(previous_response_id=previous)
    assert (await call(gateway.url, ROUTE, body)).status in (200, 400)
    (seen,) = [seen for engine in cluster for seen in asked(engine)]
    assert seen.body == body


async def test_a_response_that_is_not_stored_is_not_found(gateway: Gateway) -> None:
    made = id_of(await call(gateway.url, ROUTE, ask(store=False)))
    assert (await get(gateway.url, f"{ROUTE}/{made}")).status == 404


async def test_a_gateway_that_has_just_started_finds_what_engines_hold(cluster: Cluster) -> None:
    async with serving(*cluster.urls, policy="round_robin") as gateway:
        made = [await call(gateway.url, ROUTE, ask(str(at))) for at in range(4)]
    async with serving(*cluster.urls, policy="round_robin") as gateway:
        for answer in made:
            found = await get(gateway.url, f"{ROUTE}/{id_of(answer)}")
            assert found.json == answer.json
            following = await call(gateway.url, ROUTE, ask(previous_response_id=id_of(answer)))
            assert following.head["x-kvlane-endpoint"] == answer.head["x-kvlane-endpoint"]


async def test_what_a_dead_engine_held_is_not_asked_of_another(gateway: Gateway, cluster: Cluster) -> None:
    """And it is no 404: the engine may come back."""
    answer = await call(gateway.url, ROUTE, ask())
    made, holder = id_of(answer), int(answer.head["x-kvlane-endpoint"][1])
    before = calls(cluster)
    await cluster.kill(holder)
    refused = await get(gateway.url, f"{ROUTE}/{made}")
    assert refused.refusal[0] in (502, 503)
    await until(lambda: len(ready_endpoints(gateway)) == 3)
    for refused in (
        await get(gateway.url, f"{ROUTE}/{made}"),
        await call(gateway.url, ROUTE, ask(previous_response_id=made)),
    ):
        if refused.status == 502:  # it is suspect, not yet given up
            continue
        assert refused.refusal == (503, "service_unavailable_error", "server_overloaded")
        assert int(refused.head["retry-after"]) >= 1
    assert calls(cluster) == before


async def test_what_a_restarted_engine_held_is_forgotten(gateway: Gateway, cluster: Cluster) -> None:
    answer = await call(gateway.url, ROUTE, ask())
    holder = int(answer.head["x-kvlane-endpoint"][1])
    await cluster.restart(holder)
    await until(lambda: len(ready_endpoints(gateway)) == 4)
    assert (await get(gateway.url, f"{ROUTE}/{id_of(answer)}")).status == 404


# Whose it is.


@pytest.mark.parametrize("is_stream", [False, True])
async def test_another_tenants_response_does_not_exist(cluster: Cluster, is_stream: bool) -> None:
    async with serving(*cluster.urls, tenants=TENANTS) as gateway:
        made = id_of(await call(gateway.url, ROUTE, ask(stream=is_stream), A))
        before = calls(cluster)
        for method, rest in VERBS:
            answer = await call(gateway.url, f"{ROUTE}/{made}{rest}", b"", B, method=method)
            assert answer.refusal == (404, "invalid_request_error", "not_found")
        assert calls(cluster) == before
        assert (await get(gateway.url, f"{ROUTE}/{made}", A)).status == 200


async def test_another_tenants_conversation_cannot_be_gone_on_with(engine: SimulatedEngine) -> None:
    """Not even where the only engine holds it and would do as it is told."""
    async with serving(engine.url, tenants=TENANTS) as gateway:
        made = id_of(await call(gateway.url, ROUTE, ask("My secret is fish"), A))
        answer = await call(gateway.url, ROUTE, ask("What was it?", previous_response_id=made), B)
        assert answer.status == 404
        assert answer.error
        assert len(asked(engine)) == 1


async def test_an_unknown_response_is_nobodys_where_tenants_are_told_apart(engine: SimulatedEngine) -> None:
    """After a restart nothing says whose it is."""
    async with serving(engine.url, tenants=TENANTS) as gateway:
        made = id_of(await call(gateway.url, ROUTE, ask(), A))
    async with serving(engine.url, tenants=TENANTS) as gateway:
        assert (await get(gateway.url, f"{ROUTE}/{made}", B)).status == 404
        answer = await call(gateway.url, ROUTE, ask(previous_response_id=made), B)
        assert answer.status == 404
        assert len(asked(engine)) == 1


async def test_a_key_is_needed_for_stored_responses_too(engine: SimulatedEngine) -> None:
    async with serving(engine.url, tenants=TENANTS) as gateway:
        for method, rest in VERBS:
            answer = await call(gateway.url, f"{ROUTE}/resp_1{rest}", method=method)
            assert answer.refusal == (401, "authentication_error", "invalid_api_key")


# Streams.


async def test_a_stream_of_events_passes_as_it_came_and_its_usage_is_counted(
    gateway: Gateway, cluster: Cluster
) -> None:
    """It has `event:` lines and no [DONE]; usage is in response.completed."""
    headers = [("x-request-id", "same")]
    body = ask(stream=True, sim={"output_tokens": 12})
    through = await call(gateway.url, ROUTE, body, headers)
    direct = await call(cluster[0].url, ROUTE, body, headers)
    kinds = [line for line in through.body.split(b"\n") if line.startswith(b"event: ")]
    assert kinds == [line for line in direct.body.split(b"\n") if line.startswith(b"event: ")]
    assert kinds[-1] == b"event: response.completed"
    assert b"[DONE]" not in through.body
    assert await metric(gateway, "kvlane_output_tokens_total") == 12
    assert all(b"stream_options" not in seen.body for engine in cluster for seen in asked(engine))
