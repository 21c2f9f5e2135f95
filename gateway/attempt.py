"""One try at one endpoint: send, wait until it is known what the answer is, and say what a bad one means.

connect refused, reset, cut, stalled    the engine may be broken: elsewhere, and its health is told
429, 503                                the engine is busy: elsewhere, and it is left alone as long as it asks
5xx, an error first in a 200 stream     the engine is broken: elsewhere, and its health is told
4xx                                     the client's mistake: nowhere else, and no word about the engine
"""

import asyncio
from dataclasses import dataclass

from gateway.config import Kind
from gateway.connection import (
    BrokenAnswer,
    ConnectFailed,
    ConnectTimedOut,
    DeadlinePassed,
    NoFilesLeft,
    StaleConnection,
    Stalled,
    UpstreamError,
)
from gateway.engines.answers import EngineError, Verdict, read_error, read_stream_error
from gateway.exchange import Exchange
from gateway.headers import lines_of_error
from gateway.hops import FIRST_BYTE
from gateway.lease import Lease
from gateway.relay import Answer, AnswerKind
from gateway.upstream import Upstream

DRAINING = b"cannot schedule new futures after shutdown"  # vLLM under SIGTERM, while /health still says 200
CLOCK_SLACK_S = 0.005  # uvloop's timers may fire a little early


@dataclass(slots=True)
class Failure:
    """Why a try did not serve."""

    kind: str
    """For metrics: connect, cut, stalled, deadline, files, busy, broken, client, over_length."""
    error: UpstreamError | None = None
    answer: EngineError | None = None
    lines: bytes = b""
    """Header lines of the engine's answer."""
    may_retry: bool = True


async def ask(answer: Answer, upstream: Upstream, lease: Lease, exchange: Exchange, first_byte_s: float) -> None:
    """Send to the leased endpoint, and wait until it is known what its answer is.

    A kept connection that turns out to be stale is replaced by a fresh one, once: the engine never saw the request.
    """
    loop = asyncio.get_running_loop()
    connections = upstream.to(lease.endpoint.url)
    pieces = exchange.pieces_for(lease.member)
    now = loop.time()
    left_s = exchange.inference.deadline - now
    wait_s = min(first_byte_s, left_s)
    is_by_deadline = left_s <= first_byte_s
    timer = loop.call_at(now + wait_s, _expire, answer, wait_s, is_by_deadline)
    try:
        answer.connection = await connections.send(pieces, answer, within_s=wait_s)
        if exchange.hops is not None:
            exchange.hops.begin(FIRST_BYTE)
        await answer.opened
        if isinstance(answer.error, StaleConnection):
            answer.reopen()
            within_s = now + wait_s - loop.time()
            answer.connection = await connections.send(pieces, answer, within_s=within_s, is_fresh=True)
            await answer.opened
    except ConnectTimedOut as error:
        if loop.time() + CLOCK_SLACK_S < now + wait_s:
            answer.on_broken(error)
        else:
            _expire(answer, wait_s, is_by_deadline)
    except ConnectFailed as error:
        answer.on_broken(error)
    finally:
        timer.cancel()


def _expire(answer: Answer, wait_s: float, is_by_deadline: bool) -> None:
    if is_by_deadline:
        answer.abandon(DeadlinePassed("the request's deadline has passed without a first byte"))
    else:
        answer.abandon(Stalled(f"no first byte within {wait_s:.3g} s"))


def judge(answer: Answer, lease: Lease) -> Failure:
    """Say what a bad answer means, and let the endpoint's health know."""
    if answer.error is not None:
        if isinstance(answer.error, DeadlinePassed):
            return Failure("deadline", answer.error, may_retry=False)
        if isinstance(answer.error, NoFilesLeft):
            return Failure("files", answer.error, may_retry=False)
        is_stalled = isinstance(answer.error, Stalled)
        lease.failed()
        if isinstance(answer.error, ConnectFailed):
            return Failure("connect", answer.error)
        return Failure("stalled" if is_stalled else "cut", answer.error)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.head.headers}
    payload = answer.failure
    if answer.kind is AnswerKind.ERROR:
        error = read_error(
            answer.head.status, headers, b"" if answer.encoding else answer.held, truncated=answer.is_truncated
        )
    elif payload is not None and payload.get("error"):
        error = read_stream_error(payload)
    else:
        lease.failed()
        return Failure("broken", BrokenAnswer("the engine aborted the request or cut its answer short"))
    if error.verdict is Verdict.BROKEN:
        lease.failed()
        if lease.member.kind is Kind.VLLM and DRAINING in error.body:
            lease.drain()
    else:
        lease.served()
    if error.verdict is Verdict.BUSY and error.retry_after_s:
        lease.not_now(error.retry_after_s)
    return Failure(
        error.verdict.value,
        answer=error,
        lines=lines_of_error(answer.head.headers, answer.head.connection, error.content_type, error.retry_after_s),
        may_retry=error.verdict in (Verdict.BUSY, Verdict.BROKEN),
    )
