"""Models that tenants name and nobody has: told once, where somebody reads it, and never held against anybody."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gateway.app import Gateway
from gateway.cli import app as kvlane
from gateway.modelnames import MAX_TOLD, worded
from loadtests.server import SimulatedEngine
from tests.fleet_fixtures import house
from tests.until import until
from tests.wire.client import get
from tests.wire.house import serving, tenant

MODELS = [{"name": "later", "aliases": ["soon"]}]
TENANTS = [
    tenant("a", models=["sim", "later", "soon", "E0-model"]),
    tenant("b", models=["smi"], limits_by_model={"sim": {"parallel": 1}, "lamma": {"parallel": 1}}),
]
SAID = "tenants: models that no engine serves, and nothing is called so: "


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [found.getMessage() for found in caplog.records if found.name == "gateway.modelnames"]


async def unknown(gateway: Gateway) -> dict[str, list[str] | None]:
    page = (await get(gateway.admin_url, "/admin/tenants")).json
    return {tenant["name"]: tenant["unknown_models"] for tenant in page["tenants"]}


async def test_what_no_engine_serves_is_told_and_changes_are(
    engine: SimulatedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(
        engine.url,
        endpoint={"models": ["sim", "E0-model"]},
        models=MODELS,
        tenants=TENANTS,
        anonymous={"models": ["x"]},
    ) as gateway:
        names = gateway._model_names
        names.look()
        assert lines(caplog) == [f"{SAID}b names 'lamma', 'smi'; anonymous names 'x'"]
        assert await unknown(gateway) == {"a": [], "b": ["lamma", "smi"], "anonymous": ["x"]}
        names.look()
        assert len(lines(caplog)) == 1, "once"
        (member,) = gateway.fleet.members()
        member.endpoint.models |= {"lamma"}
        names.look()
        assert lines(caplog)[1:] == [f"{SAID}b names 'smi'; anonymous names 'x'"]
        member.endpoint.models |= {"smi", "x"}
        names.look()
        assert lines(caplog)[2:] == ["tenants: all models that they name are known"]


async def test_until_every_engine_has_told_nobody_can_say(caplog: pytest.LogCaptureFixture) -> None:
    async with house(2, waits=False, tenants=TENANTS) as whole:
        await until(lambda: all(endpoint.models for endpoint in whole.endpoints))
        caplog.clear()
        first = whole.endpoints[0]
        first.models, told = frozenset(), first.models
        whole.gateway._model_names.look()
        assert (lines(caplog), await unknown(whole.gateway)) == ([], {"a": None, "b": None})
        first.models = told
        assert (await unknown(whole.gateway))["b"] == ["lamma", "smi"]


def test_of_many_tenants_one_line_names_a_few() -> None:
    told = worded({f"t{at}": ["x"] for at in range(MAX_TOLD + 5)})
    assert told.endswith("t9 names 'x', and 5 tenants more")
    assert worded({"a": ["x"]}) == "a names 'x'"


# kvlane check.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvlane.yaml"


def checked(file: Path, *endpoints: dict[str, Any]) -> tuple[int, list[str]]:
    """Check a configuration; give the exit status and what was said beside that it is good."""
    in_file = [{**TENANTS[1], "name": "c", "key_sha256": ["0" * 64]}]
    (file.parent / "t.yaml").write_text(yaml.safe_dump({"tenants": in_file}))
    document = {"pools": [{"endpoints": list(endpoints)}], "models": MODELS, "tenants": TENANTS}
    file.write_text(yaml.safe_dump({**document, "tenants_file": "t.yaml"}))
    result = CliRunner().invoke(kvlane, ["check", str(file)])
    assert "is good" in result.stdout
    return result.exit_code, result.stderr.splitlines()


def test_check_notes_what_cannot_be_where_all_models_are_told(file: Path) -> None:
    status, told = checked(
        file,
        {"url": "http://127.0.0.1:9", "models": ["sim"]},
        {"url": "http://127.0.0.1:10", "models": ["E0-model"]},
    )
    assert status == 0
    so = "no endpoint serves that, no model or alias is called so"
    assert told == [f"kvlane: {file}: note: tenant {name} names 'lamma', 'smi': {so}" for name in ("b", "c")]


def test_check_says_nothing_where_engines_are_asked(file: Path) -> None:
    assert checked(file, {"url": "http://127.0.0.1:9", "models": ["sim"]}, {"url": "http://127.0.0.1:10"}) == (0, [])
