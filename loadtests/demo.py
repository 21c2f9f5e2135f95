"""demo: what routing gains, on one screen. The same conversations through the gateway, under one policy after another.

Each policy gets a freshly started fleet with cold caches and a freshly started gateway. Conversations, users and pauses
are the same for all, so what differs is where each call was served.
"""

import asyncio
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtests.conversations import load_conversations
from loadtests.drive import Run, Target
from loadtests.replay import Session, note_delays, replay, sessions
from loadtests.report import Summary, percentile
from loadtests.stand import NotReady, Plan, stand, until_stopped

DEFAULT_POLICY = "least_work"
POLICIES = ("round_robin", "bounded_load", DEFAULT_POLICY)
"""The default comes last: its fleet is what `--keep` leaves."""
PLAIN_POLICY = POLICIES[0]
BUSY_S = 0.01  # an idle machine wakes processes within one or two milliseconds
USERS = 2  # who keep four engines busy, without one of them overloaded for long

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of the conversations under one policy."""

    policy: str
    summary: Summary
    delay_s: float = 0.0
    """By how much this process was woken up late, at the 95th percentile."""

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that the engines computed; the others were in their caches."""
        return round(self.summary.prompt_tokens * (1.0 - (self.summary.cached_share or 0.0)))


def demo(
    port: Annotated[int, typer.Option(help="Of the gateway; the admin listener takes the next.")] = 8080,
    engine_port: Annotated[int, typer.Option(help="Of the first engine.")] = 9001,
    users: Annotated[int, typer.Option(min=1, help="In each conversation; more of them load the fleet more.")] = USERS,
    time_scale: Annotated[
        float, typer.Option(min=0.01, help="Below 1 all is faster than life, and the times say less.")
    ] = 1.0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave engines and gateway running until Ctrl-C.")] = False,
) -> None:
    """Show what routing gains: real conversations on simulated engines, under three policies."""
    plan = Plan(port=port, engine_port=engine_port, time_scale=time_scale)
    status = uvloop.run(until_stopped(_demo(plan, users, keep)))
    if status is None:
        console.print("stopped")
    raise typer.Exit(status or 0)


async def _demo(plan: Plan, users: int, keep: bool) -> int:
    conversations = load_conversations()
    people = sessions(conversations, users)
    calls = calls_of(people)
    console.print(
        f"{len(conversations)} real agent sessions, {users} user{'s' * (users > 1)} in each: {calls} streamed calls, "
        f"histories included.\nSimulated are the {plan.engines} engines, an 8B model on an H100 each: step times and "
        "caches,\nno GPU. Gateway, sockets, tokenizer and what was asked are real.\n"
    )
    trials: list[Trial] = []
    try:
        for number, policy in enumerate(POLICIES, 1):
            is_last = number == len(POLICIES)
            title = f"{number}/{len(POLICIES)} {policy}{' (default)' * is_last}"
            time = ", 13 to 28 s" if plan.time_scale == 1.0 and users <= USERS else ""
            console.print(f"[bold]{title}[/bold]: fresh fleet, cold caches{time}")
            async with stand(plan, policy) as file:
                if number == 1:
                    _tell_commands(plan, file)
                trials.append(await _try(policy, plan, people))
                summary = trials[-1].summary
                console.print(f"    {summary.requests} calls in {summary.duration_s:.1f} s")
                if is_last:
                    _show(trials)
                    _invite(plan)
                if is_last and keep:
                    console.print(f"\nleft running under {policy}, with {file}; Ctrl-C ends it", soft_wrap=True)
                    await asyncio.Event().wait()
    except NotReady as error:
        console.print(f"[red]{error}[/red]")
        return 1
    return 1 if any(trial.summary.errors for trial in trials) else 0


def _tell_commands(plan: Plan, file: Path) -> None:
    """Say how engines and gateway were started."""
    console.print(f"    kvlane-sim {shlex.join(plan.fleet_words())}", soft_wrap=True)
    console.print(f"    kvlane serve {file}  # policy, engines, the model's tokenizer", soft_wrap=True)


def calls_of(people: list[Session]) -> int:
    """Count the calls of all sessions."""
    return sum(len(session.conversation.turns) for session in people)


