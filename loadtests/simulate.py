"""Simulation: policies against simulated engines in virtual time, as discrete events.

A heap holds what is to happen: a request arrives at one of the gateways, an engine ends what it had planned, what one
gateway did reaches the others. Each is a time, a number that keeps the order of equal times, and a call. The polls of
the engines and the samples of their load come round by the clock and are caught up with before each event, so that
the heap is empty exactly when all is served.

An engine plans as far ahead as it can and is disturbed by what is submitted; what was put on the heap for it before is
then stale, and known by its time. No network is simulated: a request is in the queue of its engine at the moment it
arrives, and a token at the client at the moment it is made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from loadtests.doors import Admission
from loadtests.engine import EngineModel
from loadtests.logged import Life, record_of
from loadtests.replica import Placement, Replica, Verdict
from loadtests.results import Result, Tally
from loadtests.scenario import Scenario, Stage
from loadtests.sequence import Event, Generation, What
from loadtests.sources import source
from loadtests.workloads import Job
from policies.record import RequestRecord

SCRAPE_S = 0.2  # as llm-d and we poll the engines
SAMPLE_S = 1.0
TOLD_AFTER_S = 0.02  # until the other gateways know what one of them did
GIVE_UP_SHARE = 0.08  # of the requests to be expected: if so many missed the objective, 5 % of all surely did


@dataclass(eq=False, slots=True)
class Live:
    """A request on its way."""

    life: Life
    is_counted: bool
    replica: Replica


@dataclass(eq=False, slots=True)
class Node:
    """An engine, and when it ends what it does."""

    place: int
    engine: EngineModel
    due: float | None = None


class Simulation:
    """One policy, one seed: engines, gateways, and what is to happen. Stages follow one another on the same state.

    Args:
        share: "own" leaves each gateway to its own books and index; "shared" tells all others what one does; with
            "events" the engines tell all what they hold; "pretended" is "own" where each takes the ring's home of a
            prompt to hold it.
        told_after_s: Until the others know, where they are told.
        work_factor, long_endpoints, admission, limit, smoothing_s: As in `Replica`.
        on_progress: Told the virtual seconds that have passed since the last time.
        on_record: Told of each request that has ended.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: str,
        *,
        seed: int = 0,
        gateways: int = 1,
        share: str = "own",
        told_after_s: float = TOLD_AFTER_S,
        work_factor: float = 1.0,
        long_endpoints: int = 0,
        admission: Admission = Admission.NONE,
        limit: float | None = None,
        smoothing_s: float = 0.0,
        on_progress: Callable[[float], None] = lambda seconds: None,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self._scenario, self._policy, self._seed, self._share = scenario, policy, seed, share
        self._told_after_s = told_after_s
        self._source = source(scenario.workload, str(seed))
        self._nodes = [Node(place, scenario.fleet.engine(place)) for place in range(scenario.fleet.endpoints)]
        engines = [node.engine for node in self._nodes]
        self.replicas = [
            Replica(
                policy,
                engines,
                Random(f"gateway {seed} {number}"),
                profile=scenario.fleet.profile,
                ring_key=scenario.ring_key,
                share=share,
                work_factor=work_factor,
                long_endpoints=long_endpoints,
                admission=admission,
                limit=limit,
                smoothing_s=smoothing_s,
            )
            for number in range(gateways)
        ]
        self._doors = Random(f"doors {seed}")
        self._on_progress = on_progress
        self._on_record = on_record
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._live: dict[int, Live] = {}
        self._looks: dict[Replica, float] = {}
        self._now = self._stage_at = self._scrape_at = self._sample_at = 0.0
        self._stage = Stage(rate=1.0, arrivals_s=0.0)
        self._tally = Tally(scenario.objective)
        self._output = [(0.0, 0)]
        """When counting output began and ended, and what had been made by then."""
        self.arrived = self.finished = self.refused = 0

    def __repr__(self) -> str:
        return f"<Simulation {self.arrived} arrived, {self.finished} finished, {self.refused} refused>"

    def run(self, stage: Stage, give_up: bool = False) -> Result | None:
        """Let requests arrive and serve them all.

        Args:
            give_up: End with None once it is certain that fewer than 95 % meet the objective; the simulation is of no
                use after that.
        """
        self._stage, self._stage_at = stage, self._now
        self._tally = Tally(self._scenario.objective, stage.arrivals_s)
        self._output = []
        counted_s = stage.arrivals_s - stage.warm_up_s
        limit = GIVE_UP_SHARE * stage.rate * counted_s if give_up else inf
        self._at(self._now + stage.warm_up_s, self._note_output)
        if not stage.is_drained:
            self._at(self._now + stage.arrivals_s, self._note_output)
        self._expect(self._source.jobs(stage.rate, stage.arrivals_s))
        while self._heap:
            at, _, happen = heappop(self._heap)
            self._pass(at)
            happen()
            if self._tally.bad > limit:
                return None
        self._note_output()
        (began, before), (ended, after) = self._output[:2]
        return self._tally.result(
            policy=self._policy,
            seed=self._seed,
            gateways=len(self.replicas),
            share=self._share,
            rate=stage.rate,
            counted_s=counted_s,
            output_tokens_per_s=(after - before) / max(ended - began, 1e-9),
        )

    def _at(self, at: float, happen: Callable[[], None]) -> None:
        heappush(self._heap, (at, next(self._order), happen))

    def _pass(self, at: float) -> None:
        """Let time pass, and do what comes round by the clock."""
        while self._scrape_at <= at:
            for node in self._nodes:
                node.engine.catch_up(self._scrape_at)
            for replica in self.replicas:
                replica.scrape(self._scrape_at)
            self._scrape_at += SCRAPE_S
        while self._sample_at <= at:
            if self._stage.warm_up_s <= self._sample_at - self._stage_at < self._stage.arrivals_s:
                self._tally.sample([node.engine.running + node.engine.waiting for node in self._nodes])
            self._sample_at += SAMPLE_S
            self._on_progress(SAMPLE_S)
        self._now = at

    def _note_output(self) -> None:
        for node in self._nodes:
            node.engine.catch_up(self._now)
        self._output.append((self._now, sum(node.engine.generation_tokens for node in self._nodes)))

    def _expect(self, jobs: Iterator[Job]) -> None:
        """Put the next arrival on the heap."""
        job = next(jobs, None)
        if job is not None:
            self._at(self._stage_at + job.at, partial(self._arrive, job, jobs))

    def _arrive(self, job: Job, jobs: Iterator[Job] | None = None) -> None:
        """Let a gateway choose, and the engine have it."""
        if jobs is not None:
            self._expect(jobs)
        is_counted = self._now - self._stage_at >= self._stage.warm_up_s
        id = self.arrived
        self.arrived += 1
        if is_counted:
            self._tally.arrive(job)
        replica = self.replicas[int(self._doors.random() * len(self.replicas))]
        self._live[id] = Live(Life(job, self._now), is_counted, replica)
        self._obey(replica, replica.arrive(id, job, self._now))
        if replica.queues:
            self._watch(replica)

    def _obey(self, replica: Replica, verdicts: list[Verdict]) -> None:
        """Send requests on, or away, as a gateway says."""
        for id, placement, is_too_long in verdicts:
            if placement is None:
                self._refuse(id, is_too_long)
            else:
                self._submit(id, replica, placement)

    def _watch(self, replica: Replica) -> None:
        """Put on the heap when a gateway must look at its doors."""
        due = replica.next_look
        if due is not None and due < self._looks.get(replica, inf):
            self._looks[replica] = due
            self._at(due, partial(self._look, replica, due))

    def _look(self, replica: Replica, due: float) -> None:
        if self._looks.get(replica) == due:
            del self._looks[replica]
            self._obey(replica, replica.look(self._now))
            self._watch(replica)

    def _refuse(self, id: int, is_too_long: bool) -> None:
        live = self._live.pop(id)
        self.refused += 1
        if live.is_counted:
            self._tally.refuse(is_too_long)
        self._note(id, live)

    def _submit(self, id: int, replica: Replica, placement: Placement) -> None:
        """Let an engine have a request."""
        live = self._live[id]
        job = live.life.job
        live.life.placement, live.life.sent_at = placement, self._now
        node = self._nodes[placement.place]
        generation = Generation(id, job.prompt_tokens, job.output_tokens, job.output_tokens, job.blocks)
        if node.engine.submit(generation, self._now) is not None:
            self._refuse(id, True)
            self._obey(replica, replica.finish(placement, None, self._now))
            return
        if live.is_counted and placement.ticket is not None:
            self._tally.wait(job, placement.ticket.waited_s, placement.ticket.predicted_wait_s)
        cached = live.life.expected_tokens = placement.charges[replica].cached_tokens
        self._tell(replica, lambda other, now: other.hear_dispatch(placement, cached, now))
        self._wake(node)

    def _wake(self, node: Node) -> None:
        """Make sure that the end of what an engine does is on the heap."""
        ends_at = node.engine.ends_at
        if ends_at is None:
            ends_at = node.engine.begin(self._now)
        if ends_at is not None and ends_at != node.due:
            node.due = ends_at
            self._at(ends_at, partial(self._step, node, ends_at))

    def _step(self, node: Node, due: float) -> None:
        """Let an engine end what it had planned, unless it planned anew since."""
        if node.due != due:
            return
        node.due = None
        events = node.engine.finish()
        self._wake(node)  # it goes on before anybody hears of it
        for event in events:
            self._hear(event)

    def _hear(self, event: Event) -> None:
        """Bring the news of an engine to the gateway that sent the request, and from there to the others."""
        assert isinstance(event.id, int)
        live = self._live[event.id]
        life, placement = live.life, live.life.placement
        assert placement is not None
        if event.what is What.FIRST_TOKEN:
            life.first_at = self._now
            self._obey(live.replica, live.replica.first_token(placement, self._now))
            self._tell(live.replica, lambda other, now: other.first_token(placement, now))
        elif event.what is What.FINISHED:
            del self._live[event.id]
            self.finished += 1
            self._obey(live.replica, live.replica.finish(placement, life.job.output_tokens, self._now))
            self._tell(live.replica, lambda other, now: other.finish(placement, None, now))
            life.cached_tokens = event.cached_tokens
            if live.is_counted:
                assert life.first_at is not None
                ttft_s, e2e_s = life.first_at - life.arrived_at, self._now - life.arrived_at
                self._tally.finish(life.job, event.cached_tokens, ttft_s, e2e_s)
            self._note(event.id, live)
            self._go_on(life.job)

    def _note(self, id: int, live: Live) -> None:
        if self._on_record is not None:
            self._on_record(record_of(id, live.life, self._now))

    def _go_on(self, job: Job) -> None:
        """Let the next turn of a conversation come when the answer has been read, if it comes before the end."""
        if job.talk is None or not job.talk.turns_left:
            return
        at = self._now - self._stage_at + job.talk.think_s()
        if at < self._stage.arrivals_s:
            self._at(self._stage_at + at, partial(self._arrive, job.talk.next(at)))

    def _tell(self, replica: Replica, hear: Callable[[Replica, float], list[Verdict]]) -> None:
        """Let the other gateways hear of what one did, a little later."""
        if self._share == "shared" and len(self.replicas) > 1:
            self._at(self._now + self._told_after_s, partial(self._told, replica, hear))

    def _told(self, replica: Replica, hear: Callable[[Replica, float], list[Verdict]]) -> None:
        for other in self.replicas:
            if other is not replica:
                self._obey(other, hear(other, self._now))
