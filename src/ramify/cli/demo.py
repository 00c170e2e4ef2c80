"""`ramify demo`: the whole story, from a day's events to a live overlay that re-plans itself.

Owns the story. First the day: generated and counted by the pipeline, planned, compared. Then the plan runs:
brokers for all regions on this machine, clients that replay events and count what reaches them, and for
every link what was sent against what was predicted. Then traffic moves, which the plan was not made for;
the coordinator sees it in its samples and installs a plan of the same kind for it under load. Both are held
against each other on the same kind of traffic, and every event is accounted for by its id.
"""

import asyncio
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from ramify.cli.app import app
from ramify.cli.console import friendly, out, say
from ramify.cli.explain import show_journey
from ramify.cli.logs import SparkOption
from ramify.cli.overlay import until_routing
from ramify.cli.plan import plan as plan_command
from ramify.content.events.events import BODY, SIZE_BYTES
from ramify.content.matching.matcher import Matcher
from ramify.errors import InputError, LiveError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.intake import ARROW_TYPE, ClientMessage, take_in
from ramify.overlay.control.records import LinkCount, Status
from ramify.overlay.live.client.lane import LaneClient
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Machine, MachineConfig
from ramify.overlay.live.host.overview import Overview, look
from ramify.overlay.live.wire.security import ClientRole
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.files import decode_plan, read_plan, write_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from ramify.studies.journeys import explain_row
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload

__all__: list[str] = []

_PLAN = Path("build/demo-plan.json")
_DIRECTORY = Path("build/demo")
# few events are published here; where there are many a small share of them tells enough
_SAMPLED = 1.0
_REPLAN_EVERY_S = 15.0
_WINDOW_S = 60.0
_LEAST_EVENTS = 2_000
# of traffic that is still mixed with that of the day: what is saved of the night alone is more
_THRESHOLD = 0.06
_STAND_INS = 8
# those whose trees brokers hold: made for a demand, so there is something to adapt when that changes
_DEMO_SCHEMES = ("portfolio", "mult", "single")
_BATCH = 25
_DEMO_LIMIT_S = 240.0


@app.command()
@friendly
def demo(
    events: Annotated[int, typer.Option(help="How many events the day has.", min=1)] = 20_000,
    replayed: Annotated[
        int, typer.Option(help="Events of each replay through the live overlay.", min=1)
    ] = 4_000,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    write: Annotated[Path, typer.Option("--out", help="Where the plan goes.")] = _PLAN,
    directory: Annotated[Path, typer.Option("--dir", help="Where the live overlay lives.")] = _DIRECTORY,
    live: Annotated[bool, typer.Option(help="Run the live part.")] = True,
    spark: SparkOption = "auto",
) -> None:
    """Tell the whole story: plan a day's events over 41 cloud regions, run them live, re-plan."""
    overlay = overlay_from("cloud-regions")
    workload = workload_from(f"demo:events={events}", overlay, seed)
    if write == _PLAN or directory == _DIRECTORY:
        Path("build").mkdir(exist_ok=True)
    _plan_the_day(overlay, workload, events, seed, write, spark)
    if live:
        drifted = workload_from(f"demo:events={events},stand_ins={_STAND_INS}", overlay, seed)
        run_to_end(_Story(overlay, workload, drifted, replayed, directory, spark).run())


def _plan_the_day(
    overlay: Overlay, workload: Workload, events: int, seed: int, write: Path, spark: str
) -> None:
    say(
        f"A shop in {len(overlay)} cloud regions: {workload.event_count:,} events, "
        f"{len(workload.subscriptions)} subscriptions, list prices per GB in each direction.\n"
        "Today every region mirrors everything. What if events go only where they are wanted?\n"
    )
    plan_command(workload=f"demo:events={events}", write=write, seed=seed, spark=spark)
    say("\nThe route of one event on the new plan:\n")
    made = read_plan(write)
    batch = next(workload.batches())
    ways = (explain_row(made, batch, row) for row in range(min(batch.num_rows, 200)))
    show_journey(next((way for way in ways if len(way.steps) > 2), explain_row(made, batch, 0)))


