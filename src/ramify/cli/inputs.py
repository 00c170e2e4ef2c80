"""What commands read: event logs with what was wrong in them, single events, subscriptions.

Rows that cannot be used are counted, the first few are kept to be shown, and the exit code tells.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from ramify.cli.console import REJECTED_SHOWN, SOME_BAD_ROWS, err
from ramify.content.events.events import DecodedBatch, Event, RejectedRecord
from ramify.content.events.flatten import FieldMapping, TimeUnit
from ramify.content.filters.subscriptions import Subscriptions
from ramify.studies.fields import as_event, field_mapping

__all__ = [
    "EventLog",
    "IdField",
    "PublisherField",
    "TimeField",
    "TimeUnitOption",
    "field_mapping",
    "one_event",
    "report_bad",
]

IdField = Annotated[str, typer.Option(help="Field with the event id; 'none' numbers the lines.")]
PublisherField = Annotated[str, typer.Option(help="Field that names the publishing client or site.")]
TimeField = Annotated[str, typer.Option(help="Field with the event's time.")]
TimeUnitOption = Annotated[TimeUnit, typer.Option(help="What a number in the time field counts.")]


class EventLog:
    """Passes batches on and counts what was good and what was not."""

    def __init__(self, decoded: Iterator[DecodedBatch]) -> None:
        self._decoded = decoded
        self.good = 0
        self.rejected_count = 0
        self.rejected: list[RejectedRecord] = []
        self.unaddressable: Counter[str] = Counter()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The good events, once."""
        for part in self._decoded:
            self.good += part.batch.num_rows
            self.rejected_count += len(part.rejected)
            self.rejected += part.rejected[: REJECTED_SHOWN - len(self.rejected)]
            self.unaddressable.update(part.unaddressable)
            yield part.batch


def report_bad(tally: EventLog, listed: Subscriptions, as_json: bool) -> None:
    """Say what could not be used, and let the exit code tell."""
    for bad in listed.bad[:REJECTED_SHOWN]:
        err.print(f"subscription not used: {bad}", markup=False, highlight=False, soft_wrap=True)
    for rejected in tally.rejected:
        where = f"line {rejected.line}" if rejected.line is not None else f"record {rejected.position}"
        err.print(
            f"event not used: {where}: {rejected.detail}", markup=False, highlight=False, soft_wrap=True
        )
    if tally.unaddressable and not as_json:
        names = ", ".join(f"{path} ({n:,})" for path, n in list(tally.unaddressable.items())[:10])
        err.print(
            f"fields that filters cannot reach: {names}", markup=False, highlight=False, soft_wrap=True
        )
    if listed.bad or tally.rejected_count:
        err.print(
            f"not used: {len(listed.bad):,} of {len(listed.bad) + len(listed.good):,} subscriptions, "
            f"{tally.rejected_count:,} of {tally.rejected_count + tally.good:,} events",
            highlight=False,
        )
        raise typer.Exit(SOME_BAD_ROWS)


def one_event(text: str, mapping: FieldMapping | None = None) -> Event:
    """The event in a JSON text, or an `InputError` that says what is wrong with it."""
    return as_event(text, mapping or FieldMapping(id=None))
