"""Endpoints and requests for the tests of policies."""

from policies.endpoint import Endpoint
from policies.health import Health, State
from policies.request import InferenceRequest

REQUEST = InferenceRequest("r", "m", prompt_tokens=100, output_tokens=50)
ALL_STATES = tuple(State)


def endpoint(name: str = "e", *, state: State = State.READY, model: str = "m", cool_until: float = 0.0) -> Endpoint:
    """Give an endpoint that has been watched for a while."""
    return Endpoint(name, f"http://{name}", frozenset((model,)), health=Health(state, cool_until))


def endpoints(count: int) -> list[Endpoint]:
    """Give idle, ready endpoints e0, e1, …"""
    return [endpoint(f"e{at}") for at in range(count)]
