"""limits: how exact limits are that several gateways share, what they cost in calls to Redis, and what they add.

Tenants ask for many times what they may have, through all gateways at once. A tenant may be given its burst and its
rate times the time; more than that by TOLERANCE and one request is a failure. So is one call to Redis too many: there
is one to reserve each request of a limited tenant, and one to settle each that was admitted. Redis counts them itself
(INFO commandstats, which has the commands that scripts run as well). No request's are the calls by which gateways say
that they live and add to the accounts, a batch every few seconds: these alone run EXPIRE, once each. Nor are those that
keep the leases of what takes seconds: what is admitted, and what is kept, is a ZADD each. The first call of a script
fails, since Redis does not have it yet.

On a machine that is too busy Redis does not answer in time. Gateways count alone then, and tell it later: such a run
says nothing of either, and is a failure too.
"""

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from gateway.rediswire import LineDown
from loadtests.bench.processes import cpu_ns
from loadtests.callers import PER_MINUTE, Caller, Door, Kind, callers, calls_of, hold, warm_up
from loadtests.command import NumbersFile, console_beside, outcome_of, write_numbers
from loadtests.replay import note_delays
from loadtests.report import Spread
from loadtests.several import Plan, Stand, several
from loadtests.stand import NotReady

REST_S = 0.05  # without a call: gateways settle at once
TOLERANCE = 0.02  # of what a tenant may have; and one request, which may come to more than was set aside for it
CALLS = re.compile(rb"cmdstat_(eval|evalsha|expire|zadd|zcard):calls=(\d+)")
UNKNOWN = re.compile(rb"cmdstat_evalsha:.*failed_calls=(\d+)")
CPU = re.compile(rb"used_cpu_(?:sys|user):([\d.]+)")


