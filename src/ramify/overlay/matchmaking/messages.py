"""What brokers tell each other to make matches. Data only, for msgspec.

A `Packet` is what one broker tells a neighbour in one step; its items are taken in order and at once.
Packets of a link arrive in the order of their numbers; one that comes again is ignored. In a tree "down" is
away from its origin, the publishing broker; "up" is toward it. Trees are named by their origin.
"""

from typing import TypeAlias

import msgspec

from ramify.errors import InputError

__all__ = [
    "Ads",
    "Alarm",
    "Below",
    "Close",
    "Count",
    "Descriptor",
    "Item",
    "Joined",
    "LinkRow",
    "LoadRow",
    "Mark",
    "MarkVerdict",
    "Open",
    "Packet",
    "Ready",
    "Subs",
    "decode_packet",
    "encode_packet",
]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class Descriptor(msgspec.Struct, frozen=True, array_like=True):
    """An advertisement or a subscription: one filter of a client.

    `spelling` is sql, pattern, keywords or sigma. `number` grows with each change at its broker.
    """

    id: str
    client: str
    spelling: str
    text: str
    number: int = 0


class Count(_Message, frozen=True):
    """Down the whole tree: how many advertisements its origin has, 0 when it left."""

    origin: str
    advertised: int


class Joined(_Message, frozen=True):
    """Up: the sender belongs to the tree from now on, for the `turn`-th time; 0 when it left."""

    origin: str
    turn: int


class Below(_Message, frozen=True):
    """Up: a broker at or below the sender has so many subscriptions, 0 when none."""

    origin: str
    subscriber: str
    wanted: int


class Mark(_Message, frozen=True):
    """Down: what the link is in this tree. p and "ask" carry advertisements, s carries subscriptions.

    "ask" is still p, and asks the receiver to promise that all links below stay s; `ask` numbers it.
    """

    origin: str
    turn: int
    kind: str
    ask: int


class Ready(_Message, frozen=True):
    """Up: that promise. It holds until the mark is p again."""

    origin: str
    turn: int
    ask: int


class Ads(_Message, frozen=True):
    """Down p-links: the origin's advertisements that changed, and the ids that went."""

    origin: str
    put: list[Descriptor]
    gone: list[str]


class Subs(_Message, frozen=True):
    """Up s-links: a broker's subscriptions that changed, the ids that went, the broker's last number."""

    subscriber: str
    number: int
    put: list[Descriptor]
    gone: list[str]


class Open(_Message, frozen=True):
    """Both ways from where a match was found: what both accept flows from the origin to the subscriber."""

    origin: str
    subscriber: str
    ad: Descriptor
    sub: Descriptor


class Close(_Message, frozen=True):
    """The end of a data channel, for advertisements and subscriptions up to these numbers."""

    origin: str
    subscriber: str
    ad: str
    sub: str
    ad_number: int
    sub_number: int


class Alarm(_Message, frozen=True):
    """To everyone: at this broker a link that wants to be p follows one that wants s, or no longer."""

    broker: str
    number: int
    on: bool


class LinkRow(msgspec.Struct, frozen=True, array_like=True):
    """A link out of a broker: where to, its loads, the trees it is in."""

    to: str
    sigma: int
    tau: int
    origins: list[str]


class LoadRow(_Message, frozen=True):
    """To the elected broker: a broker's links. `alarm` numbers the alarm that elected it.

    `path` is the brokers that have passed it on, the one it is of first.
    """

    leader: str
    alarm: int
    path: list[str]
    links: list[LinkRow]


class MarkVerdict(_Message, frozen=True):
    """From the elected broker: the links of one broker that must not have the lesser load, with marks.

    `path` is the way that it has left: the row's, backwards; the last is the receiver.
    """

    leader: str
    alarm: int
    path: list[str]
    marks: dict[str, str]


Item: TypeAlias = (
    Count | Joined | Below | Mark | Ready | Ads | Subs | Open | Close | Alarm | LoadRow | MarkVerdict
)


class Packet(msgspec.Struct, frozen=True, array_like=True):
    """What one broker tells a neighbour in one step."""

    number: int
    items: list[Item]


def encode_packet(packet: Packet) -> bytes:
    """For the wire."""
    return msgspec.msgpack.encode(packet)


def decode_packet(data: bytes) -> Packet:
    """Raises `InputError` for what is no packet."""
    try:
        return msgspec.msgpack.decode(data, type=Packet)
    except msgspec.DecodeError as error:
        raise InputError(f"this is not a packet of matchmaking: {error}") from None
