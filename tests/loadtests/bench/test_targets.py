"""Commands of the targets, and what is said when one is not there."""

import socket
from pathlib import Path

import pytest

from loadtests.bench import targets
from loadtests.bench.targets import Missing, Place, custom, free_ports, nginx


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(engines=[9001, 9002], port=9100, admin_port=9101, folder=tmp_path)


def test_a_custom_target_is_told_its_place(place: Place) -> None:
    command = custom("proxy --port {port} --admin {admin_port} '{engines}'")
    assert command(place) == [
        "proxy",
        "--port",
        "9100",
        "--admin",
        "9101",
        "http://127.0.0.1:9001 http://127.0.0.1:9002",
    ]


def test_nginx_is_configured_for_its_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = place.folder / "nginx" / "usr" / "sbin" / "nginx"
    binary.parent.mkdir(parents=True)
    binary.touch(mode=0o755)
    monkeypatch.setattr(targets, "OUT", place.folder)
    assert nginx(place)[0] == str(binary)
    conf = (place.folder / "nginx.conf").read_text()
    assert "listen 127.0.0.1:9100;" in conf
    assert "server 127.0.0.1:9001; server 127.0.0.1:9002;" in conf
    assert "@" not in conf.split("\n", 1)[1]


def test_a_rival_that_is_not_there_is_missing_with_what_would_bring_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "OUT", place.folder)
    with pytest.raises(Missing, match="make bench-setup"):
        nginx(place)


def test_ports_are_a_run_that_nobody_listens_on() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_ports(1)))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_ports(3, port) > port
