"""The life of one request.

    head     known path? whose key? how long?            404, 405, 401, 413
    body     read, bounded; parsed once                  408, 413, 400
    limits   may the tenant use the model? what it may come to is reserved before any work is spent on it
                                                         403, 404, 429, 503
    read     prompt: how long, how does it begin? pool?   400, 403, 503
    door     wait for room in the pool; be charged there  503
    try      send, wait for the first event or the whole JSON
             not me, not now: elsewhere, within tries, deadline and retry budget, once there is room
             nobody left: the last engine's own answer   502, 503, 504
    relay    bytes pass; what breaks now ends the stream with an error event
    settle   lease given back, what was used is charged; the trace becomes a record: metrics, spans, a log line

Everything borrowed is given back by leaving a `with`, whichever way: a client that goes away cancels this coroutine,
and the engine's connection is closed in the same tick.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from aiohttp.web import StreamResponse
from aiohttp.web_request import BaseRequest

from gateway import openai
from gateway.attempt import Failure, ask, judge
from gateway.bookkeepers import Bookkeepers
from gateway.client import ClientAnswer
from gateway.connection import Stalled
from gateway.demand import Demand
from gateway.errors import GatewayError, InternalError, NotFound, Overloaded
from gateway.exchange import Exchange, check_length, check_method, read_body
from gateway.failures import failure_of
from gateway.fleet import Fleet
from gateway.gate import Admitted, Gate
from gateway.headers import EVENT_STREAM_LINES, bearer_key, lines_to_client, sane_request_id
from gateway.hops import FIRST_TOKEN, LIMIT, QUEUE, RECEIVE, SETTLE, STREAM
from gateway.intake import Intake
from gateway.lease import Lease
from gateway.limiter import Limiter
from gateway.members import Member
from gateway.metrics import Metrics
from gateway.models import Models
from gateway.openai import Call
from gateway.pings import pinged
from gateway.relay import Answer, AnswerKind
from gateway.routes import ENGINE_ROUTES, MODELS_PATH, STORED_RESPONSE, STORED_RESPONSE_METHODS
from gateway.sections import Listen, Retries, Timeouts
from gateway.stored import STORED_ROUTE, StoredResponses
from gateway.tenants import Tenants
from gateway.trace import CLIENT_LEFT, Trace, kvlane_lines, outcome_of, own_lines
from gateway.tracing import Tracing
from gateway.upstream import Upstream
from policies.endpoint import Endpoint
from policies.own import OwnPrefixes
from policies.pools import Standing
from policies.record import Outcome
from policies.retries import RetryBudget

log = logging.getLogger(__name__)

JSON = b"content-type: application/json\r\n"


class Proxy:
    """Serves the API."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        tenants: Tenants,
        upstream: Upstream,
        stored: StoredResponses,
        tracing: Tracing,
        models: Models,
        own: OwnPrefixes,
        intake: Intake,
        demand: Demand,
        limiter: Limiter,
        gate: Gate,
        keepalive_s: float | None,
        metrics: Metrics,
        books: Bookkeepers,
        is_draining: Callable[[], bool],
        new_id: Callable[[], str],
        listen: Listen,
        timeouts: Timeouts,
        retries: Retries,
    ) -> None:
        self._fleet = fleet
        self._tenants = tenants
        self._upstream = upstream
        self._stored = stored
        self._tracing = tracing
        self._models = models
        self._own = own
        self._intake = intake
        self._demand = demand
        self._limiter = limiter
        self._gate = gate
        self._keepalive_s = keepalive_s
        self._metrics = metrics
        self._books = books
        self._is_draining = is_draining
        self._new_id = new_id
        self._listen = listen
        self._timeouts = timeouts
        self._max_tries = retries.max_tries
        self._budget = RetryBudget(retries.budget, retries.window_s, retries.floor)
        self._clock = time.monotonic  # the loop's own, to the microsecond
        self.active = 0
        """Requests that are being served."""
        self.in_flight: Counter[str] = Counter()
        """The same, of each tenant that has any."""
        self._became_idle = asyncio.Event()

    async def idle(self) -> None:
        """Wait until nothing is being served."""
        while self.active:
            self._became_idle.clear()
            await self._became_idle.wait()

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Serve one request, whatever it is."""
        client = ClientAnswer(request)
        path = request.raw_path.partition("?")[0]
        if path in ("/healthz", "/readyz"):
            return self._tell_health(client, path)
        trace = Trace(sane_request_id(request.headers) or self._new_id(), path, self._clock())
        trace.hops = self._tracing.begin(request, trace.arrived_at)
        self.active += 1
        try:
            return await self._serve(request, path, client, trace)
        except GatewayError as error:
            trace.code = error.code
            trace.limit_lines = error.lines or trace.limit_lines
            if client.is_pinged:
                trace.outcome = outcome_of(error.status)
            return client.refuse(error, own_lines(trace))
        except (asyncio.CancelledError, ConnectionError) as gone:
            if trace.outcome is not Outcome.OK:  # else it has all of its answer, which is being counted
                client.status = CLIENT_LEFT
            if isinstance(gone, ConnectionError):  # while its body was read
                return client.sever()
            raise
        except Exception:
            log.exception("request %s failed inside the gateway", trace.id)
            if client.is_started:
                return client.sever()
            trace.code = InternalError.code
            fault = InternalError("the gateway failed on this request; its log says why")
            return client.refuse(fault, own_lines(trace))
        finally:
            self.active -= 1
            if not self.active:
                self._became_idle.set()
            self._settle(trace, client)

    async def _serve(self, request: BaseRequest, path: str, client: ClientAnswer, trace: Trace) -> StreamResponse:
        route = ENGINE_ROUTES.get(path)
        stored = STORED_RESPONSE.fullmatch(path) if route is None else None
        is_models = path == MODELS_PATH or path.startswith(MODELS_PATH + "/")
        if route is None and stored is None and not is_models:
            trace.route = "other"
            raise NotFound(f"there is no {path[:200]} here")
        trace.route = route.path if route is not None else STORED_ROUTE.path if stored else MODELS_PATH
        tenant = self._tenants.identify(bearer_key(request.headers), time.time())
        trace.tenant = tenant.name
        self.in_flight[tenant.name] = self.in_flight.get(tenant.name, 0) + 1
        if is_models:
            check_method(request.method, ("GET", "HEAD"))
            trace.outcome = Outcome.OK
            return client.reply(200, JSON + own_lines(trace), self._models.answer(path, tenant))
        check_method(request.method, ("POST",) if stored is None else STORED_RESPONSE_METHODS[stored["rest"]])
        check_length(request, self._listen.max_body_bytes)
        trace.begin(RECEIVE)
        client.go_on()
        body = await read_body(request, self._listen.max_body_bytes, self._listen.body_timeout_s)
        if stored is not None:
            exchange = Exchange.of(request, STORED_ROUTE, body, Call(""), tenant, trace, self._timeouts.deadline_s)
            await self._reserve(exchange, "", trace)
            holder = await self._stored.holder_of(stored["id"], exchange)
            if holder is None:
                raise NotFound(f"there is no response {stored['id']!r}")
            standing = self._fleet.standing_on(holder, exchange.inference)
            return await self._try_each(standing, exchange, client, trace, holder)
        assert route is not None
        call = openai.parse(route, request.headers.get("content-type", ""), body)
        exchange = Exchange.of(request, route, body, call, tenant, trace, self._timeouts.deadline_s)
        body = b""  # the exchange alone keeps it, and only until it is answered
        model = self._models.served_as(call.model)
        tenant.check_model(call.model, model)
        if model != call.model:
            call.served_model = model
        facts = self._fleet.facts(model)
        trace.model = model
        self._budget.note_request(trace.arrived_at)
        await self._reserve(exchange, model, trace)
        standing = await self._intake.read(exchange, facts, request.headers, trace)
        holder = None
        if call.previous_response_id is not None:
            holder = await self._stored.holder_of(call.previous_response_id, exchange)
            if holder is not None:
                standing = self._fleet.standing_on(holder, exchange.inference)
            elif not self._tenants.is_open:  # it may be held where this goes, and be somebody else's
                raise NotFound(f"there is no response {call.previous_response_id[:128]!r}")
        return await self._try_each(standing, exchange, client, trace, holder)

    # Trying.

    async def _try_each(
        self, standing: Standing, exchange: Exchange, client: ClientAnswer, trace: Trace, holder: Member | None
    ) -> StreamResponse:
        """Try endpoint after endpoint until one serves; the holder of what is needed, if there is one, and no other."""
        tried: set[Endpoint] = set()
        trace.begin(QUEUE)
        self._tracing.explain(trace.hops, exchange.inference, standing, tried)
        came_at = self._clock()
        try:
            with self._pings(exchange, client, trace):
                is_free = not exchange.route.prefills
                place = await self._gate.enter(exchange.inference, standing, holder, is_free=is_free)
        finally:
            trace.waited_s = self._clock() - came_at
        trace.admitted(place.predicted_wait_s, place.waited_s)
        with place:
            while True:
                with place.lease as lease:
                    failure = await self._try(lease, exchange, client, trace, place)
                if not isinstance(failure, Failure):
                    return failure
                tried.add(lease.endpoint)
                now = self._clock()
                may_retry = failure.may_retry and holder is None and trace.tries < self._max_tries
                if not may_retry or now >= exchange.inference.deadline:
                    return self._give_up(failure, client, trace)
                if not self._budget.try_spend(now):
                    self._metrics.retries_denied.add(())
                    return self._give_up(failure, client, trace)
                self._metrics.retries.add((failure.kind,))
                trace.begin(QUEUE)
                self._tracing.explain(trace.hops, exchange.inference, standing, tried)
                try:
                    with self._pings(exchange, client, trace):
                        await self._gate.again(place, exchange.inference, standing, tried)
                except Overloaded:
                    return self._give_up(failure, client, trace)
                finally:
                    trace.waited_s += self._clock() - now
                trace.admitted(place.predicted_wait_s, place.waited_s)

    def _pings(self, exchange: Exchange, client: ClientAnswer, trace: Trace) -> AbstractContextManager[None]:
        """Keep a stream of OpenAI's two shapes alive while it waits, where the configuration says so."""
        every_s = self._keepalive_s
        if every_s is None or not exchange.call.is_stream or not exchange.route.has_usage_chunk:
            return nullcontext()
        return pinged(client, every_s, lambda: EVENT_STREAM_LINES + own_lines(trace))

    async def _try(
        self,
        lease: Lease,
        exchange: Exchange,
        client: ClientAnswer,
        trace: Trace,
        told: Admitted,
    ) -> StreamResponse | Failure:
        """Send to one endpoint; relay what it answers, or say why not. `told` hears of the first token."""
        trace.tried(lease.choice, lease.member.pool.name, lease.member.kind, self._clock())
        if exchange.call.is_background:  # until its engine says what it is called: only then can it be fetched
            trace.advance_tokens = trace.reserved_output_tokens
        self._metrics.endpoint_requests.add((lease.endpoint.name, lease.choice.reason.label))
        answer = Answer(exchange.route.shape, hides_usage=exchange.call.hides_usage, on_first_token=told.first_token)
        in_flight = lease.member.in_flight
        in_flight.add(answer)
        presumed = None
        if not exchange.call.is_stream:
            loop = asyncio.get_running_loop()
            presumed = loop.call_later(lease.prefilled_in_s, told.presume_first_token)
        try:
            await ask(answer, self._upstream, lease, exchange, self._timeouts.first_byte_s)
            if answer.is_good:
                return await self._relay(answer, lease, exchange, client, trace)
            failure = judge(answer, lease)
            trace.failed(failure.kind, answer.head.status)
            trace.has_left = failure.kind == "deadline" and exchange.sets_deadline
            lease.refused()
        finally:
            answer.close()
            in_flight.discard(answer)
            if presumed is not None:
                presumed.cancel()
        self._metrics.endpoint_failures.add((lease.endpoint.name, failure.kind))
        return failure

    async def _relay(
        self, answer: Answer, lease: Lease, exchange: Exchange, client: ClientAnswer, trace: Trace
    ) -> StreamResponse:
        """Hand a good answer over."""
        lease.served()
        is_stream = answer.kind is AnswerKind.EVENTS
        lines = lines_to_client(answer.head.headers, answer.head.connection, is_stream=is_stream) + own_lines(trace)
        if answer.encoding:
            lines += b"content-encoding: %b\r\n" % answer.encoding
        if exchange.tenant.kvlane_headers:
            lines += kvlane_lines(trace, self._own_tokens(exchange))
        trace.is_stream = is_stream
        trace.begin(FIRST_TOKEN if is_stream else STREAM)
        exchange.body = b""  # a long stream must not keep a long prompt in memory
        try:
            answer.deliver(client, lines, self._timeouts.idle_s)
            response = await answer.relayed()
        finally:
            usage = answer.usage  # read here, once
            is_own = exchange.route is not STORED_ROUTE
            is_told = usage is not None and usage.output_tokens is not None
            counts = is_own and not is_told and (is_stream or not exchange.call.is_background)  # else none is there yet
            counted_tokens = answer.counted_tokens if counts else 0
            trace.relayed(usage if is_own else None, counted_tokens, answer.first_token_at, answer.last_byte_at)
            if is_told:
                trace.advance_tokens = 0
            if answer.response_id is not None and not is_own:
                self._stored.settle(answer.response_id, exchange, usage, trace)
            elif answer.response_id is not None:
                self._stored.learn(answer, usage, lease.endpoint, exchange, trace)
        if answer.is_client_stuck:
            client.status = CLIENT_LEFT
        elif answer.error is not None:
            lease.failed()
            kind = "stalled" if isinstance(answer.error, Stalled) else "cut"
            self._metrics.endpoint_failures.add((lease.endpoint.name, kind))
            trace.failed(kind, answer.head.status)
            trace.outcome = Outcome.FAILED
            trace.code = "stream_broken"
        else:
            trace.outcome = Outcome.OK
            if usage is not None and is_own:
                lease.used(usage, is_timely=not answer.was_paused)
                self._intake.learn(exchange, usage)
            if counts and not is_stream:
                trace.counted_tokens = await self._intake.count(exchange, answer)
        return response

    def _give_up(self, failure: Failure, client: ClientAnswer, trace: Trace) -> StreamResponse:
        """Give the client the last engine's own answer, or ours where it had none."""
        if failure.answer is None:
            assert failure.error is not None
            raise failure_of(failure.error)
        if client.is_pinged:
            trace.outcome = outcome_of(failure.answer.status)
        return client.reply(failure.answer.status, failure.lines + own_lines(trace), failure.answer.body)

    def _own_tokens(self, exchange: Exchange) -> int | None:
        """Count what a tenant has sent before of the prompt that is served to it now; None: there are no others."""
        if self._tenants.are_few:
            return None
        name, request = exchange.tenant.name, exchange.inference
        return self._own.noted(name, request.prefix) * request.unit_tokens

    def _tell_health(self, client: ClientAnswer, path: str) -> StreamResponse:
        if path == "/healthz":
            return client.reply(200, JSON, b'{"status":"ok"}')
        if self._is_draining():
            return client.reply(503, JSON, b'{"status":"draining"}')
        if unread := self._tenants.unread:
            return client.reply(503, JSON, b'{"status":"not all tenants are known yet: %b"}' % unread.encode())
        if not self._fleet.is_serving():
            return client.reply(503, JSON, b'{"status":"no endpoint is ready"}')
        return client.reply(200, JSON, b'{"status":"ready"}')

    async def _reserve(self, exchange: Exchange, model: str, trace: Trace) -> None:
        """Reserve what a request may come to; `_settle` says what it came to, whatever happens."""
        trace.begin(LIMIT)
        tenant = exchange.tenant
        if not self._limiter.quotas_of(tenant, model):
            return
        guess = self._demand.guess(exchange, model)
        grant = await self._limiter.reserve(tenant, model, guess.estimate, guess.kept)
        trace.limit_lines, trace.reserved_output_tokens = grant.lines, guess.output_tokens
        trace.on_end = lambda: grant.settle(self._demand.came_to(tenant, trace, guess))

    def _settle(self, trace: Trace, client: ClientAnswer) -> None:
        others = self.in_flight.get(trace.tenant, 0) - 1
        if others > 0:
            self.in_flight[trace.tenant] = others
        elif not others:  # below 0: who was not let in
            del self.in_flight[trace.tenant]
        trace.status = client.status
        if trace.outcome is Outcome.DISCONNECTED and client.status and not trace.has_left:
            trace.outcome = outcome_of(client.status)
        trace.begin(SETTLE)
        self._books.close(trace)
