"""Data channels: what flows from a publishing broker to a subscribing one, and how events follow them.

Where an advertisement and a subscription meet and overlap, the broker opens a channel for what both accept,
up to the origin and down to the subscriber; every broker between holds it. Marks may change afterwards: the
channel stays. It ends when one of its ends withdraws (that end closes it), or when the broker at which the
two now meet finds that they no longer overlap.

What was opened too late does not last: every open reaches both ends; an end that has another version of its
descriptor, or none, answers with a close, which follows the open along the whole path.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ramify.content.events.events import AttributeType
from ramify.content.filters.constraints import Value
from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import SPELLINGS, Subscription
from ramify.errors import InputError
from ramify.overlay.matchmaking.messages import Close, Descriptor, Open
from ramify.overlay.matchmaking.state import DataChannel, MatchState, Outbox

__all__ = ["DataTable", "EventRoute", "Filters", "close_own", "hear_close", "hear_open", "settle_matches"]

EVER = 2**62
"""A number that no descriptor reaches."""
ROUTES_KEPT = 200_000
"""Parsed filters, and answers to whether two overlap, that are kept; then it begins anew."""


class Filters:
    """The filters of descriptors, parsed once each, and which of them overlap."""

    def __init__(self, schema: Mapping[str, AttributeType] | None = None) -> None:
        self._schema = schema
        self._parsed: dict[tuple[str, str], Filter] = {}
        self._overlaps: dict[tuple[str, str, str, str], bool] = {}

    def of(self, descriptor: Descriptor) -> Filter:
        """Raises `FilterError` for a text that is no filter, `InputError` for an unknown spelling."""
        key = descriptor.spelling, descriptor.text
        if key not in self._parsed:
            _make_room(self._parsed)
            self._parsed[key] = _parse(descriptor, self._schema)
        return self._parsed[key]

    def overlap(self, one: Descriptor, other: Descriptor) -> bool:
        """False only if no event is accepted by both."""
        key = one.spelling, one.text, other.spelling, other.text
        if key not in self._overlaps:
            _make_room(self._overlaps)
            self._overlaps[key] = self.of(one).overlaps(self.of(other))
        return self._overlaps[key]

    def matched(self, channel: DataChannel) -> Filter:
        """What flows on a channel: the part that both ends accept."""
        return self.of(channel.ad).intersect(self.of(channel.sub))


def settle_matches(state: MatchState, origin: str, filters: Filters, out: Outbox) -> None:
    """Match what meets here in one tree: open what is new or changed, close what no longer overlaps."""
    if not state.announced(origin):
        return
    ads = state.ads_of(origin)
    marks = state.marks.get(origin, {})
    for subscriber, each in sorted(state.below.get(origin, {}).items()):
        if each.over and (each.over not in marks or marks[each.over].kind != "s"):
            continue
        for sub in state.subs_of(subscriber, each.over).held.values():
            for ad in ads.values():
                held = state.channels.get(origin, {}).get(_key(ad.id, sub.id))
                if held is not None and held.numbers == (ad.number, sub.number):
                    continue
                if filters.overlap(ad, sub):
                    _hold(state, DataChannel(origin, subscriber, ad, sub, each.over))
                    _both_ways(state, origin, each.over, Open(origin, subscriber, ad, sub), out)
                elif held is not None:
                    _drop(state, held)
                    close = Close(origin, subscriber, ad.id, sub.id, ad.number, sub.number)
                    _both_ways(state, origin, each.over, close, out)


def hear_open(state: MatchState, said: Open, sender: str, out: Outbox) -> None:
    """Hold the channel and pass it on in the same direction; an end that has other versions closes it."""
    origin = said.origin
    numbers = said.ad.number, said.sub.number
    held = state.channels.get(origin, {}).get(_key(said.ad.id, said.sub.id))
    if held is not None and held.numbers == numbers:
        return
    down = sender == state.place.parent.get(origin)
    onward = _onward(state, origin, said.subscriber, down)
    if onward is None or not (onward or _is_own(state, said, down)):
        out.tell(sender, Close(origin, said.subscriber, said.ad.id, said.sub.id, *numbers))
        return
    if held is None or held.numbers < numbers:
        _hold(state, DataChannel(origin, said.subscriber, said.ad, said.sub, onward if down else sender))
        out.touched.add(origin)
    if onward:
        out.tell(onward, said)


def hear_close(state: MatchState, said: Close, sender: str, out: Outbox) -> None:
    """Drop the channel unless a later one is held, and pass it on in the same direction, to the end.

    Also where nothing is held: it follows an open that another close has undone here, but not beyond.
    """
    held = state.channels.get(said.origin, {}).get(_key(said.ad, said.sub))
    if held is not None and held.ad.number <= said.ad_number and held.sub.number <= said.sub_number:
        _drop(state, held)
        out.touched.add(said.origin)
    onward = _onward(state, said.origin, said.subscriber, sender == state.place.parent.get(said.origin))
    if onward:
        out.tell(onward, said)


def close_own(state: MatchState, out: Outbox, *, ad: str = "", sub: str = "") -> None:
    """An own advertisement or subscription was withdrawn: end its channels."""
    ended = [
        channel
        for channels in state.channels.values()
        for channel in channels.values()
        if (ad and channel.origin == state.place.name and channel.ad.id == ad)
        or (sub and channel.subscriber == state.place.name and channel.sub.id == sub)
    ]
    for channel in ended:
        _drop(state, channel)
        upto = (state.number, EVER) if ad else (EVER, state.number)
        close = Close(channel.origin, channel.subscriber, channel.ad.id, channel.sub.id, *upto)
        onward = channel.to if ad else state.place.parent.get(channel.origin, "")
        if onward:
            out.tell(onward, close)


class EventRoute(NamedTuple):
    """Where an event goes from a broker: over these neighbours, and to these subscriptions here."""

    neighbours: tuple[str, ...]
    subscriptions: tuple[str, ...]


class DataTable:
    """How a broker routes events, from the channels that it holds. It follows the broker's state."""

    def __init__(self, state: Callable[[], MatchState], filters: Filters) -> None:
        self._state = state
        self._filters = filters

    def refusal(self, client: str, attributes: Mapping[str, Value]) -> str | None:
        """Why the first broker does not take an event of a client; None when it does."""
        own = [ad for ad in self._state().own_ads.values() if ad.client == client]
        if not own:
            return f"publisher {client} has advertised nothing at broker {self._state().place.name}"
        if not any(self._filters.of(ad).holds(attributes) for ad in own):
            return f"the event lies outside the advertisements of publisher {client}: {_texts(own)}"
        return None

    def route(self, origin: str, attributes: Mapping[str, Value]) -> EventRoute:
        """Where an event goes that entered at broker `origin`. O(channels of the origin through here)."""
        to: set[str] = set()
        here: set[str] = set()
        for channel in self._state().channels.get(origin, {}).values():
            if channel.to in to if channel.to else channel.sub.id in here:
                continue
            if all(self._filters.of(end).holds(attributes) for end in (channel.ad, channel.sub)):
                if channel.to:
                    to.add(channel.to)
                else:
                    here.add(channel.sub.id)
        return EventRoute(tuple(sorted(to)), tuple(sorted(here)))


