"""Limits of tenants through the real application, counted in process: cases L2, L4-L8, L13, L14, and what clients see.

The simulated engine counts a word of the prompt as some tokens and makes as many as it is told; what is charged is what
it reports, or what passed.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadtests.cluster import Cluster
from loadtests.faults import Fault, Kind
from loadtests.settings import Settings
from loadtests.vocabulary import small_tokenizer
from policies.ledger import Allowance
from policies.quotas import Quota
from policies.tariff import NANO
from tests.fleet_fixtures import CHAT, FAST, House, Reply, before, house, leave, prompt
from tests.until import until

SLOW = Settings(time_scale=1.0)


def tenant(name: str = "acme", **fields: Any) -> dict[str, Any]:
    return {"name": name, "key_sha256": [hashlib.sha256(name.encode()).hexdigest()], **fields}


def limited(**limits: Any) -> dict[str, Any]:
    """Configure the one tenant."""
    return {"tenants": [tenant(limits=limits)]}


async def ask(whole: House, text: str = "hello", *, name: str = "acme", path: str = CHAT, **fields: Any) -> Reply:
    body = fields.pop("body", None) or prompt(text, **fields)
    return await whole.post(path, body, headers={"authorization": f"Bearer {name}"})


async def left(whole: House, name: str = "acme") -> dict[str, int]:
    """Say what the limits of a tenant leave, by name, in their own units."""
    gateway = whole.gateway
    (its,) = [each for each in gateway.tenants if each.name == name]
    looked: Sequence[tuple[Quota, Allowance]] | None = await gateway.limiter.look(its)
    assert looked is not None
    return {quota.name: quota.left(allowance.remaining) for quota, allowance in looked}


def error(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = reply.json["error"]
    return found


# What clients see.


async def test_answers_say_what_is_left() -> None:
    async with house(1, **limited(requests_per_minute=10, tokens_per_minute=100_000)) as whole:
        for stream in (False, True):
            reply = await ask(whole, stream=stream)
            assert reply.status == 200
            assert reply.headers["x-ratelimit-limit-requests"] == "10"
            assert reply.headers["x-ratelimit-limit-tokens"] == "100000"
        assert reply.headers["x-ratelimit-remaining-requests"] == "8"
        assert reply.headers["x-ratelimit-reset-requests"].endswith("s")
        assert 90_000 < int(reply.headers["x-ratelimit-remaining-tokens"]) < 100_000


async def test_a_refusal_names_the_limit_and_when_to_come_back() -> None:
    async with house(1, **limited(requests_per_minute=2)) as whole:
        assert [(await ask(whole)).status for _ in range(3)] == [200, 200, 429]
        refused = await ask(whole)
        assert error(refused)["type"] == "rate_limit_error"
        assert error(refused)["code"] == "rate_limit_exceeded"
        assert "requests_per_minute" in error(refused)["message"]
        assert "2 requests a minute" in error(refused)["message"]
        assert 25 <= int(refused.headers["retry-after"]) <= 31
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert "x-should-retry" not in refused.headers
        assert await whole.metric("kvlane_limit_refusals_total", tenant="acme", limit="requests_per_minute") == 2
        assert sum(whole.cluster.engine_calls) == 2


async def test_a_request_that_can_never_pass_is_not_to_be_tried_again() -> None:
    async with house(1, **limited(tokens_per_minute=1000)) as whole:
        refused = await ask(whole, "word " * 4000)
        assert refused.status == 429
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        assert "no more than 1,000 pass at once" in error(refused)["message"]


async def test_a_budget_that_is_spent_is_not_to_be_tried_again() -> None:
    async with house(1, **limited(tokens_per_day=300)) as whole:
        statuses = [(await ask(whole, tokens=100)).status for _ in range(5)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        refused = await ask(whole)
        assert error(refused)["type"] == error(refused)["code"] == "insufficient_quota"
        assert refused.headers["x-should-retry"] == "false"
        assert "tokens a day" in error(refused)["message"]


async def test_a_budget_in_money_counts_by_the_prices_of_models() -> None:
    models = [{"name": "sim", "prices": {"input": 0, "output": 1_000_000}}]  # a token of output costs one
    async with house(1, models=models, **limited(cost_per_month=1000)) as whole:
        assert (await ask(whole, tokens=30, max_tokens=30)).status == 200
        assert (await left(whole))["cost_per_month"] == 970 * NANO


# L2: everywhere.


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/tokenize", {"prompt": "hi"}),
    ],
)
async def test_l2_limits_hold_on_every_route(path: str, body: dict[str, Any]) -> None:
    async with house(1, **limited(requests_per_minute=2)) as whole:
        statuses = [(await ask(whole, path=path, body={"model": "sim", **body})).status for _ in range(3)]
        assert 429 not in statuses[:2]
        assert statuses[2] == 429


async def test_l2_streams_only_until_the_limit() -> None:
    async with house(1, **limited(tokens_per_minute=2000)) as whole:
        statuses = []
        for _ in range(30):
            statuses.append((await ask(whole, tokens=150, max_tokens=150, stream=True)).status)
            if statuses[-1] == 429:
                break
        assert 10 <= statuses.index(429) <= 14  # 150 and some of the prompt


# L3: exactly at the limit (by a clock of its own: tests/gateway/test_limiter.py).


@pytest.mark.soak
async def test_l3_five_minutes_at_exactly_the_limit() -> None:
    """Two a second for five minutes; a busy machine may be late by half a second, which the burst of two allows for."""
    loop = asyncio.get_running_loop()
    async with house(1, **limited(requests_per_minute=120, burst_requests=2)) as whole:
        began = loop.time()
        for number in range(600):
            await asyncio.sleep(max(0.0, began + number / 2 - loop.time()))
            assert (await ask(whole)).status == 200


# L4: a refusal takes nothing, a failure is given back.


async def test_l4_what_one_limit_refuses_takes_nothing_of_others() -> None:
    async with house(1, **limited(requests_per_minute=100, tokens_per_minute=2000)) as whole:
        assert (await ask(whole)).status == 200
        before_it = await left(whole)
        assert (await ask(whole, "word " * 9000)).status == 429
        after = await left(whole)
        assert after["requests_per_minute"] - before_it["requests_per_minute"] in (0, 1)  # time passes
        assert after["tokens_per_minute"] >= before_it["tokens_per_minute"]


@pytest.mark.parametrize("fault", [Fault(Kind.STATUS, status=500), Fault(Kind.RESET), Fault(Kind.RESET_AFTER, after=2)])
async def test_l4_what_an_engine_failed_at_is_refunded_whole(fault: Fault) -> None:
    async with house(1, **limited(tokens_per_day=10_000, requests_per_minute=3)) as whole:
        await whole.cluster[0].inject(fault)
        for _ in range(5):
            await ask(whole, stream=fault.kind is Kind.RESET_AFTER)
        assert (await left(whole))["tokens_per_day"] == 10_000


async def test_l4_what_admission_refuses_is_refunded_whole() -> None:
    admission = {"max_inflight": 1, "classes": [{"name": "interactive", "max_queued": 1}]}
    async with house(1, SLOW, admission=admission, **limited(tokens_per_day=100_000, parallel=50)) as whole:
        replies = await asyncio.gather(*(ask(whole, f"u{at}", tokens=30, max_tokens=30) for at in range(10)))
        served = [reply for reply in replies if reply.status == 200]
        assert {reply.status for reply in replies} == {200, 503}
        used = 100_000 - (await left(whole))["tokens_per_day"]
        assert used == sum(reply.json["usage"]["total_tokens"] for reply in served)


async def test_the_clients_own_mistake_costs_a_request_and_no_tokens() -> None:
    async with house(1, **limited(requests_per_minute=100, tokens_per_day=10_000)) as whole:
        reply = await ask(whole, body={"model": "sim", "messages": "no list"})
        assert reply.status == 400
        state = await left(whole)
        assert (state["requests_per_minute"], state["tokens_per_day"]) == (99, 10_000)


# L5: slots.


async def test_l5_slots_come_back_when_clients_leave() -> None:
    async with house(1, SLOW, **limited(parallel=1)) as whole:
        for at in range(20):
            task = asyncio.create_task(ask(whole, f"u{at}", tokens=100_000, stream=True))
            await until(lambda: whole.in_flight == [1], "streaming")
            assert (await ask(whole)).status == 429
            await leave([task])
            await until(lambda: not whole.gateway.proxy.active, "it is gone")
        assert (await ask(whole, tokens=1)).status == 200


async def test_the_limit_of_slots_says_that_it_may_be_tried_soon() -> None:
    async with house(1, SLOW, **limited(parallel=1)) as whole:
        task = asyncio.create_task(ask(whole, tokens=100_000, stream=True))
        await until(lambda: whole.in_flight == [1], "streaming")
        refused = await ask(whole)
        assert refused.headers["retry-after"] == "1"
        assert "1 requests at a time" in error(refused)["message"]
        await leave([task])


# L6, L7: what is charged.


async def test_l6_a_large_max_tokens_does_not_choke() -> None:
    """30k allowed, 20 used: what is set aside is what answers come to, and it comes back."""
    async with house(1, **limited(tokens_per_minute=20_000)) as whole:
        for _ in range(20):
            assert (await ask(whole, tokens=20, max_tokens=30_000)).status == 200
        assert (await left(whole))["tokens_per_minute"] > 15_000


async def test_l6_a_hundred_aborted_streams_cost_what_was_used() -> None:
    async with house(1, SLOW, **limited(tokens_per_day=1_000_000)) as whole:
        tasks = [asyncio.create_task(ask(whole, f"u{at}", tokens=50_000, stream=True)) for at in range(100)]
        await until(lambda: whole.cluster[0].facts.live == 100, "all stream")
        await leave(tasks)
        await whole.rests()
        used = 1_000_000 - (await left(whole))["tokens_per_day"]
        assert 100 < used < 100 * 2_000  # prompts, and what came within a moment, not the 50,000 of each


async def test_l7_an_engine_without_usage_is_counted() -> None:
    models = [{"name": "sim", "tokenizer": small_tokenizer()}]
    settings = replace(FAST, tokenizer=small_tokenizer())
    async with house(1, settings, models=models, **limited(tokens_per_day=100_000)) as whole:
        asked = await ask(whole, tokens=200, stream=True)
        with_usage = 100_000 - (await left(whole))["tokens_per_day"]
        await whole.cluster[0].inject(Fault(Kind.NO_USAGE))
        assert asked.status == (await ask(whole, tokens=200, stream=True)).status == 200
        without = 100_000 - with_usage - (await left(whole))["tokens_per_day"]
        assert without == pytest.approx(with_usage, rel=0.05)


# L8: budgets under concurrency.


async def test_l8_fifty_at_once_on_a_budget_for_five() -> None:
    async with house(1, SLOW, **limited(tokens_per_day=5 * 600)) as whole:
        replies = await asyncio.gather(*(ask(whole, "word " * 100, tokens=400, max_tokens=400) for _ in range(50)))
        assert 4 <= sum(reply.status == 200 for reply in replies) <= 6
        assert {reply.status for reply in replies} == {200, 429}


# L13, L14: weights, and limits that need nothing.


async def test_l13_cached_tokens_may_weigh_less() -> None:
    """Of two like prompts the second is cached: at a weight of 0.1 it costs a tenth, but for its last block."""
    tenants = [tenant(limits={"tokens_per_day": 100_000}, token_weights={"cached": 0.1, "output": 1})]
    async with house(1, tenants=tenants) as whole:
        text = "word " * 2000
        first, second = [(await ask(whole, text, tokens=1)).json["usage"] for _ in range(2)]
        cached = second["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0.9 * second["prompt_tokens"]
        used = 100_000 - (await left(whole))["tokens_per_day"]
        cheap = second["prompt_tokens"] - 0.9 * cached + 1
        assert used == pytest.approx(first["prompt_tokens"] + 1 + cheap, abs=2)


async def test_l14_a_limit_of_requests_needs_no_max_tokens() -> None:
    async with house(1, **limited(requests_per_minute=5)) as whole:
        assert [(await ask(whole, tokens=2000)).status for _ in range(6)] == [200] * 5 + [429]


# Who is limited.


async def test_tenants_and_models_have_limits_of_their_own() -> None:
    tenants = [
        tenant("a", limits={"requests_per_minute": 3}, limits_by_model={"sim": {"requests_per_minute": 1}}),
        tenant("b"),
    ]
    async with house(1, tenants=tenants) as whole:
        assert (await ask(whole, name="a")).status == 200
        refused = await ask(whole, name="a")
        assert refused.status == 429
        assert "of the model 'sim'" in error(refused)["message"]
        assert [(await ask(whole, name="b")).status for _ in range(5)] == [200] * 5
        assert "x-ratelimit-limit-requests" not in (await ask(whole, name="b")).headers


async def test_who_calls_without_a_key_is_limited_as_anonymous() -> None:
    async with house(1, anonymous={"limits": {"requests_per_minute": 1}}) as whole:
        assert [(await whole.ask()).status for _ in range(2)] == [200, 429]


async def test_pictures_are_no_text_to_the_first_guess() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    body = {"model": "sim", "messages": [{"role": "user", "content": [picture]}]}
    async with Cluster(1, FAST) as cluster, before(cluster, **limited(tokens_per_minute=20_000)) as whole:
        await until(lambda: whole.gateway.fleet.is_serving(), "ready")
        assert (await ask(whole, body=body)).status != 429
