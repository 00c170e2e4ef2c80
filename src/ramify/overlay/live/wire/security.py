"""What each user may do on a broker's server: keys, roles, and the accounts of its configuration.

Owns the NKeys on disk, the subjects each role may use, and the text of `accounts` and `tls`. Pure but for
the key files; it starts nothing.

Two accounts, because a server does not check reply subjects against permissions: in one account a client
could name a lane of OUT as the reply of its publish, and the server itself would write there. RAMIFY holds
the streams and the router alone. EDGE holds neighbours and clients; it imports a few services, and every
user of it may ask only those that carry its own name and listen only below its own inbox prefix. An answer
that crosses accounts ends in EDGE: it enters no stream and no other service.

Each client has an account of its own, CLIENT_<token>, that imports the same services. A server counts
connections by account and not by user, so only there can one client's connections be bounded without those
of others. An account takes some 100 kB of a server's memory; more than `MOST_CLIENT_ACCOUNTS` clients share
EDGE with the neighbours, and their connections are not bounded.

The control server likewise: CONTROL holds the store and the coordinators, which may do everything there.
Each broker, viewer and operator has an account of its own, CONTROL_<token>, that imports what it needs: to
read the store, notices of changes, and to write its own keys. None of them creates a consumer. A consumer
delivers wherever its creator says, past all permissions, also into another's subject or stream.

What remains on brokers' servers: a neighbour can have its own answers sent to another neighbour's inbox
*if it knows the subject*. So inboxes end in random parts (nats-py does this), and nobody subscribes to a
whole prefix.
"""

import base64
import binascii
import ipaddress
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import nkeys  # type: ignore[import-untyped]

from ramify.errors import InputError
from ramify.overlay.control.names import (
    BUCKET,
    CHANGED,
    CLIENT,
    CONTROL,
    COORDINATE,
    DELIVER,
    OPERATE,
    OUT,
    PUBLISH,
    STORE_GET,
    STORE_INFO,
    inbox_prefix,
    token,
)

__all__ = [
    "CLIENT_CONNECTIONS",
    "CLIENT_SUBSCRIPTIONS",
    "INFO",
    "LAST",
    "MOST_CLIENT_ACCOUNTS",
    "BrokerRole",
    "ClientRole",
    "ControlRole",
    "CoordinatorRole",
    "KeyPair",
    "KeyRing",
    "NeighbourRole",
    "OperatorRole",
    "Role",
    "RouterRole",
    "Tls",
    "ViewerRole",
    "accounts_config",
    "check_clear_text",
    "check_listen",
    "new_user",
    "pair_of",
    "quote",
    "read_seed",
    "tls_config",
]

_LONGEST_FILE_NAME = 255

CLIENT_CONNECTIONS = 64
"""Connections that one client may have to a server."""

MOST_CLIENT_ACCOUNTS = 1_000
"""Clients of a server that have an account each."""

CLIENT_SUBSCRIPTIONS = 256
"""NATS subscriptions that each connection of a client may have: one for answers, one for its lane, and room
for libraries that need more."""

_SERVICES = (
    (f"{PUBLISH}.*", "single"),
    (f"{CONTROL}.*", "single"),
    (f"$JS.API.CONSUMER.RESET.{OUT}.*", "single"),
    # one pull brings many messages
    (f"$JS.API.CONSUMER.MSG.NEXT.{OUT}.*", "stream"),
    (f"$JS.ACK.{OUT}.*.>", "single"),
)
"""What EDGE may ask of RAMIFY under the same subject, and how many answers a request has."""

_KEY = f"$KV.{BUCKET}"
_INBOXES = "_I"
BROKER_KEYS = ("brokers", "reports", "status")
"""The keys of the store that a broker writes, each followed by its token: its lease, what it has done, its
counters."""

SAMPLED = "samples"
"""Followed by a broker's token: the events that it sampled."""

_STORE_API = (
    (f"$JS.API.STREAM.INFO.KV_{BUCKET}", STORE_INFO),
    (f"$JS.API.STREAM.MSG.GET.KV_{BUCKET}", STORE_GET),
)
"""What users of the control server read the store with. Under subjects of our own, as `INFO` below."""

INFO = "ramify.info"
"""Followed by a consumer's name: the state of that consumer of OUT, for its reader.

Under a subject of our own: to `$JS.API.CONSUMER.INFO` the server answers twice, once for EDGE, which has no
JetStream, and that refusal comes first (seen with 2.15.1; RESET and MSG.NEXT have one answer).
"""

