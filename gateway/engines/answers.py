"""What an engine's bad answer means, and what of it a client is shown: told by its shape, whatever the kind.

Whose fault it is decides what may be done (`Verdict`); the words decide only where the status cannot:
over-length comes as 400, 422 and 500, and a full queue as an event in a stream of status 200.

A body whose JSON holds an `error` object is shown byte for byte, `code` as a number included. Every other
body (flat, `{"error": "..."}`, `{"detail": ...}`, text, HTML, nothing, half of something) is put once into
the shape that official clients read. The status stays the engine's own, but for two: an engine that refuses
the gateway's credentials is misconfigured and its 401 is no word about the client's key, and a status that is
no error has no meaning here; both are 502. Nothing raises.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum

import orjson

from gateway.engines import figures
from gateway.errors import MAX_MESSAGE_CHARS, error_body

JSON_TYPE = "application/json"


class Verdict(Enum):
    """Whose fault a bad answer is."""

    CLIENT = "client"
    """The request's own: never sent again, never counted against the endpoint."""
    OVER_LENGTH = "over_length"
    """The request's own, and yet an endpoint with a larger context may take it."""
    BUSY = "busy"
    """Nobody's: the engine is full or still loads its model. Not now, or elsewhere; not a failure."""
    BROKEN = "broken"
    """The engine's: it failed, is dying or drains. Elsewhere, and counted."""


@dataclass(frozen=True, slots=True)
class EngineError:
    """A bad answer, read: what it means and what the client is to see if nobody else does better."""

    status: int
    verdict: Verdict
    body: bytes
    retry_after_s: float | None = None
    content_type: str = JSON_TYPE


OVER_LENGTH = re.compile(
    r"maximum context length"  # vLLM, SGLang
    r"|maximum model length"  # vLLM: older prompts' check
    r"|greater than max_model_len"  # vLLM: max_tokens alone
    r"|'max_completion_tokens' is too large"  # vLLM until 0.16
    r"|longer than the model's context length"  # SGLang
    r"|should not exceed max_(?:num_tokens|seq_len)"  # TensorRT-LLM
    r"|`?default_max_tokens`? \(-?\d+\) must be greater than 0"  # TensorRT-LLM: no room for output
    r"|exceeds maximum input length"  # Triton
    r"|exceeds? the available context size|exceed_context_size"  # llama.cpp
    r"|too large to process\. increase the physical batch"  # llama.cpp: embeddings, with status 500
    r"|`inputs` must have less than \d+ tokens|`max_new_tokens` must be <="  # TGI
    r"|context_length_exceeded"  # whoever speaks OpenAI's own
)
OVER_LENGTH_STATUSES = {400, 413, 422, 500}

CREDENTIALS = {401, 403, 407}
BUSY_STATUSES = {408, 425, 429, 503, 529}  # 408: it would not wait for the body; 529: Anthropic's "overloaded"
BROKEN_STATUSES = {424}  # TGI: the request was good, generating failed
CLIENT_STATUSES = {501, 505}  # llama.cpp: not what this server was started for; it is well