@dataclass(frozen=True)
class _Replay:
    """What a replay did: money for payload over links, as predicted for its plan and as measured.

    `links` has (measured, predicted) messages for each direction of each link; `otherwise` is the predicted
    money of the plan to hold it against, on the same events.
    """

    events: int
    predicted: float
    measured: float
    links: tuple[tuple[int, int], ...]
    wire_bytes: int
    payload_bytes: int
    seconds: float
    otherwise: float

    def per_million(self, money: float) -> float:
        """Money of this replay, for a million such events."""
        return 1e6 * money / self.events


class _Story:
    """The live part."""

    def __init__(
        self,
        overlay: Overlay,
        workload: Workload,
        drifted: Workload,
        replayed: int,
        directory: Path,
        spark: str = "auto",
    ) -> None:
        self._spark = spark
        self._overlay, self._directory = overlay, Directory(directory.absolute())
        self._classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
        self._attached = dict(workload.attachments)
        self._matcher = Matcher(self._classes.filters)
        self._plan = self._best(_first(workload.batches(), workload.event_count))
        self._day = _first(workload.batches(), replayed)
        self._replayed = replayed
        self._night = _first(drifted.batches(), drifted.event_count)
        self._wanted: Counter[tuple[str, str]] = Counter()
        self._got: Counter[tuple[str, str]] = Counter()
        self._clients: dict[str, LaneClient] = {}

    def _best(self, events: Sequence[pa.RecordBatch]) -> Plan:
        """The plan that is cheapest on the half of the day that it was not made for."""
        half = (len(events) + 1) // 2
        made_for, judged = self._demand(events[:half]), self._demand(events[half:] or events)
        problem = Problem.of(self._overlay, self._classes, made_for, self._attached)
        plans = [make_plan(spec, problem) for spec in _DEMO_SCHEMES]
        return min(plans, key=lambda plan: price(plan, judged).cost)

    def _demand(self, events: Iterable[pa.RecordBatch]) -> Demand:
        return tally(events, self._classes, self._overlay, self._attached)

    async def run(self) -> None:
        """Tell it."""
        machine = self._machine()
        tasks: list[asyncio.Task[Any]] = []
        store: Store | None = None
        say(
            f"\nNow live: {len(self._overlay)} brokers on this machine, each with a NATS server of its own."
        )
        try:
            began = time.monotonic()
            await machine.start()
            tasks.append(asyncio.create_task(machine.watch()))
            await until_routing(machine, _DEMO_LIMIT_S)
            store = await Store.join(self._directory.viewer(machine.control_url))
            tasks += await self._connect(machine)
            clients = len(self._clients)
            say(f"All brokers route, {clients} clients are connected ({time.monotonic() - began:.0f} s).")
            await self._tell(store)
        finally:
            await end_tasks(tasks)
            await asyncio.gather(*(client.close() for client in self._clients.values()))
            if store is not None:
                await store.close()
            await machine.stop()
        where = self._directory.path
        say(
            f"\nEverything is stopped. To keep it running:  ramify up --dir {where} --overlay cloud-regions"
        )
        say(f"and beside it:  ramify status --dir {where}")

    async def _tell(self, store: Store) -> None:
        old = self._plan
        say(
            f"They route by {old.scheme} ({len(old.channels)} trees), the cheapest for the day of schemes "
            "whose trees brokers hold.\nexplicit writes its route into each event: no trees to adapt."
        )
        first = await self._replay(store, self._day, old, old, "day")
        say(f"\nThe day: {first.events:,} events, replayed in {first.seconds:.0f} s.")
        _compare(first)
        before = max(each.epoch for each in (await look(store)).epochs)
        parts = _cuts(self._night, self._replayed)
        second = await self._replay(store, parts[0], old, old, "night")
        say(f"\nThe night: {_STAND_INS} quiet regions publish for all the others. The plan of the day:")
        _compare(second)
        say(
            f"Brokers sample {100 * _SAMPLED:.0f} % of what is published; every {_REPLAN_EVERY_S:.0f} s "
            "the coordinator has the pipeline count the samples of the last minute and weighs new plans."
        )
        decided, new = await self._until_replanned(store, before, parts[1:-1] or parts)
        say(f"[bold]Re-planned while events flowed:[/bold] {old.scheme} -> {new.scheme}, {decided}")
        third = await self._replay(store, parts[-1], new, old, "late")
        say("\nMore of the night, by the plan that was made for it:")
        _compare(third)
        was, now = third.per_million(third.otherwise), third.per_million(third.measured)
        say(
            f"[bold]A million events of the night: ${was:.4f} by the plan of the day (predicted, on these "
            f"events; ${second.per_million(second.measured):.4f} measured before), ${now:.4f} measured by "
            f"the new one: {100 * (1 - now / was):.1f} % saved.[/bold]"
        )
        self._account()

    def _account(self) -> None:
        """Every delivery by event and subscription. Raises `LiveError` when one is missing or too many."""
        lost, doubled = self._wanted - self._got, self._got - self._wanted
        say(
            f"[bold]{self._wanted.total():,} deliveries were due, {self._got.total():,} came: "
            f"{lost.total()} lost, {doubled.total()} doubled[/bold] (by event and subscription id, at "
            "every subscriber, through the switch of plans)."
        )
        if lost or doubled:
            raise LiveError(f"lost {list(lost)[:3]}, doubled {list(doubled)[:3]}: this is a bug, report it")

    def _machine(self) -> Machine:
        self._clear()
        plan = self._directory.path / "first-plan.json"
        self._directory.create(self._overlay)
        self._directory.add_clients(self._attached)
        write_plan(self._plan, plan)
        command = [
            *(sys.executable, "-m", "ramify.cli", "coordinator", "--plan", str(plan)),
            *("--samples", str(self._directory.path / "samples"), "--replan-every", str(_REPLAN_EVERY_S)),
            *("--schemes", " ".join(_DEMO_SCHEMES), "--window", str(_WINDOW_S), "--spark", self._spark),
            *("--threshold", str(_THRESHOLD), "--least-events", str(min(_LEAST_EVENTS, self._replayed))),
        ]
        config = MachineConfig(self._overlay, self._directory, command, sample_probability=_SAMPLED)
        return Machine(config)

    def _clear(self) -> None:
        """Begin anew where an earlier demo left its data; leave everything else alone."""
        path = self._directory.path
        if not path.exists() or not any(path.iterdir()):
            return
        if not (path / "first-plan.json").exists():
            raise InputError(
                "the directory holds something other than a demo: give another one", path=str(path)
            )
        # refused while a demo or `ramify up` runs from here
        self._directory.lock().close()
        shutil.rmtree(path)

    # ---------------------------------------------------------------------------------------- clients

    async def _connect(self, machine: Machine) -> list[asyncio.Task[None]]:
        ring, urls = self._directory.ring, machine.urls
        for name, broker in self._attached.items():
            role = ClientRole(name)
            endpoint = Endpoint(urls[broker], ring.pair(role).seed, role.inbox_prefix, f"client {name}")
            self._clients[name] = await LaneClient.connect(name, endpoint)
        readers = sorted({row.client for members in self._classes.members for row in members})
        return [asyncio.create_task(self._read(name)) for name in readers]

    async def _read(self, name: str) -> None:
        async for delivered in self._clients[name].deliveries():
            for row, event in enumerate(delivered.events.column("id").to_pylist()):
                for subscription in delivered.subscriptions_of(row):
                    self._got[str(event), subscription] += 1

    async def _publish(self, events: Sequence[pa.RecordBatch], when: str) -> list[pa.RecordBatch]:
        """Every publisher its own events in their order, all publishers at once; what was published."""
        mine: dict[str, list[pa.RecordBatch]] = {}
        for batch in events:
            named = _renamed(batch, when)
            publishers = np.asarray(named.column("publisher").to_pylist())
            for name in np.unique(publishers).tolist():
                own = named.take(np.flatnonzero(publishers == name))
                parts = (own.slice(at, _BATCH) for at in range(0, own.num_rows, _BATCH))
                mine.setdefault(name, []).extend(_with_bodies(name, part) for part in parts)
        for part in (part for parts in mine.values() for part in parts):
            self._expect(part)

        async def one(name: str, parts: list[pa.RecordBatch]) -> None:
            for part in parts:
                await self._clients[name].publish(part)

        await asyncio.gather(*(one(name, parts) for name, parts in mine.items()))
        return [part for parts in mine.values() for part in parts]

    def _expect(self, batch: pa.RecordBatch) -> None:
        found = self._matcher.match(batch)
        ids = batch.column("id").to_pylist()
        for row, event in enumerate(ids):
            for k in found.ids[found.ends[row] : found.ends[row + 1]].tolist():
                for subscription in self._classes.members[k]:
                    self._wanted[str(event), subscription.id] += 1

    # ---------------------------------------------------------------------------------------- replays

    async def _replay(
        self, store: Store, events: Sequence[pa.RecordBatch], plan: Plan, other: Plan, when: str
    ) -> _Replay:
        before = await _statuses(store, since=time.time())
        began = time.monotonic()
        published = await self._publish(events, when)
        await self._until_all_came()
        seconds = time.monotonic() - began
        after = await _statuses(store, since=time.time())
        demand = self._demand(published)
        priced = price(plan, demand)
        money, messages, payload, wire = _sent(self._overlay, before, after)
        links = tuple(zip(messages, priced.messages.ravel().tolist(), strict=True))
        otherwise = price(other, demand).cost
        return _Replay(demand.events, priced.cost, money, links, wire, payload, seconds, otherwise)

    async def _until_all_came(self) -> None:
        try:
            async with asyncio.timeout(_DEMO_LIMIT_S):
                while self._got.total() < self._wanted.total():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            left = self._wanted.total() - self._got.total()
            raise LiveError(
                f"{left:,} deliveries did not come within {_DEMO_LIMIT_S:g} s: `ramify status` and the "
                f"logs in {self._directory.path / 'logs'} say where they wait"
            ) from None

    async def _until_replanned(
        self, store: Store, seen: int, parts: Sequence[Sequence[pa.RecordBatch]]
    ) -> tuple[str, Plan]:
        """Publish on until a plan after epoch `seen` is installed and every broker has flipped to it."""
        rounds = 0
        flow = [batch for part in parts for batch in part]
        try:
            async with asyncio.timeout(_DEMO_LIMIT_S):
                while True:
                    view = await look(store)
                    chosen = [d for d in view.decisions if d.get("action") == "install"]
                    if chosen and _all_at(view, seen + 1):
                        break
                    await self._publish([flow[rounds % len(flow)]], f"switch-{rounds}")
                    rounds += 1
                    await self._until_all_came()
        except TimeoutError:
            raise LiveError(
                f"no new plan within {_DEMO_LIMIT_S:g} s; "
                f"the logs in {self._directory.path / 'logs'} say why"
            ) from None
        await self._until_all_came()
        newest = max(view.epochs, key=lambda each: each.epoch)
        content = await store.get_large(newest.plan_key)
        if content is None:
            raise LiveError(f"the plan of epoch {newest.epoch} is not in the store")
        return str(chosen[-1]["reason"]), decode_plan(content[0])


