"""Every refusal of the gateway: status, type, code, retry-after; rendered here and nowhere else.

The shape is OpenAI's, `{"error": {"message", "type", "param", "code"}}`, all four keys, because the official clients
build their exceptions from it. A tenant's own limit is 429, the fleet's overload 503: never mixed. Messages carry the
numbers an operator needs, and never a key or a prompt.
"""

import math
from typing import ClassVar

import orjson

MAX_RETRY_AFTER_S = 60.0  # some clients ignore more and come back after half a second
MAX_MESSAGE_CHARS = 2000  # a message may quote what the client sent; it is not a way to mirror a body


class GatewayError(Exception):
    """A request that ends here, with all that its client is told."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    closes: ClassVar[bool] = False
    """Whether the connection ends here: what else comes over it cannot be told apart from the rest of this request."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message[:MAX_MESSAGE_CHARS]
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow: tuple[str, ...] = ()
        """The methods that would do, where this one does not."""
        self.lines = b""
        """Header lines that go along."""
        self.is_final = False
        """Whether coming again would not help."""


class InternalError(GatewayError):
    """A fault of ours: the message says nothing, the log says all."""


class InvalidJson(GatewayError):
    status, type, code = 400, "invalid_request_error", "invalid_json"


class InvalidBody(GatewayError):
    status, type, code = 400, "invalid_request_error", "invalid_body"


class BrokenBody(InvalidBody):
    """The body is not framed or encoded as its headers say."""

    closes = True


class MissingField(GatewayError):
    status, type, code = 400, "invalid_request_error", "missing_field"


class InvalidField(GatewayError):
    status, type, code = 400, "invalid_request_error", "invalid_field"


class MalformedRequest(GatewayError):
    """What the client sent is not HTTP as we read it."""

    status, type, code = 400, "invalid_request_error", "malformed_request"


class ContextLengthExceeded(GatewayError):
    status, type, code = 400, "invalid_request_error", "context_length_exceeded"


class InvalidApiKey(GatewayError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class ModelNotAllowed(GatewayError):
    status, type, code = 403, "permission_error", "model_not_allowed"


class ModelNotFound(GatewayError):
    status, type, code = 404, "invalid_request_error", "model_not_found"


class NotFound(GatewayError):
    status, type, code = 404, "invalid_request_error", "not_found"


class MethodNotAllowed(GatewayError):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, method: str, allow: tuple[str, ...]) -> None:
        super().__init__(f"this path takes {' or '.join(allow)}, not {method[:20]}")
        self.allow = allow


class BodyTimeout(GatewayError):
    """The client stopped sending its body."""

    status, type, code = 408, "invalid_request_error", "request_timeout"
    closes = True


class RequestTooLarge(GatewayError):
    status, type, code = 413, "invalid_request_error", "request_too_large"
    closes = True


class HeadTooLarge(GatewayError):
    status, type, code = 431, "invalid_request_error", "header_too_large"


class LimitReached(GatewayError):
    """A tenant's own limit; without a time to come back, the request is larger than the limit."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"

    def __init__(self, message: str, *, lines: bytes = b"", retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.lines = lines
        self.is_final = retry_after_s is None


class BudgetSpent(GatewayError):
    """A tenant's budget is gone: coming again does not help before its period ends."""

    status, type, code = 429, "insufficient_quota", "insufficient_quota"

    def __init__(self, message: str, *, lines: bytes = b"") -> None:
        super().__init__(message)
        self.lines = lines
        self.is_final = True


class UpstreamFailed(GatewayError):
    """The engine failed before the first byte and retries are spent."""

    status, type, code = 502, "server_error", "upstream_error"


class Overloaded(GatewayError):
    """No endpoint can take it now. Always with retry-after."""

    status, type, code = 503, "service_unavailable_error", "server_overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class TenantsUnknown(GatewayError):
    """Whose key it is cannot be said yet: not all tenants have been read since the start. Always with retry-after."""

    status, type, code = 503, "service_unavailable_error", "tenants_unknown"


class UpstreamTimeout(GatewayError):
    """No first byte by the deadline."""

    status, type, code = 504, "server_error", "upstream_timeout"


def error_body(message: str, type_: str, param: str | None, code: str | None) -> bytes:
    """Render the one shape that every error has."""
    return orjson.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}})


def render(error: GatewayError) -> tuple[int, list[tuple[str, str]], bytes]:
    """Give status, headers and body of a refusal.

    Retry-After is in whole seconds and at least 1, for clients that read integers; `retry-after-ms` says it exactly.
    """
    headers = [("content-type", "application/json")]
    if error.allow:
        headers.append(("allow", ", ".join(error.allow)))
    if error.is_final:
        headers.append(("x-should-retry", "false"))
    if error.retry_after_s is not None:
        wait_s = min(error.retry_after_s, MAX_RETRY_AFTER_S)
        headers.append(("retry-after", str(max(1, math.ceil(wait_s)))))
        headers.append(("retry-after-ms", str(max(1, math.ceil(wait_s * 1000)))))
        if error.retry_after_s > MAX_RETRY_AFTER_S:
            headers.append(("x-should-retry", "false"))
    return error.status, headers, error_body(error.message, error.type, error.param, error.code)


def stream_event(error: GatewayError) -> bytes:
    """Give a refusal as the server-sent event that official clients raise on."""
    return b"data: " + error_body(error.message, error.type, error.param, error.code) + b"\n\n"
