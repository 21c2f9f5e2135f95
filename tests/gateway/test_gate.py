"""Gate: its timer, on the loop that the gateway runs on."""

import asyncio

import uvloop

from gateway.config import EndpointConfig
from gateway.errors import GatewayError
from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.metrics import Metrics
from policies.flow import Flow
from policies.index import PrefixIndex
from policies.least_work import LeastWork
from policies.pools import Standing
from policies.request import InferenceRequest
from policies.tickets import CLASSES

SOON_S = 0.0003  # uvloop makes no timer of less than half a millisecond, but something that cannot say when


def test_deadlines_that_are_all_but_over_are_looked_after() -> None:
    async def scenario() -> None:
        now = asyncio.get_running_loop().time()

        def clock() -> float:
            return now

        fleet, index = Fleet(clock), PrefixIndex()
        pool = fleet.add_pool("p", LeastWork(index), index)
        member = fleet.add(pool, EndpointConfig(name="e", url="http://e", models=("m",)))
        member.endpoint.health.answered()
        flow = Flow(max_inflight=1, is_measured=False)
        gate = Gate(fleet, Metrics(), clock, classes=CLASSES, flow=flow, smoothing_s=0.0, is_open=False)
        standing = Standing(pool.pool)
        running = await gate.enter(InferenceRequest("r", "m", prompt_tokens=10), standing)
        late = [InferenceRequest(f"r{at}", "m", prompt_tokens=10, deadline=clock() + SOON_S) for at in range(3)]
        waits = [asyncio.ensure_future(gate.enter(each, standing)) for each in late]
        await asyncio.sleep(0)
        now += 1
        refused = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in refused if not isinstance(each, GatewayError)] == []
        (queue,) = gate.queues.values()
        assert (queue.running, queue.waiting) == (1, 0)
        with running, running.lease:
            pass
        assert (queue.running, member.endpoint.outstanding.requests) == (0, 0)
        gate.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
