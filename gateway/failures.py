"""What a client is told of an engine that failed: before the first byte by status, inside a stream by an event."""

from typing import Any

import orjson

from gateway.connection import NoFilesLeft, Stalled, UpstreamError
from gateway.errors import GatewayError, Overloaded, UpstreamFailed, UpstreamTimeout, stream_event
from gateway.routes import Shape


def failure_of(error: UpstreamError) -> GatewayError:
    """Say to a client what went wrong with an engine."""
    if isinstance(error, NoFilesLeft):
        return Overloaded(str(error))
    if isinstance(error, Stalled):
        return UpstreamTimeout(f"the engine did not answer in time: {error}")
    return UpstreamFailed(f"the engine failed: {error}")


def broken_event(shape: Shape, error: UpstreamError) -> bytes:
    """Say it inside a stream, in the shape that the client of this route raises on."""
    refusal = failure_of(error)
    if shape is Shape.MESSAGES:
        payload = {"type": "error", "error": {"type": "api_error", "message": refusal.message}}
        return b"event: error\ndata: " + orjson.dumps(payload) + b"\n\n"
    return stream_event(refusal)


def is_json(body: bytes) -> bool:
    """Whether a body is whole, where nothing but the close of its connection says so."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def json_failure(body: bytes) -> dict[str, Any] | None:
    """Give what a JSON answer with status 200 holds, where it is an error or an aborted generation."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(payload, dict):
        return None
    choices = payload.get("choices")
    is_aborted = isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices
    )
    return payload if payload.get("error") or is_aborted else None
