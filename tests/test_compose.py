"""docker-compose.yml and Dockerfile, which no container runtime may be here to try: every name in them resolves."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import pytest
import typer
import yaml
from yarl import URL

from gateway.cli import app as kvlane
from gateway.config import Config, load
from loadtests.cli import app as kvlane_sim

ROOT = Path(__file__).parent.parent
Tree: TypeAlias = dict[str, Any]  # a parsed YAML mapping
APPS = {"kvlane": kvlane, "kvlane-sim": kvlane_sim}
OWN_PORTS = {"redis": {6379}, "prometheus": {9090}, "grafana": {3000}}  # what their images listen on
VERSIONED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+(-[a-z0-9.-]+)?")


def parse(path: str) -> Tree:
    tree: Tree = yaml.safe_load((ROOT / path).read_text())
    return tree


COMPOSE = parse("docker-compose.yml")
SERVICES: dict[str, Tree] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def instructions(name: str) -> list[str]:
    """Read the arguments of each Dockerfile instruction of a name, continuation lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.removeprefix(name).strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


def mounts(service: str) -> dict[str, Path]:
    """Map each path in a service's container to the file of ours that is mounted there."""
    volumes = (volume.split(":") for volume in SERVICES[service].get("volumes", []) if volume[0] == ".")
    return {inside: ROOT / outside for outside, inside, *_ in volumes}


def own_command(service: str) -> list[str]:
    """Tell what a service built from our Dockerfile runs, with the files as they are outside."""
    entry = SERVICES[service].get("entrypoint") or yaml.safe_load(instructions("ENTRYPOINT")[0])
    words = SERVICES[service].get("command") or yaml.safe_load(instructions("CMD")[-1])
    return [str(mounts(service).get(word, word)) for word in [*entry, *words]]


def gateway_config() -> Config:
    return load(ROOT / "config/compose/kvlane.yaml", {})


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def listening(service: str) -> set[int]:
    """Tell the ports a service listens on, from its own configuration."""
    if service == "gateway":
        return {gateway_config().listen.port, gateway_config().listen.admin_port}
    if service == "engines":
        words = own_command(service)
        first = int(option(words, "--port"))
        return set(range(first, first + int(option(words, "-n"))))
    if service == "otel-collector":
        protocols = parse("config/compose/otel-collector.yaml")["receivers"]["otlp"]["protocols"]
        return {int(protocol["endpoint"].rpartition(":")[2]) for protocol in protocols.values()}
    return OWN_PORTS[service]


def addresses() -> Iterator[tuple[str, int]]:
    """Name every service and port that some file sends its reader to."""
    for pool in gateway_config().pools:
        for endpoint in pool.endpoints:
            url = URL(endpoint.url)
            yield "engines" if url.host == "127.0.0.1" else url.host or "", url.port or 0
    for address in filter(None, [gateway_config().tracing.endpoint]):
        url = URL(address)
        yield url.host or "", url.port or 0
    for job in parse("config/compose/prometheus.yaml")["scrape_configs"]:
        for static in job["static_configs"]:
            for target in static["targets"]:
                host, _, port = target.partition(":")
                yield host, int(port)
    for source in parse("config/compose/grafana-datasources.yaml")["datasources"]:
        url = URL(source["url"])
        yield url.host or "", url.port or 0


def accept(words: list[str]) -> None:
    """Parse a command of ours as its program would, without running it."""
    program, subcommand, *rest = words
    group = typer.main.get_command(APPS[program])
    context = group.make_context(program, [subcommand, *rest], resilient_parsing=False)
    name, command, arguments = group.resolve_command(context, [subcommand, *rest])  # type: ignore[attr-defined]
    command.make_context(name, arguments, parent=context)


OWN = sorted(name for name, service in SERVICES.items() if "build" in service)
IMAGES = sorted(name for name in SERVICES if name not in OWN)


def test_the_fleet_is_whole() -> None:
    assert set(SERVICES) == {"gateway", "engines", "redis", "otel-collector", "prometheus", "grafana"}
    assert OWN == ["engines", "gateway"]


@pytest.mark.parametrize("service", IMAGES)
def test_images_are_pinned_by_version(service: str) -> None:
    assert VERSIONED.fullmatch(SERVICES[service]["image"])


