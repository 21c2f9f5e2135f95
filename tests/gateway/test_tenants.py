"""API keys: known by their hash, whole, and by nothing else."""

import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError, InvalidApiKey, ModelNotAllowed, TenantsUnknown
from gateway.tenancy import AnonymousConfig, LimitsConfig, TenantConfig
from gateway.tenants import ANONYMOUS, Tenants

NOW = 1_800_000_000.0
SOON = "2027-01-15T08:00:10Z"  # ten seconds later
ANYBODY = AnonymousConfig()


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenant(name: str, *keys: str, **settings: Any) -> TenantConfig:
    return TenantConfig(name=name, key_sha256=tuple(map(digest, keys)), **settings)


TENANTS = Tenants(
    [tenant("a", "key-a", "key-a-2"), tenant("b", "key-b", models=("small", "large"), kvlane_headers=False)]
)


def refusal(tenants: Tenants, key: str | None, now: float = NOW) -> str:
    with pytest.raises(InvalidApiKey) as caught:
        tenants.identify(key, now)
    return caught.value.message


# Whose key it is.


def test_a_key_tells_its_tenant() -> None:
    assert [TENANTS.identify(key, NOW).name for key in ("key-a", "key-a-2", "key-b")] == ["a", "a", "b"]


ODD = [None, "", "key", "key-c", "KEY-A", "key-a ", " key-a", digest("key-a"), "\udcff", "é", "k" * 1_000_000, "\x00"]


@pytest.mark.parametrize("key", ODD, ids=range(len(ODD)))
def test_a_key_that_is_nobodys_is_refused(key: str | None) -> None:
    refusal(TENANTS, key)


@given(st.text(max_size=2000))
def test_no_guess_is_let_in(key: str) -> None:
    if key not in ("key-a", "key-a-2", "key-b"):
        refusal(TENANTS, key)


def test_while_not_all_is_known_a_key_of_nobody_yet_cannot_be_judged() -> None:
    tenants = Tenants()
    tenants.put([tenant("a", "key-a")], None, unread="tenants_in_redis")
    assert tenants.identify("key-a", NOW).name == "a"
    with pytest.raises(TenantsUnknown) as caught:
        tenants.identify("key-b", NOW)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
    for key in (None, ""):
        assert "required" in refusal(tenants, key), "that is wrong whoever is there"
    assert not tenants.are_few, "others have put what is in the engines' caches"
    tenants.put([tenant("a", "key-a")], None)
    assert "not valid" in refusal(tenants, "key-b")
    assert tenants.are_few


def test_a_key_that_only_begins_like_a_good_one_is_refused() -> None:
    """However long both are."""
    key = "k" * 1024
    tenants = Tenants([tenant("a", key)])
    assert tenants.identify(key, NOW).name == "a"
    refusal(tenants, key + "x")


def test_a_refusal_quotes_no_key() -> None:
    assert "sk-secret" not in refusal(TENANTS, "sk-secret")


