"""rank: whether virtual time and sockets put policies in the same order, on the conversations of the demo.

Over HTTP: processes, the gateway as it is served, engines that keep real time. In virtual time: the same policies over
the same index and books, the same engines as discrete events, no network. Conversations, users, pauses and tokens are
the same in both.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from loadtests.command import NumbersFile, console_beside, outcome_of, write_numbers
from loadtests.conversations import load_conversations
from loadtests.drive import Run, Target
from loadtests.replay import Session, replay, sessions
from loadtests.report import Spread, Summary
from loadtests.retold import RetoldSource
from loadtests.scenario import Fleet, Mooncake, RingKey, Scenario, Stage
from loadtests.simulate import Simulation
from loadtests.stand import MAX_CONTEXT_TOKENS, PROFILE, Plan, stand
from loadtests.vocabulary import small_tokenizer, vocabulary

POLICIES = ("round_robin", "bounded_load", "least_work")


@dataclass(frozen=True, slots=True)
class Standing:
    """How a policy did, one way or the other; times in seconds."""

    policy: str
    hit_rate: float
    ttft_s: Spread
    tpot_s: Spread
    failed: int


class Retelling(Simulation):
    """A simulation whose requests are those of real sessions."""

    def __init__(self, people: Sequence[Session], plan: Plan, policy: str, seed: int) -> None:
        scenario = Scenario(
            name="retold",
            about="real agent sessions",
            workload=Mooncake(kind="mooncake"),  # in place of which the sessions come
            fleet=Fleet(endpoints=plan.engines, profile=plan.profile, max_context_tokens=MAX_CONTEXT_TOKENS),
            ring_key=RingKey.ANSWERED,  # as the gateway has it
            stages=(),
            bracket=(1, 2),
        )
        super().__init__(scenario, policy, seed=seed)
        self._source = RetoldSource(people, vocabulary(small_tokenizer()))

    def tell(self) -> Standing:
        """Let all be said."""
        result = self.run(Stage(rate=1.0, arrivals_s=1e6, is_drained=True))
        assert result is not None
        return Standing(result.policy, result.hit_rate, result.ttft_s, result.tpot_s, result.refused)


async def over_http(people: Sequence[Session], plan: Plan, policy: str) -> Standing:
    """Hold the conversations through a gateway, on a fleet of their own."""
    async with stand(plan, policy):
        run = await replay(Target(url=plan.gateway_url), people, time_scale=plan.time_scale)
    return standing(policy, run, plan.time_scale)


def standing(policy: str, run: Run, time_scale: float) -> Standing:
    """Sum up what came over HTTP, in the model's seconds."""
    summary = Summary.of(run)
    ttft, tpot = (_scaled(spread, time_scale) for spread in (summary.ttft, summary.tpot))
    return Standing(policy, summary.cached_share or 0.0, ttft, tpot, summary.requests - summary.succeeded)


def _scaled(spread: Spread, time_scale: float) -> Spread:
    """Give real times as the model's."""
    values = (spread.mean, spread.p50, spread.p95, spread.p99)
    return Spread(*(None if value is None else value / time_scale for value in values))


def rank(
    policy: Annotated[list[str], typer.Option(help="One or several that the gateway serves.")] = list(POLICIES),  # noqa: B006  typer copies it
    users: Annotated[int, typer.Option(min=1, help="In each conversation.")] = 2,
    seed: Annotated[int, typer.Option(help="Of who begins when, and of what policies draw.")] = 0,
    profile: Annotated[str, typer.Option(help="Of the engines.")] = PROFILE,
    time_scale: Annotated[
        float, typer.Option(min=0.01, help="Below 1 the wire is faster than life, and its own time weighs more.")
    ] = 1.0,
    port: Annotated[int, typer.Option(help="Of the gateway; the admin listener takes the next.")] = 8080,
    engine_port: Annotated[int, typer.Option(help="Of the first engine.")] = 9001,
    json: NumbersFile = None,
) -> None:
    """Rank policies over HTTP and in virtual time, on the same real conversations."""
    plan = Plan(port=port, engine_port=engine_port, profile=profile, time_scale=time_scale)
    people = sessions(load_conversations(), users, seed)
    console = console_beside(json)

    async def all_over_http() -> list[Standing]:
        found = []
        for name in policy:
            console.print(f"over HTTP: {name}")
            found.append(await over_http(people, plan, name))
        return found

    wire = outcome_of(all_over_http(), console)
    console.print("in virtual time")
    virtual = [Retelling(people, plan, name, seed).tell() for name in policy]
    if json is not None:
        document = {
            "users": users,
            "seed": seed,
            "profile": profile,
            "time_scale": time_scale,
            "http": [asdict(standing) for standing in wire],
            "virtual": [asdict(standing) for standing in virtual],
            "agree": {name: order(wire, value) == order(virtual, value) for name, value in MEASURES.items()},
        }
        write_numbers(json, document)
    console.print(table(wire, virtual))
    for name, value in MEASURES.items():
        ours, theirs = order(wire, value), order(virtual, value)
        word = "agree" if ours == theirs else "DISAGREE"
        console.print(f"by {name} they {word}: HTTP {' > '.join(ours)}; virtual {' > '.join(theirs)}")


MEASURES: dict[str, Callable[[Standing], float]] = {
    "hit rate": lambda standing: -standing.hit_rate,
    "p99 TTFT": lambda standing: standing.ttft_s.p99 or 0.0,
}
"""What policies are ranked by; the least is the best."""


def order(standings: Sequence[Standing], measure: Callable[[Standing], float]) -> list[str]:
    """Give the policies, best first."""
    return [standing.policy for standing in sorted(standings, key=measure)]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f}"


def table(wire: Sequence[Standing], virtual: Sequence[Standing]) -> Table:
    """Show both side by side."""
    shown = Table(title="HTTP | virtual; times in ms", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    shown.add_column("policy", no_wrap=True)
    cells: tuple[tuple[str, Callable[[Standing], str]], ...] = (
        ("hits", lambda standing: f"{standing.hit_rate:.1%}"),
        ("TTFT p50", lambda standing: _ms(standing.ttft_s.p50)),
        ("TTFT p95", lambda standing: _ms(standing.ttft_s.p95)),
        ("TTFT p99", lambda standing: _ms(standing.ttft_s.p99)),
    )
    for name, _ in cells:
        shown.add_column(name, justify="right", no_wrap=True)
    for ours, theirs in zip(wire, virtual, strict=True):
        shown.add_row(ours.policy, *(f"{cell(ours)} | {cell(theirs)}" for _, cell in cells))
    return shown