def test_the_base_images_are_pinned_by_version() -> None:
    bases = [line.split()[0] for line in instructions("FROM")]
    assert bases
    assert all(VERSIONED.fullmatch(base) for base in bases)


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_mounted_files_are_there_and_read_only(service: str) -> None:
    assert all(file.is_file() for file in mounts(service).values())
    of_ours = [volume for volume in SERVICES[service].get("volumes", []) if volume[0] == "."]
    assert all(volume.endswith(":ro") for volume in of_ours)


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_files_named_in_commands_are_mounted(service: str) -> None:
    words = SERVICES[service].get("command", [])
    named = {word.partition("=")[2] or word for word in words if "/" in word}
    assert named <= set(mounts(service))


@pytest.mark.parametrize("service", OWN)
def test_commands_are_ours_and_their_flags_known(service: str) -> None:
    words = own_command(service)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[0] in project["scripts"]
    accept(words)


def test_the_images_default_command_is_known() -> None:
    words = [word for name in ("ENTRYPOINT", "CMD") for word in yaml.safe_load(instructions(name)[-1])]
    accept([str(mounts("gateway").get(word, word)) for word in words])


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_ports_are_published_on_loopback_and_listened_on(service: str) -> None:
    published = [port.rsplit(":", 2) for port in SERVICES[service].get("ports", [])]
    assert all(host == "127.0.0.1" for host, _, _ in published)
    assert {int(inside) for _, _, inside in published} <= listening(service)


def test_no_two_services_are_published_on_one_port() -> None:
    outside = [port.rsplit(":", 2)[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(outside) == len(set(outside))


def test_every_address_in_the_files_is_a_service_and_a_port_it_listens_on() -> None:
    named = list(addresses())
    assert len(named) == 5
    assert [(host, port) for host, port in named if host not in SERVICES or port not in listening(host)] == []


def test_the_gateway_listens_on_every_address_and_the_engines_share_its_network() -> None:
    listen = gateway_config().listen
    assert (listen.host, listen.admin_host) == ("0.0.0.0", "0.0.0.0")
    assert SERVICES["engines"]["network_mode"] == "service:gateway"
    assert not listening("engines") & listening("gateway")


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_services_start_after_services(service: str) -> None:
    assert set(SERVICES[service].get("depends_on", [])) <= set(SERVICES)


def test_the_image_exposes_and_checks_the_ports_of_the_configuration() -> None:
    listen = gateway_config().listen
    assert instructions("EXPOSE")[-1].split() == [str(listen.port), str(listen.admin_port)]
    assert f"http://127.0.0.1:{listen.port}/healthz" in instructions("HEALTHCHECK")[0]
    assert f"127.0.0.1:{min(listening('engines'))}/health" in SERVICES["engines"]["healthcheck"]["test"][-1]


def test_the_image_copies_what_is_there_and_runs_without_root() -> None:
    copied = [word for line in instructions("COPY") for word in shlex.split(line)[:-1]]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    ours = [word for word in copied if not word.startswith(("--", "/"))]
    assert all((ROOT / word).exists() for word in ours)
    assert {f"!{word}" for word in ours} == {line for line in ignored if line.startswith("!")}
    assert instructions("USER")[-1] not in ("root", "0")


def test_prometheus_finds_its_rules_and_scrapes_under_the_name_that_they_know() -> None:
    tree = parse("config/compose/prometheus.yaml")
    rules = [inside for inside in mounts("prometheus") if inside.startswith("/etc/prometheus/rules/")]
    assert all(any(PurePosixPath(inside).match(pattern) for pattern in tree["rule_files"]) for inside in rules)
    assert [mounts("prometheus")[inside] for inside in rules] == [ROOT / "config/alerts/kvlane.yaml"]
    assert [job["job_name"] for job in tree["scrape_configs"]] == ["kvlane"]


def test_grafana_finds_its_dashboard_where_it_looks() -> None:
    (provider,) = parse("config/compose/grafana-dashboards.yaml")["providers"]
    folder = provider["options"]["path"]
    shown = {inside: file for inside, file in mounts("grafana").items() if inside.startswith(f"{folder}/")}
    assert list(shown.values()) == [ROOT / "config/grafana/kvlane.json"]
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in shown


def test_every_pipeline_of_the_collector_names_parts_it_has() -> None:
    tree = parse("config/compose/otel-collector.yaml")
    for pipeline in tree["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(tree[part])
