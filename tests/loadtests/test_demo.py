"""The demo, as `make demo` runs it: processes of their own, real conversations, policies side by side, a clean end."""

import asyncio
import signal
import socket
import sys

import pytest

from gateway.config import PoolConfig
from loadtests.client import Outcome
from loadtests.conversations import load_conversations
from loadtests.demo import DEFAULT_POLICY, POLICIES, Trial, calls_of, verdict
from loadtests.drive import Run
from loadtests.replay import sessions
from loadtests.report import Summary
from tests.ports import are_free, free_ports

WITHIN_S = 150.0  # with a machine that others use too; alone it is a fifth
FAST = ("--users", "1", "--time-scale", "0.1")
PORTS = 6  # the gateway's two, four engines


async def start(first: int, *words: str) -> asyncio.subprocess.Process:
    """Start a demo on ports of its own."""
    ports = ("--port", str(first), "--engine-port", str(first + 2))
    command = (sys.executable, "-m", "loadtests", "demo", *FAST, *ports, *words)
    return await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=asyncio.subprocess.STDOUT)


def cells(text: str, name: str) -> list[str]:
    """Give the cells of a line of the table."""
    line = next(line for line in text.splitlines() if line.strip().startswith(name))
    return line.strip().removeprefix(name).split()


def trial(policy: str, ttft_s: float, cached: int) -> Trial:
    outcome = Outcome(0.0, status=200, first_at=ttft_s, last_at=1.0, prompt_tokens=1000, cached_tokens=cached)
    return Trial(policy, Summary.of(Run([outcome], 0.0, 1.0)))


def test_the_conversations_are_real_and_grow() -> None:
    conversations = load_conversations()
    assert len(conversations) == 10
    for conversation in conversations:
        lengths = [len(body) for body in conversation.bodies("sim")]
        assert lengths == sorted(lengths)
        assert len(lengths) == len(conversation.turns) > 1


def test_users_share_the_system_prompt_and_nothing_else() -> None:
    conversation = load_conversations()[0]
    (system, one), (same, other) = (next(conversation.histories(user)) for user in ("customer 1", "customer 2"))
    assert system == same
    assert one != other
    assert one["content"].removeprefix("I am customer 1. ") == other["content"].removeprefix("I am customer 2. ")


def test_what_the_demo_calls_the_default_is_the_gateways() -> None:
    assert PoolConfig.model_fields["policy"].default == DEFAULT_POLICY == POLICIES[-1]


def test_the_verdict_is_what_was_measured() -> None:
    plain, best = trial("round_robin", 0.8, 200), trial("least_work", 0.2, 600)
    assert verdict([plain, trial("bounded_load", 0.4, 400), best]) == (
        "least_work wins: first tokens come after 200 ms in the mean, under round_robin after 800 ms, 4.0 times as "
        "long; 50% fewer prompt tokens are computed."
    )
    assert "gained nothing" in verdict([trial("round_robin", 0.1, 200), best])


async def test_the_demo_shows_the_policies_side_by_side_and_ends_well() -> None:
    first = free_ports(PORTS)
    process = await start(first)
    output, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
    text = output.decode()
    assert process.returncode == 0, text
    calls = [[int(count) for count in cell.split("/")] for cell in cells(text, "calls at each engine")]
    assert [sum(counts) for counts in calls] == [calls_of(sessions(load_conversations(), 1))] * 3, text
    assert max(calls[0]) - min(calls[0]) <= 1, "round robin"
    assert cells(text, "calls failed") == ["0"] * 3
    shares = [float(cell.rstrip("%")) for cell in cells(text, "prompt tokens from cache")]
    assert shares[0] < shares[-1], text
    assert all(len(line) <= 80 for line in text.splitlines() if "kvlane" not in line and "curl" not in line), text
    assert "/metrics" in text
    assert "curl -N" in text
    assert are_free(first, PORTS)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, b"1/3"),
        (signal.SIGHUP, b"kvlane serve"),
        (signal.SIGTERM, b"calls in"),
        (signal.SIGINT, b"2/3"),
        (signal.SIGTERM, b"left running"),
    ],
)
async def test_the_demo_ends_cleanly_whenever_it_is_told_to(number: signal.Signals, moment: bytes) -> None:
    first = free_ports(PORTS)
    process = await start(first, "--keep")
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        while moment not in (line := await process.stdout.readline()):
            assert line, "ended by itself"
        process.send_signal(number)
        rest = await process.stdout.read()
        assert await process.wait() == 0, rest
    assert b"Traceback" not in rest
    assert rest.rstrip().endswith(b"stopped")
    assert are_free(first, PORTS)


async def test_a_port_that_is_taken_is_named() -> None:
    first = free_ports(PORTS)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", first + PORTS - 1))
        taken.listen()
        process = await start(first)
        output, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode == 1
    assert str(first + PORTS - 1) in output.decode()
    assert are_free(first, PORTS)
