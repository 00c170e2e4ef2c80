"""The command `explain`: what a plan does with one event."""

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from ramify.cli.app import app
from ramify.cli.console import friendly, out, plain_table, say
from ramify.cli.inputs import PublisherField
from ramify.studies.journeys import MATCHES_SHOWN, EventJourney, explain

__all__ = ["show_journey"]


@app.command(name="explain")
@friendly
def explain_event(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    event: Annotated[str, typer.Option(help="One event as JSON.")],
    at: Annotated[str | None, typer.Option(help="The broker where it is published.")] = None,
    publisher_field: PublisherField = "publisher",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a plan does with one event: its receivers and why, the links it crosses, the cost."""
    found = explain(plan_file, event, at=at, publisher_field=publisher_field)
    if as_json:
        print(dumps(found.figures(), allow_nan=False))
    else:
        show_journey(found)


def show_journey(found: EventJourney) -> None:
    """Print it for people."""
    say(found.headline)
    for line, why in found.reasons()[:MATCHES_SHOWN]:
        out.print(f"\n{line}", markup=False, highlight=False)
        out.print(why, markup=False, highlight=False)
    others = found.matches[MATCHES_SHOWN:]
    if others:
        say(f"\n... and {len(others)} more at {', '.join(sorted({row.broker for row in others}))}")
    table = plain_table("ms", "from", "to", "by", "bytes", "$/million")
    for column, width in zip(table.columns, (4, 18, 18, 13, 6, 9), strict=True):
        column.width, column.overflow = width, "ellipsis"
    for column in (table.columns[0], *table.columns[4:]):
        column.justify = "right"
    for link in found.links():
        ms, size, cost = f"{link['at_ms']:.0f}", f"{link['bytes']:,}", f"{1e6 * link['cost']:.4f}"
        table.add_row(ms, link["from"], link["to"], link["by"], size, cost)
    say("")
    out.print(table)
    say(f"${1e6 * found.cost:.4f} for a million such events, headers included")
