"""What a step writes: messages for lanes, and how many of them one write takes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["MOST_MESSAGES", "Output", "value_pieces"]

MOST_MESSAGES = 900
"""Messages of one atomic write; the server takes 1,000."""


@dataclass(frozen=True, slots=True)
class Output:
    """A message for a lane. Its number is given when it is written."""

    lane: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def value_pieces(lane: str, value: bytes, most_bytes: int) -> list[Output]:
    """A value as messages of at most so many bytes. They must be written in one write: then they lie one
    behind the other."""
    parts = [value[at : at + most_bytes] for at in range(0, len(value), most_bytes)] or [b""]
    return [Output(lane, part, {"K": f"{i}/{len(parts)}"}) for i, part in enumerate(parts, 1)]