LAST = "ramify.last"
"""Followed by a client's token: the last message on its lane, for readers that must know its end."""

_INFO_API = f"$JS.API.CONSUMER.INFO.{OUT}.*"
_LAST_API = f"$JS.API.DIRECT.GET.{OUT}.{DELIVER}.*"
_RENAMED = ((_INFO_API, f"{INFO}.*"), (_LAST_API, f"{LAST}.*"))


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A user's key. The seed is the secret and stays out of `repr`; the public key goes to servers."""

    seed: str = field(repr=False)
    public: str


def new_user() -> KeyPair:
    """A new user key from the system's entropy."""
    return pair_of(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode())


def pair_of(seed: str) -> KeyPair:
    """The pair of a user's seed. Raises `InputError` for a seed that is damaged or not a user's.

    The message never holds the seed. The checksum is compared here, since `nkeys` skips it.
    """
    try:
        prefix, raw = nkeys.decode_seed(bytearray(seed, "ascii"))
        whole = nkeys.encode_seed(bytes(raw), prefix).decode() == seed
    except (nkeys.NkeysError, ValueError):
        whole, prefix = False, None
    if not whole or prefix != nkeys.PREFIX_BYTE_USER:
        raise InputError("this is not the NKey seed of a user (58 characters from SU...), or it is damaged")
    return KeyPair(seed, nkeys.from_seed(bytearray(seed, "ascii")).public_key.decode())


@dataclass(frozen=True, slots=True)
class Role:
    """A named user of a server. It may use no more than the subjects here."""

    kind: ClassVar[str]
    name: str

    @property
    def token(self) -> str:
        """The name as part of a subject."""
        return token(self.name)

    @property
    def inbox_prefix(self) -> str:
        """Answers to this user arrive below it."""
        return inbox_prefix(self.kind, self.name)

    @property
    def publish(self) -> tuple[str, ...] | None:
        """Subjects it may publish to; None for all of its account."""
        return None

    @property
    def subscribe(self) -> tuple[str, ...] | None:
        """Subjects it may subscribe to; None for all of its account."""
        return None


class RouterRole(Role):
    """The router of a broker, alone in RAMIFY on its own server: everything there."""

    __slots__ = ()
    kind = "router"


class ControlRole(Role):
    """A user of the control server, of whatever kind: its key, and where answers to it go.

    Kinds share one set of names. Each but a coordinator is alone in its account, so any inbox there is its
    own.
    """

    __slots__ = ()
    kind = "control"

    @property
    def notices(self) -> tuple[str, ...]:
        """The changes of the store that it may hear of."""
        return (f"{CHANGED}.>",)

    @property
    def writes(self) -> tuple[str, ...]:
        """What it may ask or write beside reading the store."""
        return ()

    @property
    def publish(self) -> tuple[str, ...] | None:
        """Reading the store, and its own subjects."""
        return (STORE_INFO, STORE_GET, *self.writes)

    @property
    def subscribe(self) -> tuple[str, ...] | None:
        """Its inboxes and the notices."""
        return (f"{_INBOXES}.>", *self.notices)


class CoordinatorRole(ControlRole):
    """A coordinator, leading or standing by: everything in CONTROL."""

    __slots__ = ()

    @property
    def publish(self) -> None:
        """All of CONTROL."""

    @property
    def subscribe(self) -> None:
        """All of CONTROL."""


class BrokerRole(ControlRole):
    """A broker on the control server: its lease, its reports, its state, its samples, its clients'
    requests."""

    __slots__ = ()

    @property
    def notices(self) -> tuple[str, ...]:
        """What the leader decided, and moves."""
        return tuple(f"{CHANGED}.{key}{below}" for key in ("state", "moves") for below in ("", ".>"))

    @property
    def writes(self) -> tuple[str, ...]:
        """All of it under its own name."""
        own = self.token
        keys = tuple(f"{_KEY}.{kind}.{own}" for kind in BROKER_KEYS)
        return (*keys, f"{SAMPLED}.{own}", f"{COORDINATE}.{own}")


class ViewerRole(ControlRole):
    """One who looks: `ramify status`. It changes nothing."""

    __slots__ = ()


class OperatorRole(ControlRole):
    """One who may change rules and have clients moved."""

    __slots__ = ()

    @property
    def writes(self) -> tuple[str, ...]:
        """The record of rules, and wishes to the leader."""
        return (f"{_KEY}.rules", f"{OPERATE}.{self.token}")


