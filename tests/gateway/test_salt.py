"""The cache salt of a tenant whose prompts are kept apart: what it is made of, where it goes, who can be sent it."""

import asyncio
from random import Random
from typing import Any

import orjson
import pytest

from gateway import openai
from gateway.classes import Classes
from gateway.config import EndpointConfig, Kind
from gateway.engines.adapter import ServedModel
from gateway.engines.catalog import ADAPTERS
from gateway.engines.kvevents import Batch
from gateway.errors import ModelNotAllowed, Overloaded
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.intake import Intake
from gateway.members import Member
from gateway.routes import ENGINE_ROUTES
from gateway.salt import salt_of, secret_of
from gateway.sections import Admission
from gateway.tenants import Tenant
from gateway.tokens.plain import TextReader
from gateway.trace import Trace
from loadtests.cluster import Cluster
from loadtests.settings import Settings
from policies.events import Stored
from policies.learned import OutputHabits
from policies.pools import Standing
from policies.request import InferenceRequest
from policies.spread import LeastRequests
from tests.wire.client import call

CHAT = "/v1/chat/completions"
SECRETS = {name: secret_of(b"the secret of the house", name) for name in "ab"}
A, B, SHARED = Tenant("a"), Tenant("b"), Tenant("shared")
PROMPT = "You answer briefly, and in the language in which you were asked. " * 40


class Desk:
    """A fleet of engines of model m, and an intake before it."""

    def __init__(self, *kinds: Kind | None) -> None:
        self.fleet = Fleet(lambda: 0.0)
        pool = self.fleet.add_pool("p", LeastRequests(Random(1)))
        self.members = [self._join(pool, at, kind) for at, kind in enumerate(kinds)]
        self.intake = Intake(
            self.fleet,
            lambda model: TextReader(),
            Classes(Admission()),
            None,
            OutputHabits(),
            lambda tenant: SECRETS.get(tenant.name),
        )

    def _join(self, pool: Any, at: int, kind: Kind | None) -> Member:
        member = self.fleet.add(pool, EndpointConfig(name=f"e{at}", url=f"http://e{at}", models=("m",)))
        member.kind = kind
        member.listed = (ServedModel("m"),)
        if kind is not None:
            member.endpoint.can = ADAPTERS[kind].salted_paths
            member.endpoint.health.answered()
        return member

    def read(self, tenant: Tenant, path: str = CHAT, body: bytes | None = None) -> tuple[Exchange, Standing]:
        data = orjson.dumps({"model": "m", **asking()}) if body is None else body
        route = ENGINE_ROUTES[path]
        parsed = openai.parse(route, "application/json", data)
        exchange = Exchange(route, "POST", path, b"", data, parsed, tenant, InferenceRequest("r", "m"))
        trace = Trace("r", path, 0.0)
        return exchange, asyncio.run(self.intake.read(exchange, self.fleet.facts("m"), {}, trace))

    def sent(self, tenant: Tenant, path: str = CHAT, body: bytes | None = None) -> bytes:
        """Give the body that the first engine gets."""
        exchange, _ = self.read(tenant, path, body)
        return b"".join(exchange.pieces_for(self.members[0])[1:])


def asking(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PROMPT}], **fields}


# What it is made of.


def test_a_salt_is_made_of_the_secret_and_of_what_the_client_names() -> None:
    salts = [salt_of(secret, named) for secret in SECRETS.values() for named in (None, "x", "y")]
    assert len(set(salts)) == 6
    assert {len(salt) for salt in salts} == {43}
    assert salt_of(b"s", "x") == salt_of(b"s", "x")
    assert salt_of(b"s", "\ud800")


@pytest.mark.parametrize("named", [None, "", 7, ["x"], True, {}])
def test_what_is_no_salt_is_none(named: object) -> None:
    assert salt_of(b"s", named) == salt_of(b"s", None)


def test_nobody_reaches_the_compartment_of_another_by_naming_its_salt() -> None:
    for named in (salt_of(SECRETS["a"], None), salt_of(SECRETS["a"], "x")):
        assert salt_of(SECRETS["b"], named) != named


# What engines get.


@pytest.mark.parametrize("stream", [b"", b',"stream":true', b',"stream":true,"stream_options":{}'])
def test_every_other_byte_of_a_body_stays(stream: bytes) -> None:
    desk = Desk(Kind.VLLM)
    body = b'{ "model":"m", "n":1.0,"messages":[]%b }' % stream
    salt = salt_of(SECRETS["a"], None).encode()
    shared = desk.sent(SHARED, body=body)
    isolated = desk.sent(A, body=body)
    assert isolated.replace(b',"cache_salt":"%b"' % salt, b"") == shared
    assert orjson.loads(isolated)["cache_salt"] == salt.decode()


