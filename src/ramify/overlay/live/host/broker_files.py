"""A broker's settings in a TOML file: what `ramify broker --config FILE` reads and `ramify up` writes.

Owns the form. Seeds stay in files of their own; a path is relative to the directory of the settings.

    name = "v1"
    sample_probability = 0.03            # optional, as all that follows but server and control
    linger_ms = 5.0
    lease_s = 15                         # after so long without a sign of life a broker counts as lost
    insecure_clear_text = true           # speak to other machines without TLS: where nobody else can listen
    client_url = "tls://v1.example.com:4222"   # of the server for clients, if not the url below
    metrics_port = 9100                  # 0 picks one; without it there are no metrics
    tls_ca = "ca.pem"                    # PEM files for servers below with a URL tls://: their signer,
    tls_cert = "v1.pem"                  # and, where they verify clients, this broker's own
    tls_key = "v1.key"

    [server]                             # the broker's own, as its router
    url = "nats://127.0.0.1:15001"
    seed_file = "keys/router-v1.nk"

    [control]                            # the control server
    url = "nats://127.0.0.1:15000"
    seed_file = "keys/control-v1.nk"

    [matchmaking]                        # or instead, without any coordinator (`matchmaker`)
    overlay = "overlay.json"             # the same for all brokers
    trees = "shared"                     # or "per-source"

    [neighbours."v2"]                    # a neighbour's server, as this broker
    url = "tls://v2.example.com:4222"
    seed_file = "keys/link-v1.nk"        # and tls_ca, tls_cert, tls_key where it has others

    [sizes]                              # bytes of streams: published, out, rejected, samples
    [limits]                             # of a client's message: the fields of `Limits`
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ramify.errors import InputError
from ramify.network.graphs.files import read_overlay
from ramify.overlay.control.frames import Limits
from ramify.overlay.control.names import token
from ramify.overlay.live.broker.broker import BrokerConfig
from ramify.overlay.live.broker.controlled import BROKER_LEASE_S, ControlledConfig
from ramify.overlay.live.broker.matchmaker import MatchmakerConfig
from ramify.overlay.live.broker.sampler import DEFAULT_PROBABILITY
from ramify.overlay.live.wire.security import (
    ControlRole,
    NeighbourRole,
    Role,
    RouterRole,
    check_clear_text,
    read_seed,
)
from ramify.overlay.live.wire.streams import Endpoint, Sizes
from ramify.overlay.live.wire.tls import TlsFiles
from ramify.overlay.matchmaking.places import SHARED, TREES, places_of_overlay

__all__ = ["BrokerFile", "MatchEntry", "ServerEntry", "read_broker_file", "write_broker_file"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server, the file of the seed to connect with (None for a server that asks for none), and TLS: what
    is set there makes TLS a must, as a URL tls:// does."""

    url: str
    seed_file: Path | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)


@dataclass(frozen=True, slots=True)
class MatchEntry:
    """The overlay file and the trees that all brokers make matches over."""

    overlay: Path
    trees: str = SHARED