class NeighbourRole(Role):
    """A neighbouring broker: it reads its own link."""

    __slots__ = ()
    kind = "link"

    @property
    def publish(self) -> tuple[str, ...]:
        """Its own consumer of OUT."""
        return _lane(f"{self.kind}_{self.token}")

    @property
    def subscribe(self) -> tuple[str, ...]:
        """Its own inbox."""
        return (f"{self.inbox_prefix}.>",)


class ClientRole(Role):
    """A client: it publishes and asks under its own name, and reads its own deliveries."""

    __slots__ = ()
    kind = CLIENT

    @property
    def publish(self) -> tuple[str, ...]:
        """Its own publishes and requests, its own consumer of OUT, and the end of its own lane."""
        own = self.token
        return (
            f"{PUBLISH}.{own}",
            f"{CONTROL}.{own}",
            f"{LAST}.{own}",
            *_lane(f"{self.kind}_{own}"),
        )

    @property
    def subscribe(self) -> tuple[str, ...]:
        """Its own inbox."""
        return (f"{self.inbox_prefix}.>",)


def _lane(consumer: str) -> tuple[str, ...]:
    """Pull, acknowledge, reset and look at one consumer of OUT; not create, change or delete it."""
    api = "$JS.API.CONSUMER"
    calls = tuple(f"{api}.{call}.{OUT}.{consumer}" for call in ("MSG.NEXT", "RESET"))
    return (*calls, f"{INFO}.{consumer}", f"$JS.ACK.{OUT}.{consumer}.>")


class KeyRing:
    """Seeds in one directory, a file `<kind>-<token>.nk` for each user, made once and then reused.

    The directory has mode 0700 and the files 0600; anything wider is refused, since a reader of a seed may
    have kept it. A file appears whole or not at all, and of two that make the same key at once one wins.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make the directory for keys: {error.strerror}", path=str(directory)
            ) from None
        _check_mode(directory, 0o700)

    def path(self, role: Role) -> Path:
        """The file of a user's seed."""
        file = f"{role.kind}-{role.token}.nk"
        if len(file) > _LONGEST_FILE_NAME:
            raise InputError(f"the name {role.name[:40]!r} is too long for a key file: shorten it")
        return self.directory / file

    def pair(self, role: Role) -> KeyPair:
        """The user's key, made when there is none yet."""
        path = self.path(role)
        if not path.exists():
            _write_once(path, new_user().seed)
        return self.read(role)

    def replace(self, role: Role) -> KeyPair:
        """Make a new key in place of the user's, which is returned."""
        former = self.read(role)
        _write_part(self.path(role), new_user().seed, os.replace)
        return former

    def read(self, role: Role) -> KeyPair:
        """The user's key. Raises `InputError` when there is none, it is damaged, or others may read it."""
        return read_seed(self.path(role), f"no key for {role.kind} {role.name!r}: copy its seed here")


