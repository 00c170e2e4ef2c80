"""The commands about plans: plan, explain, diff, demo."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ramify.cli.app import app
from ramify.cli.console import err, friendly, out, say
from ramify.cli.inputs import (
    EventLog,
    IdField,
    PublisherField,
    TimeField,
    TimeUnitOption,
    field_mapping,
    one_event,
    report_bad,
)
from ramify.content.events import Event, EventSchema, batch_to_events, events_to_batch
from ramify.content.expressions import explain
from ramify.content.filters import Filter
from ramify.content.flatten import TimeUnit
from ramify.content.readers import read_events
from ramify.content.sql import parse_sql
from ramify.content.subscriptions import Subscriptions, read_subscriptions
from ramify.errors import InputError, PlanError
from ramify.network.overlay import Overlay
from ramify.network.specs import overlay_from
from ramify.overlay.headers import Kind
from ramify.overlay.simulator import Simulator, Step
from ramify.planning.auto import Row
from ramify.planning.classes import Classes
from ramify.planning.constraints import read_rules
from ramify.planning.diff import diff
from ramify.planning.plan import Plan
from ramify.planning.plan_files import read_plan, write_plan
from ramify.planning.pricing import Price
from ramify.planning.scheme import Progress as Report
from ramify.planning.scheme import silent
from ramify.planning.study import Comparison, Study, compare, prepare, weights_for
from ramify.workloads.catalog import workload_from

__all__: list[str] = []

_MATCHES_SHOWN = 3
_REASONS_SHOWN = 3
_NAME_WIDTH = 20
_DEMO_PLAN = Path("build/demo-plan.json")
_WAYS = {
    Kind.TREE: "",
    Kind.LEG: "leg to",
    Kind.NOTE: "notification",
    Kind.CARRIED: "header tree,",
    Kind.LIST: "header list,",
    Kind.COPY: "copy,",
}


@app.command()
@friendly
def plan(
    overlay: Annotated[
        str, typer.Option(help="A file, or a name such as cloud-regions.")
    ] = "cloud-regions",
    workload: Annotated[str | None, typer.Option(help="A built-in workload, such as demo.")] = None,
    events: Annotated[Path | None, typer.Option(help="Event log: NDJSON, CloudEvents, Parquet.")] = None,
    subscriptions: Annotated[Path | None, typer.Option(help="Subscriptions, JSON lines.")] = None,
    attachments: Annotated[
        Path | None, typer.Option(help="JSON object: publishing client -> broker.")
    ] = None,
    schemes: Annotated[
        str | None, typer.Option(help="Schemes to try, apart by spaces; see `ramify list`.")
    ] = None,
    today: Annotated[
        str, typer.Option(help="What you run now: mirror-all, hub=<site>, another scheme, or a plan file.")
    ] = "mirror-all",
    rules: Annotated[Path | None, typer.Option(help="JSON: capacities, quotas, residency.")] = None,
    write: Annotated[Path | None, typer.Option("--out", help="Write the chosen plan here.")] = None,
    seconds: Annotated[float, typer.Option(help="Budget of each scheme that takes one.", min=0.1)] = 20.0,
    sample: Annotated[float, typer.Option(help="Share of all events that the log holds.")] = 1.0,
    hours: Annotated[
        float | None, typer.Option(help="Time that the log spans; else from the events' times.")
    ] = None,
    per_filter: Annotated[float, typer.Option(help="Money a month for a stored filter.", min=0)] = 0.0,
    per_matching: Annotated[float, typer.Option(help="Money for a million matchings.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed.")] = 1,
    id_field: IdField = "id",
    publisher_field: PublisherField = "publisher",
    time_field: TimeField = "time",
    time_unit: TimeUnitOption = TimeUnit.NONE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Price every way to route a log of events, and keep the cheapest plan."""
    graph = overlay_from(overlay)
    mapping = field_mapping(id_field, publisher_field, time_field, time_unit)
    given = _given(graph, workload, events, subscriptions, attachments, mapping, seed)
    study = prepare(
        graph,
        given.classes,
        given.batches,
        given.attachments,
        publishers=given.publishers,
        advertisements=given.advertisements,
        rules=None if rules is None else read_rules(rules, graph),
        sample=sample,
        hours=hours,
        seed=seed,
    )
    weights = weights_for(study, per_filter, per_matching)
    with _bar(as_json) as report:
        found = compare(
            study,
            None if schemes is None else schemes.split(),
            today=today,
            weights=weights,
            seconds=seconds,
            seed=seed,
            progress=report,
        )
    if as_json:
        print(json.dumps(_summary(study, found), allow_nan=False))
    else:
        _show(study, found)
    if found.best is None:
        raise PlanError("no plan keeps every rule; none was written:", _discarded(found))
    if write is not None and found.best.plan is not None:
        write_plan(found.best.plan, write)
        if not as_json:
            say(f"plan {found.best.name} written to {write}; see `ramify explain {write} --event ...`")
    if given.log is not None:
        report_bad(given.log, given.listed, as_json)


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


