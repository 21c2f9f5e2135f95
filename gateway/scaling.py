"""Scaling: what an autoscaler goes by, pool by pool (`policies/scaling.py` says how it is reckoned).

Everything is looked at once a second and not when somebody scrapes, so that what is told does not depend on how often
somebody asks. This gateway sees its own requests alone: needed replicas of several gateways add up, the advice of each
stands for its own traffic.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator

from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.instruments import Labels
from gateway.members import FleetPool
from gateway.metrics import Metrics
from gateway.sections import Admission
from gateway.sections import Scaling as ScalingConfig
from policies.flow import Flow
from policies.health import State
from policies.record import RequestRecord
from policies.scaling import Advice, Aims, Attainment, backlog_s, busy, needed

EVERY_S = 1.0
TTFT, TPOT = "ttft", "tpot"
Samples = Iterator[tuple[Labels, float]]


def aims_of(config: ScalingConfig, admission: Admission) -> Aims:
    """Give what the configuration aims at."""
    return Aims(**config.model_dump(), tpot_slo_s=admission.tpot_slo_s)


class _Signals:
    """Of one pool."""

    def __init__(self, aims: Aims) -> None:
        self.busy = self.backlog_s = 0.0
        self.advice = Advice(aims)


class Scaling:
    """The signals of all pools.

    Args:
        flow: What an endpoint has room for.
        aims: Of every pool.
    """

    def __init__(self, fleet: Fleet, gate: Gate, clock: Callable[[], float], flow: Flow, aims: Aims) -> None:
        self._fleet = fleet
        self._gate = gate
        self._clock = clock
        self._flow = flow
        self._aims = aims
        self._signals: dict[FleetPool, _Signals] = {}
        self._met: defaultdict[tuple[str, str], Attainment] = defaultdict(Attainment)
        """By pool and objective."""

    def note(self, record: RequestRecord) -> None:
        """See whether a request that has ended met the objectives; streams alone have such times."""
        if record.pool is None:
            return
        if record.ttft_s is not None:
            self._judge(record.pool, TTFT, record.ttft_s <= self._aims.ttft_slo_s)
        if record.tpot_s is not None:
            self._judge(record.pool, TPOT, record.tpot_s <= self._aims.tpot_slo_s)

    async def watch(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Reckon anew."""
        now = self._clock()
        for attainment in self._met.values():
            attainment.look(now)
        for pool in self._fleet.pools:
            signals = self._signals.get(pool)
            if signals is None:
                signals = self._signals[pool] = _Signals(self._aims)
            endpoints = [each for each in pool.pool.endpoints if each.health.state is not State.DRAINING]
            signals.busy = sum(busy(each, self._flow, now) for each in endpoints)
            signals.backlog_s = backlog_s(signals.busy, self._wait_s(pool, now), endpoints)
            signals.advice.look(
                now,
                needed(signals.busy, signals.backlog_s, self._aims),
                len(endpoints),
                serves=any(each.health.is_ready(now) or each.health.is_cooling(now) for each in endpoints),
                is_missed=self._is_missed(pool),
            )

    def show(self, metrics: Metrics) -> None:
        """Let the metrics page tell."""

        def by_pool(value_of: Callable[[_Signals], float]) -> Callable[[], Samples]:
            return lambda: (((pool.name,), value_of(signals)) for pool, signals in self._signals.items())

        gauge = metrics.gauge
        gauge(
            "kvlane_pool_busy_replicas",
            "Engines' worth of the requests in flight: what they would fill, kept to the objective.",
            ("pool",),
            by_pool(lambda signals: signals.busy),
        )
        gauge(
            "kvlane_pool_backlog_seconds",
            "Engine seconds of work that waits, in the gateway and at endpoints.",
            ("pool",),
            by_pool(lambda signals: signals.backlog_s),
        )
        gauge(
            "kvlane_pool_needed_replicas",
            "Engines that this gateway's work needs, averaged: add up over gateways.",
            ("pool",),
            by_pool(lambda signals: signals.advice.needed),
        )
        gauge(
            "kvlane_pool_recommended_replicas",
            "Engines to ask for, by this gateway's work: whole, damped and bounded.",
            ("pool",),
            by_pool(lambda signals: signals.advice.replicas),
        )
        gauge(
            "kvlane_slo_target_seconds",
            "The objective, as configured.",
            ("slo",),
            lambda: [((TTFT,), self._aims.ttft_slo_s), ((TPOT,), self._aims.tpot_slo_s)],
        )
        gauge(
            "kvlane_slo_requests_total",
            "Streams by what became of an objective.",
            ("pool", "slo", "result"),
            self._judged,
        )
        gauge(
            "kvlane_slo_attainment_ratio",
            "Share of streams that met an objective, over about the last minute; none where there were few.",
            ("pool", "slo"),
            lambda: ((key, each.share) for key, each in self._met.items() if each.share is not None),
        )

    # Inside.

    def _judge(self, pool: str, slo: str, is_met: bool) -> None:
        attainment = self._met[pool, slo]
        if is_met:
            attainment.met += 1
        else:
            attainment.missed += 1

    def _judged(self) -> Samples:
        for key, attainment in self._met.items():
            yield (*key, "met"), attainment.met
            yield (*key, "missed"), attainment.missed

    def _is_missed(self, pool: FleetPool) -> bool:
        shares = [self._met[pool.name, slo].share for slo in (TTFT, TPOT)]
        return any(share is not None and share < self._aims.attainment for share in shares)

    def _wait_s(self, pool: FleetPool, now: float) -> float:
        """Give what one more would wait at the pool's door, in the class where that is longest."""
        queue = self._gate.queues.get(pool.pool)
        if queue is None:
            return 0.0
        return max(queue.predicted_wait_s(name, now) for name in self._gate.class_names)
