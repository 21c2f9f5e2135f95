"""SimulatedEngine: a vLLM of its own on a port, with everything that may go wrong with one.

A request is noted, then meets the faults that hit it, then its route. Generations become sequences of the
model, whose iterations the Pacer ends in real time; each Reply writes what comes of its sequences. No
request has a task of its own.

The engine is started, then terminated in one of vLLM's ways or killed; started again, it is a new
incarnation on the same port: a cold cache, new counters, a new process_start_time_seconds. What it has seen
(`facts`) it keeps.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import TypeAlias

from loadtests import answers, control, messages, refusals
from loadtests.ask import Ask, Body
from loadtests.birth import births
from loadtests.engine import EngineModel
from loadtests.faults import Fault, Faults, Kind
from loadtests.http1 import Connection, Exchange
from loadtests.metricspage import Meters
from loadtests.pacer import Pacer
from loadtests.profiles import PROFILES
from loadtests.refusals import Refused
from loadtests.reply import End, Reply
from loadtests.routes import METHODS, ROUTES, Hits, template
from loadtests.settings import Departure, Facts, Settings
from loadtests.vocabulary import vocabulary
from loadtests.wire import Choice, Wire

WireMaker: TypeAlias = Callable[[Ask, Sequence[Choice], str, bool, int], Wire]
BACKLOG = 4096  # thousands of streams may be opened at once
CORE_DEATH_S = 0.7  # from a dead core to refused connections, as seen


class SimulatedEngine:
    """One engine. Faults are put in with `inject`, what it has seen is in `facts`."""

    def __init__(self, settings: Settings | None = None, port: int = 0, host: str = "127.0.0.1") -> None:
        self.settings = settings or Settings()
        self.vocabulary = vocabulary(self.settings.tokenizer)
        self.host = host
        self.port = port
        """0 until started, then the port it keeps through restarts."""
        self.facts = Facts(recent=deque(maxlen=self.settings.recent))
        self.faults = Faults(Random(self.settings.seed))
        self.keep_alive_s = self.settings.keep_alive_s
        self.resets_stale = False
        self.stored: dict[str, Body] = {}
        """Answers of /v1/responses by id."""
        self._names = Random()
        self._listener: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._replies: set[Reply] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._frozen: bytes | None = None
        self._is_draining = False
        self._is_dead = False

    @property
    def url(self) -> str:
        """Where clients find it, without a path."""
        return f"http://{self.host}:{self.port}"

    @property
    def is_listening(self) -> bool:
        """Whether connections are taken."""
        return self._listener is not None

    # life

    async def start(self) -> None:
        """Boot: a cold cache, new counters, and the listener.

        Raises:
            OSError: The port is taken.
        """
        settings = self.settings
        self.model = EngineModel(
            PROFILES[settings.profile],
            max_context_tokens=settings.max_context_tokens,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            kv_tokens=settings.kv_tokens,
            max_queued=settings.max_queued,
            cold_requests=settings.cold_requests,
            cold_factor=settings.cold_factor,
        )
        self.pacer = Pacer(self.model, settings.time_scale)
        self.meters = Meters(settings.models[0])
        self.stored.clear()
        self._is_draining = self._is_dead = False
        await self._listen()
        if settings.startup_delay_s:
            await self.inject(Fault(Kind.NOT_READY, seconds=settings.startup_delay_s))

    async def _listen(self) -> None:
        if self._listener is None:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(
                lambda: Connection(self, loop), self.host, self.port, backlog=BACKLOG
            )
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _deafen(self) -> None:
        """Refuse connections from now on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            await asyncio.sleep(0)  # uvloop closes the socket in the next tick

    async def kill(self) -> None:
        """Die as by kill -9: connections refused, open ones broken off wherever they stand."""
        await self._deafen()
        self.pacer.stop()
        for task in self._tasks - {asyncio.current_task()}:  # not the one that asks for this, over HTTP
            task.cancel()
        for reply in list(self._replies):
            reply.exchange.on_gone = None  # nobody is left to notice
            self._ended(reply, End.BROKEN)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    stop = kill

    async def restart(self) -> None:
        """Come back on the same port as a new incarnation, killed first if it still runs."""
        await self.kill()
        await self.start()

    async def terminate(self, mode: str) -> None:
        """Take SIGTERM in one of vLLM's ways.

        Args:
            mode: "finish" (--shutdown-timeout: what runs ends, new requests get 500, /health stays 200),
                "abort" (what runs ends at once with finish_reason "abort"), "hang" (what runs never sends
                another byte), or "core": no SIGTERM, but the engine's core killed.
        """
        if mode == "finish":
            self._is_draining = True
            if not self._replies:
                await self.kill()
            return
        if mode == "core":
            self._is_dead = True
            for reply in list(self._replies):
                reply.die()
            asyncio.get_running_loop().call_later(CORE_DEATH_S, self._spawn_kill)
            return
        for reply in list(self._replies):
            if mode == "abort":
                reply.cut_short()
            else:
                reply.go_silent()
        await self._deafen()

    def _spawn_kill(self) -> None:
        self.spawn(self.kill())

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run something beside the requests; it is cancelled when the engine stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # faults

    async def inject(self, fault: Fault) -> None:
        """Let a fault hold from now on."""
        self.faults.add(fault)
        if fault.kind is Kind.FROZEN_METRICS:
            self._frozen = self.meters.page(self.model, self.facts.statuses)
        if fault.kind is Kind.NOT_READY and fault.seconds is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(fault.seconds, self.faults.clear, Kind.NOT_READY)
        await self._apply()

    async def clear(self, kind: Kind | None = None) -> None:
        """End all faults, or those of one kind."""
        self.faults.clear(kind)
        await self._apply()

    async def _apply(self) -> None:
        """Bring the engine into the state its faults ask for."""
        slow, stale = self.faults.of(Kind.SLOW), self.faults.of(Kind.STALE_REUSE)
        self.model.slowdown = slow.factor if slow else 1.0
        self.resets_stale = stale is not None
        self.keep_alive_s = (stale.seconds or 1.0) if stale else self.settings.keep_alive_s
        if self.faults.of(Kind.STALL):
            self.pacer.stall()
        else:
            self.pacer.resume()
        if self.faults.of(Kind.REFUSE):
            await self._deafen()
            for connection in list(self._connections):
                connection.reset()
        elif self._listener is None and not self._is_dead:
            await self._listen()

    # connections

    def accepted(self, connection: Connection) -> bool:
        """Take a connection, or let a fault reset it."""
        self._connections.add(connection)
        self.facts.connected()
        return not self.faults.strikes(Kind.RESET_ON_ACCEPT)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.facts.connections -= 1

    def answered(self, exchange: Exchange) -> None:
        """Count an answer."""
        self.facts.statuses[exchange.path, exchange.method, f"{exchange.status // 100}xx"] += 1

    def handle(self, exchange: Exchange) -> None:
        """Note a request and answer it."""
        if exchange.path.startswith("/sim/"):
            control.handle(self, exchange)
            return
        self.facts.saw(exchange, asyncio.get_running_loop().time())
        exchange.on_gone = lambda: self._left(exchange.path, "unborn", 0)
        if self.faults.of(Kind.BLACK_HOLE):
            return
        hits = self.faults.draw(exchange.method, exchange.path)
        if self.settings.echoes_request_id:
            exchange.stamp = [("x-request-id", exchange.header("x-request-id") or self._name())]
        exchange.is_gzip = Kind.GZIP in hits
        exchange.is_crlf = Kind.CRLF in hits
        if Kind.DRIBBLE in hits:
            exchange.connection.dribble()
        if Kind.RESET in hits:
            exchange.reset()
        elif fault := hits.get(Kind.STATUS):
            answers.fail(exchange, fault)
        elif fault := hits.get(Kind.HUGE_ERROR):
            self.spawn(answers.pour(exchange, fault.status, "text/plain", b"", b"x" * 65_536, b"", fault.size))
        elif Kind.HANG not in hits:
            try:
                self._route(exchange, hits)
            except Refused as refused:
                is_anthropic = exchange.path.startswith("/v1/messages")
                exchange.answer(refused.status, messages.error_body(refused) if is_anthropic else refused.body)

    def _route(self, exchange: Exchange, hits: Hits) -> None:
        key = self.settings.api_key
        if key and exchange.path.startswith("/v1/") and exchange.header("authorization") != f"Bearer {key}":
            exchange.answer(401, b'{"error":"Unauthorized"}')
            return
        path = template(exchange.path)
        if route := ROUTES.get((exchange.method, path)):
            route(self, exchange, hits)
        elif methods := METHODS.get(path):
            allowed = [("allow", ", ".join(methods))]
            exchange.answer(405, b'{"detail":"Method Not Allowed"}', headers=allowed)
        else:
            answers.json(exchange, {"detail": "Not Found"}, 404)

    def _name(self) -> str:
        return f"{self._names.getrandbits(64):016x}"

    def _left(self, path: str, phase: str, tokens: int) -> None:
        self.facts.departures.append(Departure(path, asyncio.get_running_loop().time(), phase, tokens))

    @property
    def is_healthy(self) -> bool:
        """What /health says."""
        return not (self._is_dead or self.faults.of(Kind.UNHEALTHY) or self.faults.of(Kind.NOT_READY))

    def page(self) -> bytes:
        """Render /metrics, as it is now or as it was when it froze."""
        if self._frozen is not None and self.faults.of(Kind.FROZEN_METRICS):
            return self._frozen
        return self.meters.page(self.model, self.facts.statuses)

    # generation

    def launch(self, exchange: Exchange, hits: Hits, dialect: WireMaker, ask: Ask) -> None:
        """Put the sequences of a request into the model.

        Raises:
            Refused: By vLLM's rules, or since the engine is not in a state to.
        """
        if ask.model not in self.settings.models:
            raise refusals.unknown_model(ask.model, ", ".join(self.settings.models))
        if self.faults.of(Kind.NOT_READY):
            raise Refused(503, "Loading model", "Service Unavailable")
        if self._is_draining:
            raise refusals.draining()
        if self._is_dead:
            raise Refused(500, refusals.DEAD, "InternalServerError")
        settings = self.settings
        born = births(
            ask,
            self.model.max_context_tokens,
            settings.mean_output_tokens,
            settings.alphabet,
            self.pacer.new_id,
        )
        choices = [birth.choice for birth in born]
        name = exchange.header("x-request-id") or self._name()
        usages = 0 if Kind.NO_USAGE in hits else 2 if Kind.USAGE_TWICE in hits else 1
        wire = dialect(ask, choices, name, settings.tells_cached, usages)
        if fault := hits.get(Kind.ERROR_FIRST):
            answers.fail_first(exchange, wire, fault)
            return
        if fault := hits.get(Kind.HUGE_ANSWER):
            self.spawn(answers.pour_answer(exchange, wire, fault.size))
            return
        if fault := hits.get(Kind.ABORT):
            for birth in born:
                birth.choice.output_tokens = max(1, min(fault.after, birth.choice.output_tokens))
                birth.choice.reason = "abort"
        started_at = asyncio.get_running_loop().time()
        reply = Reply(exchange, wire, self.pacer, hits, lambda reply: self._first(started_at, reply), self._ended)
        for at, birth in enumerate(born):
            if self.pacer.submit(birth.cut_to_choice(), reply) is not None:
                for earlier in born[:at]:
                    self.pacer.abort(earlier.choice.id)
                self.meters.rejected += 1
                raise refusals.busy()
        self._replies.add(reply)
        self.facts.live += 1
        reply.start()

    def _first(self, started_at: float, reply: Reply) -> None:
        reply.first_at = asyncio.get_running_loop().time()
        reply.started_at = started_at
        self.meters.ttft.observe(reply.first_at - started_at)

    def _ended(self, reply: Reply, end: End) -> None:
        self._replies.discard(reply)
        self.facts.live -= 1
        if end is End.ABORTED:
            self._left(reply.exchange.path, "decoding" if reply.is_started else "waiting", reply.made)
        elif end is End.BROKEN:
            self.facts.broken += 1
        else:
            self.facts.finished += 1
            now = asyncio.get_running_loop().time()
            for choice in reply.wire.choices:
                self.meters.finished[choice.reason] += 1
            if reply.first_at is not None:
                self.meters.e2e.observe(now - reply.started_at)
                self.meters.tpot.observe((now - reply.first_at) / max(1, reply.made - 1))
            if kept := reply.wire.keep():
                self.stored[str(kept["id"])] = kept
        if self._is_draining and not self._replies:
            self._spawn_kill()
