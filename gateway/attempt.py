"""One try at one endpoint: send, wait until it is known what the answer is, and say what a bad one means.

connect refused, reset, cut, stalled    the engine may be broken: elsewhere, and its health is told
429, 503                                the engine is busy: elsewhere, and it is left alone as long as it asks
5xx, an error first in a 200 stream     the engine is broken: elsewhere, and its health is told
4xx                                     the client's mistake: nowhere else, and no word about the engine
"""

import asyncio
import re
from dataclasses import dataclass

from gateway.connection import (
    BrokenAnswer,
    ConnectFailed,
    ConnectTimedOut,
    DeadlinePassed,
    StaleConnection,
    Stalled,
    UpstreamError,
)
from gateway.engines.answers import EngineError, Verdict, read_error, read_stream_error
from gateway.exchange import Exchange
from gateway.fleet import Lease
from gateway.headers import lines_of_error
from gateway.relay import Answer, AnswerKind
from gateway.upstream import Upstream

DRAINING = re.compile(rb"after shutdown")  # vLLM: "cannot schedule new futures after shutdown", health still 200


@dataclass(slots=True)
class Failure:
    """Why a try did not serve."""

    kind: str
    """For metrics: connect, cut, stalled, deadline, busy, broken, client, over_length."""
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
    too_late: Stalled
    if left_s <= first_byte_s:
        too_late = DeadlinePassed("the request's deadline has passed without a first byte")
    else:
        too_late = Stalled(f"no first byte within {first_byte_s:.3g} s")
    give_up_at = now + min(first_byte_s, left_s)
    timer = loop.call_at(give_up_at, answer.abandon, too_late)
    try:
        for is_fresh in (False, True):
            within_s = give_up_at - loop.time()
            answer.connection = await connections.send(pieces, answer, within_s=within_s, is_fresh=is_fresh)
            await answer.opened
            if not isinstance(answer.error, StaleConnection):
                return
            answer.reopen()
        raise AssertionError("a fresh connection is never stale")
    except ConnectTimedOut as error:
        answer.on_broken(error if error.after_s < min(first_byte_s, left_s) else too_late)
    except ConnectFailed as error:
        answer.on_broken(error)
    finally:
        timer.cancel()


def judge(answer: Answer, lease: Lease) -> Failure:
    """Say what a bad answer means, and let the endpoint's health know."""
    if answer.error is not None:
        if isinstance(answer.error, DeadlinePassed):
            return Failure("deadline", answer.error, may_retry=False)
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
        if DRAINING.search(error.body):
            lease.drain()
    else:
        lease.served()
    if error.verdict is Verdict.BUSY and error.retry_after_s:
        lease.not_now(error.retry_after_s)
    return Failure(
        error.verdict.value,
        answer=error,
        lines=lines_of_error(answer.head.headers, answer.head.connection, error.content_type),
        may_retry=error.verdict in (Verdict.BUSY, Verdict.BROKEN),
    )
