"""config/kvlane.yaml is the reference: it loads, and it has every key there is, with its default."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gateway.config import Config, EndpointConfig, ModelConfig, PoolConfig, build, load
from gateway.sections import (
    AccessLog,
    Accounting,
    Admission,
    ClassConfig,
    Connections,
    Doctor,
    Health,
    Listen,
    Retries,
    Routing,
    Scaling,
    Shutdown,
    Timeouts,
    TracingConfig,
)
from gateway.tenancy import (
    AnonymousConfig,
    KeyConfig,
    LimitsConfig,
    PricesConfig,
    RedisConfig,
    SentinelConfig,
    TenantConfig,
    TokenWeightsConfig,
)

REFERENCE = Path(__file__).parent.parent / "config" / "kvlane.yaml"
EXAMPLES = {
    "name",
    "url",
    "endpoints",
    "key_sha256",
    "keys",
    "sha256",
}  # values that have no default, or stand for one of yours
SECTIONS: dict[str, type[BaseModel]] = {
    "listen": Listen,
    "timeouts": Timeouts,
    "retries": Retries,
    "health": Health,
    "connections": Connections,
    "shutdown": Shutdown,
    "access_log": AccessLog,
    "tracing": TracingConfig,
    "doctor": Doctor,
    "accounting": Accounting,
    "routing": Routing,
    "scaling": Scaling,
    "redis": RedisConfig,
}


def document() -> dict[str, Any]:
    """Read the reference as YAML, with the commented examples put to use."""
    text = REFERENCE.read_text(encoding="utf-8")
    for section in ("models", "tenants"):
        head, _, example = text.partition(f"{section}: []\n")
        example, blank, rest = example.partition("\n\n")
        text = f"{head}{section}:\n{example.removeprefix('# ').replace(chr(10) + '# ', chr(10))}{blank}{rest}"
    read = yaml.safe_load(text)
    assert isinstance(read, dict)
    return read


def test_the_reference_is_a_good_configuration() -> None:
    assert load(REFERENCE).listen == Listen()


def test_the_commented_examples_are_good() -> None:
    config = build(document(), "reference", {})
    assert (config.models[0].name, config.tenants[0].name) == ("llama-3.1-8b", "team-a")


def test_every_section_is_there() -> None:
    assert set(document()) == set(Config.model_fields)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_of_a_section_is_there_with_its_default(name: str) -> None:
    told, fields = document()[name], SECTIONS[name].model_fields
    assert told.keys() == fields.keys()
    assert {key for key in told if not same(told[key], fields[key].default)} == set()


def test_admission_is_there_with_its_defaults() -> None:
    assert document()["admission"] == Admission().model_dump(mode="json")


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (PoolConfig, lambda read: read["pools"][0]),
        (EndpointConfig, lambda read: read["pools"][0]["endpoints"][0]),
        (ModelConfig, lambda read: read["models"][0]),
        (TenantConfig, lambda read: read["tenants"][0]),
        (KeyConfig, lambda read: read["tenants"][0]["keys"][0]),
        (LimitsConfig, lambda read: read["tenants"][0]["limits"]),
        (TokenWeightsConfig, lambda read: read["tenants"][0]["token_weights"]),
        (AnonymousConfig, lambda read: read["anonymous"]),
    ],
)
def test_every_key_of_an_entry_is_there_with_its_default(model: type[BaseModel], place: Any) -> None:
    entry = place(document())
    assert set(entry) == set(model.model_fields)
    for key, field in model.model_fields.items():
        if key not in EXAMPLES and field.default is not PydanticUndefined:
            assert same(entry[key], field.default), key


def same(told: Any, default: object) -> bool:
    """Whether a value of the document is the default."""
    if isinstance(default, BaseModel):
        return type(default).model_validate(told) == default
    return bool(told == (list(default) if isinstance(default, tuple) else default))


def test_every_key_says_what_it_is() -> None:
    entries = (PoolConfig, EndpointConfig, ModelConfig, PricesConfig, TenantConfig, KeyConfig, AnonymousConfig)
    parts = (LimitsConfig, TokenWeightsConfig, SentinelConfig, Admission, ClassConfig)
    every: list[type[BaseModel]] = [*SECTIONS.values(), *entries, *parts]
    for model in every:
        assert all(field.description for field in model.model_fields.values()), model
