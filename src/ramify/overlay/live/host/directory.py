"""The files of an overlay on one machine: where `ramify up`, `ramify keys` and clients find each other.

Owns the directory:

    overlay.json               the overlay; a directory belongs to one
    clients.json               client -> broker; `add_clients` edits it, also while the overlay runs
    matchmaking.json           the trees that matches are made over, where brokers do without a coordinator
    movable.json               there when clients may move: every server then admits every client
    rotated.json               keys that were replaced and count for a while yet; `rotate` edits it
    coordinators.json          coordinators beside `coordinator`; `add_coordinators` likewise
    clients/<client>.json      how a client connects (`ClientFile`)
    keys/ brokers/<broker>/    see `Site`; control/ is the store of the control server
    config/<broker>.toml       what a router is started with (`broker_files`)
    logs/<process>.log         what each process says
    samples/                   what the coordinator collects
    running.json               while it runs: where everything is (`RunningFile`)
    lock                       held by the process that runs it

Everything but running.json is kept between runs, ports included.
"""

import fcntl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from ramify.durable import replace_file
from ramify.errors import InputError, LiveError
from ramify.overlay.control.names import token
from ramify.overlay.live.wire.security import (
    BrokerRole,
    ClientRole,
    ControlRole,
    CoordinatorRole,
    KeyRing,
    NeighbourRole,
    OperatorRole,
    Role,
    RouterRole,
    ViewerRole,
    accounts_config,
)
from ramify.overlay.live.wire.streams import Endpoint

__all__ = [
    "COORDINATOR",
    "OPERATOR",
    "VIEWER",
    "ClientFile",
    "Directory",
    "FormerKey",
    "RunningFile",
    "write_json",
]

if TYPE_CHECKING:
    from ramify.network.graphs.overlay import Overlay

COORDINATOR, VIEWER, OPERATOR = "coordinator", "viewer", "operator"
"""Users of the control server beside the brokers: coordinators, who looks (`ramify status`), and who
changes rules and moves clients (`ramify rules`, `ramify move`)."""


class ClientFile(msgspec.Struct, frozen=True):
    """How a client connects: `clients/<token>.json`. Paths are absolute."""

    client: str
    broker: str
    url: str
    seed_file: str


class FormerKey(msgspec.Struct, frozen=True):
    """A key that was replaced, and until when it still counts (seconds since 1970): in `rotated.json`."""

    kind: str
    name: str
    public: str
    until: float


class RunningFile(msgspec.Struct, frozen=True):
    """What runs: `running.json`. With the trees of `matchmaking` there is no control server."""

    pid: int
    started: float
    overlay: str
    control_url: str
    servers: dict[str, str]
    processes: dict[str, int]
    metrics: dict[str, str]
    matchmaking: str = ""