def _all_at(view: Overview, epoch: int) -> bool:
    return all(broker.status is not None and broker.status.epoch >= epoch for broker in view.brokers)


def _compare(done: _Replay) -> None:
    measured, predicted = (sum(column) for column in zip(*done.links, strict=True))
    used = sum(any(pair) for pair in done.links)
    other = sum(a != b for a, b in done.links)
    verdict = f"{predicted:,} predicted, {other} of {used} directions differ"
    if not other:
        verdict = f"as predicted on each of {used} directions of links"
    overhead = done.wire_bytes / done.payload_bytes if done.payload_bytes else 1.0
    out.print(
        f"  predicted  ${done.per_million(done.predicted):.4f} for a million such events\n"
        f"  measured   ${done.per_million(done.measured):.4f}; {measured:,} messages over links, "
        f"{verdict}; "
        f"{overhead:.2f} bytes on the wire for one of payload",
        highlight=False,
        soft_wrap=True,
    )


def _sent(
    overlay: Overlay, before: dict[str, Status], after: dict[str, Status]
) -> tuple[float, list[int], int, int]:
    """Money, messages per direction of each link, payload and wire bytes, between two looks."""
    money, messages, payload, wire = 0.0, list[int](), 0, 0
    for link, (a, b) in enumerate(overlay.ends.tolist()):
        for way, (sender, receiver) in enumerate(((a, b), (b, a))):
            name, to = overlay.brokers[sender], overlay.brokers[receiver]
            old, new = (status[name].links.get(to, LinkCount(0, 0, 0)) for status in (before, after))
            messages.append(new.messages - old.messages)
            payload += new.payload_bytes - old.payload_bytes
            wire += new.wire_bytes - old.wire_bytes
            money += float(overlay.price[link, way]) * (new.payload_bytes - old.payload_bytes) / 1e9
    return money, messages, payload, wire


