"""What is read when somebody scrapes: the fleet, the doors, the limits and the line to Redis as they stand."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version

from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.instruments import Labels
from gateway.kvevents import KvEvents
from gateway.limiter import Limiter
from gateway.members import Member
from gateway.metrics import Metrics
from gateway.redisline import Line
from gateway.told import Told
from policies.admission import AdmissionQueue
from policies.flow import Flow
from policies.health import State

Samples = Iterator[tuple[Labels, float]]


def add_endpoint_gauges(metrics: Metrics, fleet: Fleet, flow: Flow, clock: Callable[[], float]) -> None:
    """Let the metrics page show how every endpoint stands, and what is outstanding there."""
    gauge, by_endpoint = metrics.gauge, partial(_add_by_endpoint, metrics, fleet)

    def states() -> Samples:
        for member in fleet.members():
            for state in State:
                labels = (member.endpoint.name, member.pool.name, state.value)
                yield labels, float(member.endpoint.health.state is state)

    def entered() -> Samples:
        for member in fleet.members():
            for state in State:
                yield (member.endpoint.name, state.value), member.entered[state]

    gauge("kvlane_endpoint_state", "1 for the state that an endpoint is in.", ("endpoint", "pool", "state"), states)
    gauge(
        "kvlane_endpoint_state_changes_total",
        "Times that an endpoint came into a state, as health checks saw it.",
        ("endpoint", "state"),
        entered,
    )
    by_endpoint(
        "kvlane_endpoint_restarts_total",
        "Times that the engine of an endpoint was seen to have restarted.",
        lambda member: member.restarts,
    )
    by_endpoint(
        "kvlane_endpoint_load_ratio",
        "How full an endpoint is, by what admission goes by: from 1 on it gets nothing new while others have room.",
        lambda member: flow.load(member.endpoint, clock()),
    )
    by_endpoint(
        "kvlane_inflight_requests",
        "Requests of this gateway at an endpoint.",
        lambda member: member.endpoint.outstanding.requests,
    )
    by_endpoint(
        "kvlane_decoding_requests",
        "Of those, requests past their first token.",
        lambda member: member.endpoint.outstanding.decoding,
    )
    by_endpoint(
        "kvlane_pending_prefill_tokens",
        "Prompt tokens at an endpoint that have not shown a first token and are not thought to be cached.",
        lambda member: member.endpoint.outstanding.prefill_tokens,
    )
    by_endpoint(
        "kvlane_pending_prefill_seconds",
        "Predicted engine time of those prompt tokens.",
        lambda member: member.endpoint.outstanding.prefill_s,
    )
    by_endpoint(
        "kvlane_pinned_tokens",
        "KV tokens that requests of this gateway keep from being evicted at an endpoint.",
        lambda member: member.endpoint.outstanding.pinned_tokens,
    )
    by_endpoint("kvlane_engine_running_requests", "As the engine says.", lambda m: m.endpoint.report.running)
    by_endpoint("kvlane_engine_waiting_requests", "As the engine says.", lambda m: m.endpoint.report.waiting)
    by_endpoint("kvlane_engine_kv_usage_ratio", "As the engine says.", lambda m: m.endpoint.report.kv_usage)


def add_cache_gauges(metrics: Metrics, fleet: Fleet, kv_events: KvEvents, clock: Callable[[], float]) -> None:
    """Let it show what endpoints are thought to hold, and how right that is."""
    gauge, by_endpoint = metrics.gauge, partial(_add_by_endpoint, metrics, fleet)

    def of_events(member: Member, value_of: Callable[[Told], float]) -> float | None:
        told = kv_events.told_by(member)
        return None if told is None else value_of(told)

    by_endpoint(
        "kvlane_index_tokens",
        "Prompt tokens that an endpoint is thought to hold.",
        lambda member: member.pool.index.held_tokens(member.endpoint),
    )
    gauge(
        "kvlane_index_units",
        "Distinct units of prompts that the index of a pool knows to be held somewhere.",
        ("pool",),
        lambda: (((pool.name,), len(pool.index)) for pool in fleet.pools),
    )
    by_endpoint(
        "kvlane_cache_hit_ratio",
        "Share of prompt tokens found in an endpoint's KV cache, over about the last minute.",
        lambda member: member.forecast.hit_ratio,
    )
    by_endpoint(
        "kvlane_cache_forecast_error_ratio",
        "Share of prompt tokens by which predicted and reported cached tokens differ, over about the last minute.",
        lambda member: member.forecast.error_ratio,
    )
    by_endpoint(
        "kvlane_cache_forecast_off",
        "1 where they have differed for so long that something is wrong.",
        lambda member: member.forecast.is_off(clock()),
    )
    by_endpoint(
        "kvlane_kv_events_followed",
        "1 where what an endpoint holds is known from its KV events, 0 where from what was sent there.",
        lambda member: of_events(member, lambda told: float(told.is_followed)),
    )
    by_endpoint(
        "kvlane_kv_events_total",
        "KV events read of an endpoint.",
        lambda member: of_events(member, lambda told: told.events),
    )
    by_endpoint(
        "kvlane_kv_event_gaps_total",
        "Times that KV events of an endpoint were missing.",
        lambda member: of_events(member, lambda told: told.gaps),
    )


def add_door_gauges(metrics: Metrics, gate: Gate, clock: Callable[[], float]) -> None:
    """Let it show who waits at the doors of pools, and for how long."""
    gauge = metrics.gauge

    def queues(value_of: Callable[[AdmissionQueue, str], float]) -> Callable[[], Samples]:
        def read() -> Samples:
            for pool, queue in gate.queues.items():
                for name in gate.class_names:
                    yield (pool.name, name), value_of(queue, name)

        return read

    gauge(
        "kvlane_queued_requests",
        "Requests that wait for room at an endpoint.",
        ("pool", "class"),
        queues(lambda queue, name: queue.waiting_in(name)),
    )
    gauge(
        "kvlane_predicted_queue_wait_seconds",
        "What one more would be predicted to wait.",
        ("pool", "class"),
        queues(lambda queue, name: queue.predicted_wait_s(name, clock())),
    )
    gauge(
        "kvlane_queue_wait_error_seconds",
        "How far predicted waits were from real ones: within it, this share of the last thousand.",
        ("pool", "class", "share"),
        lambda: (
            ((pool.name, name, str(share)), queue.errors_in(name).quantile(share))
            for pool, queue in gate.queues.items()
            for name in gate.class_names
            for share in (0.5, 0.9)
        ),
    )
    gauge(
        "kvlane_pool_saturation_ratio",
        "How full the emptiest endpoint of a pool is; from 1 on requests wait.",
        ("pool",),
        lambda: (((pool.name,), queue.saturation(clock())) for pool, queue in gate.queues.items()),
    )


def add_process_gauges(metrics: Metrics, active: Callable[[], int]) -> None:
    """Let it show what this gateway is, and how many requests it serves."""
    metrics.gauge("kvlane_active_requests", "Requests being served.", (), lambda: [((), active())])
    metrics.gauge("kvlane_build_info", "1, with the version.", ("version",), lambda: [((version("kvlane"),), 1)])


def add_limiter_gauges(metrics: Metrics, limiter: Limiter, line: Line | None) -> None:
    """Let it show how limits are counted, and how the Redis does that gateways share."""
    gauge = metrics.gauge

    def of_redis(name: str, documentation: str, value_of: Callable[[Line], float]) -> None:
        gauge(name, documentation, (), lambda: [] if line is None else [((), value_of(line))])

    of_redis("kvlane_redis_up", "1 where every Redis answers; none without Redis.", lambda line: float(line.is_up))
    of_redis("kvlane_redis_calls_total", "Commands sent to Redis.", lambda line: line.counts.calls)
    of_redis("kvlane_redis_batches_total", "Round trips, greetings included.", lambda line: line.counts.batches)
    of_redis("kvlane_redis_failures_total", "Commands without an answer.", lambda line: line.counts.failures)
    of_redis("kvlane_redis_refusals_total", "Commands answered with an error.", lambda line: line.counts.refusals)
    of_redis("kvlane_redis_timeouts_total", "Times that no answer came in time.", lambda line: line.counts.timeouts)
    gauge(
        "kvlane_limiter_up",
        "1 where limits are shared through Redis and it answers, 0 where it does not; none without Redis.",
        (),
        lambda: [] if limiter.shared is None else [((), float(limiter.shared.is_up))],
    )
    gauge(
        "kvlane_limiter_gateways",
        "Gateways that share the limits, as Redis last said; 1 without Redis.",
        (),
        lambda: [((), 1 if limiter.shared is None else limiter.shared.gateways)],
    )
    gauge(
        "kvlane_limiter_owed_settlements",
        "Settlements that Redis has not been told yet; none without Redis.",
        (),
        lambda: [] if limiter.shared is None else [((), limiter.shared.owed)],
    )


def _add_by_endpoint(
    metrics: Metrics, fleet: Fleet, name: str, documentation: str, value_of: Callable[[Member], float | None]
) -> None:
    """Add a gauge with a sample for each endpoint that has a value: missing is not zero."""

    def read() -> Samples:
        for member in fleet.members():
            value = value_of(member)
            if value is not None:
                yield (member.endpoint.name,), value

    metrics.gauge(name, documentation, ("endpoint",), read)
