"""Names on NATS: tokens for brokers and clients, and the subjects and consumers made of them.

Owns the naming. A broker or client may have any name; a token of a NATS subject may not. ASCII letters,
digits, `-` and `_` stay as they are, every other byte of the name's UTF-8 becomes `=` and two hexadecimal
digits. So names that differ have tokens that differ, and plain names read as themselves.
"""

import re

from ramify.errors import InputError

__all__ = [
    "BUCKET",
    "CHANGED",
    "CLIENT",
    "CONTROL",
    "COORDINATE",
    "DELIVER",
    "IN",
    "LINK",
    "LOG",
    "MATCH",
    "MOST_BYTES",
    "MOST_TOKEN",
    "OPERATE",
    "OUT",
    "PROBE",
    "PUBLISH",
    "REJECTED",
    "SAMPLES",
    "STATUS",
    "STORE_GET",
    "STORE_INFO",
    "inbox_prefix",
    "name_of",
    "token",
]

IN, OUT, REJECTED, SAMPLES = "IN", "OUT", "REJECTED", "SAMPLES"
"""The streams of a broker."""

PUBLISH, CONTROL = "ramify.publish", "ramify.control"
"""Subjects that clients write to, each followed by the client's token."""

PROBE = "~probe"
"""Stands for a client in `PUBLISH`, and is no token: what comes so tries the streams and is no event."""

LINK, DELIVER, LOG, MATCH = "out.link", "out.deliver", "out.log", "out.match"
"""Lanes of OUT: to a neighbour, to a client; records of positions alone; and what matchmaking knows."""

STATUS = "ramify.status"
"""Where a broker that makes matches says how it fares, in RAMIFY: to a holder of its key."""

CLIENT = "client"

BUCKET = "CTL"
"""The key-value bucket of the control server."""

COORDINATE, OPERATE = "ramify.coordinate", "ramify.operate"
"""Where the leader answers brokers and operators, followed by the token of the one that asks. The control
server lets nobody use another's."""

STORE_INFO, STORE_GET, CHANGED = "ramify.store.info", "ramify.store.get", "ramify.changed"
"""For users that may not write all of the bucket: what it holds, one of its values, and notices of changes
below `CHANGED`, followed by the key."""

MOST_BYTES = 128
"""A name's longest UTF-8."""

MOST_TOKEN = 200
"""The longest token: consumers and files are named by it, and such names have less than 256 bytes."""

_PLAIN = re.compile(rb"[A-Za-z0-9_-]")
_ESCAPED = re.compile(r"=([0-9A-F]{2})")


def token(name: str) -> str:
    """The token of a name. Raises `InputError` when it is empty, too long or not Unicode."""
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name!r} is no name: it holds half a surrogate pair") from None
    if not 0 < len(data) <= MOST_BYTES:
        raise InputError(f"a name has 1 to {MOST_BYTES} bytes; {name[:40]!r} has {len(data)}")
    bytes_ = (data[i : i + 1] for i in range(len(data)))
    text = "".join(b.decode() if _PLAIN.match(b) else f"={b[0]:02X}" for b in bytes_)
    if len(text) > MOST_TOKEN:
        raise InputError(
            f"the name {name[:40]!r} takes {len(text)} characters as a token, at most {MOST_TOKEN} are "
            "allowed; use fewer characters other than ASCII letters, digits, - and _"
        )
    return text


def name_of(text: str) -> str:
    """The name behind a token. Raises `InputError` for what is no token."""
    plain = _ESCAPED.sub("", text)
    if not text or not all(_PLAIN.match(c.encode("utf-8", "replace")) for c in plain):
        raise InputError(f"{text[:80]!r} is no token of a name")
    data = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1")
    try:
        name = data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{text[:80]!r} is no token of a name") from None
    if token(name) != text:
        raise InputError(f"{text[:80]!r} is not how a name is written as a token")
    return name


def inbox_prefix(role: str, name: str) -> str:
    """Where answers to a neighbour (`link`) or a client (`client`) go: nobody else may listen there."""
    return f"_I.{role}_{token(name)}"
