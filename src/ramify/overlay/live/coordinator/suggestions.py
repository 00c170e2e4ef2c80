"""Which clients should move, by what was sampled of late: the paper's summarize, and brokers in rounds.

Owns the way from samples to suggestions. What a client publishes and gets is counted with the plan that
runs, and scaled to all that was published. Then each broker in turn picks its most expensive client and the
broker where the whole cost falls most (`planning.placement.rounds`). Nothing is asked of anybody here.

Access links cost what the caller says; without prices a client's traffic is thought to go on through the
broker where it is, and hardly any move pays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ramify.content.filters.space import Axis, Grid
from ramify.errors import InputError, LiveError
from ramify.overlay.control.epochs import Epochs
from ramify.overlay.control.records import STATE, ControlState, Status, decode
from ramify.overlay.control.registry import applied
from ramify.overlay.control.revisions import PlanChanges
from ramify.overlay.live.coordinator.collector import read_publishers
from ramify.overlay.live.wire.store import Store
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.placement.composition import homes, placement_problem
from ramify.planning.placement.core import assess
from ramify.planning.placement.rounds import in_rounds
from ramify.planning.plans.files import decode_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import GB
from ramify.planning.schemes.shared.grids import grid_for

__all__ = ["Suggestion", "Suggestions", "Summary", "head_plan", "sampled_share", "suggest"]

_ROWS = 20_000
_ANY = Grid((Axis("type", ("m",)),))
"""Where filters give nothing to cut the content space by: then any cut is as good, all touch all of it."""


class Summary(msgspec.Struct, frozen=True):
    """What a client publishes and gets in the time of the samples, scaled to all events."""

    client: str
    broker: str
    published_events: float
    published_bytes: float
    received_events: float
    received_bytes: float


class Suggestion(msgspec.Struct, frozen=True):
    """A client that should move, and what that alone would save, in money for the time of the samples."""

    client: str
    home: str
    foreign: str
    saving: float


class Suggestions(msgspec.Struct, frozen=True):
    """All clients, their whole cost, and the moves that pay; `cost_after` is with all moves."""

    events: int
    clients: list[Summary]
    cost: float
    cost_after: float
    moves: list[Suggestion]


async def head_plan(store: Store) -> Plan:
    """The newest plan that is to be flipped to, with all its changes. Raises `LiveError` without one."""
    found = await store.get(STATE)
    if found is None:
        raise LiveError("the control server has no plan yet: wait until a coordinator leads")
    state = decode(found[0], ControlState)
    wanted = Epochs.from_json(bytes(state.epochs)).wanted
    for live in state.live:
        if live.epoch != wanted:
            continue
        plan = await store.get_large(live.plan_key)
        changes = [await store.get(key) for _, key in live.changes]
        if plan is None or None in changes:
            break
        made = decode_plan(plan[0])
        for change in changes:
            assert change is not None
            made = applied(made, decode(change[0], PlanChanges).changes)
        return made
    raise LiveError("the plan is being replaced right now: ask again")


async def sampled_share(store: Store) -> float:
    """The share of published events that brokers have sampled since they started; 1 when none was."""
    published = sampled = 0
    for value in (await store.values("status")).values():
        status = decode(value, Status)
        published, sampled = published + status.published, sampled + status.sampled
    return sampled / published if sampled and published else 1.0


def suggest(
    plan: Plan,
    samples: Path,
    files: Sequence[str],
    *,
    share: float = 1.0,
    access: Mapping[tuple[str, str], float] | None = None,
    rounds: int = 1,
    may_move: Callable[[str, str], bool] = lambda _client, _broker: True,
) -> Suggestions:
    """Weigh moves on the events of some sample files. `share` of what was published is in them.

    Raises `InputError` when they have no event whose publisher is known.
    """
    attached = {**read_publishers(samples), **plan.attachments}
    grid = plan.grid or grid_for(plan.classes) or _ANY
    counted = tally(_batches(files), plan.classes, plan.overlay, attached, grid=grid, by_client=True)
    if not counted.events:
        raise InputError("no sampled event has a publisher with a known broker", path=str(samples))
    demand = replace(counted, factor=1.0 / share)
    problem = Problem.of(plan.overlay, plan.classes, demand, attached, grid=grid)
    placing = placement_problem(problem, access=access)
    here = homes(problem)
    now = assess(placing, [here[user] for user in placing.users])
    found = in_rounds(placing, now, policy=may_move, most=rounds).placement
    names = plan.overlay.brokers
    moves = []
    for u in np.flatnonzero(found.broker != now.broker).tolist():
        alone = now.broker.copy()
        alone[u] = found.broker[u]
        saving = (now.total - assess(placing, alone).total) / GB
        home, foreign = names[int(now.broker[u])], names[int(found.broker[u])]
        moves.append(Suggestion(placing.users[u], home, foreign, saving))
    moves.sort(key=lambda each: (-each.saving, each.client))
    clients = _summaries(problem, {client: names[b] for client, b in here.items()})
    return Suggestions(demand.events, clients, now.total / GB, found.total / GB, moves)


def _batches(files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for file in files:
        try:
            yield from pq.ParquetFile(file).iter_batches(_ROWS)
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"cannot be read as samples: {error}", path=file) from None


@dataclass(slots=True)
class _Sums:
    published: tuple[float, float] = (0.0, 0.0)
    received: tuple[float, float] = (0.0, 0.0)


def _summaries(problem: Problem, here: Mapping[str, str]) -> list[Summary]:
    """An event counts once for a client, however many of its subscriptions it matches."""
    demand: Demand = problem.demand
    sums = {client: _Sums() for client in here}
    members = [sorted({row.client for row in rows}) for rows in problem.classes.members]
    for i in range(len(demand)):
        more = float(demand.count[i]) * demand.factor, float(demand.size[i]) * demand.factor
        sender = sums[demand.clients[int(demand.client[i])]]
        sender.published = sender.published[0] + more[0], sender.published[1] + more[1]
        for client in {client for k in demand[i].tolist() for client in members[k]}:
            got = sums[client]
            got.received = got.received[0] + more[0], got.received[1] + more[1]
    return [Summary(c, here[c], *each.published, *each.received) for c, each in sorted(sums.items())]