@app.command(name="diff")
@friendly
def diff_plans(
    old: Annotated[Path, typer.Argument(help="A plan file.")],
    new: Annotated[Path, typer.Argument(help="Another plan file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how two plans differ: channels, tree links, subscriptions that moved, attachments, paths."""
    found = diff(read_plan(old), read_plan(new))
    if as_json:
        print(found.to_json())
    else:
        out.print(str(found), markup=False, highlight=False, soft_wrap=True)


@app.command()
@friendly
def demo(
    events: Annotated[int, typer.Option(help="How many events to generate.", min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    write: Annotated[Path, typer.Option("--out", help="Where the plan goes.")] = Path(
        "build/demo-plan.json"
    ),
) -> None:
    """Plan a shop's events over 41 cloud regions: what each scheme costs, and the way of one event."""
    overlay = overlay_from("cloud-regions")
    workload = workload_from(f"demo:events={events}", overlay, seed)
    if write == _DEMO_PLAN:
        write.parent.mkdir(exist_ok=True)
    say(
        f"A shop in {len(overlay)} cloud regions: {workload.event_count:,} events, "
        f"{len(workload.subscriptions)} subscriptions, list prices per GB in each direction.\n"
        "Today every region mirrors everything. What would it cost to send events only where wanted?\n"
    )
    plan(workload=f"demo:events={events}", write=write, seed=seed)
    say("\nThe way of one event on the new plan:\n")
    made = read_plan(write)
    batch = next(workload.batches())
    told = (_told_row(made, batch, row) for row in range(min(batch.num_rows, 200)))
    next((one for one in told if len(one.steps) > 2), _told_row(made, batch, 0)).show()


# ----------------------------------------------------------------------------------------------- inputs


@dataclass(slots=True)
class _Given:
    """What to plan for, from files or a workload."""

    classes: Classes
    batches: Iterator[pa.RecordBatch]
    attachments: Mapping[str, str]
    publishers: tuple[str, ...] | None
    advertisements: Mapping[int, list[Filter]] | None
    log: EventLog | None
    listed: Subscriptions


def _given(
    graph: Overlay,
    workload: str | None,
    events: Path | None,
    subscriptions: Path | None,
    attachments: Path | None,
    mapping: Any,
    seed: int,
) -> _Given:
    if workload is not None:
        if events is not None or subscriptions is not None:
            raise InputError("give --workload, or --events with --subscriptions, not both.")
        made = workload_from(workload, graph, seed)
        classes = Classes.collapse(made.subscriptions, graph, made.schema.attributes)
        said: dict[int, list[Filter]] = {}
        for row in made.advertisements:
            said.setdefault(graph.index[row.broker], []).append(parse_sql(row.sql, made.schema.attributes))
        nothing = Subscriptions((), (), ())
        return _Given(
            classes, made.batches(), made.attachments, made.publishers, said or None, None, nothing
        )
    if events is None or subscriptions is None:
        raise InputError(
            "give --events and --subscriptions, or --workload (such as demo; see `ramify list`)."
        )
    log = EventLog(read_events(events, mapping=mapping))
    listed = read_subscriptions(subscriptions, log.schema)
    classes = Classes.collapse(listed.good, graph, log.schema, listed.filters)
    attached = {row.client: row.broker for row in listed.good} | _read_attachments(attachments)
    return _Given(classes, log.batches(), attached, None, None, log, listed)


def _read_attachments(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}. Check the path.", path=str(path)) from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}", path=str(path)) from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError('must be a JSON object such as {"shop-1": "aws-us-east-1"}', path=str(path))
    return found


# ----------------------------------------------------------------------------------------------- output


@contextmanager
def _bar(as_json: bool) -> Iterator[Report]:
    """A progress bar on standard error where that is a terminal."""
    if as_json or not err.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("planning", total=1.0)
        yield lambda share, what: bar.update(task, completed=share, description=what)


def _headline(found: Comparison) -> str:
    """The first line: the saving a month against today."""
    if found.best is None:
        return "No plan keeps every rule."
    saving, share = found.saving_per_month, found.saving
    if found.best.name == found.today.name:
        return f"Nothing is cheaper than what you run today ({found.today.name})."
    assert share is not None
    against = f"against {found.today.name}: {found.best.name}."
    verb, more = ("Saves", "") if share >= 0 else ("Costs", " more on unseen events")
    percent = f"{100 * abs(share):.1f} %"
    if saving is None:
        return f"{verb} {percent}{more} {against} (The log spans no time: --hours scales it to a month.)"
    amount = f"${abs(saving):,.2f}" if abs(saving) >= 0.01 else "less than $0.01"
    return f"{verb} {amount} a month ({percent}){more} {against}"


def _show(study: Study, found: Comparison) -> None:
    out.print(Text(_headline(found), style="bold"), soft_wrap=True)
    windows = study.problem.demand.events, study.validation.events, study.test.events
    if study.held_back:
        say(
            f"{study.events:,} events: planned on {windows[0]:,}, chosen on {windows[1]:,}, "
            f"reported on {windows[2]:,} that neither has seen."
        )
    else:
        say(f"Only {study.events:,} events: too few to hold any back; figures are of what was planned on.")
    if study.unknown:
        names = ", ".join(list(study.unknown)[:3])
        err.print(
            f"{sum(study.unknown.values()):,} events left out: no broker is known for their publishers "
            f"({names}...). Name one with --attachments or --publisher-field.",
            highlight=False,
        )
    out.print(_table(found))
    for reason in _discarded(found):
        err.print(f"discarded: {reason}", markup=False, highlight=False, soft_wrap=True)


def _table(found: Comparison) -> Table:
    table = _plain_table(caption=_caption(found), caption_justify="left")
    table.add_column("scheme", no_wrap=True, width=_NAME_WIDTH)
    widths = {"trees": 5, "cost": 7, "held-out": 8, "$": 7, "gap": 5, "p99 ms": 6, "state": 5}
    for name, width in widths.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in found.everything:
        style = "bold green" if found.best is not None and row.name == found.best.name else None
        mark = "*" if row.name == found.today.name else ""
        table.add_row(*_cells(row, mark), style=style or ("dim" if not row.allowed else None))
    table.add_row(*_reference(found), style="italic")
    return table


def _reference(found: Comparison) -> list[str]:
    """What a Steiner tree for every single event would cost: no plan, but what plans are held against."""
    train, test = found.today.train, found.today.test
    assert train is not None
    assert test is not None
    cost, held_out = train.yardstick.opt, test.yardstick.opt
    gap = held_out / test.yardstick.bound.value if test.yardstick.bound.value else 1.0
    costs = _money(cost * _scale(train)), _money(held_out * _scale(test))
    return ["opt (reference)", "-", *costs, "-", f"{gap:.3f}", "-", "-"]


def _plain_table(*columns: str, **options: Any) -> Table:
    """Columns apart by two spaces: what fits eighty characters."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline", **options)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _caption(found: Comparison) -> str:
    bound = found.today.test.yardstick.bound if found.today.test is not None else None
    certificate = "" if bound is None or bound.exact else f" (estimated from {bound.certified:,} sets)"
    return (
        f"cost, held-out: money {_unit(found)} for payload, on events planned with and unseen;\n"
        f"$: {_unit(found)}, with headers; gap: held-out over what no plan can beat{certificate};\n"
        "p99 ms: of deliveries; state: filters stored per broker; *: today; ✗: refused"
    )


def _unit(found: Comparison) -> str:
    return "a month" if found.today.test is not None and found.today.test.per_month else "per 1,000 events"


def _scale(priced: Price) -> float:
    """From what was counted to a month, or to 1,000 events where no time is known."""
    return priced.per_month or 1_000 / priced.demand.events


def _cells(row: Row, mark: str) -> list[str]:
    mark += " ✗" if not row.allowed else ""
    room = _NAME_WIDTH - len(mark)
    name = (row.name if len(row.name) <= room else f"{row.name[: room - 1]}…") + mark
    if row.train is None or row.test is None or row.plan is None:
        return [name, *["-"] * 7]
    train, test = row.train, row.test
    return [
        name,
        f"{len(row.plan.channels):,}",
        _money(train.cost * _scale(train)),
        _money(test.cost * _scale(test)),
        _money(test.money * _scale(test)),
        f"{test.gap:.3f}" if test.gap < 10 else f"{test.gap:.1f}",
        f"{test.ms.p99:,.0f}",
        f"{test.state.filters.mean():,.0f}",
    ]


def _money(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.01 or value == 0 else "<0.01"


def _discarded(found: Comparison) -> list[str]:
    """Each reason once, with the schemes that it holds for."""
    why: dict[str, list[str]] = {}
    for row in found.everything:
        if not row.allowed:
            for reason in [row.reason] if row.reason is not None else row.broken[:_REASONS_SHOWN]:
                why.setdefault(reason, []).append(row.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in why.items()]


def _summary(study: Study, found: Comparison) -> dict[str, Any]:
    bound = found.today.test.yardstick.bound if found.today.test is not None else None
    return {
        "headline": _headline(found),
        "saving_per_month": found.saving_per_month,
        "saving": found.saving,
        "today": found.today.name,
        "chosen": None if found.best is None else found.best.name,
        "events": study.events,
        "held_back": study.held_back,
        "unknown_publishers": sum(study.unknown.values()),
        "bound": None if bound is None else {"value": bound.value, "low": bound.low, "exact": bound.exact},
        "schemes": {
            row.name: {
                "allowed": row.allowed,
                "broken": list(row.broken),
                "reason": row.reason,
                "seconds": row.seconds,
                "train": None if row.train is None else dict(row.train.figures()),
                "test": None if row.test is None else dict(row.test.figures()),
            }
            for row in found.everything
        },
    }


# ---------------------------------------------------------------------------------------------- explain


@dataclass(slots=True)
class _Told:
    """What a plan does with one event."""

    plan: Plan
    event: Event
    origin: int
    classes: tuple[int, ...]
    steps: list[Step]
    arrival_ms: dict[int, float]

    def show(self) -> None:
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
        table = _plain_table("ms", "from", "to", "by", "bytes", "$/million")
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

    def _channels(self, step: Step) -> str:
        return ", ".join(self.plan.channels[c].name for c in step.header.channels)

    def _cost(self) -> float:
        return float(sum(row["cost"] for row in self._links()))


def _told(made: Plan, event: Event, at: str | None) -> _Told:
    known = {path: value for path, value in event.attributes.items() if path in made.classes.schema}
    # No filter of the plan asks for an attribute that its schema has not.
    batch = events_to_batch([replace(event, attributes=known)], EventSchema(dict(made.classes.schema)))
    return _told_row(made, batch, 0, at)


def _told_row(made: Plan, batch: pa.RecordBatch, row: int, at: str | None = None) -> _Told:
    one = batch.slice(row, 1)
    (event,) = batch_to_events(one)
    if at is None and event.publisher is None:
        raise InputError("the event names no publisher. Say where it is published with --at <broker>.")
    origin = made.origin_of(at if at is not None else str(event.publisher))
    simulator = Simulator(made)
    cell, classes = simulator.pattern_of(one)
    steps = simulator.publish(origin, cell, classes, event=event.id, size=event.size_bytes)
    arrival = {k: ms for (_, k), ms in simulator.result.class_ms.items()}
    return _Told(made, event, origin, classes, steps, arrival)
