"""Which headers pass from side to side, and which each side must not see.

To an engine: everything but credentials (they are the gateway's business; the engine gets a key of its own), hop-by-hop
headers, what frames the body, and what would let a tenant steer an engine past the gateway. To a client: everything but
hop-by-hop headers and framing. Header lines are built once a request and shared by all its tries.
"""

import re
from collections.abc import Iterable, Mapping

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
CREDENTIALS = frozenset(("authorization", "x-api-key", "api-key", "cookie"))
STEERING = frozenset(("x-data-parallel-rank", "x-vllm-priority", "x-smg-routing-key", "x-session-id"))
_NOT_TO_ENGINE = HOP_BY_HOP | CREDENTIALS | STEERING
_NOT_TO_ENGINE |= {"host", "accept-encoding", "content-length", "content-encoding", "expect", "x-request-id"}
_NOT_TO_ENGINE_PREFIXES = ("x-override-", "x-kvlane-", "x-ratelimit-")
_NOT_TO_CLIENT = frozenset(name.encode() for name in HOP_BY_HOP) | {
    b"content-length",
    b"content-encoding",
    b"x-request-id",
    b"set-cookie",
}
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
EVENT_STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
_SET_FOR_STREAMS = frozenset(name.encode() for name, _ in EVENT_STREAM_HEADERS)


def lines_to_engine(headers: Iterable[tuple[str, str]], connection: str) -> str:
    """Give the header lines of a client that an engine may see; `connection` names more that are hop-by-hop."""
    named = {name.strip().lower() for name in connection.split(",")} if connection else frozenset()
    lines = []
    for name, value in headers:
        lowered = name.lower()
        if lowered in _NOT_TO_ENGINE or lowered in named or lowered.startswith(_NOT_TO_ENGINE_PREFIXES):
            continue
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


def headers_to_client(headers: Iterable[tuple[bytes, bytes]], *, is_stream: bool) -> list[tuple[str, str]]:
    """Give the headers of an engine's answer that its client may see."""
    passed = []
    for name, value in headers:
        lowered = name.lower()
        if lowered in _NOT_TO_CLIENT or lowered.startswith(b"x-kvlane-"):
            continue
        if is_stream and lowered in _SET_FOR_STREAMS:
            continue
        passed.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))
    if is_stream:
        passed += EVENT_STREAM_HEADERS
    return passed


def bearer_key(headers: Mapping[str, str]) -> str | None:
    """Give the API key that a client presents, in OpenAI's, Anthropic's or Azure's way."""
    authorization = headers.get("Authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else None
    return headers.get("x-api-key") or headers.get("api-key")


def sane_request_id(headers: Mapping[str, str]) -> str | None:
    """Give the client's own request id, if it is one that may stand in headers and logs."""
    value = headers.get("x-request-id")
    return value if value is not None and _SANE_REQUEST_ID.fullmatch(value) else None


def client_deadline_s(headers: Mapping[str, str]) -> float | None:
    """Give the seconds after which the official clients give up, where they say so; None for nonsense."""
    for name in ("x-stainless-read-timeout", "x-stainless-timeout"):
        value = headers.get(name)
        if value is not None:
            try:
                seconds = float(value)
            except ValueError:
                continue
            if 0 < seconds < 1e9:
                return seconds
    return None
