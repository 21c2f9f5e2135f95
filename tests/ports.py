"""Ports of 127.0.0.1 for processes that tests start: no two tests, workers or suites on a machine are given the same.

Who looks for a free port and only then starts a process on it loses to whoever looks in between. So a process of a
suite claims a block of ports, by being bound to the first of them for as long as it lives, and hands out the rest in
turn. The blocks lie below the range from which the system takes ports for outgoing connections, and so do the ports
that nodes of a Redis cluster open beside theirs (BUS further on).
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import chain

BLOCKS = range(12_000, 22_000, 100)
BUS = 10_000
"""How much further on a node of a Redis cluster listens for the others."""


def free_port() -> int:
    """Give a port that nobody listens on, nor on the one that a cluster's node takes beside it."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """Give the first of `count` ports in a row that nobody listens on, nor BUS further on."""
    return _block().take(count)


def are_free(first: int, count: int) -> bool:
    """Tell whether a process could listen on each of `count` ports in a row; past connections are nobody's."""
    return all(_is_free(port) for port in range(first, first + count))


class _Block:
    """The ports of one process; those it has handed out come round again when all others have."""

    def __init__(self) -> None:
        self._claim, first = next(_claims())
        self._ports = range(first + 1, first + BLOCKS.step)
        self._next = self._ports.start

    def take(self, count: int) -> int:
        last = self._ports.stop - count
        for first in chain(range(self._next, last + 1), range(self._ports.start, min(self._next, last + 1))):
            if are_free(first, count) and are_free(first + BUS, count):
                self._next = first + count
                return first
        raise AssertionError(f"no {count} free ports in a row in {self._ports}")


@cache
def _block() -> _Block:
    return _Block()


def _claims() -> Iterator[tuple[socket.socket, int]]:
    for first in BLOCKS:
        claim = socket.socket()
        with suppress(OSError):
            claim.bind(("127.0.0.1", first))
            yield claim, first
        claim.close()
    raise AssertionError(f"all blocks of ports are taken: {BLOCKS}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False