@dataclass(frozen=True, slots=True)
class Exactness:
    """What tenants were given beside what they may have: requests or tokens, as they are limited."""

    may_have: float
    """Each."""
    was_given: float
    """To each, in the mean."""
    most_error: float
    """As parts of what each may have; so are the next two."""
    median_error: float
    least_error: float
    most_over: float
    """In requests."""
    too_much: int
    """Tenants that were given more than can be."""

    @classmethod
    def of(cls, people: Sequence[Caller], seconds: float) -> "Exactness":
        """Sum up callers with the same limits."""
        may_have = people[0].allowed(seconds)
        errors = [caller.error(seconds) for caller in people]
        return cls(
            may_have=may_have,
            was_given=sum(caller.used for caller in people) / len(people),
            most_error=max(errors),
            median_error=median(errors),
            least_error=min(errors),
            most_over=max(caller.over(seconds) for caller in people),
            too_much=sum(caller.used > may_have * (1 + TOLERANCE) + caller.one for caller in people),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """What came of all callers of one kind."""

    kind: Kind
    tenants: int
    offered: int
    admitted: int
    refused: int
    failed: int
    served_s: Spread
    refused_s: Spread
    exactness: Exactness | None

    @classmethod
    def of(cls, people: Sequence[Caller], kind: Kind, seconds: float) -> "Group":
        """Sum up."""
        its = [caller for caller in people if caller.kind is kind]
        return cls(
            kind=kind,
            tenants=len(its),
            offered=sum(caller.offered for caller in its),
            admitted=sum(caller.admitted for caller in its),
            refused=sum(caller.refused for caller in its),
            failed=sum(caller.failed for caller in its),
            served_s=Spread.of([took_s for caller in its for took_s in caller.served_s]),
            refused_s=Spread.of([took_s for caller in its for took_s in caller.refused_s]),
            exactness=Exactness.of(its, seconds) if its and kind.is_pressing else None,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What has been spent so far, or between two moments."""

    scripts: int
    """Calls to Redis for requests."""
    upkeep: int
    """Other calls."""
    leases: int
    """Granted, or kept."""
    redis_s: float
    """CPU time of Redis."""
    gateways_s: float
    """CPU time of all gateways."""

    @classmethod
    async def so_far(cls, stand: Stand) -> "Cost":
        """Ask Redis and the kernel.

        Raises:
            NotReady: Redis does not answer.
        """
        try:
            told = [await stand.line.ask("INFO", section) for section in ("commandstats", "cpu")]
        except LineDown as error:
            raise NotReady(f"Redis does not answer: {error}") from error
        stats, cpu = (answer if isinstance(answer, bytes) else b"" for answer in told)
        calls = Counter({name: int(count) for name, count in CALLS.findall(stats)})
        upkeep = calls[b"expire"] + sum(map(int, UNKNOWN.findall(stats)))
        return cls(
            scripts=calls[b"eval"] + calls[b"evalsha"] - upkeep,
            upkeep=upkeep,
            leases=calls[b"zadd"] - calls[b"zcard"],  # one each of those that say that they live
            redis_s=sum(map(float, CPU.findall(cpu))),
            gateways_s=sum(map(cpu_ns, stand.pids)) / 1e9,
        )

    @classmethod
    async def at_rest(cls, stand: Stand) -> "Cost":
        """Ask once all is settled, which nobody waits for.

        Raises:
            NotReady: Redis does not answer, or goes on being called.
        """
        found = await cls.so_far(stand)
        for _ in range(100):
            await asyncio.sleep(REST_S)
            before, found = found, await cls.so_far(stand)
            if found.scripts == before.scripts:
                return found
        raise NotReady("Redis is called though nobody asks anything; do others use it?")

    def __sub__(self, earlier: "Cost") -> "Cost":
        return Cost(
            self.scripts - earlier.scripts,
            self.upkeep - earlier.upkeep,
            self.leases - earlier.leases,
            self.redis_s - earlier.redis_s,
            self.gateways_s - earlier.gateways_s,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to."""

    gateways: int
    times: float
    seconds: float
    """From the first request to the last answer."""
    groups: list[Group]
    cost: Cost
    outages: int
    """How often a gateway thought that Redis is down."""
    delays_s: Spread
    """By how much this process was woken up late: a busy machine is in all times."""

    def group(self, kind: Kind) -> Group:
        """Give what came of callers of a kind."""
        return next(group for group in self.groups if group.kind is kind)

    @property
    def requests(self) -> int:
        """Count all requests."""
        return sum(group.offered for group in self.groups)

    @property
    def reserved(self) -> int:
        """Count the requests for which Redis was asked."""
        return sum(group.offered for group in self.groups if group.kind is not Kind.NONE)

    @property
    def settled(self) -> int:
        """Count those that were admitted after that."""
        return sum(group.admitted for group in self.groups if group.kind is not Kind.NONE)

    @property
    def renewals(self) -> int:
        """Count how often a lease was kept."""
        return self.cost.leases - self.settled

    @property
    def calls_per_settled(self) -> float:
        """Count the calls to Redis for each request that was admitted, beside the one that every request needs."""
        return (self.cost.scripts - self.reserved - self.renewals) / max(1, self.settled)

    @property
    def added_s(self) -> tuple[float, float]:
        """Say by how much limits make answers later: at the median, and at the 99th percentile."""
        with_limits, without = self.group(Kind.FAR).served_s, self.group(Kind.NONE).served_s
        return (with_limits.p50 or 0.0) - (without.p50 or 0.0), (with_limits.p99 or 0.0) - (without.p99 or 0.0)

    @property
    def problems(self) -> list[str]:
        """Say what must not be."""
        found = []
        if too_much := sum(group.exactness.too_much for group in self.groups if group.exactness is not None):
            found.append(f"{too_much} tenants were given more than {TOLERANCE:.0%} and one request over what they may")
        if self.outages:
            found.append(f"gateways thought {self.outages} times that Redis is down: is this machine too busy?")
        elif self.renewals < 0:
            found.append(f"{-self.renewals} requests were admitted without Redis")
        elif (too_often := self.cost.scripts - self.reserved - self.settled - self.renewals) > 0:
            found.append(f"Redis was called {too_often} times too often")
        if failed := sum(group.failed for group in self.groups):
            found.append(f"{failed} requests failed")
        return found

    @property
    def document(self) -> dict[str, object]:
        """Give all of it, what is reckoned from it included."""
        reckoned = {"calls_per_settled": self.calls_per_settled, "renewals": self.renewals, "added_s": self.added_s}
        return {**asdict(self), **reckoned, "problems": self.problems}


async def press(plan: Plan, people: Sequence[Caller], times: float, seconds: float, seed: int) -> Report:
    """Stand everything up, and let the callers ask for so many times what they may have.

    Raises:
        NotReady: it did not come up, or Redis went away.
    """
    doors = [Door(url) for url in plan.gateway_urls]
    calls = calls_of(people, doors, times, seconds, seed)
    async with several(plan, [caller.section for caller in people]) as stand:
        await hold(list(warm_up(people, doors)), doors)
        before, outages = await Cost.at_rest(stand), stand.outages()
        delays_s: list[float] = []
        noting = asyncio.create_task(note_delays(delays_s))
        try:
            took_s = await hold(calls, doors)
        finally:
            noting.cancel()
        cost, outages = await Cost.at_rest(stand) - before, stand.outages() - outages
        for door in doors:
            door.close()
    groups = [Group.of(people, kind, took_s) for kind in Kind]
    return Report(plan.gateways, times, took_s, groups, cost, outages, Spread.of(delays_s))


def limits(
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Gateway processes.")] = 3,
    tenants: Annotated[int, typer.Option(min=2, help="Half are limited by requests, half by tokens.")] = 200,
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Of arrivals.")] = 60.0,
    times: Annotated[float, typer.Option(min=0.1, help="How much more each asks for than it may have.")] = 10.0,
    per_minute: Annotated[
        int, typer.Option(min=1, help="Requests that each may have; with more of them the error counts finer.")
    ] = PER_MINUTE,
    redis: Annotated[
        str | None, typer.Option(help="redis://…; without it, a redis-server is started and ended.")
    ] = None,
    redis_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that gateways wait for its answers.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of arrivals and of how long answers are.")] = 0,
    port: Annotated[int, typer.Option(help="Of the first gateway; each takes two.")] = 8080,
    engine_port: Annotated[int, typer.Option(help="Of the first engine.")] = 9001,
    redis_port: Annotated[int, typer.Option(help="Of the redis-server that is started.")] = 6390,
    json: NumbersFile = None,
) -> None:
    """Press against limits that gateways share through Redis: how exact they are, and what they cost."""
    plan = Plan(
        gateways=gateways,
        port=port,
        engine_port=engine_port,
        redis_port=redis_port,
        redis_url=redis,
        redis_timeout_s=redis_timeout,
    )
    people = callers(tenants, f"limits-{secrets.token_hex(4)}", per_minute)
    console = console_beside(json)
    report = outcome_of(press(plan, people, times, seconds, seed), console)
    if json is not None:
        write_numbers(json, report.document)
    console.print(table(report))
    for line in costs(report):
        console.print(line)
    for problem in report.problems:
        console.print(problem, style="red")
    if report.problems:
        raise typer.Exit(1)


def table(report: Report) -> Table:
    """Show the kinds of callers side by side."""
    title = f"{report.gateways} gateways, one Redis, {report.requests / report.seconds:,.0f} requests/s"
    title += f" for {report.seconds:.0f} s,\n{report.times:g} times what tenants may have; times are p50 / p99"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    shown.add_column("limits", no_wrap=True)
    for group in report.groups:
        shown.add_column(group.kind.value, justify="right", no_wrap=True)
    for name, cell in ROWS:
        shown.add_row(name, *(cell(group) for group in report.groups))
    return shown


def costs(report: Report) -> list[str]:
    """Say what limits cost, in lines."""
    cost = report.cost
    p50, p99 = report.added_s
    late = _ms(report.delays_s)
    return [
        f"calls to Redis: 1 to reserve a request ({report.reserved:,}), {report.calls_per_settled:.3f} to settle one "
        f"({report.settled:,}),",
        f"{report.renewals} to keep leases, {cost.upkeep} for no request; CPU of Redis "
        f"{cost.redis_s / max(1, cost.scripts) * 1e6:,.0f} µs a call,",
        f"of gateways {cost.gateways_s / max(1, report.requests) * 1e6:,.0f} µs a request",
        f"limits add {p50 * 1e3:+.2f} / {p99 * 1e3:+.2f} ms; this process woke up {late} ms late",
    ]


def _exact(show: Callable[[Exactness], str]) -> Callable[[Group], str]:
    return lambda group: "" if group.exactness is None else show(group.exactness)


def _ms(spread: Spread) -> str:
    return " / ".join("-" if value is None else f"{value * 1e3:,.1f}" for value in (spread.p50, spread.p99))


ROWS: tuple[tuple[str, Callable[[Group], str]], ...] = (
    ("tenants", lambda group: f"{group.tenants:,}"),
    ("requests", lambda group: f"{group.offered:,}"),
    ("admitted", lambda group: f"{group.admitted:,}"),
    ("each may have", _exact(lambda its: f"{its.may_have:,.1f}")),
    ("each was given", _exact(lambda its: f"{its.was_given:,.1f}")),
    ("worst over", _exact(lambda its: f"{its.most_error:+.1%}")),
    (" in requests", _exact(lambda its: f"{its.most_over:+.2f}")),
    ("median error", _exact(lambda its: f"{its.median_error:+.1%}")),
    ("worst under", _exact(lambda its: f"{its.least_error:+.1%}")),
    ("served, ms", lambda group: _ms(group.served_s)),
    ("refused, ms", lambda group: _ms(group.refused_s)),
)
