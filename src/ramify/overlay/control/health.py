"""How a broker fares, in a word and a reason: one rule for status, metrics and people. Pure.

Owns the words. A broker is `routing` only while what waits is worked on: whatever else is so is another
word, and says why.

    lost          it has no lease: it ended, or cannot reach the control server
    silent        its last word of itself is too old
    starting      it has not taken over its log yet
    cut off       it cannot renew its lease, so it may not route
    catching up   it has not carried out yet what the leader decided
    log full      its log has no room: who reads it is behind
    stuck         its server takes no writes: a full disk, a stream that is dead, a server without a leader;
                  or it does not answer
    stalled       something waits, and nothing was committed for too long
    routing       none of these
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SILENT_S", "STALLED_S", "Health", "HealthFigures", "health"]

STALLED_S = 10.0
"""After which it is told that nothing moves. A long step takes some seconds."""

SILENT_S = 15.0
"""What a broker said of itself counts so long."""

_FULL_S = 5.0


@dataclass(frozen=True, slots=True)
class HealthFigures:
    """What is known of a broker, by itself or by somebody who looks.

    age_s      how old its word is
    waiting    messages that wait, by input; an input that lacks one has at least one
    waiting_s  for how long something has waited without any commit
    full_s     for how long the log has had no room; `holders`: what its readers have not read
    stuck_s    for how long the log has taken no write, for another reason
    silence    what its own server does not answer; empty while it does
    unreached  neighbours whose server cannot be reached, or does not answer -> why, where that is known
    trouble    what went wrong last
    """

    leased: bool = True
    age_s: float = 0.0
    ready: bool = True
    renewed: bool = True
    caught_up: bool = True
    waiting: Mapping[str, int] = field(default_factory=dict)
    waiting_s: float = 0.0
    full_s: float = 0.0
    holders: Mapping[str, int] = field(default_factory=dict)
    stuck_s: float = 0.0
    silence: str = ""
    unreached: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The word, and why; no reason is needed for `routing`."""

    word: str
    why: str = ""


def health(figures: HealthFigures) -> Health:
    """The worst that is true of a broker."""
    f = figures
    because = f": {f.silence or f.trouble}" if f.silence or f.trouble else ""
    if not f.leased:
        return Health("lost", "it has no lease")
    if f.age_s >= SILENT_S:
        return Health("silent", f"it was last heard {f.age_s:.0f} s ago")
    if not f.ready:
        return Health("starting", f"it has not taken over its log yet{because}")
    if not f.renewed:
        return Health("cut off", f"it cannot renew its lease at the control server{because}")
    if not f.caught_up:
        return Health("catching up", f"it has not carried out what the leader decided{because}")
    if f.full_s >= _FULL_S:
        held = _largest(f.holders)
        by = f"; {held[0]} has not read {held[1]:,} messages" if held else ""
        return Health("log full", f"its log has had no room for {f.full_s:.0f} s{by}")
    if f.stuck_s >= _FULL_S:
        return Health("stuck", f"its server has taken no write for {f.stuck_s:.0f} s{because}")
    if f.silence:
        return Health("stuck", f.silence)
    if f.waiting_s >= STALLED_S and (most := _largest(f.waiting)):
        where = "what clients published" if most[0] == "*" else f"the lane from {most[0]}"
        text = f"{where} waits ({most[1]:,} messages), and nothing was committed for {f.waiting_s:.0f} s"
        return Health("stalled", text + because)
    if f.unreached:
        names = (f"{name} ({why})" if why else name for name, why in sorted(f.unreached.items()))
        return Health("routing", f"it cannot reach the servers of {', '.join(names)}")
    return Health("routing")


def _largest(counts: Mapping[str, int]) -> tuple[str, int] | None:
    return max(counts.items(), key=lambda each: (each[1], each[0]), default=None)
