"""Sections about who calls: who may is always said, a limit is never silently none, a secret is never told."""

from typing import Any

import pytest

from gateway.config import Config, ConfigError, build, quick
from gateway.sharedredis import servers_of
from gateway.tenancy import RedisConfig, TenantConfig, tenant_of

DIGEST, OTHER = "0" * 64, "1" * 64
POOLS = [{"endpoints": [{"url": "http://127.0.0.1:9"}]}]
WHO = "anonymous: who may call? Name tenants (`kvlane key` makes keys), or write `anonymous: {}` to let everybody in"


def built(**sections: Any) -> Config:
    return build({"pools": POOLS, **sections}, "test", {})


def problems(**sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        built(**sections)
    return list(caught.value.problems)


def of_tenant(**fields: Any) -> list[str]:
    return problems(tenants=[{"name": "a", **fields}])


# Who may call.


@pytest.mark.parametrize(
    "sections", [{}, {"tenants": []}, {"tenants": None}, {"anonymous": None}, {"tenants_in_redis": False}]
)
def test_a_configuration_that_does_not_say_who_may_call_is_refused(sections: dict[str, Any]) -> None:
    assert WHO in problems(**sections)


def test_that_is_said_together_with_whatever_else_is_wrong() -> None:
    assert [line.split(": ")[0] for line in problems(listen={"port": -1})] == ["anonymous", "listen.port"]


def test_everybody_may_call_where_that_is_said() -> None:
    config = built(anonymous={})
    assert config.anonymous is not None
    assert not config.has_keys
    assert quick(["http://127.0.0.1:9"]).anonymous == config.anonymous


@pytest.mark.parametrize(
    "sections",
    [
        {"tenants": [{"name": "a"}]},
        {"tenants_file": "t.yaml"},
        {"tenants_in_redis": True, "redis": {"url": "redis://h"}},
    ],
)
def test_keys_are_asked_for_where_somebody_may_be_given_one(sections: dict[str, Any]) -> None:
    assert built(**sections).has_keys
    assert built(**sections, anonymous={}).has_keys


# Limits.


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"tokens_per_month": 10**15 + 1}, ".tokens_per_month: must be less than or equal to 1000000000000000"),
        ({"requests_per_minute": 10**20}, ".requests_per_minute: must be less than or equal to"),
        ({"cost_per_day": 2e9}, ".cost_per_day: must be less than or equal to 1000000000"),
        (
            {"tokens_per_minute": 1, "burst_tokens": 10**6},
            ": burst_tokens must be no more than tokens_per_minute bring",
        ),
    ],
)
def test_a_limit_that_redis_cannot_count_to_is_refused(limits: dict[str, Any], words: str) -> None:
    (line,) = of_tenant(limits=limits)
    assert line.startswith(f"tenants[0].limits{words}")


def test_large_limits_are_good() -> None:
    limits = {"tokens_per_minute": 10**9, "burst_tokens": 10**12, "tokens_per_month": 10**15}
    assert built(tenants=[{"name": "a", "limits": limits}]).tenants[0].limits.tokens_per_month == 10**15


# Keys.


def test_a_key_has_one_secret_or_two_and_may_end() -> None:
    keys = [{"name": "ci", "sha256": [DIGEST.upper(), OTHER], "expires_at": "2027-01-31T01:00:00+01:00"}]
    (tenant,) = built(tenants=[{"name": "a", "keys": keys}]).tenants
    assert tenant.keys[0].expires_at is not None
    assert tenant.keys[0].expires_at.isoformat() == "2027-01-31T01:00:00+01:00"
    assert [digest for _, digest in tenant.digests()] == [DIGEST, OTHER]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ({}, "keys[0].sha256: is required"),
        ({"sha256": []}, "keys[0].sha256: must have at least 1"),
        ({"sha256": [DIGEST, OTHER, "2" * 64]}, "keys[0].sha256: "),
        ({"sha256": ["kvl-s3cret"]}, "keys[0].sha256: each must be 64 hex digits"),
        ({"sha256": "kvl-s3cret"}, "keys[0].sha256: must be a list"),
        ("kvl-s3cret", "keys[0]: must be a mapping"),
        ({"sha256": [DIGEST], "secret": "kvl-s3cret"}, "keys[0].secret: unknown key"),
        ({"sha256": [DIGEST], "last4": "s3cret"}, "keys[0].last4: "),
        ({"sha256": [DIGEST], "expires_at": "2027-01-31"}, "keys[0].expires_at: must be a time with its offset"),
        ({"sha256": [DIGEST], "expires_at": "2027-01-31T00:00:00"}, "keys[0].expires_at: must be a time with its"),
        ({"sha256": [DIGEST], "expires_at": 1893456000}, "keys[0].expires_at: must be a time with its offset"),
        ({"sha256": [DIGEST], "expires_at": "2027-02-31T00:00:00Z"}, "keys[0].expires_at: "),
        ({"sha256": [DIGEST, DIGEST]}, "keys[0].sha256[1]: '00000000…' is there twice, first at tenants[0].keys[0]"),
    ],
)
def test_a_key_that_cannot_be_is_named_and_not_quoted(key: Any, words: str) -> None:
    (line,) = of_tenant(keys=[key])
    assert line.startswith(f"tenants[0].{words}")
    assert "kvl-s3cret" not in line


