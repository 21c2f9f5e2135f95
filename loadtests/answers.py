"""Answers of the simulated engine that need no model: those of faults, and the constant ones."""

import asyncio
from collections.abc import Sequence

import orjson

from loadtests import refusals
from loadtests.ask import Body
from loadtests.faults import Fault
from loadtests.http1 import Exchange
from loadtests.reply import SSE
from loadtests.wire import Wire


async def pour(exchange: Exchange, status: int, media: str, first: bytes, piece: bytes, last: bytes, size: int) -> None:
    """Send `size` bytes in pieces, as fast as the client reads."""
    exchange.begin(status, media)
    exchange.send(first)
    sent = 0
    while sent < size and not exchange.is_over:
        exchange.send(piece)
        sent += len(piece)
        await exchange.connection.drain()
        await asyncio.sleep(0)
    exchange.send(last)
    exchange.end()


def fail(exchange: Exchange, fault: Fault) -> None:
    """Answer with a fault's status."""
    headers = []
    if fault.retry_after_s is not None:
        headers.append(("retry-after", f"{fault.retry_after_s:g}"))
    if fault.retry_after_ms is not None:
        headers.append(("retry-after-ms", f"{fault.retry_after_ms:g}"))
    if fault.body is not None:
        body = fault.body.encode()
    elif fault.status == 500:
        body = refusals.draining().body
    elif fault.status == 429:
        body = refusals.error_body("Too many requests", "rate_limit_error", None, 429)
    else:
        body = refusals.error_body(refusals.BUSY, "Service Unavailable", None, fault.status)
    exchange.answer(fault.status, body, headers=headers)


def fail_first(exchange: Exchange, wire: Wire, fault: Fault) -> None:
    """Answer as SGLang does when its queue is full."""
    error: Body = {
        "object": "error",
        "message": refusals.SGLANG_FULL,
        "type": "SERVICE_UNAVAILABLE",
        "param": None,
        "code": fault.status,
    }
    if not wire.ask.is_stream:
        json(exchange, error, fault.status)
        return
    exchange.begin(200, SSE)
    exchange.send(b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n")
    exchange.end()


def json(exchange: Exchange, value: Body, status: int = 200) -> None:
    """Answer with JSON."""
    exchange.answer(status, orjson.dumps(value))


def models(names: Sequence[str], created: int, max_context_tokens: int) -> Body:
    """List the models; all names stand for the first."""
    permission = {
        "id": "modelperm-5113a4ed5113a4ed",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    facts = {
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": f"models/{names[0]}",
        "parent": None,
        "max_model_len": max_context_tokens,
        "permission": [permission],
    }
    return {"object": "list", "data": [{"id": name, **facts} for name in names]}


async def pour_answer(exchange: Exchange, wire: Wire, size: int) -> None:
    """Stream `size` bytes of content, as fast as the client reads."""
    opening = wire.opening()
    choice = wire.choices[0]
    choice.output_tokens = 1 << 60  # no piece is the last
    piece = wire.piece(choice, choice.language.text(2000))
    choice.output_tokens = 2000 * -(-size // len(piece))
    await pour(exchange, 200, SSE, opening, piece, wire.ending(), size)
