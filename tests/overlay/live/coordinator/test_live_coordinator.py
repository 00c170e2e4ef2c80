"""Coordinators on a real control server, with brokers that keep to the contract."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from obedient import ACCOUNTS, Asker, Obedient, endpoint, obeying, until
from ramify.errors import InputError, LiveError
from ramify.overlay.control import registry
from ramify.overlay.control.epochs import EpochStage as Life
from ramify.overlay.control.names import token
from ramify.overlay.control.records import STATE, FilterText, LinkCount, Request, Status, decode, encode
from ramify.overlay.control.registry import Write
from ramify.overlay.control.replan import PlanDecision
from ramify.overlay.live.coordinator.adaptation import Replanner
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig, make_in_process
from ramify.overlay.live.coordinator.term import Term
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.choosing.replan import ReplanJob
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.files import encode_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import Rules
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world
from worlds import SCHEMA

LIMIT_S = 600.0
WORLD = seeded_world(5, 6, 12, 60)
BROKERS = list(WORLD.overlay.brokers)


class Scene:
    """A control server, brokers, coordinators, and a client that asks."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ask = Asker(server)
        self.coordinators: dict[str, Coordinator] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._stores: list[Store] = []

    async def store(self) -> Store:
        if not self._stores:
            self._stores.append(await Store.connect(endpoint(self.server, "test")))
        return self._stores[0]

    def coordinate(
        self, name: str = "k0", replanner: Replanner | None = None, **config: object
    ) -> Coordinator:
        given = CoordinatorConfig(name, endpoint(self.server, name), **config)  # type: ignore[arg-type]
        made = self.coordinators[name] = Coordinator(given, replanner)
        self.tasks[name] = asyncio.create_task(made.run())
        return made

    async def term(self, but: str = "") -> Term:
        """The term of the leader."""
        while True:
            for name, each in self.coordinators.items():
                if self.tasks[name].done() and not self.tasks[name].cancelled():
                    self.tasks[name].result()
                if name != but and each.term is not None and each.term.book.epochs.target is not None:
                    return each.term
            await asyncio.sleep(0.02)

    async def subscribe(self, client: str, id_: str, sql: str, broker: str = "", wait_s: float = 120.0):  # type: ignore[no-untyped-def]
        at = broker or WORLD.attachments.get(client, BROKERS[3])
        return await self.ask(at, client, Request("subscribe", id_, FilterText(sql), wait_s=wait_s))

    async def end(self) -> None:
        await end_tasks(self.tasks.values())
        await self.ask.close()
        for store in self._stores:
            await store.close()


