"""demo: the whole on one screen. Four simulated engines, the gateway, real conversations, and what became of them.

The engines and the gateway are processes of their own, started as anyone would start them; the conversations are
replayed over the wire as the official client speaks, streamed, one after the other within a session and all sessions
side by side. Whatever happens, the processes that were started here are ended here.
"""

import asyncio
import contextlib
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated
from urllib.request import urlopen

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtests.client import Link, Outcome
from loadtests.conversations import Conversation, load_conversations
from loadtests.drive import Run, Target
from loadtests.report import Summary

ENGINES = 4
READY_WITHIN_S = 20.0
STOP_WITHIN_S = 10.0
THINK_S = 0.05

console = Console(highlight=False)


def demo(
    port: Annotated[int, typer.Option(help="Of the gateway; the admin listener takes the next.")] = 8080,
    engine_port: Annotated[int, typer.Option(help="Of the first engine.")] = 9001,
    users: Annotated[
        int, typer.Option(min=1, help="Per session: people with the same trouble, so that prefixes are shared.")
    ] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Leave engines and gateway running until Ctrl-C.")] = False,
) -> None:
    """Show Kvlane at work: simulated engines, the gateway, real conversations, a table."""
    with contextlib.suppress(KeyboardInterrupt):
        raise typer.Exit(uvloop.run(_demo(port, engine_port, users, keep)))
    console.print("\nstopped")


async def _demo(port: int, engine_port: int, users: int, keep: bool) -> int:
    engines = [f"http://127.0.0.1:{engine_port + at}" for at in range(ENGINES)]
    gateway = f"http://127.0.0.1:{port}"
    admin = f"http://127.0.0.1:{port + 1}"
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    console.print(f"[bold]1.[/bold] {ENGINES} simulated engines (an 8B model on one H100 each): {', '.join(engines)}")
    fleet = ("loadtests", "fleet", "-n", str(ENGINES), "--port", str(engine_port))
    async with _process(*fleet) as engines_process:
        options = [word for url in engines for word in ("--endpoint", url)]
        console.print(f"[bold]2.[/bold] the gateway: kvlane serve {' '.join(options)} --port {port}")
        serve = ("gateway", "serve", *options, "--port", str(port), "--admin-port", str(port + 1))
        async with _process(*serve, "--log-level", "warning") as process:
            if not await _is_ready(gateway, (engines_process, process), stop):
                return 0 if stop.is_set() else 1
            sessions = load_conversations()
            conversations = sessions * users
            turns = sum(len(conversation.turns) for conversation in conversations)
            console.print(
                f"[bold]3.[/bold] {len(sessions)} real agent sessions, {users} user{'s' * (users > 1)} each: "
                f"{turns} streamed chat calls, each with the history so far\n"
            )
            run = await _unless(stop, _replay(Target(url=gateway), conversations))
            if run is None:
                return 0
            _show(run)
            _invite(gateway, admin)
            if keep:
                console.print("\nleft running; Ctrl-C ends it")
                await stop.wait()
            return 1 if any(outcome.error for outcome in run.outcomes) else 0


@contextlib.asynccontextmanager
async def _process(module: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run one of our commands while the block lasts; in a group of its own, so that Ctrl-C reaches it through us."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *words, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _is_ready(gateway: str, processes: tuple[asyncio.subprocess.Process, ...], stop: asyncio.Event) -> bool:
    """Wait until the gateway has found an engine."""
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at and not stop.is_set():
        if any(process.returncode is not None for process in processes):
            break
        if await asyncio.to_thread(_status, f"{gateway}/readyz") == 200:
            return True
        await asyncio.sleep(0.05)
    if not stop.is_set():
        console.print("[red]the gateway did not become ready[/red] (is a port taken? see the line above)")
    return False


def _status(url: str) -> int:
    try:
        with urlopen(url, timeout=1) as answer:
            status: int = answer.status
            return status
    except OSError:
        return 0


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, Run]) -> Run | None:
    """Give what the work gives, or None once somebody asks to stop."""
    task = asyncio.create_task(work)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None
    return task.result()


async def _replay(target: Target, conversations: list[Conversation]) -> Run:
    """Hold all conversations at once, each turn when the one before has been answered."""
    run = Run(started_at=time.monotonic())
    total = sum(len(conversation.turns) for conversation in conversations)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TextColumn("calls"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total)

        async def hold(conversation: Conversation) -> None:
            for body in conversation.bodies(target.model):
                run.outcomes.append(await _call(target, body))
                progress.advance(bar)
                await asyncio.sleep(THINK_S)

        await asyncio.gather(*(hold(conversation) for conversation in conversations))
    run.ended_at = time.monotonic()
    return run


async def _call(target: Target, body: bytes) -> Outcome:
    """Make one call and wait for the end of its stream."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    outcome = Outcome(time.monotonic())

    def then(link: Link, outcome: Outcome) -> None:
        link.close()
        if not done.done():
            done.set_result(None)

    try:
        _, link = await loop.create_connection(Link, *target.address)
    except OSError:
        outcome.error = "connect"
        return outcome
    link.send(target.request(body), outcome, then)
    try:
        await done
    finally:
        link.close()
    return outcome


def _show(run: Run) -> None:
    """Print what happened at each endpoint, and in all."""
    by_endpoint: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in run.outcomes:
        by_endpoint[outcome.endpoint or "none"].append(outcome)
    table = Table(title="tokens, and times in ms", title_justify="left")
    table.add_column("engine", no_wrap=True)
    for name in ("calls", "errors", "prompt", "cached", "output", "TTFT\np50", "TTFT\np95", "TPOT\np50"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, outcomes in sorted(by_endpoint.items()):
        table.add_row(name.removeprefix("127.0.0.1"), *_cells(outcomes, run))
    table.add_section()
    table.add_row("[bold]all[/bold]", *_cells(run.outcomes, run))
    console.print(table)
    summary = Summary.of(run)
    console.print(
        f"{summary.requests} calls in {summary.duration_s:.1f} s: {summary.requests_per_s:.1f} calls/s, "
        f"{summary.output_tokens_per_s:.0f} output tokens/s"
    )


def _cells(outcomes: list[Outcome], run: Run) -> list[str]:
    summary = Summary.of(Run(outcomes, run.started_at, run.ended_at))
    return [
        str(summary.requests),
        str(summary.requests - summary.succeeded),
        f"{summary.prompt_tokens:,}",
        "not told" if summary.cached_share is None else f"{summary.cached_share:.0%}",
        f"{summary.output_tokens:,}",
        _ms(summary.ttft.p50),
        _ms(summary.ttft.p95),
        _ms(summary.tpot.p50),
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def _invite(gateway: str, admin: str) -> None:
    """Say what to try by hand."""
    hello = '{"model":"sim","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"Hello"}]}'
    console.print(
        f"\nTry it by hand (with [bold]make demo ARGS=--keep[/bold] it stays up):\n"
        f"  API      {gateway}/v1/models\n  metrics  {admin}/metrics\n  engines  {admin}/admin/endpoints\n"
        f"  curl -N {gateway}/v1/chat/completions -H 'content-type: application/json' -d '{hello}'",
        soft_wrap=True,
    )
