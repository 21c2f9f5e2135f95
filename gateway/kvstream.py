"""Stream: one publisher of KV events, as messages with their numbers; the only place that sees ZeroMQ.

A live message has three frames, `topic, number (8 bytes), payload`. What was published before is asked for at the
replay address, from a number on; the answers' last two frames are number and payload (engines before and after mid-2026
differ in what comes before), and a number of all ones ends them. ZeroMQ connects and reconnects by itself; what it says
about that on the side tells a silent publisher from one that is gone: `is_connected`, and `connections` counts how
often one was there.

Messages are taken without waiting, a few at a time, so that whoever takes them decides when others get their turn.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import NamedTuple

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from gateway.engines.kvsources import Source

HIGH_WATER = 100_000  # messages that wait here while we are busy: the engine's own default
MAX_MESSAGE_BYTES = 64 << 20  # a step of the longest prompts has some 2 MB
RECONNECT_MS, RECONNECT_MAX_MS = 100, 2000
SIGNS_OF_LIFE_MS = 5000  # heartbeats: a host that vanished without a word is noticed after as long again
NUMBER_BYTES = 8
END = (1 << 64) - 1
WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Message(NamedTuple):
    """A batch of events as it came."""

    number: int
    payload: bytes


class Unreachable(Exception):
    """An address cannot be used, or nobody answers there; the message says which."""


class Streams:
    """Opens streams; what they share is closed with them."""

    def __init__(self) -> None:
        self._context: zmq.asyncio.Context | None = None

    def open(self, source: Source) -> "Stream":
        """Begin to listen to a publisher.

        Raises:
            Unreachable: the address cannot be used.
        """
        if self._context is None:
            self._context = zmq.asyncio.Context()
        return Stream(self._context, source)

    def close(self) -> None:
        """Close everything."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None


class Stream:
    """What one publisher sends."""

    def __init__(self, context: zmq.asyncio.Context, source: Source) -> None:
        self.source = source
        self.is_connected = False
        self.connections = 0
        """How often a publisher was connected to."""
        self._context = context
        self._socket = context.socket(zmq.SUB)
        try:
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
            self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
            self._socket.setsockopt(zmq.HEARTBEAT_IVL, SIGNS_OF_LIFE_MS)
            self._socket.setsockopt(zmq.SUBSCRIBE, b"")
            self._monitor = self._socket.get_monitor_socket(WATCHED)
            if source.binds:
                self._socket.bind(source.address)
            else:
                self._socket.connect(source.address)
        except zmq.ZMQError as error:
            self.close()
            raise Unreachable(f"{source.address}: {error.strerror}") from error
        self._poller = zmq.asyncio.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._now: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        self._monitor_now: zmq.Socket[bytes] = zmq.Socket.shadow(self._monitor)

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is something to take, or the connection changes."""
        await self._poller.poll(round(timeout_s * 1000))
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self._monitor_now.recv_multipart(zmq.NOBLOCK))["event"]
                self.is_connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                self.connections += self.is_connected

    def take(self) -> Message | None:
        """Take the next message, if it is there."""
        return _next(self._now)

    async def replay(self, first: int, timeout_s: float) -> AsyncGenerator[Message, None]:
        """Ask for all messages from a number on that the publisher still has.

        Raises:
            Unreachable: nobody answers for so long, or there is nobody to ask.
        """
        if self.source.replay is None:
            raise Unreachable("it replays nothing")
        with self._context.socket(zmq.DEALER) as asking:
            asking.setsockopt(zmq.LINGER, 0)
            asking.setsockopt(zmq.RCVHWM, HIGH_WATER)
            asking.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            try:
                asking.connect(self.source.replay)
            except zmq.ZMQError as error:
                raise Unreachable(f"{self.source.replay}: {error.strerror}") from error
            now: zmq.Socket[bytes] = zmq.Socket.shadow(asking)
            now.send_multipart([b"", first.to_bytes(NUMBER_BYTES, "big")])
            while await asking.poll(round(timeout_s * 1000)):
                while (message := _next(now)) is not None:
                    if message.number == END:
                        return
                    yield message
        raise Unreachable(f"{self.source.replay} does not answer")

    def close(self) -> None:
        """Stop listening."""
        self._socket.disable_monitor()
        self._socket.close(linger=0)


def _next(socket: zmq.Socket[bytes]) -> Message | None:
    """Take the next message that is there; what has no number is none."""
    with contextlib.suppress(zmq.Again):
        while True:
            frames = socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) >= 2 and len(frames[-2]) == NUMBER_BYTES:
                return Message(int.from_bytes(frames[-2], "big"), frames[-1])
    return None
