"""What a message carries besides its event: the header that brokers route by, and its bytes.

Owns the form on the wire. Numbers are varints (seven bits to a byte, low first). A header is

    kind (1 byte; +128 with a label), hop count (1 byte, stays at 255), the publisher's broker,
    [label: both ends of the logical link that is being crossed, on links that are paths of several,]
    and then by kind
        TREE     channel
        LEG      target broker, number of channels, channels
        NOTE     host
        CARRIED  channel, tree
        LIST     channel, number of destinations, the first and then the differences (they ascend)
        COPY     channel, destination

A carried tree is what the receiving broker must do: twice the number of its children, plus 1 when it is
a destination itself; then for each child its number and its own carried tree. It shrinks as it
branches. The pricer counts the same bytes; the tests hold both together.
"""

from dataclasses import dataclass
from enum import IntEnum

from ramify.errors import InputError

__all__ = ["Header", "HeaderKind", "carried_tree", "read_carried"]

_LABELLED = 128
_MOST_HOPS = 255


class HeaderKind(IntEnum):
    """How a message is on its way."""

    TREE = 0
    """On a channel's tree."""
    LEG = 1
    """On the way to where it enters one or more channels."""
    NOTE = 2
    """From a proxy to the host of a class: the final notification."""
    CARRIED = 3
    """Along the tree in its header."""
    LIST = 4
    """Toward the destinations in its header."""
    COPY = 5
    """The one copy for one destination."""


@dataclass(frozen=True, slots=True)
class Header:
    """See the module. `target` is a leg's entry, a note's host or a copy's destination.

    A note's channels do not travel in these bytes; a live broker sends them beside (see `Router.owned`).
    """

    kind: HeaderKind
    origin: int
    hops: int = 0
    channels: tuple[int, ...] = ()
    target: int = -1
    tree: bytes = b""
    destinations: tuple[int, ...] = ()
    label: tuple[int, int] | None = None

    def encode(self) -> bytes:
        """The header's bytes."""
        out = bytearray((self.kind + (0 if self.label is None else _LABELLED), min(self.hops, _MOST_HOPS)))
        _put(out, self.origin)
        if self.label is not None:
            _put(out, *self.label)
        match self.kind:
            case HeaderKind.TREE:
                _put(out, *self.channels)
            case HeaderKind.LEG:
                _put(out, self.target, len(self.channels), *self.channels)
            case HeaderKind.NOTE:
                _put(out, self.target)
            case HeaderKind.CARRIED:
                _put(out, *self.channels)
                out += self.tree
            case HeaderKind.LIST:
                _put(out, *self.channels, len(self.destinations))
                before = 0
                for broker in self.destinations:
                    _put(out, broker - before)
                    before = broker
            case HeaderKind.COPY:
                _put(out, *self.channels, self.target)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> "Header":
        """The header in these bytes. Raises `InputError` when they are not one, whole and nothing more."""
        if len(data) < 3 or data[0] & ~_LABELLED not in tuple(HeaderKind):
            raise InputError("not a message header: too short or of an unknown kind. Check its sender.")
        kind = HeaderKind(data[0] & ~_LABELLED)
        reader = _Reader(data, 2)
        origin = reader.number()
        label = (reader.number(), reader.number()) if data[0] & _LABELLED else None
        channels: tuple[int, ...] = ()
        destinations: tuple[int, ...] = ()
        target, tree = -1, b""
        match kind:
            case HeaderKind.LEG:
                target = reader.number()
                channels = tuple(reader.number() for _ in range(reader.count()))
            case HeaderKind.NOTE:
                target = reader.number()
            case _:
                channels = (reader.number(),)
        if kind is HeaderKind.COPY:
            target = reader.number()
        elif kind is HeaderKind.CARRIED:
            tree = reader.rest()
            read_carried(tree)
        elif kind is HeaderKind.LIST:
            destinations = reader.ascending()
        reader.end()
        return cls(kind, origin, data[1], channels, target, tree, destinations, label)


def carried_tree(broker: int, children: dict[int, list[int]], destinations: set[int]) -> bytes:
    """The carried tree for a broker, from the children of every broker of the tree. O(size)."""
    order = [broker]
    for at in order:
        order += children.get(at, [])
    made: dict[int, bytes] = {}
    for at in reversed(order):
        below = children.get(at, [])
        out = bytearray()
        _put(out, 2 * len(below) + (at in destinations))
        for child in below:
            _put(out, child)
            out += made.pop(child)
        made[at] = bytes(out)
    return made[broker]


def read_carried(tree: bytes) -> tuple[bool, list[tuple[int, bytes]]]:
    """Whether the receiver is a destination, and each child with its own carried tree.

    Raises `InputError` when the bytes are not one tree, whole and nothing more.
    """
    reader = _Reader(tree, 0)
    own = reader.number()
    children = []
    for _ in range(own >> 1):
        child = reader.number()
        begin = reader.at
        open_nodes = 1
        while open_nodes:
            open_nodes += (reader.number() >> 1) - 1
            if open_nodes:
                reader.number()
        children.append((child, tree[begin : reader.at]))
    reader.end()
    return bool(own & 1), children


class _Reader:
    """Reads varints and refuses what is cut off."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def number(self) -> int:
        value, shift = 0, 0
        while True:
            if self.at >= len(self.data) or shift > 28:
                raise InputError("a message header is cut off or holds a number that is too large.")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def count(self) -> int:
        """A number of things that follow, each of a byte or more."""
        value = self.number()
        if value > len(self.data) - self.at:
            raise InputError("a message header is cut off: it announces more than it holds.")
        return value

    def ascending(self) -> tuple[int, ...]:
        before, found = 0, []
        for _ in range(self.count()):
            before += self.number()
            found.append(before)
        return tuple(found)

    def rest(self) -> bytes:
        begin, self.at = self.at, len(self.data)
        return self.data[begin:]

    def end(self) -> None:
        if self.at != len(self.data):
            raise InputError(f"a message header has {len(self.data) - self.at} bytes too many.")


def _put(out: bytearray, *numbers: int) -> None:
    for number in numbers:
        while number >= 128:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
