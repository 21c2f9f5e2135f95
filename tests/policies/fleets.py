"""Endpoints and requests for the tests of policies."""

from array import array

from policies.endpoint import Endpoint, EngineReport
from policies.health import Health, State
from policies.prefix import block_hashes, root_of
from policies.request import UNIT_TOKENS, BlockHash, InferenceRequest

REQUEST = InferenceRequest("r", "m", prompt_tokens=100, output_tokens=50)
ALL_STATES = tuple(State)
CAPACITY_TOKENS = 400_000


def endpoint(name: str = "e", *, state: State = State.READY, model: str = "m", cool_until: float = 0.0) -> Endpoint:
    """Give an endpoint that has been watched for a while."""
    return Endpoint(name, f"http://{name}", frozenset((model,)), health=Health(state, cool_until))


def endpoints(count: int, kv_tokens: int | None = CAPACITY_TOKENS) -> list[Endpoint]:
    """Give idle, ready endpoints e0, e1, …"""
    fleet = [endpoint(f"e{at}") for at in range(count)]
    for each in fleet:
        each.report = EngineReport(kv_capacity_tokens=kv_tokens)
    return fleet


def prefix(*parts: tuple[int, int]) -> tuple[BlockHash, ...]:
    """Hash a prompt made of parts: of each a seed and its units."""
    ids = array("I")
    for seed, units in parts:
        ids.extend((seed * 1_000_003 + at) & 0xFFFFFF for at in range(units * UNIT_TOKENS))
    return block_hashes(root_of("m"), ids)


def request(id: str, *parts: tuple[int, int], tail: int = 20, output: int = 100) -> InferenceRequest:
    """Give a request whose prompt is made of parts, and `tail` tokens that no unit covers."""
    chain = prefix(*parts)
    return InferenceRequest(
        id,
        "m",
        prompt_tokens=len(chain) * UNIT_TOKENS + tail,
        output_tokens=output,
        prefix=chain,
        ring_key=chain[0] if chain else None,
    )
