"""The wire: what a request's body says, and the few bytes of it that an engine gets to see differently.

A body is parsed once, here; the parsed form is read for its prompt and then dropped, and the bytes go on as they came.
The edits, each only where it is needed:

    model                           where the client called it by an alias
    stream_options.include_usage    asked of engines for streams whose client did not ask: tokens must be counted
    priority, kv_transfer_params …  cut out: they steer an engine past the gateway, or mean opposite things to two
    service_tier                    cut out for engines that refuse fields they do not know
    cache_salt                      put in, or in place of the client's own, where its tenant's caches are kept apart
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import InvalidBody, InvalidField, InvalidJson, MissingField
from gateway.forms import FormField, read_field
from gateway.routes import CHAT, COMPLETION, MESSAGES, RESPONSES, Route
from gateway.splice import Buffer, TooManyMembers, append, edit

_SCHEDULERS = ("priority", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "id_slot")
_CACHES = (  # of other engines, at a host that the client names; blocks and sessions of other tenants
    "kv_transfer_params",
    "ec_transfer_params",
    "disaggregated_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "session_params",
)
_ADAPTERS = ("lora_path", "lora_request", "lora")  # a tenant may use models by their names, and these go round them
_NAMES_OF_REQUESTS = ("rid",)  # SGLang's: who leaves ends all that go by it
STEERING_FIELDS = frozenset((*_SCHEDULERS, *_CACHES, *_ADAPTERS, *_NAMES_OF_REQUESTS))
UNKNOWN_TO_SOME = frozenset(("service_tier",))
MAX_MODEL_CHARS = 256
MAX_CHOICES = 16_384  # vLLM's limit; engines that have none die of more, one after the other
MAX_COUNT = 1 << 31  # no engine makes more, and no arithmetic here has to bear it
_LIMITS_OUTPUT = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETION: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
"""Members by which the output is bounded; of others of the kind, engines take no notice."""
YES = frozenset(("true", "1", "on", "yes", "t", "y"))
DIGITS = re.compile(r"\s*\+?[0-9]{1,20}(\.0*)?\s*", re.ASCII)
_MULTIPLIES = {CHAT: ("n",), COMPLETION: ("n", "best_of")}
MAX_NESTED = 100_000  # objects and arrays of a body, some 30 ms to parse; those that stand in texts are counted as well


@dataclass(slots=True)
class Call:
    """What one request asks for."""

    model: str
    """As the client calls it."""
    is_stream: bool = False
    is_background: bool = False
    """Whether the engine is to answer at once, and to make its output behind that."""
    document: dict[str, Any] | None = None
    """The parsed body, until its prompt has been read; None for forms."""
    max_tokens: int | None = None
    """The most output that the client allows for each choice; None where it sets no limit."""
    choices: int = 1
    hides_usage: bool = False
    """Whether usage is asked of the engine on the gateway's account, and kept from the client."""
    previous_response_id: str | None = None
    dropped: tuple[str, ...] = ()
    """Fields that no engine may see."""
    dropped_if_unknown: tuple[str, ...] = ()
    stream_options: dict[str, Any] | None = None
    """The client's own, which usage is added to."""
    cache_salt: str | None = None
    """What engines keep their caches apart by, where that is for the gateway to say."""
    has_cache_salt: bool = False
    """Whether the client names one."""
    served_model: str | None = None
    """As engines call it, where that is not what the client calls it."""
    model_field: FormField | None = None
    """Where it stands in a form."""

    def body_for_engine(self, body: bytes, *, takes_unknown_fields: bool) -> list[Buffer]:
        """Give the bytes to send: the client's own, but for the edits this call needs."""
        if self.model_field is not None:
            if self.served_model is None:
                return [body]
            return [body[: self.model_field.start], self.served_model.encode(), body[self.model_field.end :]]
        dropped = self.dropped if takes_unknown_fields else self.dropped + self.dropped_if_unknown
        pieces: list[Buffer] = [body]
        replaced: dict[str, object] = {}
        if self.served_model is not None:
            replaced["model"] = self.served_model
        if self.hides_usage and self.stream_options is not None:
            replaced["stream_options"] = {**self.stream_options, "include_usage": True}
        added: dict[str, object] = {}
        if self.hides_usage and self.stream_options is None:
            added["stream_options"] = {"include_usage": True}
        if self.cache_salt is not None:
            (replaced if self.has_cache_salt else added)["cache_salt"] = self.cache_salt
        if dropped or replaced:
            try:
                pieces = edit(body, replaced, dropped)
            except TooManyMembers as error:
                raise InvalidBody(str(error)) from error
        if added:
            pieces = append(body if len(pieces) == 1 else b"".join(pieces), added)
        return pieces


