"""Line: the gateway's way to Redis, be it one server, what sentinels call the master, or a cluster.

    await line.start()                              # a Redis that is down does not keep the gateway from starting
    allowed = await line.script(LIMITER, ["kvlane:1:{acme}:rates"], ["reserve", …])
    fields = await line.ask("HGETALL", "kvlane:tenants")

One connection a server, and no more under any load: Redis works on one command at a time, and batches of any size share
a wire (rediswire.py). Each server has a breaker of its own (redislink.py). In a cluster the first key's slot says which
server is asked; the keys of one call share a hash tag.

Where the servers are is asked before each try to connect: of the sentinels, or of any node of the cluster that
answers. MOVED is followed at once, and makes the cluster be surveyed again; servers that left it are let go.
"""

import asyncio
import binascii
import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from urllib.parse import SplitResult, unquote, urlsplit

from gateway.redislink import PROBE_KEY, Counts, Link
from gateway.rediswire import Access, Address, Answer, LineDown, Part, Question, Refusal, Script, Wire

SLOTS = 16_384
MAX_HOPS = 3  # more is a cluster that does not know itself
PORT, SENTINEL_PORT = 6379, 26_379
ELSEWHERE = re.compile(r"(?P<kind>MOVED|ASK) (?P<slot>\d{1,5}) (?P<host>\S*):(?P<port>\d{1,5})")
SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class Servers:
    """Which Redis, and how to talk to it; made from the configuration."""

    urls: tuple[str, ...]
    """redis://[user:password@]host[:port][/database], rediss:// for TLS, unix:///path; of the sentinels or of some
    nodes of the cluster, if there are such. What the first says of user, password and TLS holds for all."""
    service: str = ""
    """What sentinels call the master; without it, `urls` are no sentinels'."""
    is_cluster: bool = False
    username: str = ""
    """Of Redis itself, where `urls` do not say it or are those of sentinels; so is the password, and the database."""
    password: str = field(default="", repr=False)
    database: int = 0
    ca_file: str = ""
    """Who signed the servers' certificates; without it, those whom the system trusts."""
    timeout_s: float = 0.1
    """For an answer."""
    retry_s: float = 0.5
    """From one try to connect to the next, give or take some."""


