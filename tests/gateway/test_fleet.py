"""Fleet and Lease: choosing and charging is one step, giving back is exact, an incarnation keeps its own books."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import EndpointConfig
from gateway.engines.adapter import ServedModel
from gateway.errors import ContextLengthExceeded, ModelNotFound, Overloaded
from gateway.fleet import Fleet
from gateway.lease import Lease
from gateway.members import FleetPool, Member
from policies.endpoint import Endpoint, EngineReport, Outstanding
from policies.health import State
from policies.policy import Reason
from policies.pools import Serving, Standing
from policies.request import UNIT_TOKENS, BlockHash, InferenceRequest
from policies.spread import LeastRequests

REQUEST = InferenceRequest("r", "m", prompt_tokens=100, output_tokens=10)


@dataclass
class Town:
    """A fleet of one pool, and a clock that stands still."""

    now: float = 1000.0
    fleet: Fleet = field(init=False)
    pool: FleetPool = field(init=False)

    def __post_init__(self) -> None:
        self.fleet = Fleet(lambda: self.now)
        self.pool = self.fleet.add_pool("p", LeastRequests(Random(1)))

    def join(self, name: str, *models: str, is_ready: bool = True, api_key: str | None = None) -> Member:
        """Let an engine join that serves `models`, `m` if none is named."""
        config = EndpointConfig(name=name, url=f"http://{name}:80/sub", models=models or ("m",), api_key=api_key)
        member = self.fleet.add(self.pool, config)
        if is_ready:
            member.endpoint.health.answered()
        return member

    def lease(self, *tried: Endpoint) -> Lease:
        return self.fleet.lease(REQUEST, Standing(self.pool.pool), set(tried))


def counts(endpoint: Endpoint) -> tuple[int, int, int]:
    """Give requests in flight, pending prefill tokens and decodes of an endpoint."""
    books = endpoint.outstanding
    return books.requests, books.prefill_tokens, books.decoding


@pytest.fixture
def town() -> Town:
    return Town()


# Leases.


def test_a_lease_charges_before_anybody_else_can_choose(town: Town) -> None:
    """8 requests to 2 endpoints, taken without a wait between them, go 4 and 4."""
    members = [town.join("a"), town.join("b")]
    leases = [town.lease() for _ in range(8)]
    assert [member.endpoint.outstanding.requests for member in members] == [4, 4]
    for lease in leases:
        with lease:
            pass
    assert [member.endpoint.outstanding for member in members] == [Outstanding(), Outstanding()]
    assert sum(member.leases_total for member in members) == 8


def test_the_first_token_moves_a_request_from_prefill_to_decode_once(town: Town) -> None:
    endpoint = town.join("a").endpoint
    with town.lease() as lease:
        assert counts(endpoint) == (1, 100, 0)
        lease.first_token()
        lease.first_token()
        assert counts(endpoint) == (1, 0, 1)
    assert endpoint.outstanding == Outstanding()


def test_a_first_token_that_comes_after_the_end_changes_nothing(town: Town) -> None:
    endpoint = town.join("a").endpoint
    with town.lease() as lease:
        pass
    lease.first_token()
    assert endpoint.outstanding == Outstanding()


def test_a_lease_is_given_back_whatever_happens_inside(town: Town) -> None:
    endpoint = town.join("a").endpoint
    with pytest.raises(KeyboardInterrupt), town.lease():
        raise KeyboardInterrupt
    assert endpoint.outstanding == Outstanding()


def test_a_lease_is_given_back_only_once(town: Town) -> None:
    town.join("a")
    with town.lease() as lease:
        pass
    with pytest.raises(AssertionError), lease:
        pass


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_prompt_that_was_answered_is_remembered_from_its_end_on(town: Town, is_answered: bool) -> None:
    endpoint = town.join("a").endpoint
    endpoint.report.kv_capacity_tokens = 20 * UNIT_TOKENS
    first, other = (tuple(BlockHash(100 * name + at) for at in range(8)) for name in (1, 2))
    with town.fleet.lease(_prompt(first), Standing(town.pool.pool)) as lease:
        town.fleet.lease(_prompt(other), Standing(town.pool.pool)).give_back()
        if is_answered:
            lease.first_token()
    town.fleet.lease(_prompt(tuple(BlockHash(300 + at) for at in range(8))), Standing(town.pool.pool)).give_back()
    held = [town.pool.index.matched_on(endpoint, prefix) for prefix in (first, other)]
    assert held == ([8, 4] if is_answered else [4, 8])


def _prompt(prefix: tuple[BlockHash, ...]) -> InferenceRequest:
    return InferenceRequest("r", "m", prompt_tokens=len(prefix) * UNIT_TOKENS, prefix=prefix)


@given(st.lists(st.sampled_from(["lease", "token", "end", "renew", "remove", "add"]), max_size=80), st.randoms())
def test_books_are_exact_while_engines_restart_leave_and_return(operations: list[str], chance: Random) -> None:
    town = Town()
    members = [town.join("a"), town.join("b")]
    seen = {member.endpoint for member in members}
    leases: list[Lease] = []
    for operation in operations:
        if operation == "lease" and members:
            leases.append(town.lease())
        elif operation == "token" and leases:
            chance.choice(leases).first_token()
        elif operation == "end" and leases:
            with leases.pop(chance.randrange(len(leases))):
                pass
        elif operation == "renew" and members:
            member = chance.choice(members)
            town.fleet.renew(member)
            member.endpoint.health.answered()
        elif operation == "remove" and members:
            town.fleet.remove(members.pop(chance.randrange(len(members))))
        elif operation == "add" and len(members) < 4:
            name = next(name for name in "abcd" if name not in {member.endpoint.name for member in members})
            members.append(town.join(name))
        seen |= {member.endpoint for member in members}
        for endpoint in seen:
            assert endpoint.outstanding.requests == sum(lease.endpoint is endpoint for lease in leases)
    for lease in leases:
        with lease:
            pass
    assert {(e.outstanding.requests, e.outstanding.prefill_tokens, e.outstanding.decoding) for e in seen} <= {(0, 0, 0)}


def test_what_requests_meet_moves_the_health_of_the_incarnation_that_was_charged(town: Town) -> None:
    member = town.join("a")
    old = member.endpoint
    with town.lease() as lease:
        town.fleet.renew(member)
        member.endpoint.health.answered()
        lease.failed()
        lease.failed()
        lease.not_now(5.0)
    assert old.health.state is State.SUSPECT
    assert member.endpoint.health.is_ready(town.now)


def test_a_busy_engine_is_left_alone_for_as_long_as_it_asks(town: Town) -> None:
    town.join("a")
    with town.lease() as lease:
        lease.not_now(5.0)
    with pytest.raises(Overloaded) as caught:
        town.lease()
    assert caught.value.retry_after_s == 5.0
    town.now += 5.0
    with town.lease():
        pass


def test_one_word_of_success_ends_a_suspicion(town: Town) -> None:
    endpoint = town.join("a").endpoint
    with town.lease() as lease:
        lease.failed()
        lease.failed()
        assert repr(endpoint) == "<Endpoint a suspect 1 in flight>"
        lease.served()
    assert repr(endpoint) == "<Endpoint a ready 0 in flight>"


def test_an_engine_that_drains_gets_nothing_more(town: Town) -> None:
    town.join("a")
    town.join("b")
    first = town.lease()
    first.drain()
    assert first.endpoint not in {town.lease().endpoint for _ in range(4)}


# Nobody there.


def test_a_refusal_says_how_the_endpoints_stand(town: Town) -> None:
    town.join("a", is_ready=False)
    town.join("b").endpoint.health.drain()
    town.join("c").endpoint.health.not_now(town.now, 7.0)
    town.join("d", "other")
    with pytest.raises(Overloaded, match=r"pool p .* model 'm' now: 1 busy, 1 draining, 1 starting") as caught:
        town.lease()
    assert caught.value.retry_after_s == 7.0


def test_what_was_tried_is_not_leased_again(town: Town) -> None:
    one, other = town.join("a").endpoint, town.join("b").endpoint
    assert town.lease(one).endpoint is other
    with pytest.raises(Overloaded):
        town.lease(one, other)


def test_a_named_engine_is_leased_for_what_it_holds(town: Town) -> None:
    member = town.join("a")
    with town.fleet.lease_on(member, REQUEST) as lease:
        assert lease.choice.reason is Reason.HOLDS
        assert member.endpoint.outstanding.requests == 1
    member.endpoint.health.drain()
    with pytest.raises(Overloaded, match="the endpoint a that holds this is draining"):
        town.fleet.lease_on(member, REQUEST)


# Models and pools.


def test_a_request_belongs_to_a_pool_that_serves_its_model(town: Town) -> None:
    town.join("a", "x")
    second = town.fleet.add_pool("q", LeastRequests(Random(1)))
    town.fleet.add(second, EndpointConfig(name="b", url="http://b", models=("x", "y")))
    assert town.fleet.standing(REQUEST._replace(model="x"), 0) == Standing(town.pool.pool, (second.pool,))
    assert town.fleet.standing(REQUEST._replace(model="y"), 0) == Standing(second.pool)


def test_an_unknown_model_is_unknown_only_when_every_engine_has_told(town: Town) -> None:
    town.join("a", "x")
    with pytest.raises(ModelNotFound):
        town.fleet.facts("z")
    silent = town.fleet.add(town.pool, EndpointConfig(name="b", url="http://b"))
    with pytest.raises(Overloaded):
        town.fleet.facts("z")
    silent.endpoint.models = frozenset(("z",))
    town.fleet.changed()
    assert town.fleet.facts("z").row == (Serving(float("inf"), town.pool.pool),)


def test_r24_what_fits_nowhere_is_refused_with_both_numbers(town: Town) -> None:
    town.join("a").endpoint.max_context_tokens = 4096
    town.fleet.changed()
    request = REQUEST._replace(prompt_tokens=4000, allowed_tokens=97)
    with pytest.raises(
        ContextLengthExceeded, match=r"length is 4096 tokens \(pool p\).* needs 4097: 4000 of prompt"
    ) as error:
        town.fleet.standing(request, 4000, "messages")
    assert error.value.param == "messages"
    town.fleet.standing(request, 2400)
    with pytest.raises(ContextLengthExceeded, match="needs at least 4097"):
        town.fleet.standing(request._replace(prompt_tokens=6000), 4000)


def test_a_unit_is_a_multiple_of_every_block_of_a_model(town: Town) -> None:
    one, other, third = town.join("a"), town.join("b"), town.join("c", "z")
    assert town.fleet.facts("m").unit_tokens == 64
    town.pool.index.learn(one.endpoint, (BlockHash(1),), 0.0)
    town.fleet.hear(one, EngineReport(block_tokens=16))
    assert town.pool.index.held_tokens(one.endpoint) == 64
    town.fleet.hear(other, EngineReport(block_tokens=128))
    assert [member.endpoint.unit_tokens for member in (one, other, third)] == [128, 128, 64]
    assert town.pool.index.held_tokens(one.endpoint) == 0


def test_what_an_engine_leaves_out_of_its_size_is_as_it_was(town: Town) -> None:
    member = town.join("a")
    town.fleet.hear(member, EngineReport(running=1, kv_capacity_tokens=1000, block_tokens=32))
    town.fleet.hear(member, EngineReport())
    assert member.endpoint.report == EngineReport(kv_capacity_tokens=1000, block_tokens=32)


def test_names_of_the_same_weights_share_a_cache_and_adapters_do_not(town: Town) -> None:
    member = town.join("a", "base", "alias", "lora", "other")
    member.listed = (
        ServedModel("base", root="/weights"),
        ServedModel("alias", root="/weights"),
        ServedModel("lora", root="/adapter", parent="base"),
        ServedModel("other", root="/other"),
    )
    town.fleet.changed()
    roots = {model: town.fleet.facts(model).root for model in ("base", "alias", "lora", "other")}
    assert roots["base"] == roots["alias"]
    assert len(set(roots.values())) == 3
    assert town.fleet.facts("lora").base == "alias"
    assert town.fleet.facts("base").root_with("salt") != roots["base"] == town.fleet.facts("base").root_with(None)


def test_a_model_has_one_base_whoever_is_asked(town: Town) -> None:
    town.join("a", "b").listed = (ServedModel("b", root="/w"),)
    town.join("c", "a", "b").listed = (ServedModel("a", root="/w"), ServedModel("b", root="/w"))
    town.fleet.changed()
    assert town.fleet.facts("b").root == town.fleet.facts("a").root


def test_an_idle_endpoint_of_a_longer_pool_is_lent_when_the_own_is_busy(town: Town) -> None:
    own = town.join("a")
    long = town.fleet.add_pool("long", LeastRequests(Random(1)))
    helper = town.fleet.add(long, EndpointConfig(name="b", url="http://b", models=("m",)))
    helper.endpoint.health.answered()
    standing = Standing(town.pool.pool, (long.pool,))
    big = REQUEST._replace(prompt_tokens=20_000)
    with town.fleet.lease(big, standing) as first:
        assert first.endpoint is own.endpoint
        with town.fleet.lease(REQUEST, standing) as second:
            assert (second.endpoint, second.choice.reason) == (helper.endpoint, Reason.LENT)
            assert town.fleet.lease(REQUEST, standing).endpoint is own.endpoint


@pytest.mark.parametrize("place", ["longer", "shorter"])
def test_other_pools_stand_in_where_the_own_is_down(town: Town, place: str) -> None:
    own = town.join("a", is_ready=False)
    other = town.fleet.add_pool("q", LeastRequests(Random(1)))
    helper = town.fleet.add(other, EndpointConfig(name="b", url="http://b", models=("m",)))
    helper.endpoint.health.answered()
    standing = Standing(own.pool.pool, **{place: (other.pool,)})
    for _ in range(2):  # idle, then not
        lease = town.fleet.lease(REQUEST, standing)
        assert (lease.endpoint, lease.choice.reason) == (helper.endpoint, Reason.LEAST_LOADED)
    with pytest.raises(Overloaded, match="pool p can take the model 'm' now: 1 ready, 1 starting"):
        town.fleet.lease(REQUEST, standing, {helper.endpoint})


def test_models_are_listed_with_the_largest_context_that_is_offered(town: Town) -> None:
    for name, limit in (("a", 8192), ("b", 32_768), ("c", None)):
        town.join(name, "m").endpoint.max_context_tokens = limit
    town.join("d", "other")
    assert town.fleet.models() == {"m": 32_768, "other": None}


@pytest.mark.parametrize(
    ("state", "is_serving"),
    [
        (State.STARTING, False),
        (State.READY, True),
        (State.SUSPECT, True),
        (State.EJECTED, False),
        (State.DRAINING, False),
    ],
)
def test_the_fleet_serves_when_one_endpoint_may_be_given_a_request(town: Town, state: State, is_serving: bool) -> None:
    town.join("a", is_ready=False)
    town.join("b").endpoint.health.state = state
    assert town.fleet.is_serving() is is_serving


# Members.


def test_an_engine_that_leaves_ends_what_runs_and_gets_nothing_new(town: Town) -> None:
    member = town.join("a")
    other = town.join("b")
    with town.fleet.lease_on(member, REQUEST):
        town.fleet.remove(member)
        assert list(town.fleet.members()) == [other]
        assert town.fleet.member_of(member.endpoint) is None
        assert {town.lease().endpoint for _ in range(4)} == {other.endpoint}
    assert member.endpoint.outstanding == Outstanding()


def test_a_new_incarnation_stands_in_the_place_of_the_old_one(town: Town) -> None:
    members = [town.join("a"), town.join("b"), town.join("c")]
    old = members[1].endpoint
    old.max_context_tokens = 4096
    town.fleet.renew(members[1])
    new = members[1].endpoint
    assert new is not old
    assert town.pool.pool.endpoints == [members[0].endpoint, new, members[2].endpoint]
    assert (new.name, new.url, new.models, new.max_context_tokens) == ("b", "http://b:80/sub", frozenset(("m",)), 4096)
    assert (new.health.state, new.outstanding) == (State.STARTING, Outstanding())
    assert town.fleet.member_of(old) is None
    assert town.fleet.member_of(new) is members[1]


def test_a_member_knows_what_every_request_to_it_carries(town: Town) -> None:
    plain, keyed = town.join("a"), town.join("b", api_key="secret")
    assert (plain.path_prefix, plain.header_lines) == ("/sub", "host: a:80\r\n")
    assert keyed.header_lines == "host: b:80\r\nauthorization: Bearer secret\r\n"