def parse(route: Route, content_type: str, body: bytes) -> Call:
    """Read a body.

    Raises:
        InvalidJson, InvalidBody, MissingField, InvalidField: the client's mistake, named.
    """
    if route.is_multipart:
        field = read_field(content_type, body, "model", 4 * MAX_MODEL_CHARS + 1)
        return Call(_checked_model(None if field is None else field.value), model_field=field)
    if len(body) > MAX_NESTED and body.count(b"{") + body.count(b"[") > MAX_NESTED:
        raise InvalidBody(f"the body has more than {MAX_NESTED} objects and arrays")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidBody("the body must be a JSON object")
    get = document.get
    is_stream = _is_true(get("stream"))
    options = get("stream_options")
    hides_usage = is_stream and route.has_usage_chunk
    stream_options = None
    if options is not None or "stream_options" in document:
        stream_options = options if isinstance(options, dict) else {}
        # Whatever else stands there is a mistake, and the engine says so.
        is_asked = _is_true(stream_options.get("include_usage"))
        hides_usage = hides_usage and not is_asked and (options is None or isinstance(options, dict))
    previous = get("previous_response_id") if route.shape is RESPONSES else None
    return Call(
        model=_checked_model(get("model")),
        is_stream=is_stream,
        is_background=route.shape is RESPONSES and _is_true(get("background")),
        document=document,
        max_tokens=_max_tokens(route, document) if route.generates else 0,
        choices=_choices(route, document) if route.generates else 1,
        hides_usage=hides_usage,
        previous_response_id=previous if isinstance(previous, str) else None,
        dropped=_named(document, STEERING_FIELDS) + _named(document, route.steering_fields),
        dropped_if_unknown=_named(document, UNKNOWN_TO_SOME),
        stream_options=stream_options,
        has_cache_salt="cache_salt" in document,
    )


def _named(document: dict[str, Any], names: frozenset[str]) -> tuple[str, ...]:
    """Give those of the names that a body has: nearly always none."""
    return () if names.isdisjoint(document) else tuple(document.keys() & names)


def _checked_model(model: object) -> str:
    if model is None:
        raise MissingField("the field `model` is required", param="model")
    if not isinstance(model, str) or not model or len(model) > MAX_MODEL_CHARS:
        raise InvalidField(f"`model` must be a text of 1 to {MAX_MODEL_CHARS} characters", param="model")
    return model


def _max_tokens(route: Route, document: dict[str, Any]) -> int | None:
    """Give the most that is allowed; of two that are set, the larger: engines differ in which they take."""
    most = None
    for name in _LIMITS_OUTPUT.get(route.shape, ()):
        if name in document and (value := _count(document[name])) is not None and (most is None or value > most):
            most = value
    return most


def _choices(route: Route, document: dict[str, Any]) -> int:
    """Count the answers: of each prompt of a completion so many as are asked for.

    Raises:
        InvalidField: more than any engine can make.
    """
    choices = 1
    for name in _MULTIPLIES.get(route.shape, ()):
        if name in document:
            count = _count(document[name]) or 1
            if count > MAX_CHOICES:
                raise InvalidField(f"`{name}` must be at most {MAX_CHOICES:,}", param=name)
            choices = max(choices, count)
    prompts = document.get("prompt") if route.shape is COMPLETION else None
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        choices *= len(prompts)
    return choices


def _is_true(value: object) -> bool:
    """Say whether engines, which read as pydantic does, take a value for true."""
    if isinstance(value, str):
        return value.lower() in YES
    return isinstance(value, int | float) and value == 1


def _count(value: object) -> int | None:
    """Read a number as engines do, which take "5" and 5.0 for 5; None where it is no count."""
    if isinstance(value, str) and DIGITS.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return min(value, MAX_COUNT) if type(value) is int and value >= 0 else None