class Line:
    """The gateway's way to Redis."""

    def __init__(
        self, servers: Servers, *, chance: Random, on_change: Callable[[bool], None] = lambda up: None
    ) -> None:
        """Make a line, which `start` opens.

        Args:
            servers: Which.
            chance: For the jitter of tries.
            on_change: Called with whether it is up now, when that changed.

        Raises:
            ValueError: a URL is none of Redis; the message does not quote it.
        """
        first = _split(servers.urls[0])
        default_port = SENTINEL_PORT if servers.service else PORT
        self._seeds = deque(_address(_split(url), default_port) for url in servers.urls)
        self._door = Access(  # to whom the URLs name
            username=unquote(first.username or ""),
            password=unquote(first.password or ""),
            tls=ssl.create_default_context(cafile=servers.ca_file or None) if first.scheme == "rediss" else None,
            timeout_s=servers.timeout_s,
            retry_s=servers.retry_s,
        )
        said = Access() if servers.service else self._door
        self._access = replace(
            self._door,
            username=servers.username or said.username,
            password=servers.password or said.password,
            database=servers.database or _database(first),
        )
        self._servers = servers
        self._chance = chance
        self._on_change = on_change
        self._is_up = True
        self._surveyed_at = float("-inf")
        self._survey_lock = asyncio.Lock()
        self._errand: asyncio.Task[None] | None = None
        """A survey that nobody waits for."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.counts = Counts()
        name = f"{servers.service} of {self._seeds[0]}" if servers.service else str(self._seeds[0])
        self._links = {self._seeds[0]: self._link(name, self._seeds[0])}
        self._by_slot = [self._links[self._seeds[0]]] * (SLOTS if servers.is_cluster else 1)

    def __repr__(self) -> str:
        return f"<Line {', '.join(repr(link) for link in self._links.values())}>"

    @property
    def is_up(self) -> bool:
        """Whether every server answers."""
        return self._is_up

    @property
    def why(self) -> str:
        """Why it is down."""
        return "; ".join(f"{link.name}: {link.why}" for link in self._links.values() if not link.is_up)

    async def start(self) -> None:
        """Connect, or see that it cannot be done now; goes on by itself in either case."""
        (first,) = self._links.values()
        first.open()
        await first.tried()
        for link in list(self._links.values()):  # of a cluster more are known by now
            await link.tried()

    async def close(self) -> None:
        """Let what was asked be answered within its time, and end everything."""
        self._is_closed = True
        await asyncio.gather(*(link.close() for link in self._links.values()))
        if self._errand is not None:
            self._errand.cancel()
            await asyncio.wait([self._errand])
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Answer:
        """Run a script on its keys, and load it where Redis does not know it.

        Args:
            script: The script.
            keys: At least one; all with the same hash tag.
            args: What else the script is given.

        Returns:
            What it returns; strings as bytes.

        Raises:
            LineDown: no answer in time, or Redis is known to be down; the script may have run.
        """
        command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        return await self._send(keys[0], command, script)

    async def ask(self, *command: Part) -> Answer:
        """Run a command; if it has a key, that is its first argument.

        Raises:
            LineDown: as for scripts.
        """
        return await self._send(command[1] if len(command) > 1 else "", command, None)

    def _send(self, key: Part, command: tuple[Part, ...], script: Script | None) -> asyncio.Future[Answer]:
        question = Question(command, asyncio.get_running_loop().create_future(), script)
        self.counts.calls += 1
        self._by_slot[slot_of(key) if self._servers.is_cluster else 0].send(question)
        return question.future

    # Where servers are.

    def _link(self, name: str, at: Address) -> Link:
        async def locate() -> Address:
            if self._servers.service:
                return await self._master()
            if self._servers.is_cluster and time.monotonic() > self._surveyed_at + self._access.retry_s:
                await self._survey()
            return at

        return Link(
            name,
            locate,
            self._access,
            self.counts,
            self._chance,
            on_change=self._look,
            redirect=lambda question, refusal: self._redirect(question, refusal, at),
        )

    def _look(self) -> None:
        """Tell whether all are up, if that changed."""
        is_up = all(link.is_up for link in self._links.values())
        if is_up != self._is_up:
            self._is_up = is_up
            self._on_change(is_up)

    async def _master(self) -> Address:
        """Ask the sentinels, the one that last knew first.

        Raises:
            LineDown: none of them knows.
        """
        for _ in range(len(self._seeds)):
            answer = await _asked(
                self._seeds[0], self._door, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._servers.service
            )
            match answer:
                case [bytes(host), bytes(port)] if port.isdigit():
                    return Address(host.decode(), int(port))
            self._seeds.rotate(-1)
        raise LineDown(f"no sentinel knows a master called {self._servers.service}")

    def _redirect(self, question: Question, refusal: Refusal, teller: Address) -> bool:
        """Follow MOVED and ASK, `MOVED 3999 127.0.0.1:6381`; give whether there was one to follow."""
        if not self._servers.is_cluster or question.hops == MAX_HOPS or self._is_closed:
            return False
        told = ELSEWHERE.fullmatch(str(refusal))
        if told is None or int(told["slot"]) >= SLOTS:
            return False
        link = self._link_to(Address(told["host"] or teller.host, int(told["port"])))
        question.hops += 1
        if told["kind"] == "MOVED":
            self._by_slot[int(told["slot"])] = link
            if self._errand is None or self._errand.done():
                self._errand = asyncio.create_task(self._survey(), name="survey of the cluster")
        else:
            unheard = asyncio.get_running_loop().create_future()
            unheard.cancel()
            link.send(Question(("ASKING",), unheard))
        link.send(question)
        return True

    def _link_to(self, address: Address) -> Link:
        """Give the link to a node of the cluster, opened now if it is new."""
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._link(str(address), address)
            link.open()
        return link

    async def _survey(self) -> None:
        """Learn from any node which node has which slots."""
        async with self._survey_lock:
            known = sorted(self._links, key=lambda address: not self._links[address].is_up)
            for address in dict.fromkeys([*known, *self._seeds]):
                answer = await _asked(address, self._access, "CLUSTER", "SLOTS")
                if isinstance(answer, list) and answer:
                    self._learn(answer, address)
                    self._surveyed_at = time.monotonic()
                    return

    def _learn(self, shares: list[Answer], teller: Address) -> None:
        """Take over who has which slots: `[[first, last, [host, port, …], replicas…], …]`."""
        if self._is_closed:
            return
        current = set()
        for share in shares:
            match share:
                case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                    # A node that does not know its own name is where it was asked.
                    address = Address(host.decode() if isinstance(host, bytes) and host else teller.host, port)
                    link = self._link_to(address)
                    if address not in current:
                        link.probe_key = next(key for key in _probe_keys() if first <= slot_of(key) <= last)
                    self._by_slot[first : last + 1] = [link] * (last + 1 - first)
                    current.add(address)
        if not current:
            return
        staying = self._links[next(iter(current))]
        for address in self._links.keys() - current:
            gone = self._links.pop(address)
            self._by_slot = [staying if link is gone else link for link in self._by_slot]
            task = asyncio.create_task(gone.close(), name=f"close {gone.name}")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        self._look()


async def _asked(address: Address, access: Access, *command: Part) -> Answer:
    """Ask over a connection of its own; no answer, or an error, is None."""
    try:
        wire = await Wire.open(address, access)
        async with wire.unless_it_fails():
            answer = await wire.ask(*command)
        await wire.close()
    except (OSError, LineDown, Refusal):
        return None
    return answer


def slot_of(key: Part) -> int:
    """Give the slot of a key in a cluster: its hash tag's, if it has one (CRC16, as the cluster specification says)."""
    whole = key if isinstance(key, bytes) else str(key).encode()
    _, brace, rest = whole.partition(b"{")
    tag, end, _ = rest.partition(b"}")
    return binascii.crc_hqx(tag if brace and end and tag else whole, 0) % SLOTS


def _probe_keys() -> "map[str]":
    return map(f"{PROBE_KEY}:{{}}".format, count())


def _split(url: str) -> SplitResult:
    """Take a URL apart.

    Raises:
        ValueError: it is none of a Redis; the message quotes nothing, since a part may be of a password.
    """
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in SCHEMES and not parts.query and not parts.fragment and parts.port != 0
        database = parts.path.strip("/")
        says_where = parts.path if parts.scheme == "unix" else parts.hostname and (database.isdigit() or not database)
    except ValueError:
        is_known = says_where = False
    if not is_known or not says_where:
        raise ValueError("not the URL of a Redis: redis://[user:password@]host[:port][/database], rediss:// or unix://")
    return parts


def _address(parts: SplitResult, default_port: int) -> Address:
    if parts.scheme == "unix":
        return Address("", 0, parts.path)
    return Address(parts.hostname or "", parts.port or default_port)


def _database(parts: SplitResult) -> int:
    """Give the database that a URL names by its path."""
    return int(parts.path.strip("/") or 0) if parts.scheme != "unix" else 0
