"""Numbered lanes: what makes a redelivered message harmless. Pure.

Owns the numbers. Every message on a lane has the number of its predecessor plus one. A reader knows the
number up to which it has taken the lane for good (its *position*), takes exactly the next one, and drops
what it has. NATS may redeliver in any order after a crash, so the highest number seen says nothing.

    Inlet        one input of a broker, or one client's deliveries: what to do with the message that came
    Positions    where every input of a broker stands; written with the output that they complete
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from ramify.errors import InputError

__all__ = ["Inlet", "LaneVerdict", "decode_positions", "encode_positions"]

_MOST_INPUTS = 10_000


class LaneVerdict(Enum):
    """What a message that came is."""

    NEXT = "next"
    """The one to take."""
    OLD = "old"
    """Taken before: acknowledge again what is committed, and drop it."""
    GAP = "gap"
    """Something before it is missing: ask for everything after `taken` again."""


class Inlet:
    """One input. `committed` is safe with its effects; `taken` also counts what is being worked on."""

    def __init__(self, committed: int = 0) -> None:
        self.committed = committed
        self.taken = committed

    def verdict(self, number: int) -> LaneVerdict:
        """What to do with a message. A `NEXT` one counts as taken."""
        if number <= self.taken:
            return LaneVerdict.OLD
        if number > self.taken + 1:
            return LaneVerdict.GAP
        self.taken = number
        return LaneVerdict.NEXT

    def commit(self, number: int) -> None:
        """Everything up to `number` is safe. It never goes back."""
        self.committed = max(self.committed, number)
        self.taken = max(self.taken, self.committed)

    def forget_taken(self, committed: int) -> None:
        """After a crash or a failed write: what was only taken is to come again."""
        self.committed = self.taken = committed


def encode_positions(positions: Mapping[str, int]) -> str:
    """Positions as a header's value; inputs are tokens, so the separators cannot be in them."""
    return ",".join(f"{source}:{number}" for source, number in sorted(positions.items()))


def decode_positions(text: str) -> Mapping[str, int]:
    """The positions in a header's value. Raises `InputError` when it is not one."""
    found: dict[str, int] = {}
    parts = text.split(",") if text else []
    for part in parts[:_MOST_INPUTS]:
        source, colon, number = part.rpartition(":")
        if not colon or not source or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise InputError(f"a broker's positions are unreadable: {part[:80]!r}")
        found[source] = int(number)
    if len(parts) > _MOST_INPUTS:
        raise InputError(f"a broker has {len(parts)} inputs; at most {_MOST_INPUTS} are read")
    return MappingProxyType(found)
