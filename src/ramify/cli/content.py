"""The commands about content, overlays and workloads: match, overlay, workload, list."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from rich.table import Table
from rich.text import Text

from ramify.cli.app import app
from ramify.cli.console import friendly, out, say
from ramify.cli.inputs import (
    EventLog,
    IdField,
    PublisherField,
    TimeField,
    TimeUnitOption,
    field_mapping,
    report_bad,
)
from ramify.content.events.flatten import TimeUnit
from ramify.content.events.readers import infer_schema, read_events
from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription, Subscriptions, read_subscriptions
from ramify.content.matching.matcher import Matcher
from ramify.network.graphs.distances import figures
from ramify.network.graphs.files import write_overlay
from ramify.network.graphs.specs import SPECS, overlay_from
from ramify.planning.schemes.catalog import all_schemes
from ramify.workloads.catalog import WORKLOADS, workload_from

__all__: list[str] = []


@app.command()
@friendly
def match(
    events: Annotated[Path, typer.Option(help="Event log: NDJSON, CloudEvents or Parquet.")],
    subscriptions: Annotated[
        Path, typer.Option(help="JSON lines: id, client, broker, sql|pattern|keywords.")
    ],
    id_field: IdField = "id",
    publisher_field: PublisherField = "publisher",
    time_field: TimeField = "time",
    time_unit: TimeUnitOption = TimeUnit.NONE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Match a log of events against subscriptions, and count the matches of each."""
    mapping = field_mapping(id_field, publisher_field, time_field, time_unit)
    # The first records only suggest types. What filters name is looked for in every record.
    schema = infer_schema(events, 65_536, mapping)
    listed = read_subscriptions(subscriptions, schema.attributes)
    named = frozenset(path for filter_ in listed.filters for path in filter_.paths)
    tally = EventLog(read_events(events, schema, mapping, keep=named))
    counts = _count_matches(listed.filters, tally.batches())
    if as_json:
        _print_json(counts, listed, tally)
    else:
        out.print(_match_table(listed.good, counts.by_subscription, counts.events))
        counts.print_line()
    report_bad(tally, listed, as_json)


@app.command()
@friendly
def overlay(
    spec: Annotated[str, typer.Argument(help="A file, or a name such as cloud-regions or ring:20.")],
    write: Annotated[Path | None, typer.Option("--out", help="Write it as JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Read or generate an overlay and show its figures."""
    graph = overlay_from(spec)
    found = figures(graph)
    if write is not None:
        write_overlay(graph, write)
    rows = {
        "brokers": found.brokers,
        "links": found.links,
        "components": found.components,
        "mean degree": round(found.mean_degree, 2),
        "diameter (hops)": found.diameter_hops,
        "mean hops": round(found.mean_hops, 2),
    }
    if graph.underlay is not None:
        rows |= {"routers": graph.underlay.routers, "router links": len(graph.underlay.ends)}
    if as_json:
        print(json.dumps({"name": graph.name, **{k.replace(" ", "_"): v for k, v in rows.items()}}))
        return
    table = Table("figure", "value", title=Text(graph.name))
    for name, value in rows.items():
        table.add_row(name, str(value))
    out.print(table)


@app.command()
@friendly
def workload(
    spec: Annotated[str, typer.Argument(help="Such as demo, majumder:x=2, kyra:zipf:interest=10.")],
    on: Annotated[
        str, typer.Option("--overlay", help="The overlay that its clients attach to.")
    ] = "cloud-regions",
    seed: Annotated[int, typer.Option(help="Seed.")] = 1,
) -> None:
    """Generate a built-in workload and show its realised averages beside the paper's."""
    made = workload_from(spec, overlay_from(on), seed)
    table = Table("figure", "realised", "paper or asked", title=Text(f"{made.name} on {on}, seed {seed}"))
    for name, value in made.report.items():
        if name.endswith(("_paper", "_asked")):
            continue
        wanted = made.report.get(f"{name}_paper", made.report.get(f"{name}_asked"))
        table.add_row(name, f"{value:g}", "" if wanted is None else f"{wanted:g}")
    out.print(table)


@app.command(name="list")
@friendly
def list_() -> None:
    """List the overlays, workloads and schemes that have a name."""
    table = Table("overlay", "what it is")
    for name, spec in SPECS.items():
        table.add_row(spec.usage(name), spec.about)
    out.print(table)
    table = Table("workload", "what it is")
    for name, model in WORKLOADS.items():
        table.add_row(name, model.summary)
    out.print(table)
    table = Table("scheme", "what it is")
    for name, scheme in all_schemes().items():
        table.add_row(name, scheme.summary)
    table.add_row("auto", "all of them: the cheapest plan that keeps every rule is chosen")
    out.print(table)


@dataclass(slots=True)
class _Counts:
    """What matching a stream of batches came to."""

    by_subscription: Any
    events: int = 0
    matches: int = 0
    unmatched: int = 0
    seconds: float = 0.0

    def print_line(self) -> None:
        mean = self.matches / self.events if self.events else 0.0
        say(
            f"{self.events:,} events against {len(self.by_subscription):,} filters "
            f"in {self.seconds:.2f} s: {self.matches:,} matches, {mean:.2f} an event; "
            f"{self.unmatched:,} without a match"
        )


def _count_matches(filters: Sequence[Filter], batches: Iterable[pa.RecordBatch]) -> _Counts:
    matcher = Matcher(filters)
    counts = _Counts(np.zeros(len(filters), np.int64))
    for batch in batches:
        start = time.perf_counter()
        found = matcher.match(batch)
        counts.seconds += time.perf_counter() - start
        if len(filters):
            counts.by_subscription += np.bincount(found.ids, minlength=len(filters))
        counts.events += len(found)
        counts.matches += len(found.ids)
        counts.unmatched += int(np.count_nonzero(np.diff(found.ends) == 0))
    return counts


def _match_table(subscriptions: Sequence[Subscription], counts: Any, rows: int) -> Table:
    shown = min(12, len(subscriptions))
    table = Table(title=f"The {shown} most matched of {len(subscriptions)} subscriptions", expand=True)
    table.add_column("subscription", no_wrap=True, min_width=12)
    table.add_column("broker", no_wrap=True, min_width=12)
    table.add_column("filter", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("matches", justify="right", no_wrap=True, min_width=7)
    table.add_column("share", justify="right", no_wrap=True, min_width=6)
    for k in np.argsort(-counts[: len(subscriptions)], kind="stable")[:shown]:
        s = subscriptions[k]
        share = f"{100 * counts[k] / rows:.1f} %" if rows else "-"
        table.add_row(Text(s.id), Text(s.broker), Text(s.text), f"{counts[k]:,}", share)
    return table


def _print_json(counts: _Counts, listed: Subscriptions, tally: EventLog) -> None:
    ids = [s.id for s in listed.good]
    summary = {
        "events": counts.events,
        "matches": counts.matches,
        "events_without_match": counts.unmatched,
        "rejected_events": tally.rejected_count,
        "rejected_subscriptions": len(listed.bad),
        "subscriptions": dict(zip(ids, counts.by_subscription.tolist(), strict=True)),
    }
    print(json.dumps(summary))
