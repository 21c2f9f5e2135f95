"""API keys in people's hands: made, shown, named, rotated, revoked; nothing is left of a secret but its hash."""

import re
from datetime import UTC, datetime

import pytest

from gateway.keys import (
    Entry,
    KeyProblem,
    entries,
    moment,
    new_secret,
    sha256_of,
    the_one,
    with_new_key,
    with_rotated_key,
    without_key,
    without_old_secret,
)
from gateway.tenancy import TenantConfig

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
LATER = datetime(2027, 2, 28, 12, tzinfo=UTC)
A, B, C = "kvl-AAAA0000000000000000000000000000000000aaaa", "kvl-BBBB00000000bbbb", "kvl-AAAA1111cccc"


def tenant(name: str = "team", **fields: object) -> TenantConfig:
    return TenantConfig.model_validate({"name": name, **fields})


def only(found: TenantConfig) -> Entry:
    (entry,) = entries([found])
    return entry


def problem(words: str, *tenants: TenantConfig) -> str:
    with pytest.raises(KeyProblem) as caught:
        the_one(words, entries(tenants))
    return str(caught.value)


def test_a_secret_is_256_bits_of_chance_that_headers_can_carry() -> None:
    made = {new_secret() for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.fullmatch(r"kvl-[A-Za-z0-9]{43}", secret) for secret in made)


def test_of_a_secret_its_hash_its_beginning_and_its_end_are_kept() -> None:
    found = with_new_key(tenant(), A, "ci", LATER)
    (key,) = found.keys
    assert (key.name, key.sha256, key.prefix, key.last4) == ("ci", (sha256_of(A),), "kvl-AAAA", "aaaa")
    assert key.expires_at == LATER
    assert A not in found.model_dump_json()
    assert A not in repr(found)


def test_a_tenant_has_each_name_once() -> None:
    found = with_new_key(tenant(), A, "ci", None)
    with pytest.raises(KeyProblem, match="has a key 'ci' already: --rotate ci"):
        with_new_key(found, B, "ci", None)
    assert len(with_new_key(with_new_key(found, B, None, None), C, None, None).keys) == 3


@pytest.mark.parametrize("name", ["", "a b", "-x", "é", "a" * 101, "a\n"])
def test_a_name_must_fit_into_a_line(name: str) -> None:
    with pytest.raises(KeyProblem, match="no key can be called"):
        with_new_key(tenant(), A, name, None)


# Which key is meant.


@pytest.mark.parametrize(
    "words",
    ["ci", "team/ci", "kvl-AAAA", "aaaa", "kvl-AAAA…aaaa", "kvl-AAAA...aaaa", f"sha256:{sha256_of(A)[:8]}", "sha256:"],
)
def test_a_key_is_called_by_what_is_shown_of_it(words: str) -> None:
    found = with_new_key(tenant(), A, "ci", None)
    if words == "sha256:":
        assert "there is no key" in problem(words, found)
    else:
        assert the_one(words, entries([found])).key.name == "ci"


@pytest.mark.parametrize("words", ["", "kvl-", "kvl-AAA", "aaa", "CI", "other/ci", "sha256:00", A, "None"])
def test_what_is_not_shown_is_no_name(words: str) -> None:
    found = with_new_key(with_new_key(tenant(), A, "ci", None), B, None, None)
    assert problem(words, found).startswith("there is no key ")


def test_words_for_two_keys_are_for_none() -> None:
    one, other = with_new_key(tenant("a"), A, "ci", None), with_new_key(tenant("b"), C, "ci", None)
    for words in ("ci", "kvl-AAAA"):
        told = problem(words, one, other)
        assert told.startswith(f"{words!r} is 2 keys: a/ci (sha256:{sha256_of(A)[:12]}), b/ci (sha256:")
    assert the_one("b/ci", entries([one, other])).tenant == "b"
    assert the_one(f"sha256:{sha256_of(C)[:12]}", entries([one, other])).tenant == "b"


