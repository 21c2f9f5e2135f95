"""Which headers pass from side to side, and which each side must not see.

To an engine: everything but credentials (they are the gateway's business; the engine gets a key of its own), hop-by-hop
headers, what frames the body, and what would let a tenant steer an engine past the gateway. To a client: everything but
hop-by-hop headers and framing. Headers pass as the bytes in which they came. Names repeat from request to request, so
the verdict on a spelling is remembered.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from multidict import MultiMapping

from gateway.errors import MAX_RETRY_AFTER_S

RawHeaders = Iterable[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key", b"cookie"))
STEERING = frozenset((b"x-data-parallel-rank", b"x-vllm-priority", b"x-smg-routing-key", b"x-session-id"))
REWRITTEN = frozenset((b"host", b"accept-encoding", b"content-length", b"content-encoding", b"expect", b"x-request-id"))
TRACE_CONTEXT = frozenset((b"traceparent", b"tracestate"))
_NOT_TO_ENGINE = HOP_BY_HOP | CREDENTIALS | STEERING | REWRITTEN
_NOT_TO_ENGINE_PREFIXES = (b"x-override-", b"x-kvlane-", b"x-ratelimit-")
_NOT_TO_CLIENT = HOP_BY_HOP | {b"content-length", b"content-encoding", b"x-request-id", b"set-cookie"}
_NOT_TO_CLIENT_PREFIXES = (b"x-kvlane-",)
_SET_FOR_STREAMS = frozenset((b"content-type", b"cache-control", b"x-accel-buffering"))
EVENT_STREAM_LINES = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
MAX_SPELLINGS = 1000  # remembered; beyond that, names are judged anew each time
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class _Passage(dict[bytes, bool]):
    """Which header names pass in one direction, by their spelling; judged when they first come, and remembered."""

    def __init__(self, is_open: Callable[[bytes], bool]) -> None:
        self.is_open = is_open
        """By a name in lower case."""

    def __missing__(self, name: bytes) -> bool:
        is_open = self.is_open(name.lower())
        if len(self) < MAX_SPELLINGS:
            self[name] = is_open
        return is_open

    def lines(self, headers: RawHeaders) -> bytes:
        """Give the lines that pass."""
        return b"".join([b"%b: %b\r\n" % header for header in headers if self[header[0]]])


_TO_ENGINE = _Passage(lambda name: name not in _NOT_TO_ENGINE and not name.startswith(_NOT_TO_ENGINE_PREFIXES))
_TO_ENGINE_TRACED = _Passage(lambda name: name not in TRACE_CONTEXT and _TO_ENGINE.is_open(name))
_TO_CLIENT = _Passage(lambda name: name not in _NOT_TO_CLIENT and not name.startswith(_NOT_TO_CLIENT_PREFIXES))


def lines_to_engine(headers: RawHeaders, connection: Sequence[str], *, is_traced: bool = False) -> bytes:
    """Give the header lines of a client that an engine may see; `connection` names more that are hop-by-hop.

    Args:
        is_traced: Whether the engine gets a trace context of ours, in the place of the client's.
    """
    if connection:
        headers = _without(headers, ",".join(connection).encode("utf-8", "surrogateescape"))
    return (_TO_ENGINE_TRACED if is_traced else _TO_ENGINE).lines(headers)


def lines_to_client(headers: RawHeaders, connection: bytes, *, is_stream: bool) -> bytes:
    """Give the header lines of an engine's answer that its client may see; `connection` as for the other side."""
    if connection:
        headers = _without(headers, connection)
    if not is_stream:
        return _TO_CLIENT.lines(headers)
    return _TO_CLIENT.lines(pair for pair in headers if pair[0].lower() not in _SET_FOR_STREAMS) + EVENT_STREAM_LINES


def lines_of_error(headers: RawHeaders, connection: bytes, content_type: str, retry_after_s: float | None) -> bytes:
    """Give the header lines of an engine's error, whose body may have been put into another shape.

    A wait that clients do not keep is told as the longest they do, and that they need not come back.
    """
    dropped = connection + b",content-type,location"
    lines = b"content-type: %b\r\n" % content_type.encode("latin-1", "replace")
    if retry_after_s is not None and retry_after_s > MAX_RETRY_AFTER_S:
        dropped += b",retry-after,retry-after-ms,x-should-retry"
        lines += b"retry-after: %d\r\nx-should-retry: false\r\n" % MAX_RETRY_AFTER_S
    return _TO_CLIENT.lines(_without(headers, dropped)) + lines


def _without(headers: RawHeaders, names: bytes) -> list[tuple[bytes, bytes]]:
    dropped = {name.strip().lower() for name in names.split(b",")}
    return [pair for pair in headers if pair[0].lower() not in dropped]


def presented_authorization(headers: MultiMapping[str]) -> tuple[str, str] | None:
    """Give the scheme, in lower case, and what follows; None where there is none. Two at once are of no scheme."""
    presented = headers.getall("Authorization", [])
    if not presented:
        return None
    scheme, _, value = presented[0].partition(" ")
    return (scheme.lower() if len(presented) == 1 else ""), value.strip()


def bearer_key(headers: MultiMapping[str]) -> str | None:
    """Give the API key that a client presents, in OpenAI's, Anthropic's or Azure's way; None where it presents none.

    What is presented and cannot be a key (another scheme, two at once) is the empty one, which is nobody's.
    """
    authorization = presented_authorization(headers)
    if authorization is not None:
        scheme, key = authorization
        return key if scheme == "bearer" else ""
    presented = [*headers.getall("x-api-key", ()), *headers.getall("api-key", ())]
    return presented[0] if len(set(presented)) == 1 else "" if presented else None


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
