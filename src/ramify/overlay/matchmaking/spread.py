"""Content along the marks: advertisements down p-links, subscriptions up s-links, as differences.

A broker keeps what it has told each neighbour and tells what has changed since. What a link no longer
carries is forgotten at its other end: advertisements when the mark says s, subscriptions when taken back.
"""

from collections.abc import Iterable

from ramify.overlay.matchmaking.messages import Ads, Descriptor, Subs
from ramify.overlay.matchmaking.state import MatchState, Outbox, Side

__all__ = ["hear_ads", "hear_subs", "spread_ads", "spread_subs"]


def hear_ads(state: MatchState, said: Ads, out: Outbox) -> None:
    """Advertisements from the parent; ignored when they belong to a turn that is over."""
    if not state.announced(said.origin):
        return
    held = state.ads.setdefault(said.origin, {})
    _change(held, said.put, said.gone)
    if not held:
        del state.ads[said.origin]
    out.touched.add(said.origin)


def hear_subs(state: MatchState, said: Subs, sender: str, out: Outbox) -> None:
    """Subscriptions from a child, for every tree in which their subscriber is below it."""
    sides = state.subs.setdefault(sender, {})
    side = sides.setdefault(said.subscriber, Side(0, {}))
    side.number = said.number
    _change(side.held, said.put, said.gone)
    if not side.held:
        del sides[said.subscriber]
    for origin, below in state.below.items():
        each = below.get(said.subscriber)
        if each is not None and each.over == sender:
            out.touched.add(origin)


def spread_ads(state: MatchState, origin: str, out: Outbox) -> None:
    """Tell children over p-links what has changed of a tree's advertisements."""
    marks = state.marks.get(origin, {})
    target = state.ads_of(origin)
    for child in state.over(origin):
        told = state.said_ads.setdefault(child, {})
        if child not in marks or marks[child].kind == "s":
            told.pop(origin, None)
            continue
        before = told.get(origin, {})
        put = [ad for ad in target.values() if before.get(ad.id) != ad.number]
        gone = sorted(before.keys() - target.keys())
        if put or gone:
            told[origin] = {ad.id: ad.number for ad in target.values()}
            out.tell(child, Ads(origin, put, gone))


def spread_subs(state: MatchState, touched: Iterable[str], out: Outbox) -> None:
    """Tell the parents of these trees what has changed of the subscriptions that they must have."""
    parents = {state.place.parent[origin] for origin in touched if origin in state.place.parent}
    for parent in sorted(parents):
        target = _due(state, parent)
        told = state.said_subs.setdefault(parent, {})
        for subscriber in sorted(told.keys() | target.keys()):
            before = told.get(subscriber) or Side(0, {})
            after = target.get(subscriber) or Side(before.number, {})
            put = [sub for sub in after.held.values() if before.held.get(sub.id) != sub]
            gone = sorted(before.held.keys() - after.held.keys())
            if put or gone:
                out.tell(parent, Subs(subscriber, after.number, put, gone))
                told[subscriber] = Side(after.number, dict(after.held))
            if not after.held:
                told.pop(subscriber, None)


def _due(state: MatchState, parent: str) -> dict[str, Side]:
    """By subscriber, what a parent must have: all below an s-link from it, in any tree.

    One subscriber may come over several children in different trees: the latest counts.
    """
    found: dict[str, Side] = {}
    for origin, mark in state.incoming.items():
        if mark.kind != "s" or state.place.parent[origin] != parent:
            continue
        for subscriber, each in state.below[origin].items():
            side = state.subs_of(subscriber, each.over)
            if subscriber not in found or found[subscriber].number < side.number:
                found[subscriber] = side
    return found


def _change(held: dict[str, Descriptor], put: list[Descriptor], gone: list[str]) -> None:
    held.update({each.id: each for each in put})
    for id_ in gone:
        held.pop(id_, None)