def play(directory: Path, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def bounded() -> None:
        server = Server(ServerConfig("control", directory / "control", ACCOUNTS))
        scene = Scene(server)
        try:
            async with asyncio.timeout(LIMIT_S):
                await server.start()
                await scenario(scene)
        finally:
            await scene.end()
            await server.stop()

    run_to_end(bounded())


def agree(term: Term, brokers: dict[str, Obedient]) -> None:
    """Every broker holds what the leader has in mind, to the byte."""
    for epoch, live in term.book.live.items():
        mine = encode_plan(live.plan)
        for broker in brokers.values():
            revision, plan = broker.plans[epoch]
            assert revision == term.book.epochs.revision
            assert encode_plan(plan) == mine


def test_a_subscription_is_active_everywhere_when_the_answer_comes(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate(plan=make_plan("mst", WORLD.problem))
        async with obeying(scene.server, BROKERS) as brokers:
            answer = await scene.subscribe("new", "x", "x > 3")
            assert answer.ok
            assert not answer.missing
            term = await scene.term()
            for broker in brokers.values():
                assert "new/x" in broker.plans[broker.flipped][1].classes.class_of
            agree(term, brokers)
            again = await scene.subscribe("new", "x", "x > 3")
            assert again.ok
            assert again.revision == answer.revision
            assert (await scene.subscribe("new", "x", "x > 4")).error.code == "exists"
            told = await scene.ask(BROKERS[3], "new", Request("list"))
            assert list(told.client.subscriptions) == ["new/x"]  # type: ignore[union-attr]
            gone = await scene.ask(BROKERS[3], "new", Request("unsubscribe", "x"))
            assert gone.ok
            assert not gone.missing
            for broker in brokers.values():
                assert "new/x" not in broker.plans[broker.flipped][1].classes.class_of
            assert (await scene.ask(BROKERS[3], "new", Request("unsubscribe", "x"))).ok
            assert (await scene.ask(BROKERS[3], "new", Request("unsubscribe", "z"))).error.code == "unknown"  # type: ignore[union-attr]

    play(tmp_path, scenario)


def test_a_broker_that_does_not_confirm_is_named_and_a_lost_one_not_waited_for(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate(plan=make_plan("explicit", WORLD.problem))
        async with obeying(scene.server, BROKERS, lease_s=2) as brokers:
            assert not (await scene.subscribe("new", "x", "x > 3")).missing
            brokers["v2"].deaf = True
            late = await scene.subscribe("new", "y", "x > 4", wait_s=0.5)
            # others may need longer than that
            while late.missing.keys() > {"v2"}:
                late = await scene.subscribe("new", "y", "x > 4", wait_s=0.5)
            assert late.ok
            assert list(late.missing) == ["v2"]
            await brokers["v2"].die()
            term = await scene.term()
            await until(lambda: "v2" in term.book.epochs.lost)
            assert not (await scene.subscribe("new", "z", "x > 5")).missing
            assert "new/z" not in brokers["v2"].plans[brokers["v2"].flipped][1].classes.class_of

    play(tmp_path, scenario)


def test_a_suspended_client_is_in_no_plan_until_it_resumes(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate(plan=make_plan("mst", WORLD.problem))
        async with obeying(scene.server, BROKERS) as brokers:
            at = WORLD.attachments["c0"]
            held = {row.id for row in WORLD.subscriptions if row.client == "c0"}
            term = await scene.term()
            assert (await scene.ask(at, "c0", Request("suspend"), "quota")).ok
            assert not held & set(term.book.head.plan.classes.class_of)
            told = (await scene.ask(at, "c0", Request("list"))).client
            assert told is not None
            assert {each.suspended for each in told.subscriptions.values()} == {"quota"}
            assert (await scene.ask(at, "c0", Request("resume"))).ok
            assert held <= set(term.book.head.plan.classes.class_of)
            agree(term, brokers)

    play(tmp_path, scenario)


def test_a_plan_that_cannot_take_a_subscription_is_made_anew(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate(overlay=WORLD.overlay, scheme="mult", schema=SCHEMA.attributes)
        async with obeying(scene.server, BROKERS) as brokers:
            told = await asyncio.gather(
                *(scene.subscribe(f"n{i}", "x", f"x > {i}", broker=BROKERS[i]) for i in range(4))
            )
            assert all(answer.ok and not answer.missing for answer in told)
            term = await scene.term()
            for broker in brokers.values():
                held = broker.plans[broker.flipped][1]
                assert {f"n{i}/x" for i in range(4)} <= set(held.classes.class_of)
                assert held.scheme == "mult"
            assert term.plans.last is not None
            assert term.plans.last.action == "install"
            # only the newest lives on
            await until(lambda: len(term.book.epochs.live) == 1)

    play(tmp_path, scenario)


def test_while_three_epochs_live_the_answer_names_the_brokers_they_wait_for(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate(plan=make_plan("mirror-all", WORLD.problem))
        async with obeying(scene.server, BROKERS) as brokers:
            term = await scene.term()
            await until(lambda: term.book.epochs.state(1) is Life.FLIPPED)
            brokers["v1"].deaf = True
            # two more epochs that v1 does not take up
            for _ in range(2):
                await term._stores.write(term.book.propose(term.book.head.plan)[1])
            # until a plan that has it was made, all are named
            while list((await scene.subscribe("new", "x", "x > 3", wait_s=0.5)).missing) != ["v1"]:
                pass
            brokers["v1"].deaf = False
            again = await scene.subscribe("new", "x", "x > 3")
            assert not again.missing
            for broker in brokers.values():
                assert "new/x" in broker.plans[broker.flipped][1].classes.class_of

    play(tmp_path, scenario)


def test_many_changes_become_a_new_base_and_what_is_unused_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MOST_CHANGES", 5)

    async def scenario(scene: Scene) -> None:
        scene.coordinate(plan=make_plan("mst", WORLD.problem), grace_s=0.5)
        async with obeying(scene.server, BROKERS, lease_s=2) as brokers:
            for i in range(12):
                assert not (await scene.subscribe("new", f"x{i}", f"x > {i}")).missing
            term, store = await scene.term(), await scene.store()
            agree(term, brokers)
            assert len(term.book.head.changes) == 2
            # a new base is nothing to brokers that hold the revision
            assert brokers["v0"].shelf.read_plans == 1
            while set(await store.keys("plans")) | set(await store.keys("changes")) != term.book.referred():
                await asyncio.sleep(0.1)
            await brokers["v0"].die()
            async with obeying(scene.server, ["v0"]) as fresh:
                await until(lambda: fresh["v0"].plans)
                agree(term, fresh)

    play(tmp_path, scenario)


def test_a_standby_goes_on_where_the_leader_stopped(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        plan = make_plan("mst", WORLD.problem)
        scene.coordinate("k0", plan=plan, lease_s=2)
        async with obeying(scene.server, BROKERS) as brokers:
            first = await scene.term()
            assert not (await scene.subscribe("new", "x", "x > 3")).missing
            scene.coordinate("k1", plan=plan, lease_s=2)
            # dead without a word: its lease stays until it lapses
            await first._stores.store.close()
            await end_tasks([scene.tasks["k0"]])
            assert not (await scene.subscribe("new", "y", "x > 4")).missing
            term = await scene.term(but="k0")
            assert {"new/x", "new/y"} <= set(term.book.head.plan.classes.class_of)
            agree(term, brokers)
            assert term.book.epochs.live == (1,)

    play(tmp_path, scenario)


def test_through_crashes_of_leaders_and_server_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    rng = random.Random(7)

    async def scenario(scene: Scene) -> None:
        plan = make_plan("mst", WORLD.problem)
        for name in ("k0", "k1"):
            scene.coordinate(name, plan=plan, lease_s=1)
        confirmed: set[str] = set()

        async def asking(client: str) -> None:
            for i in range(12):
                answer = await scene.subscribe(client, f"x{i}", f"x > {i}", broker=BROKERS[0])
                assert answer.ok, answer
                confirmed.add(f"{client}/x{i}")
                if i % 3 == 2:
                    gone = await scene.ask(BROKERS[0], client, Request("unsubscribe", f"x{i - 1}"))
                    assert gone.ok or gone.error.code == "unknown", gone  # type: ignore[union-attr]
                    confirmed.discard(f"{client}/x{i - 1}")

        async def trouble() -> None:
            for turn in range(5):
                await asyncio.sleep(0.3 + rng.random())
                if turn == 2:
                    scene.server.kill()
                    await asyncio.sleep(0.5)
                    await scene.server.start()
                    continue
                for name, each in list(scene.coordinators.items()):
                    if each.term is not None:
                        await each.term._stores.store.close()
                        await end_tasks([scene.tasks[name]])
                        scene.coordinate(name, plan=plan, lease_s=1)

        async with obeying(scene.server, BROKERS) as brokers:
            await scene.term()
            await asyncio.gather(trouble(), *(asking(f"m{i}") for i in range(3)))
            last = await scene.subscribe("m0", "end", "x = 0", broker=BROKERS[0])
            assert last.ok
            assert not last.missing
            term = await scene.term()
            have = {id_ for id_ in term.book.wanted if id_.startswith("m")}
            assert have == confirmed | {"m0/end"}
            assert have | {row.id for row in WORLD.subscriptions} == set(
                term.book.head.plan.classes.class_of
            )
            await until(lambda: all(b.plans.keys() == term.book.live.keys() for b in brokers.values()))
            agree(term, brokers)

    play(tmp_path, scenario)


async def recent(plan: Plan, rules: Rules) -> Demand | None:
    """What was published of late, in the classes of a plan."""
    return tally([WORLD.batch], plan.classes, plan.overlay, plan.attachments)


async def report_cost(store: Store, epoch: int, per_byte: int, events: int = 2_000) -> None:
    """Counters of two brokers: what entered with an epoch, and what that made them send."""
    link = WORLD.overlay.links[0]
    entered = {epoch: (events, events * 100)}
    for broker, to in ((link.a, link.b), (link.b, link.a)):
        sent = {epoch: {to: LinkCount(events, events * 100 * per_byte, events * 120 * per_byte)}}
        status = Status(broker, f"session {epoch}", time.time(), 1.0, entered=entered, sent=sent)
        await store.put(f"status.{token(broker)}", encode(status), force=True)


async def decisions(store: Store) -> list[PlanDecision]:
    keys = sorted(await store.keys("decisions"), key=lambda key: int(key.partition(".")[2]))
    return [decode((await store.get(key))[0], PlanDecision) for key in keys]  # type: ignore[index]


@pytest.mark.parametrize("still_live", [True, False])
def test_a_replan_that_raises_the_measured_cost_is_taken_back(tmp_path: Path, still_live: bool) -> None:
    async def scenario(scene: Scene) -> None:
        plan = make_plan("broadcast", WORLD.problem)
        replanner = Replanner(recent, period_s=0.3, specs=("explicit",), enough_events=1_000)
        store = await scene.store()
        async with obeying(scene.server, BROKERS) as brokers:
            scene.coordinate(plan=plan, replanner=replanner)
            await report_cost(store, 1, per_byte=2)
            term = await scene.term()
            if still_live:
                # holds up the drain of the first epoch
                await until(lambda: term.book.epochs.wanted == 2)
                await until(lambda: all(broker.flipped == 2 for broker in brokers.values()))
                brokers["v0"].silent = True
            else:
                await until(lambda: term.book.epochs.live == (2,))
            told = (await decisions(store))[0]
            assert (told.action, told.old_scheme, told.new_scheme) == ("install", "broadcast", "explicit")
            assert told.saving is not None
            assert told.saving > 0.05
            assert not (await scene.subscribe("new", "x", "x > 3")).missing
            await report_cost(store, 2, per_byte=3)
            await until(lambda: term.plans.last is not None and term.plans.last.action == "rollback")
            wanted = 1 if still_live else 3
            await until(lambda: all(broker.flipped == wanted for broker in brokers.values()))
            held = brokers["v1"].plans[wanted][1]
            assert held.scheme == "broadcast"
            assert "new/x" in held.classes.class_of
            last = [each for each in await decisions(store) if each.action == "rollback"][-1]
            assert (last.old_cost, last.new_cost) != (None, None)
            assert last.new_cost > last.old_cost  # type: ignore[operator]

    play(tmp_path, scenario)


def test_a_replan_that_saves_too_little_is_logged_and_not_installed(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        plan = make_plan("explicit", WORLD.problem)
        replanner = Replanner(recent, period_s=0.2, specs=("explicit", "no-such-scheme"))
        async with obeying(scene.server, BROKERS):
            scene.coordinate(plan=plan, replanner=replanner)
            store, term = await scene.store(), await scene.term()
            await until(lambda: term.plans.last)
            told = (await decisions(store))[0]
            assert told.action == "keep"
            assert told.saving == 0.0
            assert "unknown scheme" in {each.spec: each.reason for each in told.tried}["no-such-scheme"]
            assert term.book.epochs.live == (1,)

    play(tmp_path, scenario)


def test_a_source_that_fails_stops_nobody(tmp_path: Path) -> None:
    async def failing(plan: Plan, rules: Rules) -> Demand | None:
        raise RuntimeError("no samples today")

    async def scenario(scene: Scene) -> None:
        async with obeying(scene.server, BROKERS):
            scene.coordinate(
                plan=make_plan("mst", WORLD.problem), replanner=Replanner(failing, period_s=0.1)
            )
            term = await scene.term()
            await until(lambda: term.plans.last)
            assert term.plans.last is not None
            assert "no samples today" in term.plans.last.reason
            assert not (await scene.subscribe("new", "x", "x > 3")).missing

    play(tmp_path, scenario)


def test_later_starts_keep_the_store_unless_asked_to_replace_the_plan(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        first, second = make_plan("mst", WORLD.problem), make_plan("explicit", WORLD.problem)
        async with obeying(scene.server, BROKERS) as brokers:
            scene.coordinate(plan=first)
            assert not (await scene.subscribe("new", "x", "x > 3")).missing
            await end_tasks([scene.tasks["k0"]])
            scene.coordinate(plan=second)
            term = await scene.term()
            assert term.book.head.plan.scheme == "mst"
            await end_tasks([scene.tasks["k0"]])
            scene.coordinate(plan=second, replace_plan=True)
            await until(lambda: all(broker.flipped == 2 for broker in brokers.values()))
            term = await scene.term()
            assert term.book.head.plan.scheme == "explicit"
            assert "new/x" in term.book.head.plan.classes.class_of
            await end_tasks([scene.tasks["k0"]])
            scene.coordinate(plan=second, replace_plan=True)
            # it is that already
            assert (await scene.term()).book.epochs.wanted == 2

    play(tmp_path, scenario)


def test_a_plan_that_fails_its_check_is_never_begun_with(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        good = make_plan("mst", WORLD.problem)
        bad = replace(good, channels=())
        scene.coordinate(plan=bad)
        with pytest.raises(InputError, match="cannot be used"):
            await scene.term()
        assert await (await scene.store()).get(STATE) is None

    play(tmp_path, scenario)


def test_a_leader_that_was_overtaken_writes_nothing(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        scene.coordinate(plan=make_plan("mst", WORLD.problem))
        async with obeying(scene.server, BROKERS):
            term, store = await scene.term(), await scene.store()
            before = scene.coordinators["k0"].terms
            # as if another had led meanwhile
            found = await store.get(STATE)
            assert found is not None
            await store.put(STATE, found[0], found[1])
            answer = await scene.subscribe("new", "x", "x > 3")
            assert answer.ok
            assert not answer.missing
            assert scene.coordinators["k0"].terms > before
            with pytest.raises(LiveError):
                await term._stores.write([Write("changes.late", b"{}")])

    play(tmp_path, scenario)


def test_making_plans_is_bounded_in_time(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        plan = make_plan("mst", WORLD.problem)
        made = await make_in_process(ReplanJob(plan, ["explicit"], WORLD.demand, 0.0), 60)
        assert made.plan is not None
        with pytest.raises(LiveError, match=r"more than 0\.05 s"):
            await make_in_process(ReplanJob(plan, ["explicit"], WORLD.demand, 0.0), 0.05)

    play(tmp_path, scenario)
