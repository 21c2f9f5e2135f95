"""KvEvents: keeps each pool's PrefixIndex told of what its engines say they cache. One task an engine.

    find        the configuration, or the engine itself, says where it publishes; asked again until it does
    begin       connect, then ask for all that was published before, from number 0
    listen      number by number; a gap is asked for
    lost        disconnected for LOST_S: dispatches count alone, and it is looked for again

What they tell goes to `gateway/told.py`. All is dropped and learned anew

- when a gap cannot be filled: what is asked for is not kept any more;
- when the publisher has begun anew: numbers fall back, or after a break its last message is not the one we had;
- when the engine is a new incarnation, or our unit has changed.

A publisher that is silent is well: an idle engine has nothing to tell. TensorRT-LLM's events are polled, with the same
consequences."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import aiohttp

from gateway.config import AUTO, OFF, Kind
from gateway.engines.adapter import Page
from gateway.engines.kvevents import TrtllmEvents, decode
from gateway.engines.kvsources import SOURCE_PATHS, Source, configured, read_sources
from gateway.kvstream import Message, Stream, Streams, Unreachable
from gateway.members import Member
from gateway.told import Rank, RootOf, Told

log = logging.getLogger(__name__)

FIND_EVERY_S = 2.0
ASK_AGAIN_S = 30.0  # an engine that publishes nothing
TICK_S = 1.0  # between looks at what may have changed while nothing came
LOST_S = 10.0  # a publisher that was away for less has had a hiccup, or is replayed
REPLAY_S = 3.0  # to the first answer and between answers; the publisher looks for questions ten times a second
POLL_EVERY_S = 0.5
ASK_S = 5.0
MAX_PAGE_BYTES = 8 << 20
AT_ONCE = 1000  # messages between looks at the connection


class KvEvents:
    """Listens to engines.

    Args:
        session: To ask engines with.
        root_of: See RootOf.
        unit_tokens_of: Tokens of our unit at an engine: a multiple of its block, or a divisor.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        root_of: RootOf,
        unit_tokens_of: Callable[[Member], int],
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._root_of = root_of
        self._unit_tokens_of = unit_tokens_of
        self._clock = clock
        self._streams = Streams()
        self._tasks: dict[Member, asyncio.Task[None]] = {}
        self._told: dict[Member, Told] = {}

    def follow(self, member: Member) -> None:
        """Begin to listen to an engine."""
        if member.config.kv_events != OFF:
            told = self._told[member] = Told(member, self._root_of, self._unit_tokens_of, self._clock)
            self._tasks[member] = asyncio.create_task(self._run(told), name=f"kv events {member.endpoint.name}")

    def forget(self, member: Member) -> None:
        """Stop listening to an engine that has left."""
        self._told.pop(member, None)
        task = self._tasks.pop(member, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        self._streams.close()

    def told(self) -> Iterator[Told]:
        """Walk over the engines that are listened to, or looked for: for metrics."""
        yield from self._told.values()

    def told_by(self, member: Member) -> Told | None:
        """Give what an engine told; None where it is not listened to."""
        return self._told.get(member)

    # The life of one engine.

    async def _run(self, told: Told) -> None:
        while True:
            again, has_none = False, False
            told.trouble, before = "", told.trouble
            try:
                if told.member.config.kv_events.startswith("http"):
                    again = await self._poll(told)
                else:
                    sources = await self._find(told.member)
                    has_none = sources == ()
                    again = bool(sources) and await self._listen_to(told, sources or ())
            except Unreachable as error:
                told.trouble = str(error)
                if told.trouble != before:
                    log.warning("no KV events of %s: %s", told.endpoint.name, told.trouble)
            except Exception:
                told.trouble = "the gateway failed on what it told"
                if told.trouble != before:
                    log.exception("reading the KV events of %s failed", told.endpoint.name)
            finally:
                told.end()
            if not again:
                await asyncio.sleep(ASK_AGAIN_S if has_none else FIND_EVERY_S)

    async def _find(self, member: Member) -> tuple[Source, ...] | None:
        """Find the publishers of an engine, none where it says that it has none; None while it says nothing."""
        if member.config.kv_events != AUTO:
            return (configured(member.config.kv_events, member.config.kv_replay),)
        kind = member.kind
        if kind is None:
            return None
        path = SOURCE_PATHS.get(kind)
        if path is None:
            return ()
        page = await self._ask("GET", member, member.endpoint.url + path)
        return None if page is None else read_sources(kind, page.parse_json(), member.endpoint.url)

    async def _listen_to(self, told: Told, sources: Sequence[Source]) -> bool:
        """Listen until a publisher is lost or all is to be learned anew; say whether that may begin at once."""
        told.begin(len(sources), counts_copies=told.member.kind in (Kind.VLLM, None))
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(contextlib.closing(self._streams.open(source))) for source in sources]
            tasks = [
                asyncio.create_task(self._listen(told, rank, stream), name=f"kv events {stream.source.address}")
                for rank, stream in zip(told.ranks, streams, strict=True)
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return all(task.result() for task in done)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, told: Told, rank: Rank, stream: Stream) -> bool:
        connections, gone_at = 0, self._clock()
        while True:
            await stream.wait(TICK_S)
            if told.is_stale():
                return True
            if stream.connections != connections:
                connections = stream.connections
                await self._catch_up(told, rank, stream)
            if stream.is_connected:
                gone_at = self._clock()
            elif self._clock() - gone_at > LOST_S:
                raise Unreachable(f"nobody publishes at {stream.source.address}")
            rank.is_connected = stream.is_connected or self._clock() - gone_at <= TICK_S
            for _ in range(AT_ONCE):
                if (message := stream.take()) is None:
                    break
                await self._receive(told, rank, stream, message)
            told.settle()

    async def _poll(self, told: Told) -> bool:
        """Poll until the engine is lost or all is to be learned anew; say whether that may begin at once."""
        told.begin(1, counts_copies=False)
        (rank,) = told.ranks
        events, gone_at, url = TrtllmEvents(), self._clock(), told.member.config.kv_events
        while not told.is_stale():
            page = await self._ask("POST", told.member, url)
            if page is not None and page.status == 200:
                gone_at = self._clock()
                await told.take_in(rank, events.read(page.body))
                told.gaps += events.gaps
                events.gaps = 0
            elif self._clock() - gone_at > LOST_S:
                raise Unreachable(f"{url} does not answer" if page is None else f"{url} says {page.status}")
            rank.is_whole, rank.is_connected = events.is_whole, self._clock() - gone_at <= TICK_S
            told.settle()
            await asyncio.sleep(POLL_EVERY_S)
        return True

    async def _ask(self, method: str, member: Member, url: str) -> Page | None:
        """Ask an engine for a page; None where it does not answer."""
        key = member.config.api_key
        try:
            async with self._session.request(
                method,
                url,
                headers={"authorization": f"Bearer {key}"} if key else {},
                timeout=aiohttp.ClientTimeout(total=ASK_S),
                allow_redirects=False,
            ) as response:
                body = bytearray()
                while len(body) < MAX_PAGE_BYTES and (more := await response.content.read(MAX_PAGE_BYTES)):
                    body += more
                return Page(url, response.status, bytes(body), {})
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None

    # Numbers.

    async def _receive(self, told: Told, rank: Rank, stream: Stream, message: Message) -> None:
        """Take in a live message, after what is missing before it."""
        number = message.number
        if rank.last is not None and number <= rank.last:
            time = _time(message)
            if time is None or time <= rank.time:
                return  # it came by replay as well
            await self._start_over(told, rank, stream)
        elif rank.last is not None and number > rank.last + 1:
            told.gaps += 1
            await self._fill(told, rank, stream)
        if rank.last is None and number == 0:
            told.clear(rank)
        elif rank.last is not None and number > rank.last + 1:
            told.clear(rank, is_whole=False)
        if rank.last is None or number > rank.last:
            await self._apply(told, rank, message)

    async def _catch_up(self, told: Told, rank: Rank, stream: Stream) -> None:
        """Learn what was published while we were not there."""
        if rank.last is None or rank.last < 0:
            await self._start_over(told, rank, stream)
            return
        last, time = rank.last, rank.time
        is_same = False
        with contextlib.suppress(Unreachable):
            told.replays += 1
            async with contextlib.aclosing(stream.replay(last, REPLAY_S)) as replayed:
                async for message in replayed:
                    if is_same:
                        await self._apply(told, rank, message)
                    elif message.number == last and _time(message) == time:
                        is_same = True
                    else:
                        break
        if not is_same:
            await self._start_over(told, rank, stream)

    async def _fill(self, told: Told, rank: Rank, stream: Stream) -> None:
        """Ask for what was missed; what is not kept any more is lost."""
        assert rank.last is not None
        told.replays += 1
        with contextlib.suppress(Unreachable):
            async with contextlib.aclosing(stream.replay(rank.last + 1, REPLAY_S)) as replayed:
                async for message in replayed:
                    if message.number > rank.last + 1:
                        told.clear(rank, is_whole=False)
                    await self._apply(told, rank, message)

    async def _start_over(self, told: Told, rank: Rank, stream: Stream) -> None:
        """Learn everything anew."""
        if len(rank.blocks) or rank.is_whole:
            told.clear(rank, is_whole=False)
        rank.last, rank.time, rank.is_whole = None, float("-inf"), False
        try:
            told.replays += 1
            is_first = True
            async with contextlib.aclosing(stream.replay(0, REPLAY_S)) as replayed:
                async for message in replayed:
                    if is_first and message.number == 0:
                        told.clear(rank)
                    is_first = False
                    await self._apply(told, rank, message)
        except Unreachable as error:
            log.info("%s has cached what we were not told: %s", told.endpoint.name, error)
            return
        if is_first:  # nothing was published yet
            told.clear(rank)
            rank.last = -1

    async def _apply(self, told: Told, rank: Rank, message: Message) -> None:
        rank.last = message.number
        batch = decode(message.payload)
        if batch is None:
            told.unreadable += 1
        else:
            rank.time = batch.time
            await told.take_in(rank, batch.events())


def _time(message: Message) -> float | None:
    batch = decode(message.payload)
    return None if batch is None else batch.time
