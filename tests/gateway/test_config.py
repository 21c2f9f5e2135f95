"""The configuration: every problem at once, by path and value; nothing unknown, nothing silently ignored."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config import Config, ConfigError, Kind, build, load, quick

ENDPOINT: dict[str, Any] = {"url": "http://127.0.0.1:9001"}
POOLS: list[dict[str, Any]] = [{"endpoints": [ENDPOINT]}]
DIGEST = hashlib.sha256(b"key").hexdigest()


def problems(document: object, environment: dict[str, str] | None = None) -> list[str]:
    """Give what is wrong with a document, beside who may call."""
    if isinstance(document, dict):
        document = {"anonymous": {}, **document}
    with pytest.raises(ConfigError) as caught:
        build(document, "test", environment or {})
    assert caught.value.source == "test"
    assert str(caught.value).startswith("test: ")
    return list(caught.value.problems)


def of_endpoint(**fields: object) -> dict[str, object]:
    return {"anonymous": {}, "pools": [{"endpoints": [{**ENDPOINT, **fields}]}]}


def of_tenant(**fields: object) -> dict[str, object]:
    return {"pools": POOLS, "tenants": [{"name": "a", "key_sha256": [DIGEST], **fields}]}


# What is good.


def test_a_list_of_engines_is_enough() -> None:
    config = build({"anonymous": {}, "pools": POOLS}, "test", {})
    endpoint = config.pools[0].endpoints[0]
    assert (config.pools[0].name, config.pools[0].policy) == ("default", "least_work")
    assert (endpoint.label, endpoint.kind, endpoint.models) == ("127.0.0.1:9001", "auto", ())
    assert (config.listen.host, config.listen.port, config.listen.max_body_bytes) == ("127.0.0.1", 8080, 64 << 20)
    assert config.tenants == ()


def test_a_quick_start_is_one_pool_of_the_engines_named() -> None:
    config = quick(["http://a:1", "https://b/"])
    assert [endpoint.url for endpoint in config.pools[0].endpoints] == ["http://a:1", "https://b"]
    assert [endpoint.label for endpoint in config.pools[0].endpoints] == ["a:1", "b:443"]
    assert config == build(
        {"anonymous": {}, "pools": [{"endpoints": [{"url": "http://a:1"}, {"url": "https://b"}]}]}, "test", {}
    )


def test_a_quick_start_names_the_option_that_is_wrong() -> None:
    with pytest.raises(ConfigError) as caught:
        quick(["a:1"])
    assert caught.value.source == "--endpoint"
    assert caught.value.problems == (
        "pools[0].endpoints[0].url: must be http://host:port or https://host:port, is 'a:1'",
    )


def test_a_configuration_is_not_changed_afterwards() -> None:
    config = build({"anonymous": {}, "pools": POOLS}, "test", {})
    with pytest.raises(ValidationError):
        config.listen.port = 1  # type: ignore[misc]


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_engine_can_be_named(kind: Kind) -> None:
    assert build(of_endpoint(kind=kind.value), "test", {}).pools[0].endpoints[0].known_kind is kind


@pytest.mark.parametrize(
    "zero", ["listen.port", "shutdown.grace_s", "shutdown.drain_s", "retries.budget", "retries.floor"]
)
def test_zero_is_data_where_it_means_something(zero: str) -> None:
    section, key = zero.split(".")
    config = build({"anonymous": {}, "pools": POOLS, section: {key: 0}}, "test", {})
    assert getattr(getattr(config, section), key) == 0


# What is wrong, one by one.

WRONG: list[tuple[object, str]] = [
    # document, its one problem
    ([], "must be a mapping of sections, is list"),
    (None, "must be a mapping of sections, is NoneType"),
    ("pools", "must be a mapping of sections, is str"),
    ({}, "pools: is required"),
    ({"pools": POOLS, "pool": []}, "pool: unknown key"),
    ({"pools": POOLS, "listen": {"prot": 1}}, "listen.prot: unknown key"),
    ({"pools": POOLS, "timeouts": {"total_s": 1}}, "timeouts.total_s: unknown key"),
    ({"pools": [{}]}, "pools[0].endpoints: is required"),
    ({"pools": [{"endpoints": [{}]}]}, "pools[0].endpoints[0].url: is required"),
    (of_endpoint(color="red"), "pools[0].endpoints[0].color: unknown key"),
    ({"pools": POOLS, "listen": {"port": 65536}}, "listen.port: must be less than or equal to 65535, is 65536"),
    ({"pools": POOLS, "listen": {"port": "http"}}, "listen.port: must be a whole number, is 'http'"),
    ({"pools": POOLS, "listen": {"port": 1.5}}, "listen.port: must be a whole number, is 1.5"),
    ({"pools": POOLS, "listen": {"host": 1}}, "listen.host: must be text, is 1"),
    ({"pools": POOLS, "health": {"interval_s": "often"}}, "health.interval_s: must be a number, is 'often'"),
    ({"pools": POOLS, "doctor": {"enabled": "perhaps"}}, "doctor.enabled: must be true or false, is 'perhaps'"),
    ({"pools": POOLS, "tenants_file": 3}, "tenants_file: must be text, is 3"),
    ({"pools": POOLS, "listen": {"max_body_bytes": 0}}, "listen.max_body_bytes: .* is 0"),
    ({"pools": POOLS, "timeouts": {"connect_s": 0}}, "timeouts.connect_s: .* is 0"),
    ({"pools": POOLS, "timeouts": {"idle_s": -1}}, "timeouts.idle_s: .* is -1"),
    ({"pools": POOLS, "timeouts": {"idle_s": float("inf")}}, "timeouts.idle_s: .* is inf"),
    ({"pools": POOLS, "timeouts": {"idle_s": float("nan")}}, "timeouts.idle_s: .* is nan"),
    ({"pools": POOLS, "retries": {"budget": 1.1}}, "retries.budget: .* is 1.1"),
    ({"pools": POOLS, "retries": {"max_tries": 0}}, "retries.max_tries: .* is 0"),
    ({"pools": [{"policy": "best", "endpoints": [ENDPOINT]}]}, r"pools\[0\].policy: must be one of round_.* is 'best'"),
    ({"pools": [{"name": "a b", "endpoints": [ENDPOINT]}]}, r"pools\[0\].name: .* is 'a b'"),
    ({"pools": [{"name": "", "endpoints": [ENDPOINT]}]}, r"pools\[0\].name: .* is ''"),
    ({"pools": [{"name": "a\r\nx: y", "endpoints": [ENDPOINT]}]}, r"pools\[0\].name: "),
    ({"pools": [{"name": "a\n", "endpoints": [ENDPOINT]}]}, r"pools\[0\].name: "),
    (of_endpoint(kind="ollama"), r"pools\[0\].endpoints\[0\].kind.* is 'ollama'"),
    (of_endpoint(url="engine:8000"), r"pools\[0\].endpoints\[0\].url: must be http://host:port .* is 'engine:8000'"),
    (of_endpoint(url="http://"), r"pools\[0\].endpoints\[0\].url: .* is 'http://'"),
    (of_endpoint(url="http://a:99999"), r"pools\[0\].endpoints\[0\].url: .* is 'http://a:99999'"),
    (of_endpoint(url="ftp://a"), r"pools\[0\].endpoints\[0\].url: .* is 'ftp://a'"),
    (of_endpoint(url="http://a?x=1"), r"pools\[0\].endpoints\[0\].url: must have no user, query or fragment"),
    (of_endpoint(url=7), r"pools\[0\].endpoints\[0\].url: .* is 7"),
    (of_endpoint(kv_events="tcp://gpu-1"), r"pools\[0\].endpoints\[0\].kv_events: must be auto, off or an address.*"),
    (
        of_endpoint(kv_events="bind:http://a"),
        r"pools\[0\].endpoints\[0\].kv_events: must be auto, off or an address.*",
    ),
    (of_endpoint(kv_replay="auto"), r"pools\[0\].endpoints\[0\].kv_replay: must be tcp://host:port or ipc://path.*"),
    (of_endpoint(kv_replay="tcp://a:1"), r"pools\[0\].endpoints\[0\]: kv_replay needs kv_events to be .* address.*"),
    (
        of_endpoint(kv_replay="tcp://a:1", kv_events="http://a/kv_cache_events"),
        r"pools\[0\].endpoints\[0\]: kv_replay needs kv_events to be .* address.*",
    ),
    (of_endpoint(metrics_url="a"), r"pools\[0\].endpoints\[0\].metrics_url: must be http://host:port .* is 'a'"),
    (of_endpoint(max_context_tokens=0), r"pools\[0\].endpoints\[0\].max_context_tokens: .* is 0"),
    (of_endpoint(models="m"), r"pools\[0\].endpoints\[0\].models: .* is 'm'"),
    (
        {"pools": [{"endpoints": [ENDPOINT, ENDPOINT]}]},
        "pools[0].endpoints[1].url: '127.0.0.1:9001' is there twice, first at pools[0].endpoints[0].url",
    ),
    (
        {"pools": [*POOLS, {"endpoints": [{"url": "http://b"}]}]},
        "pools[1].name: 'default' is there twice, first at pools[0].name",
    ),
    (of_tenant(key_sha256=[]), r"tenants\[0\].key_sha256: "),
    (of_tenant(key_sha256=["key"]), r"tenants\[0\].key_sha256: each must be 64 hex digits"),
    (of_tenant(key_sha256=[DIGEST, DIGEST.upper()]), "tenants[0].key_sha256[1]: '" + DIGEST[:8] + "…' is there twice"),
    (of_tenant(kvlane_headers="perhaps"), r"tenants\[0\].kvlane_headers: .* is 'perhaps'"),
]


@pytest.mark.parametrize(("document", "words"), WRONG, ids=lambda value: value[:60] if isinstance(value, str) else "")
def test_a_mistake_is_named_by_path_and_value(document: object, words: str) -> None:
    found = problems(document)
    assert len(found) == 1, found
    pattern = words if "\\" in words or ".*" in words else re.escape(words)
    assert re.match(pattern, found[0]), found


def test_every_problem_is_named_at_once() -> None:
    found = problems(
        {
            "listen": {"port": -1, "host": 5, "x": 1},
            "timeouts": {"connect_s": "soon"},
            "pools": [
                {"name": "a", "policy": "best", "endpoints": [{"url": "nowhere"}, {"url": "http://b", "kind": "x"}]},
                {"name": "b", "endpoints": [{"url": "http://b", "api_key": "${NOT_SET}"}]},
            ],
            "tenants": [{"name": "t", "key_sha256": ["?"]}],
            "y": 2,
        }
    )
    paths = sorted({re.split(r"(?<=[\w\]]): ", problem)[0] for problem in found})
    assert paths == [
        "listen.host",
        "listen.port",
        "listen.x",
        "pools[0].endpoints[0].url",
        "pools[0].endpoints[1].kind",
        "pools[0].policy",
        "pools[1].endpoints[0].api_key",
        "tenants[0].key_sha256",
        "timeouts.connect_s",
        "y",
    ]
    assert len(found) == len(paths), found


def test_names_that_clash_are_named_together() -> None:
    pools = [{"endpoints": [ENDPOINT]}, {"endpoints": [ENDPOINT]}]
    tenant = {"name": "t", "key_sha256": [DIGEST]}
    found = problems({"pools": pools, "tenants": [tenant, tenant]})
    assert [line.partition(",")[0] for line in found] == [
        "pools[1].name: 'default' is there twice",
        "pools[1].endpoints[0].url: '127.0.0.1:9001' is there twice",
        "tenants[1].name: 't' is there twice",
        f"tenants[1].key_sha256[0]: '{DIGEST[:8]}…' is there twice",
    ]


@pytest.mark.parametrize(
    ("told", "understood"),
    [
        ("auto", "auto"),
        ("off", "off"),
        (False, "off"),  # YAML's word for it
        ("tcp://gpu-1:5557", "tcp://gpu-1:5557"),
        ("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5557"),
        ("ipc:///run/kv", "ipc:///run/kv"),
        ("bind:tcp://127.0.0.1:5557", "bind:tcp://127.0.0.1:5557"),
        ("http://gpu-1:8000/kv_cache_events", "http://gpu-1:8000/kv_cache_events"),
    ],
)
def test_events_are_looked_for_where_one_says(told: object, understood: str) -> None:
    assert build(of_endpoint(kv_events=told), "test", {}).pools[0].endpoints[0].kv_events == understood


# Secrets.


def test_environment_references_are_replaced_wherever_they_stand() -> None:
    document = of_endpoint(api_key="${KEY}", url="http://${HOST}:${PORT}/x", models=["${M}-${M}", "plain $M {M}"])
    environment = {"KEY": "s3cret", "HOST": "gpu", "PORT": "81", "M": "m"}
    endpoint = build(document, "test", environment).pools[0].endpoints[0]
    assert endpoint.api_key == "s3cret"
    assert endpoint.url == "http://gpu:81/x"
    assert endpoint.models == ("m-m", "plain $M {M}")


def test_what_a_reference_brings_is_not_replaced_again() -> None:
    document = of_endpoint(api_key="${KEY}")
    assert build(document, "test", {"KEY": "${OTHER}"}).pools[0].endpoints[0].api_key == "${OTHER}"


def test_a_missing_variable_is_named_with_the_place_that_wants_it() -> None:
    assert problems(of_endpoint(api_key="${KEY}", models=["a", "${M}"])) == [
        "pools[0].endpoints[0].api_key: environment variable KEY is not set",
        "pools[0].endpoints[0].models[1]: environment variable M is not set",
    ]


def test_an_empty_variable_is_set_and_an_empty_key_is_none() -> None:
    assert build(of_endpoint(api_key="${KEY}"), "test", {"KEY": ""}).pools[0].endpoints[0].api_key is None
    assert build(of_endpoint(api_key="${KEY}"), "test", {"KEY": "k\n"}).pools[0].endpoints[0].api_key == "k"


TRAPS = {
    "a date": "shutdown: {grace_s: 2020-13-45}",
    "a number without end": "listen: {max_body_bytes: " + "9" * 5000 + "}",
    "a tag that does not fit": "listen: {port: !!int abc}",
    "another": "listen: {port: !!float abc}",
    "a date by tag": "listen: {port: !!timestamp abc}",
    "a set that is none": "listen: !!set [a]",
    "an alias of itself": "listen: &a {port: *a}",
    "a list of itself": "pools: &a [{endpoints: *a}]",
    "nesting without end": "[" * 5000,
}


@pytest.mark.parametrize("text", TRAPS.values(), ids=TRAPS)
def test_a_trap_of_yaml_is_a_line_and_no_traceback(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert all(len(problem.splitlines()) == 1 for problem in caught.value.problems)


NEWCOMERS = [
    (of_endpoint(url="http://h:8000/v1"), "pools[0].endpoints[0].url: must not end in /v1"),
    (of_endpoint(url="http://h:8000/a b"), "pools[0].endpoints[0].url: must have no spaces"),
    (of_endpoint(api_key="a\nx: y"), "pools[0].endpoints[0].api_key: must be visible ASCII, without spaces"),
    ({"pools": POOLS, "listen": {"port": True}}, "listen.port: must be a number"),
    ({"pools": POOLS, "listen": {"port": 81, "admin_port": 81}}, "listen: port and admin_port must differ"),
    ({"pools": {}}, "pools: must be a list"),
    ({"pools": POOLS, "listen": 3}, "listen: must be a mapping"),
    ({"pools": POOLS, "listen": {"port": "${UNSET}"}}, "listen.port: environment variable UNSET is not set"),
]


@pytest.mark.parametrize(
    ("document", "words"), NEWCOMERS, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_what_newcomers_write_is_one_line_in_their_words(document: object, words: str) -> None:
    (found,) = problems(document)
    assert found.startswith(words)


def test_a_section_with_nothing_under_it_is_one_of_defaults() -> None:
    assert build({"anonymous": {}, "pools": POOLS, "listen": None}, "test", {}).listen.port == 8080


@pytest.mark.parametrize(
    "document",
    [
        of_endpoint(api_key=["s3cret"]),
        of_endpoint(api_key={"s3cret": 1}),
        of_tenant(key_sha256=["s3cret"]),
        of_tenant(key_sha256="s3cret"),
        of_endpoint(url="http://user:s3cret@host"),
    ],
    ids=["list", "mapping", "digest", "digest as text", "password in a URL"],
)
def test_no_problem_quotes_a_secret(document: object) -> None:
    assert not [problem for problem in problems(document) if "s3cret" in problem]


def test_no_secret_shows_when_a_configuration_is_printed() -> None:
    config = build({**of_endpoint(api_key="s3cret"), "tenants": [{"name": "a", "key_sha256": [DIGEST]}]}, "test", {})
    assert "s3cret" not in repr(config)
    assert DIGEST not in repr(config)


# Files.


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text("{anonymous: {}, pools: [{endpoints: [{url: 'http://${H}'}]}]}  # é", encoding="utf-8")
    assert load(file, {"H": "a"}).pools[0].endpoints[0].url == "http://a"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"pools: [}", "expected the node content, but found '}', line 1"),
        (b"a: b: c", "mapping values are not allowed here"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"", "must be a mapping of sections, is NoneType"),
        (b"pools: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        (b"a: 1\x00", "special characters are not allowed"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert caught.value.source == str(file)
    (problem,) = caught.value.problems
    assert words in problem
    assert "\n" not in problem


def test_a_key_that_stands_twice_is_not_silently_ignored(tmp_path: Path) -> None:
    """YAML's parsers keep the last of two: a limit would vanish."""
    file = tmp_path / "kvlane.yaml"
    file.write_text("listen: {max_body_bytes: 1000}\npools: [{endpoints: [{url: 'http://a'}]}]\nlisten: {port: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert "listen" in caught.value.problems[0]


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        load(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path, {})


# The schema.


def test_the_schema_describes_every_key() -> None:
    schema = Config.model_json_schema()
    json.dumps(schema)
    for name, section in schema["$defs"].items():
        if section.get("type") != "object":
            continue
        assert section["additionalProperties"] is False, name
        assert section["description"], name
        for key, told in section["properties"].items():
            assert told.get("description"), f"{name}.{key}"


def test_keys_with_a_unit_say_it() -> None:
    schema = Config.model_json_schema()
    numbers = {
        key
        for section in schema["$defs"].values()
        for key, told in section.get("properties", {}).items()
        if told.get("type") in ("number", "integer")
        or any(kind.get("type") == "integer" for kind in told.get("anyOf", []))
    }
    without = {key for key in numbers if not key.endswith(("_s", "_bytes", "_tokens"))}
    named = {"port", "admin_port", "max_headers", "max_tries", "budget", "floor", "max_idle"}
    named |= {"max_queued", "max_inflight", "weight", "ceiling", "database", "days", "keep", "per_second"}
    named |= {"ratio", "attainment", "utilization", "min_replicas", "max_replicas"}
    named |= {"requests_per_minute", "tokens_per_minute", "burst_requests", "parallel"}
    named |= {"tokens_per_day", "tokens_per_month", "input", "cached", "output"}
    assert without == named, "counts and shares"


def test_a_class_that_is_none_is_named() -> None:
    document = {
        "pools": [{"classes": ["gold"], "endpoints": [{"url": "http://h:1"}]}],
        "tenants": [{"name": "a", "key_sha256": ["0" * 64], "service_class": "silver"}],
    }
    with pytest.raises(ConfigError) as caught:
        build(document, "test", {})
    assert [problem.partition(" is no class")[0] for problem in caught.value.problems] == [
        "pools[0].classes[0]: 'gold'",
        "tenants[0].service_class: 'silver'",
    ]
