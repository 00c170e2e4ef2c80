"""The way of one event through a plan: its receivers and why, the links it crosses, the cost.

Owns `explain` and `EventJourney`. The way itself is the simulator's; the reasons are those of filters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ramify.content.events.events import Event, EventSchema, batch_to_events, events_to_batch
from ramify.content.events.flatten import FieldMapping
from ramify.content.filters.expressions import explain as explain_filter
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.overlay.routing.headers import HeaderKind
from ramify.overlay.routing.simulator import Crossing, Simulator
from ramify.planning.plans.plan import Plan
from ramify.studies.fields import AnyEvent, as_event
from ramify.studies.inputs import AnyPlan, as_plan
from ramify.studies.rejects import several
from ramify.studies.text_tables import text_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MATCHES_SHOWN", "EventJourney", "explain", "explain_row"]

MATCHES_SHOWN = 3
_WAYS = {
    HeaderKind.TREE: "",
    HeaderKind.LEG: "leg to",
    HeaderKind.NOTE: "notification",
    HeaderKind.CARRIED: "header tree,",
    HeaderKind.LIST: "header list,",
    HeaderKind.COPY: "copy,",
}
_COLUMNS = ("at_ms", "from", "to", "by", "bytes", "price_per_gb", "cost")


def explain(
    plan: AnyPlan, event: AnyEvent, *, at: str | None = None, publisher_field: str | None = "publisher"
) -> "EventJourney":
    """What a plan does with one event: its receivers and why, the links it crosses, the cost.

    `at` is the broker where it is published; without it, the broker of the event's publisher. Raises
    `InputError` for an event that cannot be read or names no known place.

    >>> import ramify
    >>> log = ramify.read_log("examples/events.ndjson", subscriptions="examples/subscriptions.jsonl",
    ...                       attachments="examples/attachments.json")
    >>> plan = ramify.study(log).compare(["explicit"]).best.plan
    >>> journey = ramify.explain(plan, {"type": "alert.fraud", "price": 950}, at="aws-us-east-1")
    >>> [(row.id, row.broker) for row in journey.matches]
    [('alerts', 'gcp-europe-west1'), ('no-tier', 'azure-westeurope')]
    >>> journey.to_frame()[["from", "to"]]  # doctest: +ELLIPSIS
                    from                to
    0      aws-us-east-1  ...
    """
    made = as_plan(plan)
    given = as_event(event, FieldMapping(id=None, publisher=publisher_field))
    known = {path: value for path, value in given.attributes.items() if path in made.classes.schema}
    # No filter of the plan asks for an attribute that its schema does not have.
    batch = events_to_batch([replace(given, attributes=known)], EventSchema(dict(made.classes.schema)))
    return explain_row(made, batch, 0, at)


def explain_row(plan: Plan, batch: pa.RecordBatch, row: int, at: str | None = None) -> "EventJourney":
    """What a plan does with one row of a batch, published at a broker or by the event's publisher."""
    one = batch.slice(row, 1)
    (event,) = batch_to_events(one)
    if at is None and event.publisher is None:
        raise InputError("the event has no publisher. Name the broker where it is published: at, or --at.")
    origin = plan.origin_of(at if at is not None else str(event.publisher))
    simulator = Simulator(plan)
    cell, classes = simulator.pattern_of(one)
    steps = simulator.publish(origin, cell, classes, event=event.id, size=event.size_bytes)
    arrival = {k: ms for (_, k), ms in simulator.result.class_ms.items()}
    return EventJourney(plan, event, origin, classes, tuple(steps), arrival)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EventJourney:
    """What a plan does with one event; `print` it for the links and the matches.

    Attributes
    ----------
    plan          what routes it
    event         what was published
    origin        the index of the broker where it was
    classes       the classes that it matches
    steps         its crossings of links, in order of arrival
    arrival_ms    when each class got it, in milliseconds; a class that is not here never does
    """

    plan: Plan
    event: Event
    origin: int
    classes: tuple[int, ...]
    steps: tuple[Crossing, ...]
    arrival_ms: Mapping[int, float] = field(default_factory=dict)

    @property
    def publisher_broker(self) -> str:
        """Where it was published."""
        return self.plan.overlay.brokers[self.origin]

    @property
    def matches(self) -> tuple[Subscription, ...]:
        """The subscriptions that it matches."""
        return tuple(row for k in self.classes for row in self.plan.classes.members[k])

    @property
    def cost(self) -> float:
        """Money for its bytes on all links, headers included."""
        return float(sum(row["cost"] for row in self.links()))

    @property
    def headline(self) -> str:
        """One sentence: where it was published, and how many get it over how many links."""
        match = "matches" if len(self.matches) == 1 else "match"
        return (
            f"Event {self.event.id}, {self.event.size_bytes:,} bytes, published at "
            f"{self.publisher_broker}: {several(len(self.matches), 'subscription')} {match}, "
            f"{several(len(self.steps), 'link')} crossed."
        )

    def reasons(self) -> list[tuple[str, str]]:
        """Per subscription that it matches: a line with place and time, and why its filter holds."""
        rows = []
        for k in self.classes:
            when = self.arrival_ms.get(k)
            arrives = "never arrives" if when is None else f"after {when:.0f} ms"
            why = str(explain_filter(self.event, self.plan.classes.filters[k]))
            members = self.plan.classes.members[k]
            rows += [(f"{row.id} at {row.broker} ({row.client}), {arrives}:", why) for row in members]
        return rows

    def links(self) -> list[dict[str, Any]]:
        """A row per crossing: see `to_frame`."""
        overlay = self.plan.overlay
        rows = []
        for step in self.steps:
            a, b = overlay.brokers[step.sender], overlay.brokers[step.receiver]
            link = overlay.link_between(a, b)
            per_gb = float(overlay.price[link, int(overlay.ends[link, 0] != step.sender)])
            size = self.event.size_bytes + len(step.header.encode())
            by = f"{_WAYS[step.header.kind]} {', '.join(self._channels(step))}".strip()
            values = (step.at_ms, a, b, by, size, per_gb, per_gb * size / 1e9)
            rows.append(dict(zip(_COLUMNS, values, strict=True)))
        return rows

    def to_frame(self) -> "pd.DataFrame":
        """A row per crossing of a link, in order of arrival.

        at_ms           when it arrives, milliseconds after it was published
        from, to        brokers
        by              the channel, and how it is sent there
        bytes           the event with its header
        price_per_gb    of the link in this direction, per 10^9 bytes
        cost            money
        """
        import pandas as pd

        return pd.DataFrame(self.links(), columns=list(_COLUMNS))

    def figures(self) -> dict[str, Any]:
        """All of it, as plain values for JSON."""
        return {
            "event": self.event.id,
            "publisher_broker": self.publisher_broker,
            "matches": [
                {
                    "subscription": row.id,
                    "client": row.client,
                    "broker": row.broker,
                    "ms": self.arrival_ms.get(k),
                    "why": str(explain_filter(self.event, self.plan.classes.filters[k])),
                }
                for k in self.classes
                for row in self.plan.classes.members[k]
            ],
            "channels": sorted({name for step in self.steps for name in self._channels(step)}),
            "links": self.links(),
            "cost": self.cost,
        }

    def _channels(self, step: Crossing) -> list[str]:
        return [self.plan.channels[c].name for c in step.header.channels]

    def __repr__(self) -> str:
        rows = [
            [f"{row['at_ms']:.0f}", row["from"], row["to"], f"{row['bytes']:,}", row["by"]]
            for row in self.links()
        ]
        shown = [f"{line} {why.splitlines()[0]}" for line, why in self.reasons()[:MATCHES_SHOWN]]
        more = len(self.matches) - MATCHES_SHOWN
        return "\n".join(
            [
                self.headline,
                *shown,
                *([f"and {more} more"] if more > 0 else []),
                *([text_table(["ms", "from", "to", "bytes", "by"], rows, left=0)] if rows else []),
                f"${1e6 * self.cost:.4f} for a million such events, headers included",
            ]
        )