NAMES = {
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("server_error", "upstream_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    424: ("server_error", "upstream_error"),
    425: ("service_unavailable_error", "server_overloaded"),
    429: ("rate_limit_error", "server_overloaded"),  # not rate_limit_exceeded: that is a tenant's own limit
    501: ("server_error", "not_supported"),
    503: ("service_unavailable_error", "server_overloaded"),
    504: ("server_error", "upstream_timeout"),
    529: ("service_unavailable_error", "server_overloaded"),
}
"""Type and code of the errors that engines give without."""

STREAM_STATUSES = {
    "overloaded": 429,
    "validation": 422,
    "template_error": 422,
    "generation": 424,
    "service_unavailable": 503,
    "unavailable_error": 503,
    "exceed_context_size_error": 400,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "not_found_error": 404,
    "authentication_error": 401,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}
"""Statuses of events that name a type and no status: TGI's, llama.cpp's, and Anthropic's own of /v1/messages."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What an engine's body says, whatever its shape."""

    message: str = ""
    type: str = ""
    param: str | None = None
    code: str | None = None


def read_error(status: int, headers: Mapping[str, str], body: bytes, truncated: bool = False) -> EngineError:
    """Read an answer whose status is an error.

    Args:
        status: As the engine sent it.
        headers: With lower-case names.
        body: The whole of it, or its beginning.
        truncated: Whether it broke off, or was longer than what is kept of it.
    """
    if status in CREDENTIALS:
        return _misconfigured(status)
    if not 400 <= status <= 599:
        message = f"the engine answered with status {status}, which the gateway cannot pass on"
        return EngineError(502, Verdict.BROKEN, error_body(message, "server_error", None, "upstream_error"))
    content_type = headers.get("content-type", "")
    answer = _parse(body)
    complaint = _complaint(answer)
    if not complaint.message:
        complaint = Complaint(_plain_text(status, content_type, body))
    verdict = _verdict(status, complaint)
    retry_after_s = _retry_after_s(headers)
    if isinstance(figures.fields(answer).get("error"), dict):
        shown_type = content_type if "json" in content_type.lower() else JSON_TYPE
        return EngineError(status, verdict, body, retry_after_s, shown_type)
    return EngineError(status, verdict, _shaped(status, verdict, complaint, truncated), retry_after_s)


def read_stream_error(payload: Mapping[str, object]) -> EngineError:
    """Read an error that came with a status of 200: as an event of a stream, or as the whole answer.

    Args:
        payload: The event's data, `{"error": ...}` or a flat error. Its own `code` is the status that it
        should have
            had; 500 where it tells none.
    """
    complaint = _complaint(payload)
    error = payload.get("error")
    status = _told_status(figures.fields(error)) or _told_status(payload)
    if status is None:
        status = STREAM_STATUSES.get(complaint.type.lower().replace(" ", "_"), 500)
    if status in CREDENTIALS:
        return _misconfigured(status)
    verdict = _verdict(status, complaint)
    if isinstance(error, dict):
        try:
            return EngineError(status, verdict, orjson.dumps(payload))
        except orjson.JSONEncodeError:  # nested too deep, or a number beyond 64 bits: words are enough
            pass
    return EngineError(status, verdict, _shaped(status, verdict, complaint))


def _verdict(status: int, complaint: Complaint) -> Verdict:
    words = f"{complaint.type} {complaint.code} {complaint.message}"[:MAX_MESSAGE_CHARS]  # 0.2 ms at most
    if status in OVER_LENGTH_STATUSES and OVER_LENGTH.search(words):
        return Verdict.OVER_LENGTH
    if status in BUSY_STATUSES:
        return Verdict.BUSY
    if status in BROKEN_STATUSES or (status >= 500 and status not in CLIENT_STATUSES):
        return Verdict.BROKEN
    return Verdict.CLIENT


def _misconfigured(status: int) -> EngineError:
    message = f"the engine refused the gateway's own credentials with status {status}"
    return EngineError(502, Verdict.BROKEN, error_body(message, "server_error", None, "upstream_error"))


def _parse(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _complaint(answer: object) -> Complaint:
    """Find the words in any of the shapes; empty where there are none."""
    told = figures.fields(answer)
    error = told.get("error")
    if isinstance(error, dict):
        told = error
    elif isinstance(error, str):
        return Complaint(error, figures.text(told.get("error_type")) or "")
    elif "detail" in told:
        return _detail(told["detail"])
    return Complaint(
        figures.text(told.get("message")) or "",
        figures.text(told.get("type")) or "",
        figures.text(told.get("param")),
        figures.text(told.get("code")),
    )


def _detail(detail: object) -> Complaint:
    """Read what FastAPI puts under `detail`: a text, what an application made of it, or a list of faults."""
    if isinstance(detail, str):
        return Complaint(detail)
    faults = [figures.fields(fault) for fault in figures.entries(detail)]
    told = [
        (".".join(map(str, figures.entries(fault.get("loc")))), figures.text(fault.get("msg")) or "")
        for fault in faults
    ]
    message = "; ".join(f"{where}: {what}" if where else what for where, what in told if what)
    if message:
        return Complaint(message, param=told[0][0] or None)
    return Complaint(figures.text(figures.fields(detail).get("message")) or "")


def _plain_text(status: int, content_type: str, body: bytes) -> str:
    """Give a body that has no words in any known shape as a text."""
    shown = body[: 4 * MAX_MESSAGE_CHARS].decode(errors="replace").strip()  # a character has at most 4 bytes
    if not shown:
        return f"the engine answered with status {status} and no body"
    if "html" in content_type.lower() or shown.startswith("<"):
        return f"the engine answered with status {status} and an HTML page"  # a proxy's in between, more often
    return shown


def _shaped(status: int, verdict: Verdict, complaint: Complaint, truncated: bool = False) -> bytes:
    fallback = ("server_error", "upstream_error") if status >= 500 else ("invalid_request_error", None)
    type_, code = NAMES.get(status, fallback)
    param = complaint.param
    if verdict is Verdict.OVER_LENGTH:
        type_, code = "invalid_request_error", "context_length_exceeded"
    elif status == 404 and _names_no_model(complaint.message):
        param, code = "model", "model_not_found"
    elif complaint.code is not None and not complaint.code.isdecimal():
        code = complaint.code
    message = complaint.message or f"the engine failed with status {status}"
    message = _showable(message) + (" (the engine's answer broke off here)" if truncated else "")
    return error_body(message, type_, param and _showable(param), code and _showable(code))


def _names_no_model(message: str) -> bool:
    words = message[:MAX_MESSAGE_CHARS].lower()
    return "model" in words and any(how in words for how in ("does not exist", "not found", "unknown model"))


def _showable(words: str) -> str:
    """Cut what may quote a client at length, and replace lone surrogates: JSON can spell them, UTF-8 cannot."""
    return words[:MAX_MESSAGE_CHARS].encode(errors="replace").decode()


def _told_status(error: Mapping[str, object]) -> int | None:
    """Find a status among the fields: `code` says vLLM, SGLang and llama.cpp, `http_status_code` TGI."""
    for name in ("code", "http_status_code", "status_code"):
        status = figures.whole(error.get(name))
        if status is not None and 400 <= status <= 599:
            return status
    return None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read how long to stay away: milliseconds, else seconds, else a date less the engine's own Date."""
    wait_ms = figures.amount(headers.get("retry-after-ms"))
    if wait_ms is not None:
        return wait_ms / 1000
    told = headers.get("retry-after", "")
    wait_s = figures.amount(told)
    if wait_s is not None:
        return wait_s
    until, now = _seconds(told), _seconds(headers.get("date", ""))
    return None if until is None or now is None else max(0.0, until - now)


def _seconds(date: str) -> float | None:
    """Read an HTTP date (RFC 9110, 5.6.7) as Unix seconds."""
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser's own faults among them
        return None
