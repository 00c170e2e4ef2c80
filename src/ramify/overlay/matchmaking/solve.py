"""Where links disagree: one broker is elected, gathers the loads, solves, and informs the others.

On a shared tree every link may take its lesser load. On per-source trees a link that wants to be p can come
after one that wants to be s. The broker between the two sees it and raises an alarm, which goes to everyone
and names it; of those with an alarm the one whose name comes first is elected, by everyone alike. Brokers
with links in active trees send it their rows; it solves the minimum cut over them and tells each broker
which of its links must have the greater load. An alarm's number makes each election another one: what
belongs to an earlier one is ignored. When the last alarm is over, every link takes its lesser load again.
"""

import msgspec
import numpy as np

from ramify.overlay.matchmaking.counts import Loads
from ramify.overlay.matchmaking.marking import closure
from ramify.overlay.matchmaking.messages import Alarm, LinkRow, LoadRow, MarkVerdict
from ramify.overlay.matchmaking.state import AlarmSeen, MatchState, Outbox

__all__ = ["hear_alarm", "hear_row", "hear_verdict", "settle_election", "wanted_marks"]


def wanted_marks(state: MatchState, known: Loads) -> dict[str, str]:
    """The mark that each link to a child should have: its lesser load, or as the elected broker says."""
    return {child: state.verdict.get(child, load.lesser) for child, load in known.down.items()}


def settle_election(state: MatchState, known: Loads, out: Outbox) -> None:
    """Raise or end the own alarm, follow the elected broker, send it the row when it has changed."""
    if state.place.shared:
        return
    me = state.place.name
    on = _disagrees(state, known)
    seen = state.alarms.get(me)
    if on != (seen is not None and seen.on):
        hear_alarm(state, Alarm(me, seen.number + 1 if seen else 1, on), "", out)
    _follow(state)
    if state.elected is None:
        return
    row = [LinkRow(to, load.sigma, load.tau, load.origins) for to, load in known.down.items()]
    if row != state.row:
        state.row = row
        leader, alarm = state.elected
        hear_row(state, LoadRow(leader, alarm, [], row), out)


def hear_alarm(state: MatchState, said: Alarm, sender: str, out: Outbox) -> None:
    """Keep the latest, pass it on."""
    seen = state.alarms.get(said.broker)
    if seen is not None and seen.number >= said.number:
        return
    state.alarms[said.broker] = AlarmSeen(said.number, said.on, sender)
    for neighbour in state.place.neighbours:
        if neighbour != sender:
            out.tell(neighbour, said)
    out.counted = True


def hear_row(state: MatchState, said: LoadRow, out: Outbox) -> None:
    """Pass it on toward the elected broker, or solve there."""
    me = state.place.name
    if said.leader != me:
        on = msgspec.structs.replace(said, path=[*said.path, me])
        out.tell(state.alarms[said.leader].via, on)
        return
    _follow(state)
    if state.elected != (said.leader, said.alarm):
        return
    sender = said.path[0] if said.path else me
    state.rows[sender] = said
    # the sender of a row knows of no verdict of this election, or of one that may not fit
    state.verdicts.pop(sender, None)
    solved = _solve({broker: row.links for broker, row in state.rows.items()})
    for broker, row in sorted(state.rows.items()):
        marks = solved.get(broker, {})
        if state.verdicts.get(broker) != marks:
            state.verdicts[broker] = marks
            hear_verdict(state, MarkVerdict(said.leader, said.alarm, row.path[::-1], marks), out)


def hear_verdict(state: MatchState, said: MarkVerdict, out: Outbox) -> None:
    """Pass it on toward the broker that it is for, or obey."""
    if said.path:
        out.tell(said.path[0], msgspec.structs.replace(said, path=said.path[1:]))
        return
    _follow(state)
    if state.elected == (said.leader, said.alarm):
        state.verdict = said.marks
        out.counted = True


def _follow(state: MatchState) -> None:
    """The broker that the alarms elect. Another election voids verdicts and rows."""
    on = sorted((broker, seen.number) for broker, seen in state.alarms.items() if seen.on)
    elected = on[0] if on else None
    if elected != state.elected:
        state.elected = elected
        state.row = None
        state.verdict = {}
        state.rows = {}
        state.verdicts = {}


def _disagrees(state: MatchState, known: Loads) -> bool:
    """Whether some tree goes from a link that wants to be s to one that wants to be p."""
    for origin in state.below:
        parent = state.place.parent.get(origin)
        if parent is None or known.up[parent].lesser == "p":
            continue
        if any(known.down[child].lesser == "p" for child in state.over(origin)):
            return True
    return False


def _solve(rows: dict[str, list[LinkRow]]) -> dict[str, dict[str, str]]:
    """By broker: its links that must not have their lesser load, and the mark that they get."""
    links = [(broker, row) for broker in sorted(rows) for row in rows[broker]]
    into: dict[tuple[str, str], int] = {}
    for t, (_, row) in enumerate(links):
        into |= {(row.to, origin): t for origin in row.origins}
    below = {
        (into[broker, origin], q)
        for q, (broker, row) in enumerate(links)
        for origin in row.origins
        if (broker, origin) in into
    }
    eta = np.array([row.sigma - row.tau for _, row in links], dtype=np.int64)
    chosen, _ = closure(eta, np.array(sorted(below), dtype=np.int64).reshape(-1, 2))
    found: dict[str, dict[str, str]] = {}
    for (broker, row), s in zip(links, chosen.tolist(), strict=True):
        if s != (row.sigma >= row.tau):
            found.setdefault(broker, {})[row.to] = "s" if s else "p"
    return found
