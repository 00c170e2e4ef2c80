"""A whole overlay on this machine: servers, routers and a coordinator, started and stopped together.

Owns the processes; the files they run from are `Directory`. Every process that was started ends with
`stop()`, or with this process however it ends. Servers and processes that die are started again.
"""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

import msgspec
from nats.aio.client import Client as Nats
from nats.errors import NoRespondersError

from ramify.errors import RamifyError
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.frames import Limits
from ramify.overlay.control.names import PROBE, PUBLISH, token
from ramify.overlay.live.broker.controlled import BROKER_LEASE_S
from ramify.overlay.live.broker.sampler import DEFAULT_PROBABILITY
from ramify.overlay.live.host.broker_files import BrokerFile, MatchEntry, ServerEntry, write_broker_file
from ramify.overlay.live.host.directory import (
    COORDINATOR,
    ClientFile,
    Directory,
    RunningFile,
    write_json,
)
from ramify.overlay.live.host.heartbeat import ENVIRONMENT, Pulse
from ramify.overlay.live.host.server import (
    OwnProcess,
    Server,
    ServerConfig,
    ServerError,
    Supervisor,
    die_with_parent,
)
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.pauses import FULL_CODES, REPEAT_LOG_S
from ramify.overlay.live.wire.security import ClientRole, ControlRole, NeighbourRole, Role, RouterRole
from ramify.overlay.live.wire.streams import Endpoint, Sizes, api, connect, sparing

__all__ = ["Child", "ClientFile", "Directory", "Machine", "MachineConfig", "RunningFile", "StreamProbe"]

_log = logging.getLogger(__name__)

PROCESS = "ramify.overlay.live.host.process"
_PROBE = "PROBE"
_PROBE_EVERY_S = 5.0
_CHILD_LOOK_S = 0.5
_STOP_LIMIT_S = 20.0
_SILENT_S = 60.0
"""After which a process whose event loop does not run is started again; steps and plans take seconds."""
_LOG_STUCK_S = 15.0
_LEAST_DISK_BYTES = 4 << 20
_PROBE_ANSWER_S = 4.0


class Child(OwnProcess):
    """A process of ours with its log. Ends with us; `Supervisor` restarts it."""

    def __init__(self, name: str, arguments: Iterable[str], log: Path) -> None:
        super().__init__()
        self._name = name
        self._arguments = list(arguments)
        self.log = log
        self.pulse = Pulse()

    @property
    def name(self) -> str:
        """For people."""
        return self._name

    async def start(self) -> None:
        """Start it; nothing to do when it runs. Raises `ServerError`."""
        if self.alive:
            return
        beats = self.pulse.pipe()
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, ENVIRONMENT: str(beats)},
                    pass_fds=(beats,),
                    # a Ctrl-C in the terminal is for us alone: we end them in order
                    start_new_session=True,
                    preexec_fn=die_with_parent(),
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerError(f"cannot start {self._name}: {error}") from None
        finally:
            os.close(beats)

    async def stop(self, limit_s: float = _STOP_LIMIT_S) -> None:
        """As every process; routers need a while to leave in order."""
        await super().stop(limit_s)
        self.pulse.close()

    async def beats(self) -> bool:
        """Whether its event loop was heard of late; for `Supervisor`. One that starts counts as heard."""
        return self.pulse.silent_s < _SILENT_S

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - (16 << 10)))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


@dataclass(frozen=True)
class MachineConfig:
    """What runs on this machine.

    `processes` routers' processes share the brokers: a process costs memory and start-up time, so there are
    few. `coordinator` is the command of the coordinator, without its name and the address of the control
    server; `standbys` are the commands of others beside it. With `matchmaking`, the trees that brokers make
    matches over, there is neither. With `sync_always` servers acknowledge what is on their disks.
    """

    overlay: Overlay
    directory: Directory
    coordinator: Sequence[str] = ()
    processes: int = 2
    sizes: Sizes = field(default_factory=Sizes)
    limits: Limits = field(default_factory=Limits)
    sample_probability: float = DEFAULT_PROBABILITY
    lease_s: int = BROKER_LEASE_S
    standbys: Sequence[Sequence[str]] = ()
    matchmaking: str = ""
    sync_always: bool = False


