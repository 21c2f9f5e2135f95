"""Ports for tests: never the same twice, in one process or in several."""

import socket
import subprocess
import sys

from tests.ports import BLOCKS, BUS, are_free, free_port, free_ports

ASK = "import sys; from tests.ports import free_ports; print(free_ports(6), flush=True); sys.stdin.read()"


def test_two_who_ask_before_either_listens_get_ports_of_their_own() -> None:
    first, second = free_ports(6), free_ports(6)
    assert not set(range(first, first + 6)) & set(range(second, second + 6))
    assert are_free(first, 6)
    assert are_free(second + BUS, 6)


def test_processes_that_ask_at_once_get_blocks_of_their_own() -> None:
    asking = [subprocess.Popen([sys.executable, "-c", ASK], stdin=-1, stdout=-1, text=True) for _ in range(3)]
    try:
        given = [int(process.stdout.readline()) for process in asking if process.stdout]
    finally:
        for process in asking:
            process.communicate("")
    blocks = {port // BLOCKS.step for port in (*given, free_port())}
    assert len(blocks) == 4


def test_a_port_somebody_listens_on_is_passed_over_and_the_others_come_round_again() -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        assert not are_free(port, 1)
        given = [free_port() for _ in range(2 * BLOCKS.step)]
    assert port not in given
    assert len(set(given)) >= BLOCKS.step / 2
    assert {each // BLOCKS.step for each in given} == {port // BLOCKS.step}