def test_keys_of_the_short_form_are_called_by_their_hash() -> None:
    found = tenant(key_sha256=[sha256_of(A), sha256_of(B)])
    entry = the_one(f"sha256:{sha256_of(B)[:8]}…", entries([found]))
    assert (entry.is_short, entry.shown) == (True, f"sha256:{sha256_of(B)[:8]}…")
    assert without_key(found, entry).key_sha256 == (sha256_of(A),)


# Rotation.


def test_a_rotated_key_has_both_secrets_until_the_old_one_is_dropped() -> None:
    first = with_new_key(tenant(), A, "ci", LATER)
    second = with_rotated_key(first, only(first), B, None, NOW)
    (key,) = second.keys
    assert (key.sha256, key.prefix, key.last4) == ((sha256_of(B), sha256_of(A)), "kvl-BBBB", "bbbb")
    assert (key.name, key.expires_at, only(second).state(NOW)) == ("ci", LATER, "rotating")
    with pytest.raises(KeyProblem, match="has two secrets: first drop the older one"):
        with_rotated_key(second, only(second), C, None, NOW)
    third = without_old_secret(second, only(second))
    assert (third.keys[0].sha256, only(third).state(NOW)) == ((sha256_of(B),), "active")
    with pytest.raises(KeyProblem, match="has no older secret"):
        without_old_secret(third, only(third))


def test_an_expired_key_is_not_rotated_into_a_secret_that_is_none() -> None:
    found = with_new_key(tenant(), A, "ci", NOW)
    assert only(found).state(NOW) == "expired"
    with pytest.raises(KeyProblem, match="has expired"):
        with_rotated_key(found, only(found), B, None, NOW)
    assert with_rotated_key(found, only(found), B, LATER, NOW).keys[0].expires_at == LATER


def test_a_key_of_the_short_form_has_one_secret_for_good() -> None:
    found = tenant(key_sha256=[sha256_of(A)])
    with pytest.raises(KeyProblem, match="in key_sha256"):
        with_rotated_key(found, only(found), B, None, NOW)


# Revocation.


def test_a_tenant_may_lose_its_last_key_and_nothing_else() -> None:
    found = with_new_key(tenant(weight=2, limits={"parallel": 3}), A, "ci", None)
    left = without_key(found, only(found))
    assert (left.keys, left.weight, left.limits.parallel) == ((), 2, 3)
    short = tenant(key_sha256=[sha256_of(A)], limits={"parallel": 3})
    left = without_key(short, only(short))
    assert left == tenant(limits={"parallel": 3})
    assert set(left.model_dump(exclude_unset=True)) == {"name", "limits"}


def test_a_key_that_somebody_else_has_changed_meanwhile_is_left_alone() -> None:
    found = with_new_key(tenant(), A, "ci", None)
    entry = only(found)
    changed = with_rotated_key(found, entry, B, None, NOW)
    with pytest.raises(KeyProblem, match="has just been changed"):
        without_key(changed, entry)


# When it ends.


def test_a_time_is_a_period_from_now_or_a_moment() -> None:
    assert moment("90d", NOW) == LATER
    assert moment("12h", NOW) == datetime(2026, 12, 1, tzinfo=UTC)
    assert moment("1w", NOW) == datetime(2026, 12, 7, 12, tzinfo=UTC)
    assert moment("2027-01-31T01:00:00+01:00", NOW) == datetime(2027, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize("words", ["", "90", "0d", "d", "-1d", "2027-01-31", "2027-01-31T00:00:00", "soon", "99999w"])
def test_other_words_for_a_time_are_refused(words: str) -> None:
    if words == "99999w":
        assert moment(words, NOW).year == 3943
    else:
        with pytest.raises(KeyProblem, match="must be a period"):
            moment(words, NOW)


def test_a_key_does_not_end_before_it_begins() -> None:
    with pytest.raises(KeyProblem, match="has been"):
        moment("2026-11-30T11:00:00Z", NOW)
