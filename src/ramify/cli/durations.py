"""Durations as people write them: `90`, `90s`, `15m`, `1h`, `2d`; and the half-life that commands share."""

import re
from typing import Annotated

import typer

from ramify.errors import InputError

__all__ = ["HalfLifeOption", "duration_s", "half_life_of"]

HalfLifeOption = Annotated[
    str | None,
    typer.Option(
        help="Plan for recent events: one this much older counts half, such as 1h. Prices do not."
    ),
]

_FORM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(text: str) -> float:
    """Seconds. `InputError` for what is no duration, or none above 0."""
    found = _FORM.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not seconds > 0:
        raise InputError(f"{text!r} is no duration above 0. Write 90s, 15m, 1h or 2d.")
    return seconds


def half_life_of(text: str | None) -> float | None:
    """The half-life of an option in seconds; None where there is none."""
    if text is None:
        return None
    try:
        return duration_s(text)
    except InputError as error:
        raise InputError(f"the half-life {error.reason}") from None
