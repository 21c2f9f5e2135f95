"""API keys as people handle them: made, shown, named, rotated, revoked.

Pure: tenants in, tenants out; `keystores.py` keeps them. A secret leaves `new_secret` once, to be shown once; what is
kept of it is its SHA-256, and how it begins and ends, by which people know it again.
"""

import hashlib
import re
import secrets
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.tenancy import MAX_SECRETS, KeyConfig, TenantConfig

SCHEME = "kvl-"
LETTERS = string.ascii_letters + string.digits  # none that a command line takes for an option, or a click for an end
RANDOM_CHARS = 43  # of 62: 256 bits
SHOWN_CHARS = len(SCHEME) + 4  # and four at the end: 48 of 256 bits are told
HASH_SCHEME, LEAST_HASH_CHARS = "sha256:", 8
PERIOD = re.compile(r"([1-9]\d{0,4})([hdw])")
HOURS = {"h": 1, "d": 24, "w": 7 * 24}


class KeyProblem(Exception):
    """What was asked of keys cannot be done; the message is one line."""


def new_secret() -> str:
    """Make a secret that nobody can guess."""
    return SCHEME + "".join(secrets.choice(LETTERS) for _ in range(RANDOM_CHARS))


def sha256_of(secret: str) -> str:
    """Give all of a secret that is ever stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A key in a list of all."""

    tenant: str
    key: KeyConfig
    is_short: bool = False
    """Whether it is one of `key_sha256`."""

    @property
    def shown(self) -> str:
        """How people see its secret."""
        if self.key.prefix and self.key.last4:
            return f"{self.key.prefix}…{self.key.last4}"
        return f"{HASH_SCHEME}{self.key.sha256[0][:LEAST_HASH_CHARS]}…"

    def state(self, now: datetime) -> str:
        """Say whether it opens the door."""
        if self.key.expires_at is not None and now >= self.key.expires_at:
            return "expired"
        return "rotating" if len(self.key.sha256) > 1 else "active"

    def is_called(self, words: str) -> bool:
        """Whether somebody who says `words` may mean it: its name, its tenant's and its own, or what is shown of it."""
        name, prefix, last4 = self.key.name, self.key.prefix, self.key.last4
        if words.startswith(HASH_SCHEME):
            begin = words.removeprefix(HASH_SCHEME).rstrip("….").lower()
            is_long = len(begin) >= LEAST_HASH_CHARS
            return is_long and any(digest.startswith(begin) for digest in self.key.sha256)
        names = {name, f"{self.tenant}/{name}"} if name else set()
        shown = {prefix, last4, f"{prefix}…{last4}", f"{prefix}...{last4}"} if prefix and last4 else set()
        return words in names | shown

    def __str__(self) -> str:
        return f"{self.tenant}/{self.key.name}" if self.key.name else f"{self.shown} of {self.tenant}"


def entries(tenants: Iterable[TenantConfig]) -> Iterator[Entry]:
    """Give every key there is."""
    for tenant in tenants:
        for digest in tenant.key_sha256:
            yield Entry(tenant.name, KeyConfig(sha256=(digest,)), is_short=True)
        for key in tenant.keys:
            yield Entry(tenant.name, key)


def the_one(words: str, among: Iterable[Entry]) -> Entry:
    """Give the key that somebody means.

    Raises:
        KeyProblem: there is none, or more than one.
    """
    meant = [entry for entry in among if entry.is_called(words)]
    if not meant:
        raise KeyProblem(f"there is no key {words!r}: `kvlane key list` shows all")
    if len(meant) > 1:
        told = ", ".join(f"{entry} ({HASH_SCHEME}{entry.key.sha256[0][:12]})" for entry in meant)
        raise KeyProblem(f"{words!r} is {len(meant)} keys: {told}; say which by its {HASH_SCHEME}…")
    return meant[0]


