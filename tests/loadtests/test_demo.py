"""The demo, as `make demo` runs it: processes of their own, real conversations, a table, a clean end."""

import asyncio
import socket
import sys

from loadtests.conversations import load_conversations

WITHIN_S = 100.0
PORTS = 5  # four engines in a row


def free_ports(count: int) -> int:
    """Find `count` ports in a row that nobody listens on."""
    for first in range(21_000, 31_000, 10):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, probe in enumerate(sockets):
                probe.bind(("127.0.0.1", first + offset))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise AssertionError("no free ports")


async def start(*words: str) -> asyncio.subprocess.Process:
    """Start a demo on ports of its own."""
    first = free_ports(PORTS + 2)
    ports = ("--port", str(first), "--engine-port", str(first + 2))
    command = (sys.executable, "-m", "loadtests", "demo", "--users", "1", *ports, *words)
    return await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=asyncio.subprocess.STDOUT)


def test_the_conversations_are_real_and_grow() -> None:
    conversations = load_conversations()
    assert len(conversations) == 10
    for conversation in conversations:
        lengths = [len(body) for body in conversation.bodies("sim")]
        assert lengths == sorted(lengths)
        assert len(lengths) == len(conversation.turns) > 1


async def test_the_demo_shows_what_happened_at_every_engine_and_ends_well() -> None:
    process = await start()
    output, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
    text = output.decode()
    assert process.returncode == 0, text
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 5, text
    *engines, total = rows
    assert all(int(row[2]) > 0 for row in engines)
    assert sum(int(row[2]) for row in engines) == int(total[2]) == sum(len(c.turns) for c in load_conversations())
    assert int(total[3]) == 0, text
    assert "/metrics" in text
    assert "curl -N" in text


async def test_the_demo_ends_cleanly_when_it_is_interrupted() -> None:
    process = await start("--keep")
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        while b"real agent sessions" not in await process.stdout.readline():
            pass
        process.send_signal(2)
        rest = await process.stdout.read()
        assert await process.wait() == 0, rest
    assert b"Traceback" not in rest
