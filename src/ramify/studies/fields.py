"""Single events, fields and durations as people write them.

Owns what every command needs, even one that plans nothing: this module loads nothing that is compiled.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from ramify.content.events.events import Event, batch_to_events
from ramify.content.events.flatten import FieldMapping, TimeUnit, decode_records
from ramify.errors import InputError

__all__ = ["AnyEvent", "as_event", "duration_s", "field_mapping", "half_life_s"]

AnyEvent: TypeAlias = Event | Mapping[str, Any] | str | bytes
"""An event, a mapping of its fields, or its JSON text."""

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def field_mapping(
    id_field: str | None, publisher_field: str | None, time_field: str | None, time_unit: str
) -> FieldMapping:
    """Which fields of a record are an event's id, publisher and time; the id `none` numbers records."""
    try:
        unit = TimeUnit(time_unit)
    except ValueError:
        choices = ", ".join(TimeUnit)
        raise InputError(f"time_unit = {time_unit!r} is unknown. Allowed: {choices}.") from None
    return FieldMapping(
        id=None if id_field == "none" else id_field,
        publisher=publisher_field,
        time=time_field,
        time_unit=unit,
    )


def duration_s(text: str) -> float:
    """Seconds of a duration such as `90`, `90s`, `15m`, `1h` or `2d`. `InputError` for anything else."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not seconds > 0:
        raise InputError(f"{text!r} is not a duration above 0. Write 90s, 15m, 1h or 2d.")
    return seconds


def half_life_s(given: str | float | None) -> float | None:
    """A half-life in seconds; None where there is none."""
    if given is None:
        return None
    try:
        return duration_s(given if isinstance(given, str) else f"{given:f}")
    except InputError as error:
        raise InputError(f"the half-life {error.reason}") from None


def as_event(given: AnyEvent, mapping: FieldMapping) -> Event:
    """The event, or an `InputError` that says what is wrong with it."""
    if isinstance(given, Event):
        return given
    if isinstance(given, Mapping):
        try:
            given = json.dumps(dict(given), default=str)
        except ValueError as error:
            raise InputError(f"the event cannot be used: {error}") from None
    text = given.encode() if isinstance(given, str) else given
    decoded = decode_records([text], mapping=mapping)
    if decoded.rejected:
        raise InputError(f"the event cannot be used: {decoded.rejected[0].detail}")
    (event,) = batch_to_events(decoded.batch)
    return event