def test_the_salt_of_the_client_is_replaced_wherever_and_however_often_it_stands() -> None:
    desk = Desk(Kind.VLLM)
    body = b'{"cache_salt":"other","model":"m","messages":[],"cache\\u005fsalt":"x"}'
    salt = salt_of(SECRETS["a"], "x").encode()  # the last one counts, as with every parser of an engine
    assert desk.sent(A, body=body) == b'{"cache_salt":"%b","model":"m","messages":[],"cache\\u005fsalt":"%b"}' % (
        salt,
        salt,
    )
    assert desk.sent(SHARED, body=body) == body


def test_what_computes_no_prompt_is_sent_as_it_is() -> None:
    body = b'{"model":"m","prompt":"a"}'
    assert Desk(Kind.LLAMACPP).sent(A, "/tokenize", body) == body


async def test_an_engine_shows_a_prompt_to_its_own_tenant_and_to_no_other() -> None:
    async with Cluster(1, Settings(time_scale=0, models=("m",))) as cluster:
        desk = await asyncio.to_thread(Desk, Kind.VLLM)
        cached = []
        for tenant in (SHARED, A, B, A, B):
            body = await asyncio.to_thread(desk.sent, tenant)
            usage = (await call(cluster[0].url, CHAT, body)).json["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached[:3] == [0, 0, 0]
        assert min(cached[3:]) > 300


# What the gateway goes by.


def test_index_and_ring_go_by_the_same_salt_as_the_engine() -> None:
    desk = Desk(Kind.VLLM)
    a, b, shared = (desk.read(tenant)[0].inference for tenant in (A, B, SHARED))
    assert not set(a.prefix) & set(b.prefix) | set(a.prefix) & set(shared.prefix)
    assert len({a.ring_key, b.ring_key, shared.ring_key}) == 3
    assert a.prefix == desk.read(A)[0].inference.prefix


@pytest.mark.parametrize("way", ["vllm", "sglang"])
def test_what_an_engine_tells_of_a_salted_prompt_is_found_by_it(way: str) -> None:
    desk = Desk(Kind.VLLM)
    exchange, _ = desk.read(A)
    salt = exchange.call.cache_salt
    told: dict[str, object] = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    told |= {"token_ids": list(range(64)), "block_size": 64, "lora_id": None}
    told |= {"extra_keys": [[salt]]} if way == "vllm" else {"cache_salt": salt}
    (event,) = Batch(0.0, 0, [told]).events()
    assert isinstance(event, Stored)
    assert event.salt == salt
    root = desk.fleet.root_at(desk.members[0], "", event.salt)
    assert root == desk.fleet.facts("m").root_with(salt) != desk.fleet.facts("m").root


# Who can be sent it.


def test_engines_that_know_no_salt_are_never_sent_what_is_kept_apart() -> None:
    desk = Desk(Kind.LLAMACPP, Kind.SGLANG, None)
    exchange, standing = desk.read(A)
    for _ in range(6):
        with desk.fleet.lease(exchange.inference, standing) as lease:
            assert lease.member is desk.members[1]
    with pytest.raises(ModelNotAllowed), desk.fleet.lease_on(desk.members[0], exchange.inference):
        pass
    shared, standing = desk.read(SHARED)
    with desk.fleet.lease(shared.inference, standing) as one, desk.fleet.lease(shared.inference, standing) as other:
        assert {one.member, other.member} == set(desk.members[:2])


@pytest.mark.parametrize(
    ("kinds", "path"),
    [
        ((Kind.LLAMACPP,), CHAT),
        ((Kind.TGI, Kind.TRITON), CHAT),
        ((Kind.TRTLLM,), "/v1/completions"),
        ((Kind.VLLM, Kind.SGLANG), "/v1/messages"),
    ],
)
def test_where_no_engine_can_keep_apart_the_tenant_is_told_so(kinds: tuple[Kind, ...], path: str) -> None:
    desk = Desk(*kinds)
    body = b'{"model":"m","prompt":"a","messages":[]}'
    with pytest.raises(ModelNotAllowed, match=f"no engine of the model 'm' can do that for {path}"):
        desk.read(A, path, body)
    desk.read(SHARED, path, body)


def test_an_engine_that_has_not_answered_may_yet_be_able_to() -> None:
    with pytest.raises(Overloaded):
        Desk(Kind.LLAMACPP, None).read(A)
