"""What a broker's messages say, read without its code."""

import json
from typing import Any

import pyarrow as pa

from ramify.overlay.control.output import Output


def ids_in(payload: bytes) -> list[str]:
    """The ids of the events of a message, in order."""
    found: list[str] = pa.ipc.open_stream(payload).read_all().column("id").to_pylist()
    return found


def handed(output: Output) -> list[tuple[str, str]]:
    """(event, subscription) of a message to a client, in order."""
    table = pa.ipc.open_stream(output.payload).read_all()
    events: list[Any] = table.column("id").to_pylist()
    named = json.loads(output.headers["F"])
    sets = [named] * len(events)
    if "_entry" in table.schema.names:
        sets = [named[place] for place in table.column("_entry").to_pylist()]
    return [(event, id_) for event, ids in zip(events, sets, strict=True) for id_ in ids]