@dataclass(frozen=True)
class BrokerFile:
    """What a file says: either a control server or matchmaking."""

    name: str
    server: ServerEntry
    control: ServerEntry | None
    neighbours: Mapping[str, ServerEntry]
    sizes: Sizes = field(default_factory=Sizes)
    limits: Limits = field(default_factory=Limits)
    linger_ms: float = 5.0
    sample_probability: float = DEFAULT_PROBABILITY
    metrics_port: int | None = None
    lease_s: int = BROKER_LEASE_S
    matchmaking: MatchEntry | None = None
    client_url: str = ""
    insecure_clear_text: bool = False

    def config(self) -> ControlledConfig | MatchmakerConfig:
        """The settings with the seeds and TLS contexts.

        Raises `InputError` for a seed that is missing or open to others, for a PEM file that is none, and
        for an overlay without this broker.
        """
        broker = BrokerConfig(
            self.name,
            self._endpoint(self.server, RouterRole(self.name)),
            {n: self._endpoint(entry, NeighbourRole(self.name)) for n, entry in self.neighbours.items()},
            sizes=self.sizes,
            limits=self.limits,
            linger_s=self.linger_ms / 1000,
            client_url=self.client_url,
        )
        if self.matchmaking is not None:
            places = places_of_overlay(read_overlay(self.matchmaking.overlay), self.matchmaking.trees)
            if self.name not in places:
                reason = f"no broker {self.name!r} is in this overlay"
                raise InputError(reason, path=str(self.matchmaking.overlay))
            return MatchmakerConfig(broker, places[self.name])
        if self.control is None:
            raise InputError(f"broker {self.name!r} has neither a control server nor matchmaking")
        control = self._endpoint(self.control, ControlRole(self.name))
        return ControlledConfig(broker, control, self.sample_probability, self.lease_s)

    def _endpoint(self, entry: ServerEntry, role: Role) -> Endpoint:
        seed = None if entry.seed_file is None else read_seed(entry.seed_file).seed
        name, insecure = f"{role.kind} {role.name}", self.insecure_clear_text
        context = entry.tls.context()
        return Endpoint(entry.url, seed, role.inbox_prefix, name, context, insecure, entry.seed_file)


class _Tls(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


class _Entry(_Tls, forbid_unknown_fields=True):
    url: str
    seed_file: str | None = None


class _Match(msgspec.Struct, forbid_unknown_fields=True):
    overlay: str
    trees: str = SHARED


class _File(_Tls, forbid_unknown_fields=True):
    name: str
    server: _Entry
    control: _Entry | None = None
    matchmaking: _Match | None = None
    neighbours: dict[str, _Entry] = {}
    sizes: dict[str, int] = {}
    limits: dict[str, int] = {}
    linger_ms: float = 5.0
    sample_probability: float = DEFAULT_PROBABILITY
    metrics_port: int | None = None
    lease_s: int = BROKER_LEASE_S
    client_url: str = ""
    insecure_clear_text: bool = False


def read_broker_file(path: str | os.PathLike[str]) -> BrokerFile:
    """Read settings. Raises `InputError` that names the file and the key."""
    where = Path(path)
    try:
        found = msgspec.convert(tomllib.loads(where.read_text(encoding="utf-8")), _File)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start})", path=str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", path=str(path)) from None
    except msgspec.ValidationError as error:
        raise InputError(f"wrong settings: {error}", path=str(path)) from None
    try:
        return _checked(found, where.absolute().parent)
    except InputError as error:
        raise InputError(error.reason, path=str(path)) from None


def _checked(found: _File, base: Path) -> BrokerFile:
    token(found.name)
    for name in found.neighbours:
        token(name)
        if name == found.name:
            raise InputError(f"neighbours.{name}: a broker is not a neighbour of itself")
    if not 0.0 <= found.sample_probability <= 1.0:
        raise InputError(f"sample_probability is {found.sample_probability}: give 0 to 1")
    if not 0.0 <= found.linger_ms <= 1000.0:
        raise InputError(f"linger_ms is {found.linger_ms}: give 0 to 1000")
    if not 1 <= found.lease_s <= 3600:
        raise InputError(f"lease_s is {found.lease_s}: give 1 to 3600 whole seconds")
    if found.metrics_port is not None and not 0 <= found.metrics_port < 1 << 16:
        raise InputError(f"metrics_port is {found.metrics_port}: give 0 to 65535")
    if (found.control is None) == (found.matchmaking is None):
        raise InputError("give either control, the control server, or matchmaking")
    if found.matchmaking is not None and found.matchmaking.trees not in TREES:
        raise InputError(
            f"matchmaking.trees is {found.matchmaking.trees[:40]!r}: give {' or '.join(TREES)}"
        )
    if found.client_url:
        _check_url("client_url", found.client_url)
        check_clear_text(found.client_url, insecure=found.insecure_clear_text, key="client_url")
    common = _tls(found, base)
    entries = {"server": found.server, **{f"neighbours.{n}": e for n, e in found.neighbours.items()}}
    for key, entry in (entries | ({} if found.control is None else {"control": found.control})).items():
        _check_url(f"{key}.url", entry.url)
        tls = _tls(entry, base) != TlsFiles()
        check_clear_text(entry.url, tls=tls, insecure=found.insecure_clear_text, key=f"{key}.url")
    return BrokerFile(
        found.name,
        _entry(found.server, base, common),
        None if found.control is None else _entry(found.control, base, common),
        {name: _entry(entry, base, common) for name, entry in found.neighbours.items()},
        _made(Sizes, "sizes", found.sizes),
        _made(Limits, "limits", found.limits),
        found.linger_ms,
        found.sample_probability,
        found.metrics_port,
        found.lease_s,
        None
        if found.matchmaking is None
        else MatchEntry(base / found.matchmaking.overlay, found.matchmaking.trees),
        found.client_url,
        found.insecure_clear_text,
    )