async def _statuses(store: Store, since: float) -> dict[str, Status]:
    """What every broker says of itself, said after a moment."""
    async with asyncio.timeout(60):
        while True:
            found = {b.name: b.status for b in (await look(store)).brokers}
            told = {name: status for name, status in found.items() if status is not None}
            if len(told) == len(found) and all(status.at >= since for status in told.values()):
                return told
            await asyncio.sleep(0.3)


def _first(batches: Iterable[pa.RecordBatch], events: int) -> list[pa.RecordBatch]:
    """The first events, in batches of at most 500: small enough to go through the day in order."""
    found: list[pa.RecordBatch] = []
    left = events
    for batch in batches:
        taken = batch.slice(0, min(batch.num_rows, left))
        found += [taken.slice(at, 500) for at in range(0, taken.num_rows, 500)]
        left -= taken.num_rows
        if left <= 0:
            break
    return found


def _cuts(batches: Sequence[pa.RecordBatch], events: int) -> list[list[pa.RecordBatch]]:
    """Parts of at least so many events each, one after the other; two at least, be they the same."""
    parts: list[list[pa.RecordBatch]] = [[]]
    for batch in batches:
        if sum(each.num_rows for each in parts[-1]) >= events:
            parts.append([])
        parts[-1].append(batch)
    if len(parts) > 1 and sum(each.num_rows for each in parts[-1]) < events:
        parts.pop()
    return parts if len(parts) > 1 else parts * 2