def test_keys_are_never_compared_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is kept is digests; all that is compared is digests, and in constant time."""
    compared: list[tuple[object, object]] = []
    in_constant_time = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return in_constant_time(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    TENANTS.identify("key-a", NOW)
    refusal(TENANTS, "key-c")
    expected = hashlib.sha256(b"key-a").digest()
    assert compared == [(expected, expected)]
    assert all(isinstance(kept, bytes) and len(kept) == 32 for kept in TENANTS._secrets)
    assert "key-a" not in repr(TENANTS._secrets)


# Keys that end.


def test_a_key_is_good_until_it_expires_and_then_the_refusal_says_so() -> None:
    key = {"sha256": [digest("k")], "expires_at": SOON}
    tenants = Tenants([TenantConfig.model_validate({"name": "a", "keys": [key]})])
    assert tenants.identify("k", NOW + 9.9).name == "a"
    assert refusal(tenants, "k", NOW + 10) == "this API key has expired"


def test_both_secrets_of_a_key_are_good_while_it_is_rotated() -> None:
    key = {"sha256": [digest("new"), digest("old")]}
    tenants = Tenants([TenantConfig.model_validate({"name": "a", "keys": [key]})])
    assert tenants.identify("new", NOW) is tenants.identify("old", NOW)


# Who has none.


def test_where_nobody_has_a_key_every_key_is_as_good_as_none() -> None:
    """Official clients do not start without one."""
    tenants = Tenants([], ANYBODY, has_keys=False)
    assert tenants.is_open
    assert tenants.identify(None, NOW) == tenants.identify("anything", NOW) == ANONYMOUS
    assert ANONYMOUS.may_use("any model")


@pytest.mark.parametrize("key", ["", "key-c"])
def test_a_wrong_key_is_refused_even_where_none_is_needed(key: str) -> None:
    tenants = Tenants([tenant("a", "key-a")], AnonymousConfig(limits=LimitsConfig(parallel=1)))
    assert not tenants.is_open
    assert (tenants.identify("key-a", NOW).name, tenants.identify(None, NOW).name) == ("a", "anonymous")
    assert tenants.identify(None, NOW).limits.parallel == 1
    refusal(tenants, key)


def test_without_tenants_the_door_is_closed() -> None:
    assert not Tenants().is_open
    refusal(Tenants(), None)
    refusal(Tenants(), "key")


def test_a_key_is_refused_for_good_when_the_last_tenant_is_gone() -> None:
    tenants = Tenants([], ANYBODY, has_keys=False)
    tenants.put([tenant("a", "key-a")], ANYBODY)
    assert tenants.identify("key-a", NOW).name == "a"
    tenants.put([], ANYBODY)
    refusal(tenants, "key-a")
    assert tenants.identify(None, NOW) == ANONYMOUS
    tenants.put([], None)
    refusal(tenants, None)


# What a tenant may.


def test_a_tenant_may_use_its_models_only() -> None:
    limited = TENANTS.identify("key-b", NOW)
    limited.check_model("small", "small")
    limited.check_model("an alias", "small")
    limited.check_model("small", "another name")
    with pytest.raises(ModelNotAllowed) as caught:
        limited.check_model("huge", "huge")
    error: GatewayError = caught.value
    assert (error.status, error.code, error.param) == (403, "model_not_allowed", "model")
    assert TENANTS.identify("key-a", NOW).may_use("huge")


def test_our_headers_are_a_matter_of_the_tenant() -> None:
    assert TENANTS.identify("key-a", NOW).kvlane_headers
    assert not TENANTS.identify("key-b", NOW).kvlane_headers


def test_what_is_configured_is_what_a_tenant_has() -> None:
    config = tenant(
        "a",
        "k",
        limits={"requests_per_minute": 60, "burst_requests": 5},
        limits_by_model={"m": {"parallel": 2}},
        token_weights={"cached": 0.1},
        max_reserved_output_tokens=1000,
        on_redis_error="closed",
        isolate_cache=True,
        weight=2,
        service_class="batch",
    )
    found = Tenants([config]).identify("k", NOW)
    assert (found.limits.requests_per_minute, found.limits.burst_requests) == (60, 5)
    assert (found.limits_by_model["m"].parallel, found.token_weights.cached, found.token_weights.output) == (2, 0.1, 1)
    assert (found.max_reserved_output_tokens, found.on_redis_error, found.isolate_cache) == (1000, "closed", True)
    assert (found.weight, found.service_class) == (2, "batch")


# Snapshots.


def test_a_request_keeps_the_tenant_that_it_was_given() -> None:
    tenants = Tenants([tenant("a", "k", weight=1)])
    given = tenants.identify("k", NOW)
    tenants.put([tenant("a", "k", weight=5)], None)
    assert (given.weight, tenants.identify("k", NOW).weight) == (1, 5)
    assert [found.weight for found in tenants] == [5]
    found = tenants.named("a")
    assert found is not None
    assert (found.weight, tenants.named("b"), tenants.named("anonymous")) == (5, None, None)
