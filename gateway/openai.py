"""The wire: what a request's body says, and the few bytes of it that an engine gets to see differently.

A body is parsed once, here, and only for what the gateway must know; the parsed form is dropped at once and the bytes
go on as they came. The edits, each only where it is needed:

    stream_options.include_usage    asked of engines for streams whose client did not ask: tokens must be counted
    priority, data_parallel_rank …  cut out: they steer an engine's scheduler, and mean opposite things to two engines
    service_tier                    cut out for engines that refuse fields they do not know
"""

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import InvalidBody, InvalidField, InvalidJson, MissingField
from gateway.forms import read_field
from gateway.routes import Route, Shape
from gateway.splice import Buffer, TooManyMembers, append_member, edit
from gateway.tokens import estimate_prompt_tokens

STEERING_FIELDS = frozenset(("priority", "data_parallel_rank", "routed_dp_rank"))
UNKNOWN_TO_SOME = frozenset(("service_tier",))
DEFAULT_OUTPUT_TOKENS = 512  # expected of a request that sets no limit
MAX_MODEL_CHARS = 256


@dataclass(slots=True)
class Call:
    """What one request asks for."""

    model: str
    is_stream: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    """The most that the client allows, over all its choices; DEFAULT_OUTPUT_TOKENS where it sets no limit."""
    hides_usage: bool = False
    """Whether usage is asked of the engine on the gateway's account, and kept from the client."""
    previous_response_id: str | None = None
    dropped: tuple[str, ...] = ()
    """Fields that no engine may see."""
    dropped_if_unknown: tuple[str, ...] = ()
    stream_options: dict[str, Any] | None = None
    """The client's own, which usage is added to."""

    def body_for_engine(self, body: bytes, *, takes_unknown_fields: bool) -> list[Buffer]:
        """Give the bytes to send: the client's own, but for the edits this call needs."""
        dropped = self.dropped if takes_unknown_fields else self.dropped + self.dropped_if_unknown
        pieces: list[Buffer] = [body]
        replaced: dict[str, object] = {}
        if self.hides_usage and self.stream_options is not None:
            replaced["stream_options"] = {**self.stream_options, "include_usage": True}
        if dropped or replaced:
            try:
                pieces = edit(body, replaced, dropped)
            except TooManyMembers as error:
                raise InvalidBody(str(error)) from error
        if self.hides_usage and self.stream_options is None:
            edited = body if len(pieces) == 1 else b"".join(pieces)
            pieces = append_member(edited, "stream_options", {"include_usage": True})
        return pieces


def parse(route: Route, content_type: str, body: bytes) -> Call:
    """Read a body.

    Raises:
        InvalidJson, InvalidBody, MissingField, InvalidField: the client's mistake, named.
    """
    if route.is_multipart:
        return Call(_checked_model(read_field(content_type, body, "model", 4 * MAX_MODEL_CHARS + 1)))
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidBody("the body must be a JSON object")
    get = document.get
    is_stream = get("stream") is True
    options = get("stream_options")
    hides_usage = is_stream and route.has_usage_chunk
    stream_options = None
    if options is not None or "stream_options" in document:
        stream_options = options if isinstance(options, dict) else {}
        # Whatever else stands there is a mistake, and the engine says so.
        is_asked = stream_options.get("include_usage") is True
        hides_usage = hides_usage and not is_asked and (options is None or isinstance(options, dict))
    previous = get("previous_response_id") if route.shape is Shape.RESPONSES else None
    return Call(
        model=_checked_model(get("model")),
        is_stream=is_stream,
        prompt_tokens=estimate_prompt_tokens(document),
        output_tokens=_allowed_output(document) if route.generates else 0,
        hides_usage=hides_usage,
        previous_response_id=previous if isinstance(previous, str) else None,
        dropped=tuple(document.keys() & (STEERING_FIELDS | route.steering_fields)),
        dropped_if_unknown=tuple(document.keys() & UNKNOWN_TO_SOME),
        stream_options=stream_options,
    )


def _checked_model(model: object) -> str:
    if model is None:
        raise MissingField("the field `model` is required", param="model")
    if not isinstance(model, str) or not model or len(model) > MAX_MODEL_CHARS:
        raise InvalidField(f"`model` must be a text of 1 to {MAX_MODEL_CHARS} characters", param="model")
    return model


def _allowed_output(document: dict[str, Any]) -> int:
    allowed = DEFAULT_OUTPUT_TOKENS
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = document.get(name)
        if type(value) is int and value >= 0:
            allowed = value
            break
    choices = 1
    for name in ("n", "best_of"):
        value = document.get(name)
        if type(value) is int and value > choices:
            choices = value
    return allowed * choices
