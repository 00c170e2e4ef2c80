"""Clients move to another broker while events flow: section V of Zhao and Wu. Pure.

Owns the phases of a move, the tasks in each, and how the numbers of deliveries go on from one lane to
the next. A move takes the paper's calls in this order; each is written down before the next begins.

    offered      request_to_move: the home broker hands the offer to the client
    accepted     accept: the foreign broker makes the client's lane, and says where it ends (replicate)
    replicated   the leader proposes a plan that has the client there, and nothing else changed
    switching    that plan is the newest one. There is no way back
    switched     every plan that had the client at home is retired: home's lane has all that it will ever
                 have, and its broker ends it with a message that says where to go on
    done         the record has the client at the foreign broker; home redirects it (redirect)

    declined, lapsed, withdrawn     it stays where it was

Idea       An event is routed by one plan from its first broker to its last. So it comes on the lane at
           home, with a plan before the switch, or on the lane at the foreign broker, with one after it:
           never on both, never on none. The client reads the one to its end, and then the other (connect).
Guarantee  Nothing is lost or doubled, whatever process dies in whatever phase: what a phase rests on is in
           the store or in a broker's log, and `looked` finds it there. A move ends in exactly one way.
Departures The paper's home broker forwards what comes for the client until the foreign one is known
           everywhere, and does not say how doubles and gaps are avoided. Here nothing is forwarded.

Positions. A client that keeps a number and comes back with it must find the right lane at the right place,
whatever moves it has made. So its lanes are parts of one sequence: a part begins behind the last message of
the part before, and one number more, which is for the case that the part before is given up unread after it
has ended (`quotas`): the message that says so has a number of its own.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from ramify.errors import InputError
from ramify.overlay.control.records import Lane, Move

__all__ = [
    "ACCEPTED",
    "DECLINED",
    "DONE",
    "LAPSED",
    "OFFERED",
    "PATIENCE_S",
    "REPLICATED",
    "SWITCHED",
    "SWITCHING",
    "WITHDRAWN",
    "ClientView",
    "Duty",
    "LaneEnd",
    "accepted",
    "declined",
    "duty_of",
    "ended",
    "is_open",
    "lanes_after",
    "lanes_left",
    "looked",
    "next_lane",
    "part_of",
    "replicated",
]

OFFERED, ACCEPTED, REPLICATED, SWITCHING, SWITCHED, DONE = (
    *("offered", "accepted", "replicated", "switching", "switched", "done"),
)
DECLINED, LAPSED, WITHDRAWN = "declined", "lapsed", "withdrawn"

_UNDECIDED = (OFFERED, ACCEPTED, REPLICATED)
_SPARE = 1
"""Numbers between two parts; see the module."""

PATIENCE_S = 60.0
"""How long an accepted move may wait for the foreign broker and for room for another plan."""


# --------------------------------------------------------------------------------------------- phases


@dataclass(frozen=True, slots=True)
class ClientView:
    """What is known of a client beside its move.

    recorded    the broker of its record
    newest      where the newest plan has it
    everywhere  whether every live plan has it there
    suspended   why its subscriptions do not count; empty while they do
    """

    recorded: str
    newest: str
    everywhere: bool = True
    suspended: str = ""


class Duty(Enum):
    """What a broker has to do for a move."""

    HAND = "hand"
    """Give the offer to the client when it asks."""
    REPLICATE = "replicate"
    """Have the client's lane, and say where it ends."""
    END = "end"
    """Write the last message of the client's lane, and say its number."""
    REDIRECT = "redirect"
    """Name the client its new broker, whatever it asks."""


def is_open(move: Move) -> bool:
    """Whether it is still to be decided, or on its way."""
    return move.phase in (*_UNDECIDED, SWITCHING, SWITCHED)


def duty_of(move: Move, broker: str, now: float) -> Duty | None:
    """What a broker has to do now, as often as it looks: each duty may be done again."""
    if broker == move.home and move.phase == OFFERED and now <= move.until:
        return Duty.HAND
    if broker == move.foreign and move.phase == ACCEPTED:
        return Duty.REPLICATE
    if broker == move.home and move.phase == SWITCHED:
        return Duty.END
    if broker == move.home and move.phase == DONE and now <= move.at + move.ttl_s:
        return Duty.REDIRECT
    return None


