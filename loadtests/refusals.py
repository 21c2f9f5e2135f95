"""Refused: what the simulated engine says no with, in vLLM 0.32's words (seen on the wire, see the tests)."""

import orjson

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
DRAINING = "cannot schedule new futures after shutdown"
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
SGLANG_FULL = "The request queue is full."


def error_body(message: str, type: str, param: str | None, code: int) -> bytes:
    """Render vLLM's error object; `code` is the status as a number."""
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


class Refused(Exception):
    """A request that is answered with an error before any work.

    Args:
        status: HTTP status, and the `code` in the body.
        type: vLLM's name of the error's kind.
        param: The field at fault.
    """

    def __init__(self, status: int, message: str, type: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param

    @property
    def body(self) -> bytes:
        """The answer's body."""
        return error_body(self.message, self.type, self.param, self.status)


def bad_request(message: str, param: str | None = None) -> Refused:
    """Refuse a value."""
    return Refused(400, message, "BadRequestError", param)


def bad_json(body: bytes, why: str) -> Refused:
    """Refuse a body that is no JSON."""
    problem = (
        f"{{'type': 'json_invalid', 'loc': 'body.{len(body)}', 'msg': 'JSON decode error', "
        f"'input': '<dict of 0 items>', 'ctx': {{'error': {why!r}}}}}"
    )
    return Refused(400, f"1 validation error:\n  {problem}", "Bad Request", f"body.{len(body)}")


def bad_type(field: str, kind: str, want: str, value: object) -> Refused:
    """Refuse a field of the wrong type."""
    problem = f"{{'type': '{kind}', 'loc': 'body.{field}', 'msg': '{want}', 'input': {value!r}}}"
    return Refused(400, f"1 validation error:\n  {problem}", "Bad Request", f"body.{field}")


def missing(field: str) -> Refused:
    """Refuse a body without a required field."""
    return bad_type(field, "missing", "Field required", "<dict>")


def unknown_model(model: str, known: str) -> Refused:
    """Refuse a model that is not served here."""
    return Refused(404, f"The model `{model}` does not exist. Valid aliases: {known}.", "NotFoundError", "model")


def prompt_too_long(limit: int) -> Refused:
    """Refuse a prompt that fills the context; how long it is vLLM does not tell."""
    least = limit + 1
    return bad_request(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {least} input"
        " tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input"
        f" prompt. (parameter=input_tokens, value={least})",
        "input_tokens",
    )


def output_too_long(limit: int, asked: int) -> Refused:
    """Refuse more output than the context holds."""
    return bad_request(
        f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
        f" (parameter=max_tokens, value={asked})",
        "max_tokens",
    )


def sum_too_long(limit: int, prompt: int, output: int) -> Refused:
    """Refuse a prompt and an output that only together exceed the context."""
    return bad_request(
        f"This model's maximum context length is {limit} tokens. However, you requested {output} output tokens and"
        f" your prompt contains {prompt} input tokens, for a total of {prompt + output} tokens. Please reduce the"
        " length of the input prompt or the number of requested output tokens."
        f" (parameter=input_tokens, value={prompt})",
        "input_tokens",
    )


def busy() -> Refused:
    """Refuse since the queue is full."""
    return Refused(503, BUSY, "Service Unavailable")


def draining() -> Refused:
    """Refuse since the engine is shutting down."""
    return Refused(500, DRAINING, "InternalServerError")
