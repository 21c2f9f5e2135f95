"""The cache salt of a tenant whose prompts must not show in other tenants' caches, nor theirs in its own.

Engines keep a prompt's blocks apart by `cache_salt`. Here it is made of the tenant's secret and of the salt that its
client names, if any: so a tenant can divide its own compartment further, and reach nobody else's, whatever it names.
The secret never leaves the gateway; all gateways before the same engines must have the same, or they share no cache.
"""

import hmac
from base64 import urlsafe_b64encode

_BARE, _NAMED = b"\x00", b"\x01"


def secret_of(root: bytes, tenant: str) -> bytes:
    """Make the secret of a tenant, from one that the operator keeps for all of them."""
    return hmac.digest(root, tenant.encode("utf-8", "surrogatepass"), "sha256")


def salt_of(secret: bytes, named: object) -> str:
    """Give the salt to send, 43 characters of 256 bits; what a client names and is no text, or empty, is no salt."""
    own = _NAMED + named.encode("utf-8", "surrogatepass") if named and isinstance(named, str) else _BARE
    return urlsafe_b64encode(hmac.digest(secret, own, "sha256")).rstrip(b"=").decode()