def read_seed(path: Path, missing: str = "there is no such key: copy its seed here") -> KeyPair:
    """The key in a file. Raises `InputError` when there is none, it is damaged, or others may read it."""
    try:
        _check_mode(path, 0o600)
        text = path.read_bytes()
    except FileNotFoundError:
        raise InputError(missing, path=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot read the key: {error.strerror}", path=str(path)) from None
    try:
        return pair_of(text.decode("ascii", "replace").strip())
    except InputError as error:
        reason = f"{error.reason}. Restore the file, or delete it for a new key and tell the servers."
        raise InputError(reason, path=str(path)) from None


def _write_once(path: Path, seed: str) -> None:
    # a link, not a rename: it never replaces a key that someone else made meanwhile
    _write_part(path, seed, os.link)


def _write_part(path: Path, seed: str, finish: Callable[[Path, Path], None]) -> None:
    part = path.with_name(f".{os.getpid()}-{os.urandom(6).hex()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(seed + "\n")
            file.flush()
            os.fsync(file.fileno())
        finish(part, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"cannot write the key: {error.strerror}", path=str(path)) from None
    finally:
        part.unlink(missing_ok=True)


def _check_mode(path: Path, wanted: int) -> None:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode != wanted:
        reason = f"mode is {mode:04o}, keys need {wanted:04o}: run chmod {wanted:o}, and make a new key"
        raise InputError(f"{reason} if others had access", path=str(path))
    if found.st_uid != os.geteuid():
        raise InputError("belongs to another user: keys must be your own", path=str(path))


def accounts_config(
    router_public: str,
    neighbours: Mapping[str, str],
    clients: Mapping[str, str],
    control: Mapping[ControlRole, str] | None = None,
    former: Mapping[str, tuple[str, str]] | None = None,
    router: str = "",
) -> str:
    """The `accounts` block of a broker's server, the same text for the same users.

    `former` has public keys that count beside the present ones, for now, each with the kind and the name of
    its user; `router` is the name of that user.

    Maps go from names to public keys. `control` adds the account CONTROL with streams of its own, and those
    of the users that share their state on this server. Raises `InputError` for a bad key, a key
    of two users, or a bad name.
    """
    keys = _Keys(former or {})
    edge = [keys.of(NeighbourRole(name), key) for name, key in sorted(neighbours.items())]
    own = [keys.of(ClientRole(name), key) for name, key in sorted(clients.items())]
    if len(own) > MOST_CLIENT_ACCOUNTS:
        edge, own = edge + own, []
    shared = [keys.of(role, key) for role, key in sorted((control or {}).items(), key=lambda u: u[0].name)]
    for one, other in pairwise(shared):
        if one.role.name == other.role.name:
            raise InputError(
                f"two users of the control server are named {one.role.name!r}: rename one of them"
            )
    routers = keys.of(RouterRole(router or "-"), router_public)
    _check_keys(
        [
            *(("the router", key) for key in routers.keys),
            *((f"{u.role.kind} {u.role.name!r}", key) for u in (*edge, *own, *shared) for key in u.keys),
        ]
    )
    services = (*_SERVICES, *((subject, "single") for subject, _ in _RENAMED))
    exports = [f'{{service: "{subject}", response_type: {kind}}}' for subject, kind in services]
    imports = [f'{{service: {{account: RAMIFY, subject: "{subject}"}}}}' for subject, _ in _SERVICES]
    imports += [f'{{service: {{account: RAMIFY, subject: "{a}"}}, to: "{b}"}}' for a, b in _RENAMED]
    blocks = [
        _account("RAMIFY", routers.lines, exports=exports, jetstream=True),
        _account("EDGE", [line for user in edge for line in user.lines], imports=imports),
        *(
            _account(quote(f"CLIENT_{user.role.token}"), user.lines, imports=imports, limits=_CLIENT_LIMITS)
            for user in own
        ),
    ]
    if control is not None:
        blocks += _control_accounts(shared)
    return "accounts {\n" + "".join(blocks) + "}\n"


@dataclass(frozen=True, slots=True)
class _User:
    """A user with the keys that count for it, and its lines in an account."""

    role: Role
    keys: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        return [_user(self.role, key) for key in self.keys]


class _Keys:
    def __init__(self, former: Mapping[str, tuple[str, str]]) -> None:
        self._former: dict[tuple[str, str], list[str]] = {}
        for key, who in sorted(former.items()):
            self._former.setdefault(who, []).append(key)

    def of(self, role: Role, key: str) -> _User:
        more = self._former.get((role.kind, role.name), ())
        return _User(role, (key, *(each for each in more if each != key)))


def _control_accounts(users: Iterable[_User]) -> list[str]:
    """CONTROL with the coordinators, and an account for each other user, with what its role may use."""
    leaders, members = list[str](), list[str]()
    for user in users:
        role = user.role
        if isinstance(role, CoordinatorRole):
            leaders += user.lines
            continue
        assert isinstance(role, ControlRole)
        imports = [f'{{service: {{account: CONTROL, subject: "{a}"}}, to: "{b}"}}' for a, b in _STORE_API]
        imports += [f'{{service: {{account: CONTROL, subject: "{subject}"}}}}' for subject in role.writes]
        imports += [f'{{stream: {{account: CONTROL, subject: "{subject}"}}}}' for subject in role.notices]
        members.append(_account(quote(f"CONTROL_{role.token}"), user.lines, imports=imports))
    written = [f"{_KEY}.{kind}.*" for kind in BROKER_KEYS]
    asked = [f"{subject}.*" for subject in (SAMPLED, COORDINATE, OPERATE)]
    exports = [
        f'{{service: "{subject}"}}'
        for subject in (*(a for a, _ in _STORE_API), *written, *asked, f"{_KEY}.rules")
    ]
    exports += [f'{{stream: "{CHANGED}.>"}}']
    # so that a coordinator's key reads the store as those of others do
    mappings = [f'"{b}": "{a}"' for a, b in _STORE_API]
    return [
        _account("CONTROL", leaders, exports=exports, mappings=mappings, jetstream=True),
        *members,
    ]


def _account(
    name: str,
    users: Iterable[str],
    *,
    exports: Iterable[str] = (),
    imports: Iterable[str] = (),
    mappings: Iterable[str] = (),
    jetstream: bool = False,
    limits: str = "",
) -> str:
    parts = {"users": users, "exports": exports, "imports": imports}
    lines = [f"  {name} {{", *(["    jetstream: enabled"] if jetstream else [])]
    lines += [f"    limits: {limits}"] if limits else []
    if mapped := ", ".join(mappings):
        lines.append(f"    mappings: {{{mapped}}}")
    for key, items in parts.items():
        if inner := "".join(f"      {item}\n" for item in items):
            lines.append(f"    {key}: [\n{inner}    ]")
    return "\n".join([*lines, "  }", ""])


_CLIENT_LIMITS = f"{{max_connections: {CLIENT_CONNECTIONS}, max_subscriptions: {CLIENT_SUBSCRIPTIONS}}}"


def _user(role: Role, public: str) -> str:
    rights = (("publish", role.publish), ("subscribe", role.subscribe))
    allowed = [
        f"{verb}: {{allow: [{', '.join(map(quote, what))}]}}" for verb, what in rights if what is not None
    ]
    return f"{{nkey: {public}" + (f", permissions: {{{', '.join(allowed)}}}" if allowed else "") + "}"


def _check_keys(users: Iterable[tuple[str, str]]) -> None:
    owner: dict[str, str] = {}
    for who, key in users:
        if not _is_public(key):
            raise InputError(
                f"{who}: {key[:60]!r} is not the public NKey of a user (56 characters from U...)"
            )
        if key in owner:
            raise InputError(f"{owner[key]} and {who} have the same key: every user needs its own")
        owner[key] = who


def _is_public(key: str) -> bool:
    try:
        raw = base64.b32decode(key.encode("ascii"))
    except (binascii.Error, UnicodeEncodeError):
        return False
    prefix_and_sum = len(raw) == 35 and raw[0] == nkeys.PREFIX_BYTE_USER
    return prefix_and_sum and bool(nkeys.crc16_checksum(raw[:-2]) == raw[-2:])


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of a server: PEM files. With `verify`, clients too must show a certificate that `ca` signed.

    A client must insist on TLS (`tls.TlsTransport`). The server's greeting may come in the clear, and a
    machine in between can remove the line that asks for TLS.
    """

    cert: Path
    key: Path
    ca: Path | None = None
    verify: bool = False


def tls_config(tls: Tls) -> str:
    """The `tls` block. Raises `InputError` when a file is missing or `verify` has no authority."""
    if tls.verify and tls.ca is None:
        raise InputError("TLS with verify needs ca, the file of the authority that signs clients")
    files = {"cert_file": tls.cert, "key_file": tls.key, "ca_file": tls.ca}
    lines = ["tls {", "  handshake_first: auto"]
    for key, path in files.items():
        if path is None:
            continue
        if not path.is_file():
            raise InputError(f"no such file, but TLS names it as {key}", path=str(path))
        lines.append(f"  {key}: {quote(str(path.absolute()))}")
    return "\n".join([*lines, *(["  verify: true"] if tls.verify else []), "}", ""])


def check_listen(host: str, tls: Tls | None) -> None:
    """Raise `InputError` when a server would listen beyond this machine without TLS."""
    if tls is None and not _is_loopback(host):
        raise InputError(f"listening on {host!r} leaves this machine: give TLS files, or use 127.0.0.1")


def check_clear_text(url: str, *, tls: bool = False, insecure: bool = False, key: str = "") -> None:
    """Raise `InputError` when a connection would leave this machine in the clear.

    Whoever is on the way reads what is said, and can answer in the server's place. `key` names the setting
    that has the URL.
    """
    if tls or insecure:
        return
    for each in url.split(","):
        found = urlsplit(each)
        if found.scheme != "tls" and not _is_loopback(found.hostname or ""):
            raise InputError(
                f"{key + ' ' if key else ''}{each!r} would be spoken to in the clear, and is not this "
                "machine: give tls://, or the file of the authority that signed the server (tls_ca, "
                "--tls-ca). Where nobody else can listen: insecure_clear_text, --insecure-clear-text"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def quote(text: str) -> str:
    """A string of a server's configuration. Raises `InputError` for control characters."""
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise InputError(
            f"{text[:80]!r} has control characters, which a server's configuration cannot hold"
        )
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
