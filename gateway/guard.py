"""Who may see the admin pages.

With admin keys configured: whoever has one, as a bearer token or as the password of basic authentication (what browsers
ask for; the user's name does not matter). Without: this machine alone, which takes more than a look at the peer's
address. A page of somebody else's, open in the operator's browser, can send requests from here as well: under a host
name of its own that it lets point to 127.0.0.1 (DNS rebinding), so the Host must be one of this machine; or to our
address, and then browsers say in Origin where it came from. And a proxy on this machine speaks for others.

/healthz is open, and so is /metrics unless `metrics_need_key`. A tenant's key opens nothing here.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
from dataclasses import dataclass

from aiohttp.web_request import BaseRequest
from yarl import URL

from gateway.headers import presented_authorization
from gateway.sections import Listen

NEEDS_KEY = "the admin listener needs an admin key: `Authorization: Bearer KEY`"
HOW_TO_OPEN = "configure listen.admin_key_sha256 and send that key"
PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
OPEN_PATHS = frozenset(("/healthz",))
METRICS_PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why somebody does not see a page."""

    status: int
    type: str
    code: str
    message: str


class Guard:
    """Stands before every page of the admin listener."""

    def __init__(self, listen: Listen) -> None:
        self._digests = [bytes.fromhex(digest) for digest in listen.admin_key_sha256]
        self._open_paths = OPEN_PATHS if listen.metrics_need_key else OPEN_PATHS | {METRICS_PATH}
        self._own_host = "" if is_any_address(listen.admin_host) else listen.admin_host.lower()

    def refusal(self, request: BaseRequest) -> Refusal | None:
        """Say why a request is refused; None where it is not."""
        if request.path in self._open_paths:
            return None
        if not is_of_own_pages(request):
            return _forbidden("requests of other sites' pages are refused")
        if self._digests:
            key = presented_key(request)
            if key is None or not self._is_admin(key):
                return Refusal(401, "authentication_error", "invalid_api_key", NEEDS_KEY)
            return None
        if not is_loopback(request.remote or "") or any(name in request.headers for name in PROXIED):
            return _forbidden(f"without an admin key this is for this machine alone: {HOW_TO_OPEN}")
        if not self._is_here(host_of(request)):
            return _forbidden(f"without an admin key the Host must be localhost or its address: {HOW_TO_OPEN}")
        return None

    def _is_admin(self, key: str) -> bool:
        """Compare with every admin key, in constant time."""
        presented = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        return sum(hmac.compare_digest(digest, presented) for digest in self._digests) > 0

    def _is_here(self, host: str) -> bool:
        return host == "localhost" or is_loopback(host) or (bool(host) and host == self._own_host)


def presented_key(request: BaseRequest) -> str | None:
    """Give the key of a request: a bearer token, or the password of basic authentication."""
    scheme, value = presented_authorization(request.headers) or ("", "")
    if scheme == "bearer":
        return value
    if scheme != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).decode("utf-8", "surrogateescape").partition(":")[2]
    except (binascii.Error, ValueError):
        return None


def is_of_own_pages(request: BaseRequest) -> bool:
    """Whether a request is from one of these pages, or from no page at all."""
    own = {f"{scheme}://{host.lower()}" for host in request.headers.getall("Host", []) for scheme in ("http", "https")}
    return all(origin.lower() in own for origin in request.headers.getall("Origin", []))


def host_of(request: BaseRequest) -> str:
    """Give the Host without its port; nothing where there is none, or more than one."""
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1:
        return ""
    try:
        return (URL(f"http://{hosts[0]}").host or "").lower()
    except ValueError:
        return ""


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own, for itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found.is_loopback


def is_any_address(address: str) -> bool:
    """Whether it stands for every address of this machine."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return not address


def _forbidden(message: str) -> Refusal:
    return Refusal(403, "permission_error", "admin_not_allowed", message)