def accepted(move: Move, now: float) -> Move:
    """The client takes an offer. Again, or too late: nothing changes."""
    if move.phase != OFFERED or now > move.until:
        return move
    return _at(move, ACCEPTED, now, until=now + PATIENCE_S)


def declined(move: Move, why: str, now: float) -> Move:
    """The client stays. Counts until plans have moved it."""
    if move.phase not in _UNDECIDED:
        return move
    return _at(move, DECLINED, now, why=why or "the client declined")


def replicated(move: Move, start: int, now: float) -> Move:
    """The foreign broker has the lane, which ends with `start`."""
    return _at(move, REPLICATED, now, start=start) if move.phase == ACCEPTED else move


def ended(move: Move, number: int, now: float) -> Move:
    """The lane at home ends with `number`. Done once the record says so: see `looked`."""
    return _at(move, SWITCHED, now, end=number) if move.phase == SWITCHED else move


def looked(move: Move, view: ClientView, now: float) -> Move:
    """The move as what is known of its client makes it.

    Plans are the truth: one that has the client at the foreign broker counts, also where its writer
    did not come to write the phase, or another gave the move up meanwhile.
    """
    if move.phase == SWITCHED:
        done = view.recorded == move.foreign
        return _at(move, DONE, now) if done else move
    if move.phase == DONE:
        return move
    if view.newest == move.foreign and view.recorded == move.home:
        if view.everywhere:
            return _at(move, SWITCHED, now)
        return move if move.phase == SWITCHING else _at(move, SWITCHING, now)
    if move.phase not in _UNDECIDED:
        return move
    if view.recorded != move.home:
        return _at(move, WITHDRAWN, now, why=f"the client is at {view.recorded}")
    if view.suspended:
        return _at(move, WITHDRAWN, now, why=f"the client was suspended ({view.suspended})")
    if now <= move.until:
        return move
    if move.phase == OFFERED:
        return _at(move, LAPSED, now, why="the client did not answer in time")
    waits = f"{move.foreign} did not answer" if move.phase == ACCEPTED else "no plan could have it there"
    return _at(move, WITHDRAWN, now, why=f"{waits} within {PATIENCE_S:g} s")


def _at(move: Move, phase: str, now: float, **changed: object) -> Move:
    return msgspec.structs.replace(move, phase=phase, at=now, **changed)


# ---------------------------------------------------------------------------------------------- lanes


class LaneEnd(msgspec.Struct, frozen=True):
    """What the last message of a lane says (header M): the move, and where its client goes on.

    `end`: the number of the message that said so first, where this one follows it; else 0.
    """

    move: str
    to: str
    start: int
    end: int = 0

    def encode(self) -> str:
        """As a header's value: ASCII."""
        return json.dumps(msgspec.to_builtins(self))

    @staticmethod
    def decode(text: str) -> "LaneEnd":
        """Raises `InputError` for what is none."""
        try:
            return msgspec.json.decode(text, type=LaneEnd)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"a lane ends with what does not say where to go on: {error}") from None


def next_lane(lane: Lane, end: int, onward: LaneEnd) -> Lane:
    """The part behind one that ends with the number `end` on its lane."""
    return Lane(onward.to, lane.base + end + _SPARE - onward.start, onward.start)


def lanes_after(lanes: Sequence[Lane], move: Move) -> list[Lane]:
    """The lanes of a client whose lane at home has ended."""
    parts = list(lanes) or [Lane(move.home)]
    last = msgspec.structs.replace(parts[-1], end=move.end, move=move.id)
    onward = LaneEnd(move.id, move.foreign, move.start)
    return [*parts[:-1], last, next_lane(last, move.end, onward)]


def lanes_left(lanes: Sequence[Lane], move: str) -> list[Lane]:
    """The lanes without the part that a move ended and those before: a reader of it has read them."""
    read = [i for i, lane in enumerate(lanes) if lane.move == move]
    return list(lanes[read[-1] + 1 :] if read else lanes)


def part_of(lanes: Sequence[Lane], after: int | None) -> int:
    """Which of some parts a reader begins with: the first without a number; with one, the part that has
    what follows it. A number that is before all parts belongs to the first."""
    if after is None:
        return 0
    begun = [i for i, lane in enumerate(lanes) if lane.base + lane.start - _SPARE <= after]
    return max(begun, default=0)
