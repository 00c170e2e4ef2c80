"""One broker of the matchmaking: descriptors and packets go in, packets come out. No clock, no socket.

How a driver runs it:

    each call is a step and returns the packets it makes, by neighbour;
    store `snapshot()` together with those packets, before anything else sees them;
    deliver the packets of a link in their order, again as often as in doubt: what was seen is ignored.

A broker that is restored from its last snapshot goes on as if nothing had been. When no packet is under
way, the data channels are exactly the pairs of advertisement and subscription that overlap and that a tree
joins; the marks are those of `marking`, the best there are; and what brokers store for
others is that marking's cost. At every moment, in every tree, no link that carries advertisements comes
below one that carries subscriptions. A channel whose ends do not change stays open whatever else does.
"""

from collections.abc import Iterable, Mapping

import msgspec

from ramify.content.events.events import AttributeType
from ramify.overlay.matchmaking.channels import (
    DataTable,
    Filters,
    close_own,
    hear_close,
    hear_open,
    settle_matches,
)
from ramify.overlay.matchmaking.counts import count_own, hear_below, hear_count, hear_joined, loads
from ramify.overlay.matchmaking.marks import hear_mark, hear_ready, settle_marks
from ramify.overlay.matchmaking.messages import (
    Ads,
    Alarm,
    Below,
    Close,
    Count,
    Descriptor,
    Item,
    Joined,
    LoadRow,
    Mark,
    MarkVerdict,
    Open,
    Packet,
    Ready,
    Subs,
)
from ramify.overlay.matchmaking.solve import (
    hear_alarm,
    hear_row,
    hear_verdict,
    settle_election,
    wanted_marks,
)
from ramify.overlay.matchmaking.spread import hear_ads, hear_subs, spread_ads, spread_subs
from ramify.overlay.matchmaking.state import MatchError, MatchState, Outbox, TreePlace

__all__ = ["MatchBroker"]

Packets = dict[str, Packet]


class MatchBroker:
    """See the module. A step costs O(trees x subscribing brokers), and what it matches."""

    def __init__(
        self, place: TreePlace | MatchState, schema: Mapping[str, AttributeType] | None = None
    ) -> None:
        self.state = place if isinstance(place, MatchState) else MatchState(place)
        self.filters = Filters(schema)
        self.table = DataTable(lambda: self.state, self.filters)
        self._wanted = wanted_marks(self.state, loads(self.state))

    @classmethod
    def restore(cls, data: bytes, schema: Mapping[str, AttributeType] | None = None) -> "MatchBroker":
        """A broker as it was when it took a snapshot. Raises `InputError` for what is none."""
        return cls(MatchState.decode(data), schema)

    def go_back(self, data: bytes) -> None:
        """Be as when that snapshot was taken. Filters that were parsed since are kept."""
        self.state = MatchState.decode(data)
        self._wanted = wanted_marks(self.state, loads(self.state))

    def snapshot(self) -> bytes:
        """All of it; see the module for when to store it."""
        return self.state.encode()

    # -------------------------------------------------------------------------------------------- steps

    def advertise(self, *ads: Descriptor) -> Packets:
        """Publishers here say what they will publish, or change it (same id). May raise `FilterError`."""
        return self._put(ads, self.state.own_ads)

    def subscribe(self, *subs: Descriptor) -> Packets:
        """Subscribers here say what they want, or change it (same id). May raise `FilterError`."""
        return self._put(subs, self.state.own_subs)

    def unadvertise(self, *ids: str) -> Packets:
        """Withdraw advertisements. Those that are not there are passed over."""
        return self._withdraw(ids, self.state.own_ads, ad=True)

    def unsubscribe(self, *ids: str) -> Packets:
        """Withdraw subscriptions. Those that are not there are passed over."""
        return self._withdraw(ids, self.state.own_subs, ad=False)

    def receive(self, sender: str, packet: Packet) -> Packets:
        """A neighbour's packet. One that was seen is ignored; `MatchError` where one is missing."""
        last = self.state.received.get(sender, 0)
        if packet.number <= last:
            return {}
        if packet.number != last + 1 or sender not in self.state.place.neighbours:
            raise MatchError(
                f"{self.state.place.name} got packet {packet.number} from {sender} after packet {last}: "
                "deliver every packet of a neighbour, in order"
            )
        self.state.received[sender] = packet.number
        out = Outbox()
        for item in packet.items:
            self._hear(item, sender, out)
        return self._settle(out)

    # ------------------------------------------------------------------------------------------- within

    def _put(self, descriptors: Iterable[Descriptor], own: dict[str, Descriptor]) -> Packets:
        changed = []
        for each in descriptors:
            self.filters.of(each)
            known = own.get(each.id)
            if known is None or msgspec.structs.replace(each, number=known.number) != known:
                changed.append(each)
        for each in changed:
            self.state.number += 1
            own[each.id] = msgspec.structs.replace(each, number=self.state.number)
        return self._changed(Outbox()) if changed else {}

    def _withdraw(self, ids: Iterable[str], own: dict[str, Descriptor], ad: bool) -> Packets:
        out = Outbox()
        gone = [id_ for id_ in ids if own.pop(id_, None) is not None]
        for id_ in gone:
            self.state.number += 1
            close_own(self.state, out, **{"ad" if ad else "sub": id_})
        return self._changed(out) if gone else {}

    def _changed(self, out: Outbox) -> Packets:
        here = self.state.place.name
        hear_count(self.state, Count(here, len(self.state.own_ads)), out)
        count_own(self.state, out)
        out.touched |= self.state.below.keys()
        return self._settle(out)

    def _hear(self, item: Item, sender: str, out: Outbox) -> None:
        state = self.state
        match item:
            case Count():
                hear_count(state, item, out)
            case Joined():
                hear_joined(state, item, sender, out)
            case Below():
                hear_below(state, item, sender, out)
            case Mark():
                hear_mark(state, item, out)
            case Ready():
                hear_ready(state, item, sender, out)
            case Ads():
                hear_ads(state, item, out)
            case Subs():
                hear_subs(state, item, sender, out)
            case Open():
                hear_open(state, item, sender, out)
            case Close():
                hear_close(state, item, sender, out)
            case Alarm():
                hear_alarm(state, item, sender, out)
            case LoadRow():
                hear_row(state, item, out)
            case MarkVerdict():
                hear_verdict(state, item, out)

    def _settle(self, out: Outbox) -> Packets:
        state = self.state
        if out.counted:
            known = loads(state)
            settle_election(state, known, out)
            wanted = wanted_marks(state, known)
            for child in wanted.keys() | self._wanted.keys():
                if wanted.get(child) != self._wanted.get(child) and child in known.down:
                    out.touched.update(known.down[child].origins)
            self._wanted = wanted
        touched = sorted(out.touched)
        for origin in touched:
            settle_marks(state, origin, self._wanted, out)
            spread_ads(state, origin, out)
        spread_subs(state, touched, out)
        for origin in touched:
            settle_matches(state, origin, self.filters, out)
        packets: Packets = {}
        for neighbour, items in sorted(out.items.items()):
            state.sent[neighbour] = state.sent.get(neighbour, 0) + 1
            packets[neighbour] = Packet(state.sent[neighbour], items)
        return packets
