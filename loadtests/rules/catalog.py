"""Name in `--policy` -> constructor: what serves, and what it is compared with."""

from collections.abc import Callable, Sequence
from random import Random

from loadtests.engine import EngineModel
from loadtests.rules.aibrix import PrefixThenLoad
from loadtests.rules.dynamo import BlockCost
from loadtests.rules.llmd import WeightedScores
from loadtests.rules.lmetric import PrefillTimesBatch
from loadtests.rules.oracle import Oracle
from loadtests.rules.sglang import CacheAware
from policies.catalog import POLICIES
from policies.index import PrefixIndex
from policies.policy import Policy

RULES: dict[str, Callable[[Random, PrefixIndex], Policy]] = {
    "sglang": CacheAware,
    "llmd": WeightedScores,
    "dynamo": BlockCost,
    "lmetric": PrefillTimesBatch,
    "aibrix": PrefixThenLoad,
}
ORACLE = "oracle"
NAMES = (*POLICIES, *RULES, ORACLE)


def policy_named(name: str, chance: Random, index: PrefixIndex, engines: Sequence[EngineModel], profile: str) -> Policy:
    """Build a policy; only the oracle sees the engines.

    Raises:
        KeyError: Nothing has that name.
    """
    if name == ORACLE:
        return Oracle(engines, profile)
    return (POLICIES.get(name) or RULES[name])(chance, index)
