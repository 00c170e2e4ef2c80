"""The command `explain`: what a plan does with one event."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from ramify.cli.app import app
from ramify.cli.console import friendly, out, plain_table, say
from ramify.cli.inputs import PublisherField, field_mapping, one_event
from ramify.content.events.events import Event, EventSchema, batch_to_events, events_to_batch
from ramify.content.events.flatten import TimeUnit
from ramify.content.filters.expressions import explain
from ramify.errors import InputError
from ramify.overlay.routing.headers import HeaderKind
from ramify.overlay.routing.simulator import Crossing, Simulator
from ramify.planning.plans.files import read_plan
from ramify.planning.plans.plan import Plan

__all__ = ["EventJourney", "told_row"]

_MATCHES_SHOWN = 3
_WAYS = {
    HeaderKind.TREE: "",
    HeaderKind.LEG: "leg to",
    HeaderKind.NOTE: "notification",
    HeaderKind.CARRIED: "header tree,",
    HeaderKind.LIST: "header list,",
    HeaderKind.COPY: "copy,",
}


@app.command(name="explain")
@friendly
def explain_event(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    event: Annotated[str, typer.Option(help="One event as JSON.")],
    at: Annotated[str | None, typer.Option(help="The broker where it is published.")] = None,
    publisher_field: PublisherField = "publisher",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a plan does with one event: who gets it and why, which links it crosses, what that costs."""
    made = read_plan(plan_file)
    mapping = field_mapping("none", publisher_field, "time", TimeUnit.NONE)
    given = one_event(event, mapping)
    told = _told(made, given, at)
    if as_json:
        print(json.dumps(told.summary(), allow_nan=False))
    else:
        told.show()


@dataclass(slots=True)
class EventJourney:
    """What a plan does with one event."""

    plan: Plan
    event: Event
    origin: int
    classes: tuple[int, ...]
    steps: list[Crossing]
    arrival_ms: dict[int, float]

    def show(self) -> None:
        """Print it for people."""
        names = self.plan.overlay.brokers
        members = [(row, k) for k in self.classes for row in self.plan.classes.members[k]]
        say(
            f"Event {self.event.id}, {self.event.size_bytes:,} bytes, published at {names[self.origin]}: "
            f"{len(members)} subscriptions match, {len(self.steps)} links crossed."
        )
        for row, k in members[:_MATCHES_SHOWN]:
            when = self.arrival_ms.get(k)
            arrives = "never arrives" if when is None else f"after {when:.0f} ms"
            out.print(
                f"\n{row.id} at {row.broker} ({row.client}), {arrives}:", markup=False, highlight=False
            )
            out.print(str(explain(self.event, self.plan.classes.filters[k])), markup=False, highlight=False)
        if len(members) > _MATCHES_SHOWN:
            others = sorted({row.broker for row, _ in members[_MATCHES_SHOWN:]})
            say(f"\n... and {len(members) - _MATCHES_SHOWN} more at {', '.join(others)}")
        table = plain_table("ms", "from", "to", "by", "bytes", "$/million")
        for column, width in zip(table.columns, (4, 18, 18, 13, 6, 9), strict=True):
            column.width, column.overflow = width, "ellipsis"
        for column in (table.columns[0], *table.columns[4:]):
            column.justify = "right"
        for link in self._links():
            table.add_row(
                f"{link['at_ms']:.0f}",
                link["from"],
                link["to"],
                link["by"],
                f"{link['bytes']:,}",
                f"{1e6 * link['cost']:.4f}",
            )
        say("")
        out.print(table)
        say(f"${1e6 * self._cost():.4f} for a million such events, headers included")

    def summary(self) -> dict[str, Any]:
        """It for JSON."""
        rows = [(row, k) for k in self.classes for row in self.plan.classes.members[k]]
        return {
            "event": self.event.id,
            "publisher_broker": self.plan.overlay.brokers[self.origin],
            "matches": [
                {
                    "subscription": row.id,
                    "client": row.client,
                    "broker": row.broker,
                    "ms": self.arrival_ms.get(k),
                    "why": str(explain(self.event, self.plan.classes.filters[k])),
                }
                for row, k in rows
            ],
            "channels": sorted(
                {self.plan.channels[c].name for step in self.steps for c in step.header.channels}
            ),
            "links": self._links(),
            "cost": self._cost(),
        }

    def _links(self) -> list[dict[str, Any]]:
        overlay = self.plan.overlay
        rows = []
        for step in self.steps:
            a, b = overlay.brokers[step.sender], overlay.brokers[step.receiver]
            link = overlay.link_between(a, b)
            per_gb = float(overlay.price[link, int(overlay.ends[link, 0] != step.sender)])
            size = self.event.size_bytes + len(step.header.encode())
            rows.append(
                {
                    "at_ms": step.at_ms,
                    "from": a,
                    "to": b,
                    "by": f"{_WAYS[step.header.kind]} {self._channels(step)}".strip(),
                    "bytes": size,
                    "price_per_gb": per_gb,
                    "cost": per_gb * size / 1e9,
                }
            )
        return rows

    def _channels(self, step: Crossing) -> str:
        return ", ".join(self.plan.channels[c].name for c in step.header.channels)

    def _cost(self) -> float:
        return float(sum(row["cost"] for row in self._links()))


def _told(made: Plan, event: Event, at: str | None) -> EventJourney:
    known = {path: value for path, value in event.attributes.items() if path in made.classes.schema}
    # No filter of the plan asks for an attribute that its schema has not.
    batch = events_to_batch([replace(event, attributes=known)], EventSchema(dict(made.classes.schema)))
    return told_row(made, batch, 0, at)


def told_row(made: Plan, batch: pa.RecordBatch, row: int, at: str | None = None) -> EventJourney:
    """What a plan does with one row of a batch, published at a broker or by the event's publisher."""
    one = batch.slice(row, 1)
    (event,) = batch_to_events(one)
    if at is None and event.publisher is None:
        raise InputError("the event names no publisher. Say where it is published with --at <broker>.")
    origin = made.origin_of(at if at is not None else str(event.publisher))
    simulator = Simulator(made)
    cell, classes = simulator.pattern_of(one)
    steps = simulator.publish(origin, cell, classes, event=event.id, size=event.size_bytes)
    arrival = {k: ms for (_, k), ms in simulator.result.class_ms.items()}
    return EventJourney(made, event, origin, classes, steps, arrival)