@dataclass(frozen=True)
class Directory:
    """The files of an overlay on this machine. See the module."""

    path: Path

    @property
    def ring(self) -> KeyRing:
        """The keys."""
        return KeyRing(self.path / "keys")

    def create(self, overlay: "Overlay") -> None:
        """Make the directory for an overlay. Raises `InputError` when it belongs to another."""
        from ramify.network.graphs.files import read_overlay, write_overlay

        file = self.path / "overlay.json"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("clients", "config", "logs", "samples", "brokers"):
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the directory: {error.strerror}", path=str(self.path)) from None
        if not file.exists():
            write_overlay(overlay, file)
        kept = read_overlay(file)
        if kept.brokers != overlay.brokers or kept.ends.tolist() != overlay.ends.tolist():
            raise InputError(
                f"holds overlay {kept.name} with {len(kept)} brokers, not {overlay.name} with "
                f"{len(overlay)}: give another directory, or remove this one",
                path=str(self.path),
            )
        if kept != overlay:
            raise InputError(
                f"holds overlay {kept.name}, with another name, other prices, latencies or sites than what "
                "was given: give another directory, or remove this one",
                path=str(self.path),
            )

    @property
    def matchmaking(self) -> str:
        """The trees that matches are made over; empty where coordinators decide."""
        file = self.path / "matchmaking.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=str)
        except FileNotFoundError:
            return ""
        except msgspec.DecodeError as error:
            raise InputError(f"does not name trees: {error}", path=str(file)) from None

    def begin(self, matchmaking: str) -> None:
        """Fix what decides here, before the first run: matches over these trees, or coordinators.

        Raises `InputError` when it was decided otherwise: what is under way would be misread.
        """
        ran = (self.path / "ports.json").exists()
        if ran and self.matchmaking != matchmaking:
            now, then = (
                f"matchmaking over {t} trees" if t else "coordinators"
                for t in (matchmaking, self.matchmaking)
            )
            raise InputError(
                f"was run with {then}, not {now}: give another directory, or remove this one",
                path=str(self.path),
            )
        if matchmaking:
            write_json(self.path / "matchmaking.json", matchmaking)

    def overlay(self) -> "Overlay":
        """The overlay that the directory belongs to."""
        from ramify.network.graphs.files import read_overlay  # compiled graph kernels: `status` has no use

        file = self.path / "overlay.json"
        if not file.exists():
            raise InputError(
                "no overlay here: make one with `ramify up --overlay` or `ramify keys --overlay`",
                path=str(self.path),
            )
        return read_overlay(file)

    def clients(self) -> dict[str, str]:
        """The broker of each client."""
        file = self.path / "clients.json"
        if not file.exists():
            return {}
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        except msgspec.DecodeError as error:
            raise InputError(f"is not a map from clients to brokers: {error}", path=str(file)) from None

    def add_clients(self, clients: Mapping[str, str]) -> None:
        """Attach clients and make their keys. An overlay that runs from here lets them in within a moment.

        Raises `InputError` for a broker that is not there, or a client that is attached elsewhere.
        """
        overlay, known = self.overlay(), self.clients()
        for client, broker in clients.items():
            token(client)
            if broker not in overlay.index:
                raise InputError(
                    f"client {client!r} is to be at {broker!r}: overlay {overlay.name} has no such broker"
                )
            if known.get(client, broker) != broker:
                raise InputError(
                    f"client {client!r} is attached to {known[client]!r}, not {broker!r}: use another name"
                )
            self.ring.pair(ClientRole(client))
        write_json(self.path / "clients.json", known | dict(clients))

    # --------------------------------------------------------------------------------- changing of keys

    def roles_of(self, name: str) -> list[Role]:
        """The users that a name stands for: NAME, or client:NAME where a broker or another has it too."""
        only_client, bare = name.startswith("client:"), name.removeprefix("client:")
        found: list[Role] = []
        if not only_client:
            if name in self.overlay().index:
                found = [RouterRole(name), NeighbourRole(name), BrokerRole(name)]
            elif name in self.coordinators():
                found = [CoordinatorRole(name)]
            elif name in (VIEWER, OPERATOR):
                found = [ViewerRole(name) if name == VIEWER else OperatorRole(name)]
        if bare in self.clients():
            if found:
                raise InputError(
                    f"a client is named {name!r}, and another user too: give client:{name} for the client"
                )
            found = [ClientRole(bare)]
        if not found:
            raise InputError(
                f"nobody here is named {name!r}: give a client, a broker, a coordinator, {VIEWER} or "
                f"{OPERATOR}",
                path=str(self.path),
            )
        return found

    def rotate(self, name: str, overlap_s: float) -> list[Role]:
        """Give a user new keys; the old ones count for so long yet. Returns whose keys are new.

        A server that runs from here takes the new keys within a moment, and then lets go of the old ones
        when their time is over. Whoever reads its key from the file goes on with the new one by itself.
        """
        roles, until = self.roles_of(name), time.time() + overlap_s
        kept = [each for each in self._former_keys() if each.until > time.time()]
        kept += [FormerKey(r.kind, r.name, self.ring.pair(r).public, until) for r in roles]
        self._write_former(kept)
        for role in roles:
            self.ring.replace(role)
        # once more: who watches the file may have looked in between
        self._write_former(kept)
        return roles

    def revoke(self, client: str) -> str:
        """Let a client in no more: its key counts nowhere, nor do those before it. Returns its broker.

        Raises `InputError` for a client that is not there.
        """
        client = client.removeprefix("client:")
        known = self.clients()
        if client not in known:
            raise InputError(f"no client is named {client!r}", path=str(self.path))
        self._write_former([e for e in self._former_keys() if (e.kind, e.name) != ("client", client)])
        broker = known.pop(client)
        write_json(self.path / "clients.json", known)
        self.ring.path(ClientRole(client)).unlink(missing_ok=True)
        self.client_file(client).unlink(missing_ok=True)
        return broker

    def former(self) -> dict[str, tuple[str, str]]:
        """Keys that were replaced and count now, each with the kind and the name of its user."""
        now = time.time()
        return {each.public: (each.kind, each.name) for each in self._former_keys() if each.until > now}

    def _former_keys(self) -> list[FormerKey]:
        file = self.path / "rotated.json"
        if not file.exists():
            return []
        try:
            return msgspec.json.decode(file.read_bytes(), type=list[FormerKey])
        except msgspec.DecodeError as error:
            raise InputError(f"is not a list of keys: {error}", path=str(file)) from None

    def _write_former(self, keys: list[FormerKey]) -> None:
        if keys or (self.path / "rotated.json").exists():
            write_json(self.path / "rotated.json", keys)

    @property
    def movable(self) -> bool:
        """Whether every server admits every client."""
        return (self.path / "movable.json").exists()

    def make_movable(self) -> None:
        """Let every server admit every client, under its own name; an overlay that runs from here does so
        within a moment."""
        if not self.movable:
            write_json(self.path / "movable.json", True)

    def coordinators(self) -> list[str]:
        """The coordinators that may lead or stand by: users of the control server."""
        file = self.path / "coordinators.json"
        if not file.exists():
            return [COORDINATOR]
        try:
            more = msgspec.json.decode(file.read_bytes(), type=list[str])
        except msgspec.DecodeError as error:
            raise InputError(f"is not a list of coordinators: {error}", path=str(file)) from None
        return [COORDINATOR, *more]

    def add_coordinators(self, names: Sequence[str]) -> None:
        """Let coordinators in and make their keys. An overlay that runs from here does so within a moment.

        Raises `InputError` for a name that another user of the control server has.
        """
        known = self.coordinators()
        for name in names:
            if name in (VIEWER, OPERATOR) or name in self.overlay().index:
                raise InputError(f"coordinator {name!r} would have the key of another: use another name")
            self.ring.pair(ControlRole(name))
        more = [*known[1:], *(name for name in dict.fromkeys(names) if name not in known)]
        if more != known[1:]:
            write_json(self.path / "coordinators.json", more)

    def control_accounts(self) -> str:
        """The accounts of the control server: brokers, coordinators, the viewer and the operator."""
        users: list[ControlRole] = [
            *map(BrokerRole, self.overlay().brokers),
            *map(CoordinatorRole, self.coordinators()),
            ViewerRole(VIEWER),
            OperatorRole(OPERATOR),
        ]
        publics = {role: self.ring.pair(role).public for role in users}
        router = self.ring.pair(RouterRole(".control")).public
        return accounts_config(router, {}, {}, publics, self.former())

    def client_file(self, client: str) -> Path:
        """Where it says how a client connects."""
        return self.path / "clients" / f"{token(client)}.json"

    def running(self) -> RunningFile | None:
        """What runs from here; None when nothing does."""
        try:
            found = msgspec.json.decode((self.path / "running.json").read_bytes(), type=RunningFile)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found if self._is_locked() else None

    def lock(self) -> IO[str]:
        """Hold the directory until the file is closed. Raises `InputError` when another process does."""
        file = (self.path / "lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            running = self.running()
            who = f" (process {running.pid})" if running else ""
            raise InputError(
                f"an overlay runs from here{who}: stop it first, or give another directory",
                path=str(self.path),
            ) from None
        return file

    def _is_locked(self) -> bool:
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def viewer(self, control_url: str) -> Endpoint:
        """How `ramify status` reads the control server."""
        return self.control_endpoint(VIEWER, control_url)

    def operator(self, control_url: str) -> Endpoint:
        """How `ramify rules` and `ramify move` reach it."""
        return self.control_endpoint(OPERATOR, control_url)

    def control_endpoint(self, name: str, control_url: str) -> Endpoint:
        """How a broker, coordinator or viewer reaches the control server."""
        role = ControlRole(name)
        seed, file = self.ring.pair(role).seed, self.ring.path(role)
        return Endpoint(control_url, seed, role.inbox_prefix, f"control {name}", seed_file=file)


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON; a reader meanwhile sees the old file or the new one."""
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    except OSError as error:
        raise LiveError(
            f"cannot write {path}: {error.strerror}. Make room, or give another directory"
        ) from None
