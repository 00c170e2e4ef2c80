"""What a broker knows while it makes matches: a plain value that can be stored and taken up again.

Everything that decides what a broker does next is in here. Dictionaries keep the order of arrival; whatever
is decided from them is sorted first, so that brokers with equal knowledge act alike.
"""

import msgspec

from ramify.errors import InputError, LiveError
from ramify.overlay.matchmaking.messages import Descriptor, Item, LinkRow, LoadRow

__all__ = [
    "AlarmSeen",
    "DataChannel",
    "LinkMark",
    "MatchError",
    "MatchState",
    "Outbox",
    "Side",
    "SubscriberBelow",
    "TreePlace",
]


class MatchError(LiveError):
    """A broker was told what cannot be."""


class TreePlace(msgspec.Struct, frozen=True):
    """Where a broker is: its neighbours and its place in the tree of each origin.

    `parent[x]` is missing in its own tree. `shared`: all trees are one tree, so links never disagree.
    """

    name: str
    neighbours: list[str]
    parent: dict[str, str]
    children: dict[str, list[str]]
    shared: bool = False


class SubscriberBelow(msgspec.Struct):
    """A subscriber at or below: over which neighbour (empty: here), and how many descriptors."""

    over: str
    count: int


class LinkMark(msgspec.Struct):
    """A link in one tree, as its upper end has it: see `messages.Mark`."""

    kind: str
    ask: int = 0


class Side(msgspec.Struct):
    """The subscriptions of one subscriber, as of its `number`."""

    number: int
    held: dict[str, Descriptor]


class DataChannel(msgspec.Struct, frozen=True):
    """A data channel through this broker: `to` is the neighbour below, empty at the subscriber's broker."""

    origin: str
    subscriber: str
    ad: Descriptor
    sub: Descriptor
    to: str

    @property
    def numbers(self) -> tuple[int, int]:
        """Later versions compare higher."""
        return self.ad.number, self.sub.number


class AlarmSeen(msgspec.Struct, frozen=True):
    """The last that was heard of a broker's alarm, and which neighbour it came from first."""

    number: int
    on: bool
    via: str


class MatchState(msgspec.Struct):
    """Everything. Where a dictionary has origins as keys, the value is of that tree."""

    place: TreePlace
    number: int = 0
    """Goes up with every change of the own descriptors."""
    own_ads: dict[str, Descriptor] = {}
    own_subs: dict[str, Descriptor] = {}

    sent: dict[str, int] = {}
    received: dict[str, int] = {}

    advertised: dict[str, int] = {}
    below: dict[str, dict[str, SubscriberBelow]] = {}
    """The subscribers at or below in the tree. A tree is active here while there are any."""
    routes: dict[str, dict[str, str]] = {}
    """By subscriber: the neighbour it is over in the tree. Kept when it leaves: trees do not change."""
    turn: dict[str, int] = {}
    turns: int = 0
    child_turn: dict[str, dict[str, int]] = {}
    incoming: dict[str, LinkMark] = {}
    """The link from the parent; missing until the parent has marked it in this turn."""
    promised: dict[str, int] = {}
    marks: dict[str, dict[str, LinkMark]] = {}
    """The links to children, which this broker decides."""
    ready: dict[str, dict[str, int]] = {}

    ads: dict[str, dict[str, Descriptor]] = {}
    subs: dict[str, dict[str, Side]] = {}
    """By neighbour, by subscriber: what is stored across s-links."""
    said_ads: dict[str, dict[str, dict[str, int]]] = {}
    said_subs: dict[str, dict[str, Side]] = {}
    channels: dict[str, dict[str, DataChannel]] = {}

    alarms: dict[str, AlarmSeen] = {}
    elected: tuple[str, int] | None = None
    row: list[LinkRow] | None = None
    rows: dict[str, LoadRow] = {}
    """At the elected broker: the last of each."""
    verdicts: dict[str, dict[str, str]] = {}
    """Likewise, what each was told last."""
    verdict: dict[str, str] = {}

    def encode(self) -> bytes:
        """To be stored with the packets of the same step."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> "MatchState":
        """Raises `InputError` for what is no state."""
        try:
            return msgspec.msgpack.decode(data, type=MatchState)
        except msgspec.DecodeError as error:
            raise InputError(f"this is not the state of a matchmaking broker: {error}") from None

    # ------------------------------------------------------------------------------------ what follows

    def is_root(self, origin: str) -> bool:
        """Whether the tree is this broker's own."""
        return origin == self.place.name

    def over(self, origin: str) -> list[str]:
        """The neighbours below that the tree is active over, sorted."""
        return sorted({each.over for each in self.below.get(origin, {}).values()} - {""})

    def announced(self, origin: str) -> bool:
        """Whether advertisements of the tree come to this broker."""
        mark = self.incoming.get(origin)
        return self.is_root(origin) or (mark is not None and mark.kind != "s")

    def ads_of(self, origin: str) -> dict[str, Descriptor]:
        """The advertisements of a tree that this broker knows."""
        return self.own_ads if self.is_root(origin) else self.ads.get(origin, {})

    def subs_of(self, subscriber: str, over: str) -> Side:
        """The subscriptions of a subscriber as they came over a neighbour, or the own."""
        if not over:
            return Side(self.number, self.own_subs)
        return self.subs.get(over, {}).get(subscriber) or Side(0, {})

    @property
    def stored(self) -> int:
        """How many descriptors are stored here for others: what the marking's cost counts."""
        here = sum(len(held) for held in self.ads.values())
        return here + sum(len(side.held) for sides in self.subs.values() for side in sides.values())


class Outbox:
    """What a step has to tell, by neighbour, and which trees it has touched."""

    def __init__(self) -> None:
        self.items: dict[str, list[Item]] = {}
        self.touched: set[str] = set()
        self.counted = False
        """Whether loads may have changed."""

    def tell(self, neighbour: str, item: Item) -> None:
        """Add to the packet for a neighbour."""
        self.items.setdefault(neighbour, []).append(item)
