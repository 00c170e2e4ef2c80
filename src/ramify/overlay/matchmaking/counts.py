"""How many descriptors are above and below each link: numbers only, hop by hop, and the loads they make.

The origin's number goes down its whole tree; a broker with subscriptions answers with their number up the
tree. The links that such an answer has crossed are active; the others lead to nobody.
"""

from typing import NamedTuple

from ramify.overlay.matchmaking.marks import drop_link
from ramify.overlay.matchmaking.messages import Below, Count, Joined
from ramify.overlay.matchmaking.state import MatchState, Outbox, SubscriberBelow

__all__ = ["Load", "Loads", "count_own", "hear_below", "hear_count", "hear_joined", "loads"]


class Load(NamedTuple):
    """What a link would carry as a p-link and as an s-link, and the trees it is in."""

    sigma: int
    tau: int
    origins: list[str]

    @property
    def lesser(self) -> str:
        """The cheaper mark, s when both cost the same."""
        return "p" if self.sigma < self.tau else "s"


class Loads(NamedTuple):
    """Of the links to children and of those from parents, by neighbour."""

    down: dict[str, Load]
    up: dict[str, Load]


def hear_count(state: MatchState, said: Count, out: Outbox) -> None:
    """An origin's number of advertisements, from its parent or from the origin itself."""
    origin = said.origin
    if state.advertised.get(origin, 0) == said.advertised:
        return
    if said.advertised:
        state.advertised[origin] = said.advertised
    else:
        del state.advertised[origin]
    for child in state.place.children.get(origin, ()):
        out.tell(child, said)
    out.counted = True
    out.touched.add(origin)
    _put_below(state, origin, state.place.name, "", len(state.own_subs) if said.advertised else 0, out)


def count_own(state: MatchState, out: Outbox) -> None:
    """The own subscriptions' number may have changed: tell it up every tree that is heard of."""
    for origin in sorted(state.advertised):
        _put_below(state, origin, state.place.name, "", len(state.own_subs), out)


def hear_joined(state: MatchState, said: Joined, sender: str, out: Outbox) -> None:
    """A child joined, left or came back: what was agreed on the link no longer holds."""
    turns = state.child_turn.setdefault(said.origin, {})
    if said.turn:
        turns[sender] = said.turn
    else:
        turns.pop(sender, None)
    drop_link(state, said.origin, sender)
    out.touched.add(said.origin)


def hear_below(state: MatchState, said: Below, sender: str, out: Outbox) -> None:
    """A subscriber's number, from the child that it is below."""
    _put_below(state, said.origin, said.subscriber, sender, said.wanted, out)


def loads(state: MatchState) -> Loads:
    """Of all links, by the numbers heard so far. A subscriber counts once per link. O(trees x brokers)."""
    down: dict[str, tuple[list[str], dict[str, int]]] = {}
    up: dict[str, tuple[list[str], dict[str, int]]] = {}
    for origin, below in state.below.items():
        parent = state.place.parent.get(origin)
        if parent is not None:
            _gather(up, parent, origin, {y: each.count for y, each in below.items()})
        for child in {each.over for each in below.values()} - {""}:
            _gather(down, child, origin, {y: each.count for y, each in below.items() if each.over == child})
    return Loads(_totals(state, down), _totals(state, up))


def _gather(
    table: dict[str, tuple[list[str], dict[str, int]]], neighbour: str, origin: str, counts: dict[str, int]
) -> None:
    origins, known = table.setdefault(neighbour, ([], {}))
    origins.append(origin)
    for subscriber, count in counts.items():
        known[subscriber] = max(known.get(subscriber, 0), count)


def _totals(state: MatchState, table: dict[str, tuple[list[str], dict[str, int]]]) -> dict[str, Load]:
    return {
        neighbour: Load(
            sum(state.advertised.get(x, 0) for x in origins), sum(known.values()), sorted(origins)
        )
        for neighbour, (origins, known) in sorted(table.items())
    }


def _put_below(state: MatchState, origin: str, subscriber: str, over: str, count: int, out: Outbox) -> None:
    known = state.below.get(origin, {}).get(subscriber)
    if (known.count if known else 0) == count:
        return
    was_active = origin in state.below
    below = state.below.setdefault(origin, {})
    if count:
        below[subscriber] = SubscriberBelow(over, count)
        state.routes.setdefault(origin, {})[subscriber] = over
    else:
        del below[subscriber]
    out.counted = True
    out.touched.add(origin)
    parent = state.place.parent.get(origin)
    if not was_active:
        state.turns += 1
        state.turn[origin] = state.turns
        if parent is not None:
            out.tell(parent, Joined(origin, state.turns))
    if parent is not None:
        out.tell(parent, Below(origin, subscriber, count))
    if not below:
        _leave(state, origin)
        if parent is not None:
            out.tell(parent, Joined(origin, 0))


def _leave(state: MatchState, origin: str) -> None:
    del state.below[origin]
    for table in (state.turn, state.incoming, state.promised, state.ads):
        table.pop(origin, None)