class Machine:
    """See the module. `start`, then `watch` until cancelled, then `stop`."""

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.directory = config.directory
        self._lock: IO[str] | None = None
        self._servers: dict[str, Supervisor] = {}
        self._children: dict[str, Supervisor] = {}
        self._probes: list[StreamProbe] = []
        self.started_at = time.time()
        self._attached: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------ start

    async def start(self) -> RunningFile:
        """Start all processes; returns when servers listen and processes run, not when they route."""
        self.directory.create(self.config.overlay)
        self._lock = self.directory.lock()
        self.directory.begin(self.config.matchmaking)
        self._attached = self.directory.clients()
        self.directory.add_coordinators([_standby(i) for i in range(len(self.config.standbys))])
        await self._start_servers()
        configs = self.directory.path / "config"
        for broker in self.config.overlay.brokers:
            write_broker_file(configs / f"{token(broker)}.toml", self._broker_file(broker))
        self._write_clients()
        for name, arguments in self._commands(configs):
            child = Child(name, arguments, self.directory.path / "logs" / f"{name}.log")
            self._children[name] = Supervisor(child, child.beats, every_s=_CHILD_LOOK_S)
            await self._children[name].start()
        return self._write_running()

    async def _start_servers(self) -> None:
        ports = _read_ports(self.directory.path / "ports.json")
        site = self._site()
        for broker in self.config.overlay.brokers:
            server = site.server(broker, port=ports.get(broker, 0))
            user = site.endpoint(RouterRole(broker), "nats://127.0.0.1")
            probe = StreamProbe(server, user, partial(self._log_stuck_s, broker))
            self._probes.append(probe)
            self._servers[broker] = _watched(server, probe)
        if not self.config.matchmaking:
            control = Server(self._control_config(ports.get("", 0)))
            probe = StreamProbe(control, self.directory.control_endpoint(COORDINATOR, "nats://127.0.0.1"))
            self._probes.append(probe)
            self._servers[""] = _watched(control, probe)
        await asyncio.gather(*(_start_anywhere(each) for each in self._servers.values()))
        found = {name: _server(each).config.port for name, each in self._servers.items()}
        write_json(self.directory.path / "ports.json", found)

    def _commands(self, configs: Path) -> list[tuple[str, list[str]]]:
        commands = {} if self.config.matchmaking else {COORDINATOR: self.config.coordinator}
        commands |= {_standby(i): each for i, each in enumerate(self.config.standbys)}
        found: list[tuple[str, list[str]]] = []
        for name, command in commands.items():
            seed = self.directory.ring.path(ControlRole(name))
            where = ["--control", self.control_url, "--key", str(seed), "--name", name]
            found.append((name, [*command, *where, *self._announced(name)]))
        brokers = self.config.overlay.brokers
        processes = max(1, min(self.config.processes, len(brokers)))
        for i in range(processes):
            files = [str(configs / f"{token(broker)}.toml") for broker in brokers[i::processes]]
            name = f"routers-{i + 1}"
            found.append(
                (
                    name,
                    [
                        sys.executable,
                        "-m",
                        PROCESS,
                        *files,
                        *self._announced(name),
                    ],
                )
            )
        return found

    def _log_stuck_s(self, broker: str) -> float:
        """For how long the log of a broker has taken no write, as its router says."""
        children = [each.server for each in self._children.values()]
        return max((c.pulse.stuck.get(broker, 0.0) for c in children if isinstance(c, Child)), default=0.0)

    def _announced(self, process: str) -> list[str]:
        """Let a process serve metrics on a free port and say where."""
        file = self.directory.path / "logs" / f"{process}.json"
        file.unlink(missing_ok=True)
        return ["--metrics-port", "0", "--announce", str(file)]

    def _broker_file(self, broker: str) -> BrokerFile:
        site, ring, urls = self._site(), self.directory.ring, self.urls

        def entry(role: Role, url: str) -> ServerEntry:
            ring.pair(role)
            return ServerEntry(url, ring.path(role).absolute())

        trees = self.config.matchmaking
        return BrokerFile(
            broker,
            entry(RouterRole(broker), urls[broker]),
            None if trees else entry(ControlRole(broker), self.control_url),
            {name: entry(NeighbourRole(broker), urls[name]) for name in site.neighbours(broker)},
            self.config.sizes,
            self.config.limits,
            sample_probability=self.config.sample_probability,
            lease_s=self.config.lease_s,
            matchmaking=MatchEntry(self.directory.path / "overlay.json", trees) if trees else None,
        )

    def _site(self) -> BrokerSite:
        directory, sizes = self.directory, self.config.sizes
        return BrokerSite(
            self.config.overlay,
            directory.path,
            self._attached,
            sizes,
            directory.movable,
            directory.former(),
            self.config.sync_always,
        )

    def _control_config(self, port: int) -> ServerConfig:
        accounts = self.directory.control_accounts()
        return ServerConfig(
            ".control",
            self.directory.path / "control",
            accounts,
            port=port,
            sync_always=self.config.sync_always,
        )

    @property
    def urls(self) -> dict[str, str]:
        """The servers of the brokers."""
        return {name: _server(each).url for name, each in self._servers.items() if name}

    @property
    def control_url(self) -> str:
        """The control server; empty when there is none."""
        return _server(self._servers[""]).url if "" in self._servers else ""

    def _write_clients(self) -> None:
        ring = self.directory.ring
        for client, broker in self._attached.items():
            seed = ring.path(ClientRole(client)).absolute()
            ring.pair(ClientRole(client))
            row = ClientFile(client, broker, self.urls[broker], str(seed))
            write_json(self.directory.client_file(client), row)

    def _write_running(self) -> RunningFile:
        children = {name: each.server for name, each in self._children.items()}
        pids = {name: child.pid or 0 for name, child in children.items() if isinstance(child, Child)}
        metrics = {name: url for name in children if (url := self._metrics(name))}
        name, urls = self.config.overlay.name, self.urls
        found = RunningFile(
            *(os.getpid(), self.started_at, name, self.control_url, urls, pids, metrics),
            self.config.matchmaking,
        )
        write_json(self.directory.path / "running.json", found)
        return found

    def _metrics(self, process: str) -> str | None:
        try:
            said = json.loads((self.directory.path / "logs" / f"{process}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return str(said["metrics"])

    # ------------------------------------------------------------------------------------------ watch

    async def watch(self) -> None:
        """Let in who is added, keep out whose key no longer counts, and keep `running.json` true, until
        cancelled.

        Those that cannot be let in now (their server is down, the file is damaged) are tried again.
        """
        names = ("clients.json", "coordinators.json", "movable.json", "rotated.json")
        files = [self.directory.path / name for name in names]
        # nothing: some may have been added since the start
        seen: object = None
        told: object = None
        trouble = ""
        while True:
            await asyncio.sleep(_CHILD_LOOK_S)
            now = [_stamp(file) for file in files], self._former()
            if now != seen:
                try:
                    await self._let_in(self.directory.clients())
                    await self._let_coordinators_in()
                    seen, trouble = now, ""
                except RamifyError as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        _log.warning("changes of users wait: %s", trouble)
            children = {name: each.server for name, each in self._children.items()}
            found = [(c.pid, self._metrics(name)) for name, c in children.items() if isinstance(c, Child)]
            if found != told:
                told = found
                self._write_running()

    async def _let_in(self, clients: Mapping[str, str]) -> None:
        site = replace(self._site(), clients=clients)
        for broker in self.config.overlay.brokers:
            server = _server(self._servers[broker])
            if (accounts := site.accounts(broker)) != server.config.accounts:
                await server.reload(accounts)
        self._attached = dict(clients)
        self._write_clients()

    def _former(self) -> object:
        """The keys that were replaced and count now: they end with time."""
        try:
            return self.directory.former()
        except RamifyError:
            return None

    async def _let_coordinators_in(self) -> None:
        if self.config.matchmaking:
            return
        accounts = self.directory.control_accounts()
        control = _server(self._servers[""])
        if accounts != control.config.accounts:
            await control.reload(accounts)

    @property
    def restarts(self) -> dict[str, int]:
        """How often each process had to be started again."""
        both = {**self._servers, **self._children}
        return {each.server.name: each.restarts for each in both.values() if each.restarts}

    def failed(self) -> str | None:
        """What a process that ended says at its end; None while all run."""
        for each in self._children.values():
            if isinstance(each.server, Child) and not each.server.alive:
                return f"{each.server.name} ended; the end of {each.server.log}:\n{each.server.tail()}"
        return None

    # ------------------------------------------------------------------------------------------- stop

    async def stop(self) -> None:
        """End everything that was started: the processes first, then the servers under them."""
        for group in (self._children, self._servers):
            if group is self._servers:
                # while the servers are there: then they close at once
                await asyncio.gather(*(probe.close() for probe in self._probes), return_exceptions=True)
            await asyncio.gather(*(each.stop() for each in group.values()), return_exceptions=True)
        (self.directory.path / "running.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()


async def _start_anywhere(supervisor: Supervisor) -> None:
    """Start a server on the port of the last run, or another when somebody has that now."""
    try:
        await supervisor.start()
    except ServerError:
        server = _server(supervisor)
        if server.config.port == 0:
            raise
        # the same server: its probe must go where it is
        server.config = replace(server.config, port=0)
        await supervisor.start()


def _watched(server: Server, probe: "StreamProbe") -> Supervisor:
    """Whether it lives is looked at more often than it is probed: while it is away its broker routes
    nothing, and without the control server no lease is renewed."""
    return Supervisor(server, probe, every_s=_CHILD_LOOK_S, probe_every_s=_PROBE_EVERY_S)


def _standby(i: int) -> str:
    return f"{COORDINATOR}-{i + 2}"


def _server(supervisor: Supervisor) -> Server:
    server = supervisor.server
    assert isinstance(server, Server)
    return server


class StreamProbe:
    """Whether a server's file streams take messages: after a full disk they do not until it is restarted.

    A stream that could not be written stays dead while others of the same server work, so a broker's own
    streams are asked: IN by a message that its router takes for nothing, OUT by what the router says of its
    log (`log_stuck_s`; the router writes a position for the message). The control server, without these,
    has a stream of one message. `user` is who asks; its URL does not count. While the disk is full a
    restart is of no use: that is told, and waited for. `close` it, or its connection never ends trying.
    """

    def __init__(
        self, server: Server, user: Endpoint, log_stuck_s: Callable[[], float] | None = None
    ) -> None:
        self._server, self._user, self._log_stuck_s = server, user, log_stuck_s
        self._connection: Nats | None = None
        self._made = False
        self._say = sparing(partial(_log.error, "%s: %s", server.name), REPEAT_LOG_S)

    async def __call__(self) -> bool:
        """Ask. Raises whatever goes wrong."""
        try:
            if await self._takes() and (self._log_stuck_s is None or self._log_stuck_s() < _LOG_STUCK_S):
                return True
            why = "its streams take no messages"
        except Exception as error:
            why = str(error) or repr(error)
        free = shutil.disk_usage(self._server.config.store).free
        if free >= _LEAST_DISK_BYTES:
            raise ServerError(why)
        self._say(OSError(f"the disk of its store is full ({free} bytes are left): make room. {why}"))
        return True

    async def _takes(self) -> bool:
        if self._connection is None:
            endpoint = replace(self._user, url=self._server.url, inbox_prefix="_I.probe", name="probe")
            self._connection = await connect(endpoint)
        if self._log_stuck_s is not None:
            try:
                told = await self._connection.request(f"{PUBLISH}.{PROBE}", b"", timeout=_PROBE_ANSWER_S)
            except NoRespondersError:
                return True  # its router makes the stream: there is nothing to lose yet
            error = json.loads(told.data).get("error")
            # a stream that is full lives
            return error is None or error.get("err_code") in FULL_CODES
        if not self._made:
            config = {
                "name": _PROBE,
                "subjects": ["probe"],
                "max_msgs": 1,
                "max_bytes": 1 << 16,
                "storage": "file",
                "discard": "old",
            }
            await api(self._connection, f"STREAM.CREATE.{_PROBE}", config)
        # after any fault the stream is made again: it may never have come to be, or be gone
        self._made = False
        told = await self._connection.request("probe", b"1", timeout=_PROBE_ANSWER_S)
        self._made = "error" not in json.loads(told.data)
        return self._made

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            await self._connection.close()


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return found.st_mtime_ns, found.st_ino


def _read_ports(file: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
