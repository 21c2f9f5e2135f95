"""/sim/*: a simulated engine's faults and facts over HTTP, for tests that run it in another process.

GET    /sim/faults              those in force
POST   /sim/faults              {"kind": "status", "status": 429, "retry_after_s": 2, "times": 3}
DELETE /sim/faults[?kind=slow]  end all, or those of one kind
GET    /sim/facts               calls by path, live, finished, aborted, broken, connections, the last
request POST   /sim/terminate           {"mode": "finish" | "abort" | "hang" | "core"} POST
/sim/restart             a new incarnation on the same port POST   /sim/forget              empty the
prefix cache
"""

from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import orjson

from loadtests.faults import Fault, Kind
from loadtests.http1 import Exchange

if TYPE_CHECKING:
    from loadtests.server import SimulatedEngine


def handle(engine: "SimulatedEngine", exchange: Exchange) -> None:
    """Answer a request to /sim/."""
    try:
        _handle(engine, exchange)
    except (ValueError, TypeError, KeyError) as exc:
        exchange.answer(400, orjson.dumps({"error": str(exc)}))


def _handle(engine: "SimulatedEngine", exchange: Exchange) -> None:
    match exchange.method, exchange.path:
        case "GET", "/sim/faults":
            exchange.answer(200, orjson.dumps([asdict(fault) for fault in engine.faults]))
        case "POST", "/sim/faults":
            fault = Fault(**orjson.loads(exchange.body))
            exchange.answer(200, orjson.dumps(asdict(fault)))
            engine.spawn(engine.inject(fault))
        case "DELETE", "/sim/faults":
            named = parse_qs(urlsplit(exchange.target).query).get("kind")
            engine.spawn(engine.clear(Kind(named[0]) if named else None))
            exchange.answer(200, b"[]")
        case "GET", "/sim/facts":
            exchange.answer(200, orjson.dumps(_facts(engine)))
        case "POST", "/sim/terminate":
            mode = orjson.loads(exchange.body)["mode"]
            exchange.answer(202, b"{}")
            engine.spawn(engine.terminate(mode))
        case "POST", "/sim/restart":
            exchange.answer(202, b"{}")
            engine.spawn(engine.restart())
        case "POST", "/sim/forget":
            engine.model.forget()
            exchange.answer(200, b"{}")
        case _:
            exchange.answer(404, b'{"error":"no such control"}')


def _facts(engine: "SimulatedEngine") -> dict[str, object]:
    facts = engine.facts
    last = facts.recent[-1] if facts.recent else None
    return {
        "calls": dict(facts.calls),
        "engine_calls": facts.engine_calls,
        "live": facts.live,
        "finished": facts.finished,
        "aborted": facts.aborted,
        "broken": facts.broken,
        "departures": [asdict(departure) for departure in facts.departures],
        "connections": facts.connections,
        "connections_total": facts.connections_total,
        "connections_peak": facts.connections_peak,
        "model": repr(engine.model),
        "last": None if last is None else {**asdict(last), "body": last.body.decode("utf-8", "replace")},
    }
