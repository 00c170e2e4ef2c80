"""Which headers a broker may be sent: what comes over a link is checked against the plan first.

Owns the rules. A header that a router of the same plan made for this broker always passes; one that passes
makes no router fail, name a broker or a channel that does not exist, or send where there is no link.
Brokers trust their neighbours to route, not to be without faults.
"""

from itertools import pairwise

from ramify.errors import InputError
from ramify.overlay.routing.headers import Header, HeaderKind, read_carried
from ramify.overlay.routing.plan import RoutingPlan
from ramify.planning.plans.plan import Pruning

__all__ = ["HeaderRules"]

VERDICTS_KEPT = 16_384
"""Headers that are known to be sound; then that starts over."""

MOST_OPENED = 65_536
"""How many channels of a neighbour's revision may be unknown to this broker."""

_ON_TREES = (Pruning.FILTER, Pruning.NONE)
_PRUNINGS = {
    HeaderKind.TREE: _ON_TREES,
    HeaderKind.LEG: _ON_TREES,
    HeaderKind.NOTE: _ON_TREES,
    HeaderKind.CARRIED: (Pruning.TREE,),
    HeaderKind.LIST: (Pruning.DESTINATIONS,),
    HeaderKind.COPY: (Pruning.COPIES,),
}


class HeaderRules:
    """The rules of one plan at one broker."""

    def __init__(self, routing: RoutingPlan, here: int) -> None:
        self._shared = routing
        self._plan = routing.plan
        self._here = here
        self._brokers = len(routing.plan.overlay.brokers)
        ends = routing.plan.overlay.ends.tolist()
        self._linked = {b if a == here else a for a, b in ends if here in (a, b)}
        self._sound: set[tuple[str, Header]] = set()

    def check(self, sender: str, header: Header) -> None:
        """Raise `InputError` for a header that no broker of this plan sends from `sender` to here.

        O(numbers in it) for one that is new, O(1) for one that came before.
        """
        if (sender, header) in self._sound:
            return
        came_from = self._plan.overlay.index.get(sender)
        if came_from is None or came_from not in self._linked:
            raise InputError(f"{sender!r} has no link to this broker in the plan of this epoch")
        self._check(came_from, header)
        if len(self._sound) >= VERDICTS_KEPT:
            self._sound.clear()
        self._sound.add((sender, header))

    def _check(self, came_from: int, header: Header) -> None:
        self._broker(header.origin, "the publisher's broker")
        n = self._brokers
        # a tree has at most n - 1 logical links of n - 1 crossings each, a leg and a note n - 1 crossings
        if not 0 < header.hops <= (n - 1) * (n + 1):
            raise InputError(f"{header.hops} hops: no way in an overlay of {n} brokers is so long")
        self._channels(header)
        if self._is_unknown_way(header, came_from):
            return  # a leg to a channel that is not known here yet: the router lets it go
        arrives = True
        if header.label is not None:
            arrives = self._crosses(header, header.label, came_from)
            came_from = header.label[0]
        match header.kind:
            case HeaderKind.TREE if arrives and not self._is_from_tree(header, came_from):
                raise InputError("the sender is not a neighbour on the channel's tree")
            case HeaderKind.LEG | HeaderKind.NOTE | HeaderKind.COPY:
                self._target(header, arrives)
            case HeaderKind.CARRIED:
                self._carried(header)
            case HeaderKind.LIST:
                self._list(header)

    def _broker(self, number: int, what: str) -> None:
        if not 0 <= number < self._brokers:
            raise InputError(f"{what} is number {number}, and there are {self._brokers} brokers")

    def _channels(self, header: Header) -> None:
        channels, known = header.channels, self._plan.channels
        if not channels or len(set(channels)) < len(channels):
            raise InputError("a header names its channels, each once")
        for c in channels:
            if self._is_later(header, c):
                continue
            if not 0 <= c < len(known):
                raise InputError(f"channel {c} does not exist: the plan has {len(known)}")
            if known[c].pruning not in _PRUNINGS[header.kind]:
                raise InputError(f"channel {c} has no messages of kind {header.kind.name.lower()}")

    def _is_later(self, header: Header, channel: int) -> bool:
        """Whether a channel may be one that the sender's revision of the plan has opened."""
        known = len(self._plan.channels)
        may_open = bool(self._shared.flowing_down) or not known
        return (
            may_open
            and header.kind in (HeaderKind.TREE, HeaderKind.LEG)
            and known <= channel < known + MOST_OPENED
        )

    def _is_unknown_way(self, header: Header, came_from: int) -> bool:
        if header.label is None or not all(self._is_later(header, c) for c in header.channels):
            return False
        if not all(0 <= end < self._brokers for end in header.label):
            return False
        way = self._shared.way(header.label, leg=header.kind is HeaderKind.LEG)
        return way is None or (came_from, self._here) not in pairwise(way)

    def _crosses(self, header: Header, label: tuple[int, int], came_from: int) -> bool:
        """Whether the logical link of a label ends here; it must lead through here, from the sender."""
        for end in label:
            self._broker(end, "an end of a logical link")
        path = self._shared.way(label, leg=header.kind is HeaderKind.LEG)
        if path is None:
            raise InputError(f"no logical link of several links is {label}")
        if (came_from, self._here) not in pairwise(path):
            raise InputError(f"the logical link {label} does not lead from the sender to here")
        return path[-1] == self._here

    def _is_from_tree(self, header: Header, came_from: int) -> bool:
        channel = header.channels[0]
        # the sender may have another revision of such a tree: the router looks
        may_differ = self._is_later(header, channel) or channel in self._shared.flowing_down
        return may_differ or came_from in self._around(channel)

    def _around(self, channel: int) -> list[int]:
        """The neighbours on a channel's tree; none when this broker is not on it."""
        return self._shared.neighbours(channel, self._here) if self._on_tree(channel, self._here) else []

    def _on_tree(self, channel: int, broker: int) -> bool:
        tree = self._shared.layout.trees[channel]
        return tree is not None and bool(tree.parent[broker] >= -1)

    def _target(self, header: Header, arrives: bool) -> None:
        self._broker(header.target, "the target")
        if header.kind is not HeaderKind.COPY:
            if arrives and header.target != self._here:
                raise InputError("a message for another broker has arrived here")
            if header.kind is HeaderKind.LEG and not all(
                self._is_later(header, c) or self._on_tree(c, header.target) for c in header.channels
            ):
                raise InputError("the target is not on the trees of all channels")
        elif self._shared.layout.trees[header.channels[0]] is None:
            self._reachable(header.target)
        elif not all(self._on_tree(header.channels[0], at) for at in (self._here, header.target)):
            raise InputError("a copy is off its channel's tree")

    def _carried(self, header: Header) -> None:
        children = [child for child, _ in read_carried(header.tree)[1]]
        if len(set(children)) < len(children) or not self._linked.issuperset(children):
            raise InputError("a carried tree branches to brokers that this one has no link to")

    def _list(self, header: Header) -> None:
        listed = header.destinations
        if not listed or len(set(listed)) < len(listed):
            raise InputError("a list names its destinations, each once")
        for broker in listed:
            self._broker(broker, "a destination")
            self._reachable(broker)

    def _reachable(self, broker: int) -> None:
        if broker != self._here and self._shared.layout.toward.predecessor[broker, self._here] < 0:
            raise InputError(f"no way leads to broker {broker}")
