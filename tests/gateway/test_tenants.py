"""API keys: known by their hash, whole, and by nothing else."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import TenantConfig
from gateway.errors import GatewayError, InvalidApiKey, ModelNotAllowed
from gateway.tenants import ANONYMOUS, Tenants


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenant(name: str, *keys: str, models: tuple[str, ...] = (), headers: bool = True) -> TenantConfig:
    return TenantConfig(name=name, key_sha256=tuple(map(digest, keys)), models=models, kvlane_headers=headers)


TENANTS = Tenants([tenant("a", "key-a", "key-a-2"), tenant("b", "key-b", models=("small", "large"), headers=False)])


def test_a_key_tells_its_tenant() -> None:
    assert [TENANTS.identify(key).name for key in ("key-a", "key-a-2", "key-b")] == ["a", "a", "b"]


@pytest.mark.parametrize("key", [None, "", "key", "key-c", "KEY-A", "key-a ", " key-a", digest("key-a"), "\udcff"])
def test_a_key_that_is_nobodys_is_refused(key: str | None) -> None:
    with pytest.raises(InvalidApiKey):
        TENANTS.identify(key)


@given(st.text(max_size=2000))
def test_no_guess_is_let_in(key: str) -> None:
    if key not in ("key-a", "key-a-2", "key-b"):
        with pytest.raises(InvalidApiKey):
            TENANTS.identify(key)


def test_a_key_that_only_begins_like_a_good_one_is_refused() -> None:
    """However long both are."""
    key = "k" * 1024
    tenants = Tenants([tenant("a", key)])
    assert tenants.identify(key).name == "a"
    with pytest.raises(InvalidApiKey):
        tenants.identify(key + "x")


def test_a_refusal_quotes_no_key() -> None:
    with pytest.raises(InvalidApiKey) as caught:
        TENANTS.identify("sk-secret")
    assert "sk-secret" not in caught.value.message


def test_without_tenants_everybody_is_anonymous() -> None:
    tenants = Tenants([])
    assert tenants.is_open
    assert tenants.identify(None) is tenants.identify("anything") is ANONYMOUS
    assert ANONYMOUS.may_use("any model")


def test_with_tenants_the_door_is_closed() -> None:
    assert not TENANTS.is_open


def test_a_tenant_may_use_its_models_only() -> None:
    limited = TENANTS.identify("key-b")
    limited.check_model("small", "small")
    limited.check_model("an alias", "small")
    limited.check_model("small", "another name")
    with pytest.raises(ModelNotAllowed) as caught:
        limited.check_model("huge", "huge")
    error: GatewayError = caught.value
    assert (error.status, error.code, error.param) == (403, "model_not_allowed", "model")
    assert TENANTS.identify("key-a").may_use("huge")


def test_our_headers_are_a_matter_of_the_tenant() -> None:
    assert TENANTS.identify("key-a").kvlane_headers
    assert not TENANTS.identify("key-b").kvlane_headers
