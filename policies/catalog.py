"""Name in the configuration -> constructor: a policy is offered seeded chance and its pool's index."""

from collections.abc import Callable
from random import Random

from policies.affinity import BoundedLoad, ConsistentHash
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.policy import Policy
from policies.spread import LeastRequests, PowerOfTwo, RandomChoice, RoundRobin

POLICIES: dict[str, Callable[[Random, PrefixIndex], Policy]] = {
    "round_robin": lambda chance, index: RoundRobin(chance),
    "random": lambda chance, index: RandomChoice(chance),
    "least_requests": lambda chance, index: LeastRequests(chance),
    "power_of_two": lambda chance, index: PowerOfTwo(chance),
    "consistent_hash": lambda chance, index: ConsistentHash(),
    "bounded_load": lambda chance, index: BoundedLoad(),
    "least_work": lambda chance, index: LeastWork(index),
}