async def _try(policy: str, plan: Plan, people: list[Session]) -> Trial:
    """Hold the conversations, and look at how busy the machine is."""
    delays_s: list[float] = []
    watch = asyncio.create_task(note_delays(delays_s))
    try:
        run = await _watched(plan, people)
    finally:
        watch.cancel()
    return Trial(policy, Summary.of(run), percentile(sorted(delays_s), 0.95) if delays_s else 0.0)


async def _watched(plan: Plan, people: list[Session]) -> Run:
    """Hold the conversations, with a progress bar."""
    columns = (TextColumn("    replaying"), BarColumn(), MofNCompleteColumn(), TextColumn("calls"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=calls_of(people))
        target = Target(url=plan.gateway_url)
        return await replay(target, people, time_scale=plan.time_scale, on_answer=lambda: progress.advance(bar))


def _show(trials: list[Trial]) -> None:
    """Print the policies side by side, and what the best one gains."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("", no_wrap=True)
    for trial in trials:
        table.add_column(trial.policy, justify="right", no_wrap=True)
    for name, cells in rows(trials):
        table.add_row(name, *cells)
    console.print()
    console.print(table)
    console.print(f"\n[bold]{verdict(trials)}[/bold]")
    delay_s = max(trial.delay_s for trial in trials)
    if delay_s > BUSY_S:
        console.print(
            f"This machine was busy: its processes woke up to {_ms(delay_s)} ms late, a few times in each TTFT."
        )


def rows(trials: list[Trial]) -> list[tuple[str, list[str]]]:
    """Give the lines of the table: a name, and a cell for each policy."""
    all = [trial.summary for trial in trials]
    return [
        ("prompt tokens from cache", ["not told" if s.cached_share is None else f"{s.cached_share:.1%}" for s in all]),
        ("prompt tokens computed", [f"{trial.prefilled_tokens:,}" for trial in trials]),
        ("TTFT mean, ms", [_ms(s.ttft.mean) for s in all]),
        ("TTFT p50, ms", [_ms(s.ttft.p50) for s in all]),
        ("TTFT p95, ms", [_ms(s.ttft.p95) for s in all]),
        ("TTFT p99, ms", [_ms(s.ttft.p99) for s in all]),
        ("TPOT p50, ms", [_ms(s.tpot.p50, 1) for s in all]),
        ("TPOT p95, ms", [_ms(s.tpot.p95, 1) for s in all]),
        ("calls at each engine", ["/".join(str(count) for _, count in sorted(s.endpoints.items())) for s in all]),
        ("calls failed", [str(s.requests - s.succeeded) for s in all]),
        ("all done after, s", [f"{s.duration_s:.1f}" for s in all]),
    ]


def verdict(trials: list[Trial]) -> str:
    """Say which policy won, and what that gains over handing out in turn."""
    plain = next(trial for trial in trials if trial.policy == PLAIN_POLICY)
    best = min(trials, key=lambda trial: trial.summary.ttft.mean or float("inf"))
    ours, theirs = best.summary.ttft.mean, plain.summary.ttft.mean
    if best is plain or not ours or not theirs:
        return f"{PLAIN_POLICY} was as good as any here: routing gained nothing this time."
    spared = 1.0 - best.prefilled_tokens / max(1, plain.prefilled_tokens)
    return (
        f"{best.policy} wins: first tokens come after {_ms(ours)} ms in the mean, under {PLAIN_POLICY} after "
        f"{_ms(theirs)} ms, {theirs / ours:.1f} times as long; {spared:.0%} fewer prompt tokens are computed."
    )


def _ms(seconds: float | None, digits: int = 0) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.{digits}f}"


def _invite(plan: Plan) -> None:
    """Say what to try by hand."""
    gateway, admin = plan.gateway_url, plan.admin_url
    hello = '{"model":"sim","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"Hello"}]}'
    console.print(
        f"\nTry it by hand (with [bold]make demo ARGS=--keep[/bold] it stays up):\n"
        f"  API       {gateway}/v1/models\n  dashboard {admin}/ui\n"
        f"  metrics   {admin}/metrics\n  engines   {admin}/admin/endpoints\n"
        f"  curl -N {gateway}/v1/chat/completions -H 'content-type: application/json' -d '{hello}'",
        soft_wrap=True,
    )
