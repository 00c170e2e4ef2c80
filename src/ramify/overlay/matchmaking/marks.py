"""The marks of a broker's links, changed so that the marking is valid at every moment, tree by tree.

The upper end of a link decides its mark; where the two ends disagree, the lower follows. In each tree by
itself:

    first   a link that becomes active is marked once its parent link is: s below s, else as wanted;
    to p    only while the parent link is p, and no promise was given for it;
    to s    only once the lower end has promised that all links below it are s and stay so.

So in no tree a p-link ever comes below an s-link, whatever was delayed. Once all loads are known
everywhere, what is wanted is valid; every link in every tree gets it, bottom up for s and top down for p,
and the trees agree.

Departures from Ge et al., section 5. While marks change, a link may have one mark in one tree and another
in the next. With one mark for all trees, a join that marks its new links p can put an s-link of another
tree above a p-link, so everything upstream must turn to p first; and links that trees chain in a circle
could only change all at once. By tree, a join marks fresh links only, from the origin down: nothing else
has to move.

A broker that leaves a tree and comes back has a new *turn*: marks of an earlier one are ignored.
"""

from ramify.overlay.matchmaking.messages import Mark, Ready
from ramify.overlay.matchmaking.state import LinkMark, MatchState, Outbox

__all__ = ["drop_link", "hear_mark", "hear_ready", "settle_marks"]


def hear_mark(state: MatchState, said: Mark, out: Outbox) -> None:
    """The parent link's mark. What is stored for the other kind is dropped."""
    origin = said.origin
    if said.turn != state.turn.get(origin, 0):
        return
    state.incoming[origin] = LinkMark(said.kind, said.ask)
    if said.kind == "p":
        state.promised.pop(origin, None)
    if said.kind == "s":
        state.ads.pop(origin, None)
    out.touched.add(origin)


def hear_ready(state: MatchState, said: Ready, sender: str, out: Outbox) -> None:
    """A child's promise."""
    if said.turn == state.child_turn.get(said.origin, {}).get(sender, 0):
        state.ready.setdefault(said.origin, {})[sender] = said.ask
        out.touched.add(said.origin)


def drop_link(state: MatchState, origin: str, child: str) -> None:
    """The tree no longer goes over the child, or the child begins a new turn."""
    state.marks.get(origin, {}).pop(child, None)
    state.ready.get(origin, {}).pop(child, None)
    state.said_ads.get(child, {}).pop(origin, None)


def settle_marks(state: MatchState, origin: str, wanted: dict[str, str], out: Outbox) -> None:
    """Bring the links of one tree as near to what is wanted as is safe now."""
    root = state.is_root(origin)
    parent = state.incoming.get(origin)
    if parent is None and not root:
        return
    bound = not root and parent is not None and (parent.kind == "s" or origin in state.promised)
    marks = state.marks.setdefault(origin, {})
    all_s = True
    for child in state.over(origin):
        turn = state.child_turn.get(origin, {}).get(child, 0)
        before = marks.get(child)
        after = _next(before, wanted.get(child, "s"), bound, state.ready.get(origin, {}).get(child, -1))
        if after != before:
            marks[child] = after
            out.tell(child, Mark(origin, turn, after.kind, after.ask))
        all_s = all_s and after.kind == "s"
    asked = parent is not None and parent.kind == "ask"
    if asked and parent is not None and all_s and state.promised.get(origin) != parent.ask:
        state.promised[origin] = parent.ask
        out.tell(state.place.parent[origin], Ready(origin, state.turn[origin], parent.ask))


def _next(mark: LinkMark | None, wanted: str, bound: bool, ready: int) -> LinkMark:
    """One link's next mark. `bound`: the parent link is s, or was promised that this one stays s."""
    if mark is None:
        return LinkMark("s" if bound else wanted)
    if wanted == "p" or bound:
        # bound links are s already: they became so before the promise
        return LinkMark("p", mark.ask) if wanted == "p" and not bound and mark.kind != "p" else mark
    if mark.kind == "p":
        return LinkMark("ask", mark.ask + 1)
    if mark.kind == "ask" and ready == mark.ask:
        return LinkMark("s", mark.ask)
    return mark
