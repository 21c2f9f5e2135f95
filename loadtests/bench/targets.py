"""Targets: what the bench measures, each as the command that starts it in front of the mock engine's ports.

A rival that is not there (see setup.py) is `Missing`, with what would bring it; the bench says so and goes on
without.
"""

import http.client
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.processes import Process

HERE = Path(__file__).parent
OUT = HERE.parent.parent / ".bench"  # what setup.py fills
DIRECT = "direct"
ENGINES = 4  # ports of the one mock engine: the proxies balance over them as over four
START_LIMIT_S = 30.0
FIRST_PORT = 20_000  # below Linux's ephemeral range, so that no outgoing connection sits on one of ours
LAST_PORT = 32_000


class Missing(Exception):
    """A target cannot run here; the message says what would bring it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target is to stand."""

    engines: Sequence[int]  # ports of the mock engine
    port: int
    admin_port: int  # for targets that have a second listener
    folder: Path  # writable: configuration, log, process id files

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.engines]


Command = Callable[[Place], list[str]]


def mock_engine(base: int) -> list[str]:
    """Name the command of the engine behind every target, on ENGINES ports from base up."""
    return [str(_built("mock_engine")), str(base), str(ENGINES)]


def nginx(place: Place) -> list[str]:
    """Name the command of nginx as a plain balancing proxy, one process, written for this place."""
    binary = _built("nginx/usr/sbin/nginx")
    settings = {
        "OUT": str(place.folder),
        "PORT": str(place.port),
        "SERVERS": " ".join(f"server 127.0.0.1:{port};" for port in place.engines),
    }
    text = (HERE / "nginx.conf.tmpl").read_text()
    for key, value in settings.items():
        text = text.replace(f"@{key}@", value)
    conf = place.folder / "nginx.conf"
    conf.write_text(text)
    return [str(binary), "-p", str(place.folder), "-e", str(place.folder / "nginx.err"), "-c", str(conf)]


def sglang_router(place: Place) -> list[str]:
    """Name the command of sglang-router with its cheapest policy, as it is measured in PERFORMANCE."""
    python = _built("sglang-router/bin/python")
    own = ["--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(place.admin_port)]
    policy = ["--policy", "round_robin", "--log-level", "warn"]
    return [str(python), "-m", "sglang_router.launch_router", "--worker-urls", *place.urls, *own, *policy]


def kvlane(place: Place) -> list[str]:
    """Name the command of our gateway as its quick start has it."""
    binary = Path(sys.executable).parent / "kvlane"
    if not binary.exists():
        raise Missing("no kvlane beside this Python: make setup")
    endpoints = [word for url in place.urls for word in ("--endpoint", url)]
    ports = ["--port", str(place.port), "--admin-port", str(place.admin_port)]
    return [str(binary), "serve", *endpoints, *ports]


def custom(template: str) -> Command:
    """Make a target of a command line with {port}, {admin_port}, {engines} (their URLs) and {folder}."""

    def command(place: Place) -> list[str]:
        return shlex.split(
            template.format(
                port=place.port,
                admin_port=place.admin_port,
                engines=" ".join(place.urls),
                folder=place.folder,
            )
        )

    return command


TARGETS: Mapping[str, Command] = {"nginx": nginx, "sglang-router": sglang_router, "kvlane": kvlane}


def free_ports(count: int, start: int = FIRST_PORT) -> int:
    """Find the first of `count` consecutive loopback ports on which nobody listens.

    Raises:
        Missing: when there are none up to LAST_PORT.
    """
    base = start
    while base + count <= LAST_PORT:
        taken = [port for port in range(base, base + count) if not _is_free(port)]
        if not taken:
            return base
        base = taken[-1] + 1
    raise Missing(f"no {count} free ports in a row between {start} and {LAST_PORT}")


def wait_until_serving(port: int, process: Process, *, limit_s: float = START_LIMIT_S) -> None:
    """Return once the port answers /v1/models with 200, which proves the way to the engine.

    Raises:
        Missing: when the process ends first, or the limit passes.
    """
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if process.has_ended():
            raise Missing(f"ended while starting:\n{process.last_words()}")
        if _answers(port):
            return
        time.sleep(0.05)
    raise Missing(f"not serving after {limit_s:g} s:\n{process.last_words()}")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/v1/models")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _built(name: str) -> Path:
    path = OUT / name
    if not os.access(path, os.X_OK):
        raise Missing(f"no {name}: make bench-setup")
    return path


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
