"""Coordinators that stand by for the leader of a SemCast plan, on a real control server."""

from pathlib import Path

from test_live_coordinator import BROKERS, WORLD, Scene, agree, play

from obedient import obeying
from ramify.content.events.events import AttributeType
from ramify.overlay.live.coordinator.term import Term
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.problem import Problem

SCHEMA = {f"a{i}": AttributeType.INT64 for i in range(6)}
EMPTY = {"overlay": WORLD.overlay, "scheme": "semcast", "schema": SCHEMA}


def excludes_nobody(term: Term) -> None:
    """The plan serves all that is wanted, by its own check."""
    plan = term.book.head.plan
    assert set(plan.classes.class_of) == set(term.book.wanted)
    check(plan, Problem.of(plan.overlay, plan.classes, Demand.of([]), plan.attachments))


def channel_of(term: Term, id_: str) -> list[int]:
    plan = term.book.head.plan
    k = plan.classes.class_of[id_]
    return [c for c, channel in enumerate(plan.channels) if (channel.serves.classes == k).any()]


def test_a_standby_takes_over_with_everything_and_covers_newcomers_as_before(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        for name in ("k0", "k1", "k2"):
            scene.coordinate(name, lease_s=2, **EMPTY)
        async with obeying(scene.server, BROKERS) as brokers:
            first = await scene.term()
            leader = first._stores.lease.holder
            for i, path in enumerate(SCHEMA):
                assert (await scene.subscribe("w", path, f"{path} > 1", BROKERS[0])).ok
                assert (await scene.subscribe(f"n{i % 3}", path, f"{path} > 2", BROKERS[i % 3])).ok
                assert channel_of(first, f"n{i % 3}/{path}") == channel_of(first, f"w/{path}")
            excludes_nobody(first)
            await first._stores.store.close()
            await end_tasks([scene.tasks[leader]])
            assert not (await scene.subscribe("w", "late", "a0 = 9", BROKERS[0])).missing
            term = await scene.term(but=leader)
            assert len(term.book.wanted) == 2 * len(SCHEMA) + 1
            for path in SCHEMA:
                assert (await scene.subscribe("n0", f"new {path}", f"{path} > 3", BROKERS[0])).ok
                assert channel_of(term, f"n0/new {path}") == channel_of(term, f"w/{path}")
            excludes_nobody(term)
            agree(term, brokers)

    play(tmp_path, scenario)