def test_a_secret_is_one_keys_of_one_tenant() -> None:
    keys = [{"sha256": [DIGEST]}]
    found = problems(tenants=[{"name": "a", "key_sha256": [DIGEST]}, {"name": "b", "keys": keys}])
    assert found == ["tenants[1].keys[0].sha256[0]: '00000000…' is there twice, first at tenants[0].key_sha256[0]"]


def test_a_key_has_a_name_of_its_own_within_its_tenant() -> None:
    keys = [{"name": "ci", "sha256": [DIGEST]}, {"name": "ci", "sha256": [OTHER]}]
    assert of_tenant(keys=keys) == ["tenants[0].keys[1].name: 'ci' is there twice, first at tenants[0].keys[0].name"]


@pytest.mark.parametrize("name", ["anonymous", "unknown"])
def test_a_tenant_is_not_called_what_others_are(name: str) -> None:
    (line,) = problems(tenants=[{"name": name}])
    assert line.startswith("tenants[0].name: must be another name")


def test_no_digest_is_in_the_representation() -> None:
    (tenant,) = built(tenants=[{"name": "a", "key_sha256": [DIGEST], "keys": [{"sha256": [OTHER]}]}]).tenants
    assert DIGEST not in repr(tenant)
    assert OTHER not in repr(tenant)


# Limits.


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"requests_per_minute": 0}, "limits.requests_per_minute: "),
        ({"tokens_per_minute": 1.5}, "limits.tokens_per_minute: "),
        ({"parallel": True}, "limits.parallel: must be a number"),
        ({"cost_per_day": 0}, "limits.cost_per_day: "),
        ({"cost_per_day": float("nan")}, "limits.cost_per_day: "),
        ({"requests_per_min": 5}, "limits.requests_per_min: unknown key"),
        ({"burst_requests": 5}, "limits: burst_requests needs requests_per_minute"),
        ({"burst_tokens": 5, "requests_per_minute": 1}, "limits: burst_tokens needs tokens_per_minute"),
        ({"cost_per_month": 5}, "limits: a budget in money needs models that have prices"),
    ],
)
def test_a_limit_that_cannot_be_is_named(limits: dict[str, Any], words: str) -> None:
    (line,) = of_tenant(limits=limits)
    assert line.startswith(f"tenants[0].{words}")
    (line,) = problems(anonymous={"limits": limits})
    assert line.startswith(f"anonymous.{words}")


MODELS = [{"name": "m", "aliases": ["gpt"], "prices": {"input": 0.6, "output": 2.4}}, {"name": "free"}]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt", "tenants[0].limits_by_model.gpt: is an alias of 'm': limits go by that name"),
        ("free", "tenants[0].limits_by_model.free: a budget in money needs a model that has prices"),
    ],
)
def test_limits_of_a_model_go_by_its_own_name_and_prices(model: str, words: str) -> None:
    tenants = [{"name": "a", "limits_by_model": {model: {"cost_per_day": 1}}}]
    assert problems(tenants=tenants, models=MODELS) == [words]


def test_a_budget_in_money_is_in_that_of_the_prices() -> None:
    tenants = [{"name": "a", "limits": {"cost_per_day": 1}, "limits_by_model": {"m": {"cost_per_month": 2.5}}}]
    config = built(tenants=tenants, models=MODELS)
    assert config.tenants[0].limits.has_cost
    assert config.models[0].prices is not None
    assert (config.models[0].prices.cached, config.models[1].prices) == (None, None)


def test_a_tenant_reads_as_it_was_written() -> None:
    keys = [{"sha256": [DIGEST], "expires_at": "2027-01-31T00:00:00Z"}]
    tenant = TenantConfig.model_validate({"name": "a", "keys": keys, "limits": {"parallel": 1}})
    assert tenant_of(tenant.model_dump_json(exclude_unset=True)) == tenant


# Redis.


@pytest.mark.parametrize(
    ("redis", "words"),
    [
        ({"url": "h:6379"}, "redis.url: must be redis://"),
        ({"url": "http://user:s3/cret@h"}, "redis.url: must be redis://"),
        ({"url": "user:s3cret@h"}, "redis.url: must be redis://"),
        ({"url": "redis://"}, "redis.url: must be redis://"),
        ({"url": "redis://h/zero"}, "redis.url: must be redis://"),
        ({"url": "redis://h", "sentinel": {"service": "m", "urls": ["redis://s"]}}, "redis: sentinel stands instead"),
        ({"is_cluster": True}, "redis: is_cluster needs a url"),
        ({"password": 5}, "redis.password: "),
        ({"op_timeout_s": 0}, "redis.op_timeout_s: "),
    ],
)
def test_a_redis_that_cannot_be_is_named_without_its_password(redis: dict[str, Any], words: str) -> None:
    (line,) = problems(anonymous={}, redis=redis)
    assert line.startswith(words)
    assert "s3" not in line


def test_tenants_in_redis_need_one() -> None:
    assert problems(tenants_in_redis=True) == ["tenants_in_redis: needs redis.url or redis.sentinel"]


def test_what_is_configured_is_which_redis_is_asked() -> None:
    one = RedisConfig(url="rediss://h:1/2", password="p", op_timeout_s=0.05)
    servers = servers_of(one)
    assert (servers.urls, servers.password, servers.timeout_s) == (("rediss://h:1/2",), "p", 0.05)
    many = RedisConfig.model_validate({"sentinel": {"service": "m", "urls": ["redis://s1", "redis://s2"]}})
    servers = servers_of(many)
    assert (servers.urls, servers.service) == (("redis://s1", "redis://s2"), "m")
