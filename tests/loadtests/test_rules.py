"""The rules of others: what each chooses in states made by hand."""

from collections.abc import Sequence
from random import Random

import pytest

from loadtests.engine import EngineModel
from loadtests.rules.aibrix import PrefixThenLoad
from loadtests.rules.catalog import NAMES, policy_named
from loadtests.rules.dynamo import BlockCost
from loadtests.rules.llmd import WeightedScores
from loadtests.rules.lmetric import PrefillTimesBatch
from loadtests.rules.oracle import Oracle
from loadtests.rules.sglang import CacheAware
from loadtests.rules.ties import least
from loadtests.sequence import Generation
from loadtests.workloads import Job
from policies.endpoint import Endpoint
from policies.index import PrefixIndex
from policies.policy import Policy, Reason
from policies.request import BlockHash, InferenceRequest

UNITS = 10
REQUEST = InferenceRequest(
    "r", "sim", prompt_tokens=64 * UNITS, output_tokens=100, prefix=tuple(map(BlockHash, range(UNITS)))
)


def fleet(*, loads: Sequence[int], held: Sequence[int] = ()) -> tuple[list[Endpoint], PrefixIndex]:
    """Give endpoints with so many requests in flight, that hold so many units of the request."""
    index = PrefixIndex()
    endpoints = [Endpoint(f"e{place}", f"sim://e{place}") for place in range(len(loads))]
    for endpoint, load in zip(endpoints, loads, strict=True):
        endpoint.outstanding.requests = load
    for endpoint, units in zip(endpoints, held, strict=False):
        index.learn(endpoint, REQUEST.prefix[:units], 0.0)
    return endpoints, index


def chosen(policy: Policy, endpoints: list[Endpoint]) -> str:
    return policy.choose(REQUEST, endpoints, 0.0).endpoint.name


def test_ties_fall_on_each_alike() -> None:  # N = 3,000, seed 1: a third each, within 4 %
    chance = Random(1)
    places = [least([1, 0, 0, 0], chance) for _ in range(3000)]
    assert [places.count(place) / 3000 for place in range(4)] == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.04)


@pytest.mark.parametrize(
    ("loads", "held", "expected"),
    [
        ((64, 0, 1), (10, 0, 0), "e0"),  # a difference of 64 is not yet out of balance
        ((65, 0, 1), (10, 0, 0), "e1"),
        ((265, 200, 199), (10, 0, 0), "e0"),  # more than 64, but not one and a half times
        ((5, 4, 3), (3, 0, 0), "e2"),  # 30 % is not enough
        ((5, 4, 3), (4, 0, 0), "e0"),
    ],
)
def test_sglang_goes_by_match_while_in_balance(loads: tuple[int, ...], held: tuple[int, ...], expected: str) -> None:
    endpoints, index = fleet(loads=loads, held=held)
    assert chosen(CacheAware(Random(1), index), endpoints) == expected


def test_llmd_weighs_match_queue_and_memory() -> None:
    endpoints, index = fleet(loads=(0, 0), held=(10, 0))
    rule = WeightedScores(Random(1), index)
    endpoints[0].report.kv_usage = 0.9
    assert chosen(rule, endpoints) == "e0"  # 3 + 2 + 0.2 against 0 + 2 + 2
    endpoints[0].report.waiting = 1
    assert chosen(rule, endpoints) == "e1"  # 3 + 0 + 0.2 against 0 + 2 + 2
    endpoints[0].report.kv_usage = 0.4
    assert chosen(rule, endpoints) == "e0"  # 3 + 0 + 1.2


def test_dynamo_adds_prefill_and_decode_blocks() -> None:
    endpoints, index = fleet(loads=(0, 0), held=(5, 0))
    rule = BlockCost(Random(1), index)
    endpoints[0].outstanding.context_tokens = 319
    assert chosen(rule, endpoints) == "e0"  # 320 + 319 against 640
    endpoints[0].outstanding.prefill_tokens = 2
    assert chosen(rule, endpoints) == "e1"


def test_lmetric_multiplies_new_tokens_and_batch() -> None:
    endpoints, index = fleet(loads=(1, 0), held=(5, 0))
    rule = PrefillTimesBatch(Random(1), index)
    endpoints[0].outstanding.prefill_tokens = 1
    assert chosen(rule, endpoints) == "e1"  # 321 * 2 against 640 * 1
    endpoints[1].outstanding.prefill_tokens = 3
    assert chosen(rule, endpoints) == "e0"


@pytest.mark.parametrize(
    ("loads", "held", "expected"),
    [
        ((9, 0, 1), (10, 0, 0), "e1"),  # out of balance
        ((8, 0, 1), (10, 5, 0), "e1"),  # the best match is more than one deviation over the mean
        ((4, 3, 1), (5, 10, 0), "e1"),
        ((4, 3, 1), (0, 0, 0), "e2"),
    ],
)
def test_aibrix_takes_the_best_match_that_is_not_too_busy(
    loads: tuple[int, ...], held: tuple[int, ...], expected: str
) -> None:
    endpoints, index = fleet(loads=loads, held=held)
    assert chosen(PrefixThenLoad(Random(1), index), endpoints) == expected


def test_choices_say_what_is_cached_and_why() -> None:
    endpoints, index = fleet(loads=(0, 0), held=(10, 0))
    for name in ("sglang", "llmd", "aibrix"):
        choice = policy_named(name, Random(1), index, [], "bench-8b").choose(REQUEST, endpoints, 0.0)
        assert (choice.endpoint.name, choice.reason, choice.cached_tokens) == ("e0", Reason.HOLDS, 640)


def test_the_oracle_sees_caches_and_queues() -> None:
    engines = [EngineModel(), EngineModel()]
    endpoints, index = fleet(loads=(0, 0))
    oracle = policy_named("oracle", Random(1), index, engines, "bench-8b")
    assert isinstance(oracle, Oracle)
    blocks = tuple(range(1, 41))
    oracle.job = Job(0.0, "t", 640, 10, blocks, 0, 640)
    engines[1].submit(Generation("before", 640, 1, 1, blocks), 0.0)
    engines[1].begin(0.0)
    engines[1].finish()
    assert oracle.choose(REQUEST, endpoints, 1.0).endpoint is endpoints[1]
    engines[1].submit(Generation("long", 50_000, 10, 10), 1.0)
    assert oracle.choose(REQUEST, endpoints, 1.0).endpoint is endpoints[0]
    assert repr(index) == "<PrefixIndex 0 units: >"


def test_every_name_that_scripts_rely_on_is_there() -> None:
    ours = ["round_robin", "random", "least_requests", "power_of_two", "consistent_hash", "bounded_load", "least_work"]
    theirs = ["sglang", "llmd", "dynamo", "lmetric", "aibrix", "oracle"]
    assert {*ours, *theirs} <= set(NAMES)