def _renamed(batch: pa.RecordBatch, when: str) -> pa.RecordBatch:
    """The events under ids of their own: each is replayed once."""
    ids = pa.array([f"{when}/{id_}" for id_ in batch.column("id").to_pylist()])
    at = batch.schema.get_field_index("id")
    return batch.set_column(at, batch.schema.field(at), ids)


def _with_bodies(publisher: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events with bodies that make them as large as the workload says, and the sizes that brokers see.

    The bytes are random: they stand for bodies that were compressed before.
    """
    wanted = np.asarray(batch.column(SIZE_BYTES))
    missing = np.maximum(wanted - np.asarray(_taken(publisher, batch).column(SIZE_BYTES)), 0)
    bodies = pa.array([os.urandom(n) for n in missing.tolist()], pa.binary())
    at = batch.schema.get_field_index(BODY)
    filled = batch.set_column(at, batch.schema.field(at), bodies)
    at = batch.schema.get_field_index(SIZE_BYTES)
    seen = _taken(publisher, filled).column(SIZE_BYTES)
    return filled.set_column(at, batch.schema.field(at), seen)


def _taken(publisher: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events as a broker takes them in."""
    taken, rejected = take_in([ClientMessage(publisher, encode_events(batch), ARROW_TYPE, None, 0)])
    if taken is None or rejected:
        raise LiveError(f"events of the workload cannot be published: {rejected[:1]}")
    return taken
