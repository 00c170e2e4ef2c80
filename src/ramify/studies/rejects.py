"""What of a log could not be used: events, subscriptions, attachments, with reasons and places.

Owns `Rejects`, which every result of a log carries, and the sentences about it. Bad rows are values, not
errors: the rest of a log is used, and a printed result says what was not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ramify.content.filters.subscriptions import BadSubscription
from ramify.planning.demand.windows import NOBODY
from ramify.studies.text_tables import html_lines

if TYPE_CHECKING:
    from ramify.pipeline.passes.passes import PassResult, Totals

__all__ = ["ROWS_SHOWN", "RejectedRow", "Rejects", "several"]

ROWS_SHOWN = 10
"""How many rejected rows of a kind are kept to be shown; all are counted."""

UNKNOWN_PUBLISHER = "unknown_publisher"
_PUBLISHERS_SHOWN = 3
_NAMES_IN_FIGURES = 100


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that was not used.

    Attributes
    ----------
    kind      `event`, `subscription` or `attachment`
    place     where it is: file and line, or its position
    reason    a code, such as `not_json`, `wrong_type`, `no_id`; `bad` for subscriptions and attachments
    detail    a sentence for people
    rows      how many rows it stands for: a damaged part of a file is one entry
    """

    kind: str
    place: str
    reason: str
    detail: str
    rows: int = 1

    def __str__(self) -> str:
        return f"{self.kind} not used: {self.place}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Rejects:
    """What of a log could not be used. True when there is anything.

    Attributes
    ----------
    events_in         records of the log; `events_good` of them are events
    events_left_out   good events that `keep` left out
    files             files that were read, at least in part
    reasons           events that were not used by reason; `unknown_publisher` where no broker is known
    unknown           those by publisher
    first_events      the first of the others, with file and line, at most `ROWS_SHOWN`
    subscriptions     lines of the subscriptions that cannot be used, all of them
    subscriptions_in  how many lines there are
    misplaced         attachments to brokers that the overlay does not have
    unreached         fields that no filter can reach, with how many values they have
    notes             sentences about fields and types, where nothing is lost but something may be a slip
    copies            files that were left out since they repeat another one byte for byte, each with that
                      one; no event is lost by that
    """

    events_in: int = 0
    events_good: int = 0
    events_left_out: int = 0
    files: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    first_events: tuple[RejectedRow, ...] = ()
    subscriptions: tuple[BadSubscription, ...] = ()
    subscriptions_in: int = 0
    misplaced: tuple[RejectedRow, ...] = ()
    unreached: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    faults: int = 0
    copies: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        found: "PassResult",
        *,
        shown: tuple[dict[str, Any], ...] | None = None,
        reasons: Mapping[str, int] | None = None,
        memory: str | None = None,
        **listed: Any,
    ) -> "Rejects":
        """From a pass, while its frames can be read unless the first rejects and reasons are given.

        `memory` is the file that stands for events which were given as objects.
        """
        totals: Totals = found.totals
        first = found.first_rejects(ROWS_SHOWN) if shown is None else shown
        unknown: dict[str, int] = {}
        for (_, name), events in found.unknown.items():
            unknown[name or NOBODY] = unknown.get(name or NOBODY, 0) + events
        counted = dict(found.reject_reasons() if reasons is None else reasons)
        if totals.unknown:
            counted[UNKNOWN_PUBLISHER] = totals.unknown
        return cls(
            totals.rows_in,
            totals.good,
            totals.thinned,
            totals.files,
            counted,
            unknown,
            tuple(_event(row, memory) for row in first),
            unreached=dict(found.unreached),
            faults=totals.faults,
            **listed,
        )

    def __bool__(self) -> bool:
        """Whether anything could not be used."""
        return bool(self.subscriptions or self.misplaced or self.faults or self.unknown)

    def __len__(self) -> int:
        """Events, subscriptions and attachments that were not used, together."""
        return self.events + len(self.subscriptions) + len(self.misplaced)

    @property
    def events(self) -> int:
        """Events that were not used: not readable, or of a publisher without a broker."""
        return self.events_in - self.events_good + self.reasons.get(UNKNOWN_PUBLISHER, 0)

    @property
    def first(self) -> tuple[RejectedRow, ...]:
        """The first of each kind, with their places: subscriptions, attachments, events."""
        lines = (
            RejectedRow("subscription", _place_of(row), "bad", row.reason)
            for row in self.subscriptions[:ROWS_SHOWN]
        )
        return (*lines, *self.misplaced[:ROWS_SHOWN], *self.first_events)

    def lines(self) -> Iterator[str]:
        """Sentences: the first rows of each kind, then publishers without a broker."""
        yield from map(str, self.first)
        if self.unknown:
            names = _some(self.unknown, _PUBLISHERS_SHOWN)
            more = len(self.unknown) - _PUBLISHERS_SHOWN
            names += f" and {more:,} more" if more > 0 else ""
            yield (
                f"these publishers have no known broker: {names}. "
                "Attach them to brokers, or name another publisher field."
            )

    def notes_and_copies(self) -> Iterator[str]:
        """Sentences: the notes, then the first copies."""
        yield from self.notes
        for copy, first in list(self.copies.items())[:ROWS_SHOWN]:
            yield f"{copy} is a copy of {first}, byte for byte, and is not counted again"
        more = len(self.copies) - ROWS_SHOWN
        if more > 0:
            yield f"{several(more, 'more file')} {'is a copy' if more == 1 else 'are copies'}"
        if self.copies:
            yield "to count copies too, give --count-copies, or count_copies=True in Python"

    @property
    def fields_line(self) -> str | None:
        """A sentence about fields that no filter can reach, if there are any."""
        return f"fields that filters cannot reach: {_some(self.unreached, 10)}" if self.unreached else None

    @property
    def summary(self) -> str:
        """One line: how many of what were not used."""
        if not self:
            return "everything was used"
        bad, lost = self.subscriptions, self.misplaced
        parts = [
            f"{self.events:,} of {several(self.events_in, 'event')} in {several(self.files, 'file')}",
            *(
                [f"{len(bad):,} of {several(self.subscriptions_in, 'subscription')}"]
                if self.subscriptions_in
                else []
            ),
            *([several(len(lost), "attachment")] if lost else []),
        ]
        return f"not used: {', '.join(parts)}; the rest was used"

    def figures(self) -> dict[str, Any]:
        """The counts, as plain numbers for JSON."""
        return {
            "rows_in": self.events_in,
            "rows_good": self.events_good,
            "rows_quarantined": self.events_in - self.events_good,
            "rows_left_out": self.events_left_out,
            "rows_without_broker": self.reasons.get(UNKNOWN_PUBLISHER, 0),
            "files": self.files,
            "reasons": dict(self.reasons),
            "publishers_without_broker": dict(list(self.unknown.items())[:_NAMES_IN_FIGURES]),
            "unreachable_fields": dict(self.unreached),
            "files_left_out": len(self.copies),
            "copies": dict(list(self.copies.items())[:_NAMES_IN_FIGURES]),
        }

    def __repr__(self) -> str:
        return "\n".join(
            [self.summary, *(f"  {line}" for line in (*self.notes_and_copies(), *self.lines()))]
        )

    def _repr_html_(self) -> str:
        return html_lines(self.summary, [*self.notes_and_copies(), *self.lines()])


def several(count: int, noun: str) -> str:
    """A number with its noun, in singular or plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _some(counts: Mapping[str, int], most: int) -> str:
    return ", ".join(f"{name} ({n:,})" for name, n in list(counts.items())[:most])


def _place_of(row: BadSubscription) -> str:
    return f"line {row.line}" if row.id is None else f"line {row.line} (subscription {row.id})"


def _event(row: Mapping[str, Any], memory: str | None) -> RejectedRow:
    return RejectedRow("event", _place(row, memory), row["reason"], row["detail"], row["rows"])


def _place(row: Mapping[str, Any], memory: str | None) -> str:
    if memory is not None and row["file"] and str(row["file"]).endswith(memory):
        number = row["line"] if row["line"] is not None else row["position"] + 1
        return f"number {number:,} of the events given"
    place = f"{row['file']}" if row["file"] else "a row"
    if row["line"] is not None:
        return f"{place}, line {row['line']:,}"
    return f"{place}, record {row['position']:,}" if row["rows"] else place
