"""The command line: parse, call, print. No logic of its own.

Exit codes: 0 all went well; 1 some input rows could not be used (they are listed); 2 the request itself
cannot be carried out, with the reason on standard error and never a traceback.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec

import numpy as np
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ramify import __version__
from ramify.content.events import Decoded, Event, EventSchema, Rejected, batch_to_events
from ramify.content.expressions import explain
from ramify.content.filters import Filter
from ramify.content.flatten import FieldMapping, TimeUnit, decode_records
from ramify.content.keywords import parse_keywords
from ramify.content.matcher import Matcher
from ramify.content.pattern import parse_pattern
from ramify.content.readers import read_events
from ramify.content.sql import parse_sql
from ramify.content.subscriptions import Subscription, Subscriptions, read_subscriptions
from ramify.errors import FilterError, InputError, RamifyError
from ramify.network.distances import figures
from ramify.network.files import write_overlay
from ramify.network.specs import SPECS, overlay_from
from ramify.workloads.catalog import WORKLOADS, workload_from

__all__ = ["app", "main"]

app = typer.Typer(
    name="ramify",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Content-based publish/subscribe over many sites, with planned dissemination trees.",
)
_out = Console()
_err = Console(stderr=True)
_P = ParamSpec("_P")

_REJECTED_SHOWN = 10
_SOME_BAD_ROWS = 1
_CANNOT = 2


def main() -> None:
    """The `ramify` command."""
    app()


def _friendly(command: Callable[_P, None]) -> Callable[_P, None]:
    """Print our own errors as one message; let anything else be seen as the bug it is."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RamifyError as error:
            _err.print(f"{type(error).__name__}: {error}", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(_CANNOT) from None
        except BrokenPipeError:  # the reader of our output went away
            sys.stderr.close()
            raise typer.Exit(0) from None

    return run


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
@_friendly
def demo(
    events: Annotated[int, typer.Option(help="How many events to generate.", min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
) -> None:
    """Generate a shop's events over 41 cloud regions, match them, and show who gets what."""
    overlay = overlay_from("cloud-regions")
    workload = workload_from(f"demo:events={events}", overlay, seed)
    found = figures(overlay)
    _say(
        f"Overlay [bold]{overlay.name}[/]: {found.brokers} brokers, {found.links} links "
        f"(a price per GB in each direction on every link)"
    )
    _say(
        f"Workload [bold]{workload.name}[/], seed {seed}: {workload.event_count:,} events, "
        f"{len(workload.subscriptions)} subscriptions of {len(workload.attachments)} clients"
    )
    schema = workload.schema.attributes
    filters = [s.parse(schema) for s in workload.subscriptions]
    classes = {(f.key, s.broker) for f, s in zip(filters, workload.subscriptions, strict=True)}
    spellings = Counter(s.spelling for s in workload.subscriptions)
    _say(
        f"{', '.join(f'{n} in {name}' for name, n in spellings.most_common())}; "
        f"{len(classes)} classes (equal filter and broker)"
    )
    counts = _count_matches(filters, workload.batches())
    _out.print(_match_table(workload.subscriptions, counts.by_subscription, counts.events))
    counts.print_line()
    _explain_one(workload.events(0, 1), workload.subscriptions[0], filters[0])


@app.command()
@_friendly
def match(
    events: Annotated[Path, typer.Option(help="Event log: NDJSON, CloudEvents or Parquet.")],
    subscriptions: Annotated[
        Path, typer.Option(help="JSON lines: id, client, broker, sql|pattern|keywords.")
    ],
    id_field: Annotated[
        str, typer.Option(help="Field with the event id; 'none' numbers the lines.")
    ] = "id",
    publisher_field: Annotated[
        str, typer.Option(help="Field that names the publishing client or site.")
    ] = "publisher",
    time_field: Annotated[str, typer.Option(help="Field with the event's time.")] = "time",
    time_unit: Annotated[
        TimeUnit, typer.Option(help="What a number in the time field counts.")
    ] = TimeUnit.NONE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Match a log of events against subscriptions, and count who gets what."""
    mapping = FieldMapping(
        id=None if id_field == "none" else id_field,
        publisher=publisher_field,
        time=time_field,
        time_unit=time_unit,
    )
    tally = _Tally(read_events(events, mapping=mapping))
    listed = read_subscriptions(subscriptions, tally.schema)
    counts = _count_matches(listed.filters, tally.batches())
    if as_json:
        _print_json(counts, listed, tally)
    else:
        _out.print(_match_table(listed.good, counts.by_subscription, counts.events))
        counts.print_line()
    _report_bad(tally, listed, as_json)


@app.command(name="filter")
@_friendly
def filter_(
    text: Annotated[str, typer.Argument(help="The filter.")],
    spelling: Annotated[
        str, typer.Option(help="sql, pattern (EventBridge JSON) or keywords (JSON list).")
    ] = "sql",
    event: Annotated[str | None, typer.Option(help="A JSON event to try it on.")] = None,
) -> None:
    """Check a filter; with an event, explain predicate by predicate why it matches or not."""
    parsed = _parse(text, spelling)
    if event is None:
        _say(f"valid: {len(parsed.boxes)} box(es) over {', '.join(sorted(parsed.paths)) or 'no attribute'}")
        _say(f"key {parsed.key.hex()}")
        return
    found = explain(_one_event(event), parsed)
    _out.print(str(found), markup=False, highlight=False)


@app.command()
@_friendly
def overlay(
    spec: Annotated[str, typer.Argument(help="A file, or a name such as cloud-regions or ring:20.")],
    out: Annotated[Path | None, typer.Option(help="Write it as JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Read or generate an overlay and show its figures."""
    graph = overlay_from(spec)
    found = figures(graph)
    if out is not None:
        write_overlay(graph, out)
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
    _out.print(table)


@app.command()
@_friendly
def workload(
    spec: Annotated[str, typer.Argument(help="Such as demo, majumder:x=2, kyra:zipf:interest=10.")],
    on: Annotated[str, typer.Option("--overlay", help="The overlay it lives on.")] = "cloud-regions",
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
    _out.print(table)


@app.command(name="list")
@_friendly
def list_() -> None:
    """List the overlays and workloads that have a name."""
    table = Table("overlay", "what it is")
    for name, spec in SPECS.items():
        table.add_row(spec.usage(name), spec.about)
    _out.print(table)
    table = Table("workload", "what it is")
    for name, model in WORKLOADS.items():
        table.add_row(name, model.summary)
    _out.print(table)


class _Tally:
    """Passes batches on and counts what was good and what was not.

    `schema` is that of the first batch, which is looked at right away: filters are checked against it.
    """

    def __init__(self, decoded: Iterator[Decoded]) -> None:
        first = next(decoded)
        self.schema = dict(EventSchema.of_batch(first.batch).attributes)
        self._decoded = chain([first], decoded)
        self.good = 0
        self.rejected_count = 0
        self.rejected: list[Rejected] = []
        self.unaddressable: Counter[str] = Counter()

    def batches(self) -> Iterator[pa.RecordBatch]:
        for part in self._decoded:
            self.good += part.batch.num_rows
            self.rejected_count += len(part.rejected)
            self.rejected += part.rejected[: _REJECTED_SHOWN - len(self.rejected)]
            self.unaddressable.update(part.unaddressable)
            yield part.batch


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
        _say(
            f"{self.events:,} events against {len(self.by_subscription):,} filters "
            f"in {self.seconds:.2f} s: {self.matches:,} matches, {mean:.2f} an event; "
            f"without a match: {self.unmatched:,}"
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


def _print_json(counts: _Counts, listed: Subscriptions, tally: _Tally) -> None:
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


def _explain_one(batch: pa.RecordBatch, subscription: Subscription, filter_: Filter) -> None:
    (event,) = batch_to_events(batch)
    _say(f"\nDoes event {event.id} go to {subscription.id}, and why?")
    _out.print(str(explain(event, filter_)), markup=False, highlight=False)


def _report_bad(tally: _Tally, listed: Subscriptions, as_json: bool) -> None:
    """Say what could not be used, and let the exit code tell."""
    for bad in listed.bad[:_REJECTED_SHOWN]:
        _err.print(f"subscription not used: {bad}", markup=False, highlight=False, soft_wrap=True)
    for rejected in tally.rejected:
        where = f"line {rejected.line}" if rejected.line is not None else f"record {rejected.position}"
        _err.print(
            f"event not used: {where}: {rejected.detail}", markup=False, highlight=False, soft_wrap=True
        )
    if tally.unaddressable and not as_json:
        names = ", ".join(f"{path} ({n:,})" for path, n in list(tally.unaddressable.items())[:10])
        _err.print(
            f"fields that filters cannot reach: {names}", markup=False, highlight=False, soft_wrap=True
        )
    if listed.bad or tally.rejected_count:
        _err.print(
            f"not used: {len(listed.bad):,} of {len(listed.bad) + len(listed.good):,} subscriptions, "
            f"{tally.rejected_count:,} of {tally.rejected_count + tally.good:,} events",
            highlight=False,
        )
        raise typer.Exit(_SOME_BAD_ROWS)


def _parse(text: str, spelling: str) -> Filter:
    if spelling == "sql":
        return parse_sql(text)
    if spelling == "pattern":
        return parse_pattern(text)
    if spelling == "keywords":
        try:
            words = json.loads(text)
        except json.JSONDecodeError as error:
            _fail(FilterError(f"keywords are not JSON ({error.msg})", text=text, position=error.pos))
        return parse_keywords(words)
    return _fail(InputError(f"unknown spelling {spelling!r}: it is one of sql, pattern, keywords"))


def _one_event(text: str) -> Event:
    decoded = decode_records([text.encode()], mapping=FieldMapping(id=None))
    if decoded.rejected:
        _fail(InputError(f"the event cannot be used: {decoded.rejected[0].detail}"))
    (event,) = batch_to_events(decoded.batch)
    return event


def _fail(error: RamifyError) -> NoReturn:
    raise error


def _say(text: str) -> None:
    _out.print(text, highlight=False, soft_wrap=True)