def _onward(state: MatchState, origin: str, subscriber: str, down: bool) -> str | None:
    """The next broker of a channel's path: empty at its end, None where it was never heard of."""
    if not down:
        return state.place.parent.get(origin, "")
    return "" if subscriber == state.place.name else state.routes.get(origin, {}).get(subscriber)


def _is_own(state: MatchState, said: Open, down: bool) -> bool:
    """At an end: whether the descriptor of this end is as it is now."""
    own, named = (state.own_subs, said.sub) if down else (state.own_ads, said.ad)
    return named.id in own and own[named.id].number == named.number


def _both_ways(state: MatchState, origin: str, below: str, item: Open | Close, out: Outbox) -> None:
    for neighbour in (state.place.parent.get(origin), below):
        if neighbour:
            out.tell(neighbour, item)


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= ROUTES_KEPT:
        kept.clear()


def _key(ad: str, sub: str) -> str:
    return f"{ad}\0{sub}"


def _hold(state: MatchState, channel: DataChannel) -> None:
    state.channels.setdefault(channel.origin, {})[_key(channel.ad.id, channel.sub.id)] = channel


def _drop(state: MatchState, channel: DataChannel) -> None:
    kept = state.channels[channel.origin]
    del kept[_key(channel.ad.id, channel.sub.id)]
    if not kept:
        del state.channels[channel.origin]


def _parse(descriptor: Descriptor, schema: Mapping[str, AttributeType] | None) -> Filter:
    spelled: dict[str, object] = {descriptor.spelling: descriptor.text}
    if descriptor.spelling == "keywords":
        words = json.loads(descriptor.text)
        spelled["keywords"] = tuple(tuple(word) if isinstance(word, list) else word for word in words)
    elif descriptor.spelling not in SPELLINGS:
        raise InputError(
            f"descriptor {descriptor.id} is spelled {descriptor.spelling!r}: use {', '.join(SPELLINGS)}"
        )
    return Subscription(descriptor.id, descriptor.client, "-", **spelled).parse(schema)  # type: ignore[arg-type]


def _texts(ads: Iterable[Descriptor], most: int = 3) -> str:
    texts = [ad.text for ad in ads]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return " | ".join(texts[:most]) + more