def _check_url(key: str, url: str) -> None:
    if not url.startswith(("nats://", "tls://")) or len(url) < 8:
        raise InputError(f"{key} is {url[:80]!r}: give nats://host:port or tls://host:port")


def _entry(entry: _Entry, base: Path, common: TlsFiles) -> ServerEntry:
    own = _tls(entry, base)
    if own == TlsFiles() and entry.url.startswith("tls://"):
        own = common
    return ServerEntry(entry.url, None if entry.seed_file is None else base / entry.seed_file, own)


def _tls(found: _Tls, base: Path) -> TlsFiles:
    files = (found.tls_ca, found.tls_cert, found.tls_key)
    return TlsFiles(*(None if file is None else base / file for file in files))


def _made(type_: type[_T], key: str, values: Mapping[str, int]) -> _T:
    known = [each.name for each in fields(type_)]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            raise InputError(f"{key}.{name} is not a setting: give {', '.join(known)}")
        if value < 1:
            raise InputError(f"{key}.{name} is {value}: give 1 or more")
    return type_(**values)


def write_broker_file(path: str | os.PathLike[str], settings: BrokerFile) -> None:
    """Write settings; the file is replaced whole. Reading it gives the same settings."""
    lines = [
        f"name = {_text(settings.name)}",
        f"sample_probability = {float(settings.sample_probability)!r}",
        f"linger_ms = {float(settings.linger_ms)!r}",
        f"lease_s = {settings.lease_s}",
    ]
    if settings.insecure_clear_text:
        lines.append("insecure_clear_text = true")
    if settings.client_url:
        lines.append(f"client_url = {_text(settings.client_url)}")
    if settings.metrics_port is not None:
        lines.append(f"metrics_port = {settings.metrics_port}")
    if settings.matchmaking is not None:
        made = settings.matchmaking
        lines += [
            "",
            "[matchmaking]",
            f"overlay = {_text(str(made.overlay))}",
            f"trees = {_text(made.trees)}",
        ]
    entries = {"server": settings.server}
    if settings.control is not None:
        entries["control"] = settings.control
    entries |= {f"neighbours.{_text(name)}": entry for name, entry in sorted(settings.neighbours.items())}
    for key, entry in entries.items():
        lines += ["", f"[{key}]", f"url = {_text(entry.url)}"]
        if entry.seed_file is not None:
            lines.append(f"seed_file = {_text(str(entry.seed_file))}")
        files = {"tls_ca": entry.tls.ca, "tls_cert": entry.tls.cert, "tls_key": entry.tls.key}
        lines += [f"{name} = {_text(str(file))}" for name, file in files.items() if file is not None]
    tables: dict[str, Any] = {"sizes": settings.sizes, "limits": settings.limits}
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{f.name} = {getattr(table, f.name)}" for f in fields(table))]
    where = Path(path)
    part = where.with_name(f".{where.name}.part")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        part.write_text("\n".join([*lines, ""]), encoding="utf-8")
        part.replace(where)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None


def _text(value: str) -> str:
    """A basic string of TOML: as in JSON, but DEL must be escaped too."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
