"""Name in the configuration -> constructor."""

from collections.abc import Callable
from random import Random

from policies.policy import Policy
from policies.spread import LeastRequests, PowerOfTwo, RandomChoice, RoundRobin

POLICIES: dict[str, Callable[[Random], Policy]] = {
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "least_requests": LeastRequests,
    "power_of_two": PowerOfTwo,
}