def with_new_key(tenant: TenantConfig, secret: str, name: str | None, expires_at: datetime | None) -> TenantConfig:
    """Give the tenant a key more.

    Raises:
        KeyProblem: it has one of that name, or nothing can be called so.
    """
    if name is not None and any(key.name == name for key in tenant.keys):
        raise KeyProblem(f"{tenant.name} has a key {name!r} already: --rotate {name} gives it a new secret")
    fields = {"name": name, "expires_at": expires_at, **_of(secret)}
    try:
        key = KeyConfig.model_validate({field: value for field, value in fields.items() if value is not None})
    except ValueError as error:
        raise KeyProblem(f"no key can be called {name!r}") from error
    return tenant.model_copy(update={"keys": (*tenant.keys, key)})


def with_rotated_key(
    tenant: TenantConfig, entry: Entry, secret: str, expires_at: datetime | None, now: datetime
) -> TenantConfig:
    """Give one of the tenant's keys another secret; the one it has stays good until it is dropped.

    Raises:
        KeyProblem: it has two, has expired, or cannot have two.
    """
    if entry.is_short:
        raise KeyProblem(f"{entry} is in key_sha256, where each secret stands alone: make a new key, revoke this one")
    if len(entry.key.sha256) >= MAX_SECRETS:
        raise KeyProblem(f"{entry} has two secrets: first drop the older one with `kvlane key revoke --old`")
    if expires_at is None and entry.state(now) == "expired":
        raise KeyProblem(f"{entry} has expired: say until when it is good with --expires")
    fresh = _of(secret)
    update = {**fresh, "sha256": (*fresh["sha256"], *entry.key.sha256)}
    if expires_at is not None:
        update["expires_at"] = expires_at
    return _with(tenant, entry, entry.key.model_copy(update=update))


def without_key(tenant: TenantConfig, entry: Entry) -> TenantConfig:
    """Take a key from the tenant."""
    if not entry.is_short:
        return _with(tenant, entry, None)
    left = tuple(digest for digest in tenant.key_sha256 if digest not in entry.key.sha256)
    return tenant.model_copy(update={"key_sha256": left}) if left else _unset(tenant, "key_sha256")


def without_old_secret(tenant: TenantConfig, entry: Entry) -> TenantConfig:
    """Take the older of its two secrets from a key.

    Raises:
        KeyProblem: it has one only.
    """
    if len(entry.key.sha256) < MAX_SECRETS:
        raise KeyProblem(f"{entry} has no older secret")
    return _with(tenant, entry, entry.key.model_copy(update={"sha256": entry.key.sha256[:1]}))


def moment(words: str, now: datetime) -> datetime:
    """Read when a key expires: a period from now (12h, 90d, 4w), or a time (RFC 3339).

    Raises:
        KeyProblem: it is neither, or has been.
    """
    period = PERIOD.fullmatch(words)
    try:
        when = now + timedelta(hours=int(period[1]) * HOURS[period[2]]) if period else datetime.fromisoformat(words)
    except (ValueError, OverflowError):
        when = None
    if when is None or when.tzinfo is None:
        raise KeyProblem(f"--expires must be a period (12h, 90d, 4w) or a time (2027-01-31T00:00:00Z), is {words!r}")
    if when <= now:
        raise KeyProblem(f"--expires {words} has been")
    return when.astimezone(UTC).replace(microsecond=0)


def _of(secret: str) -> dict[str, tuple[str, ...] | str]:
    return {"sha256": (sha256_of(secret),), "prefix": secret[:SHOWN_CHARS], "last4": secret[-4:]}


def _with(tenant: TenantConfig, entry: Entry, key: KeyConfig | None) -> TenantConfig:
    """Put a key in another's place, or nothing."""
    kept = [key if known == entry.key else known for known in tenant.keys]
    if entry.key not in tenant.keys:
        raise KeyProblem(f"{entry} has just been changed by somebody else")
    return tenant.model_copy(update={"keys": tuple(known for known in kept if known is not None)})


def _unset(tenant: TenantConfig, field: str) -> TenantConfig:
    """Leave out a field: an empty one would not be allowed."""
    return TenantConfig.model_validate(tenant.model_dump(exclude={field}, exclude_unset=True))
