"""Rules of an overlay on a real control server: given, changed while it runs, kept by the next leader."""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from test_live_coordinator import Scene, decisions, play
from typer.testing import CliRunner

from obedient import USERS, obeying, until
from ramify.cli import app
from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.durable import replace_file, write_parquet
from ramify.errors import LiveError, PlanError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.trees import Tree
from ramify.overlay.control.moves import DECLINED, REPLICATED
from ramify.overlay.control.names import token
from ramify.overlay.control.records import (
    RULES,
    ClientRecord,
    ClientSubscription,
    FilterText,
    LinkCount,
    Move,
    Request,
    Status,
    encode,
)
from ramify.overlay.control.registry import Book, BrokenRulesError, Write
from ramify.overlay.control.replan import PlanDecision
from ramify.overlay.control.rules import OverlayRules
from ramify.overlay.live.coordinator import adaptation
from ramify.overlay.live.coordinator.adaptation import Adapter, Replanner, Settings
from ramify.overlay.live.coordinator.collector import PUBLISHERS
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.coordinator.moves import MoveConductor
from ramify.overlay.live.coordinator.samples import SampleWindow
from ramify.overlay.live.coordinator.term import Term
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, make_plans
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.check import check
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.rules import Residency, Rules
from ramify.planning.pricing.weights import MonthlyWeights
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.scheme import channel, put_together

SQUARE = Overlay.build(
    "square",
    ["a", "b", "c", "d"],
    [
        Link("a", "b", 1.0, 1.0, 1.0),
        Link("b", "d", 1.0, 1.0, 1.0),
        Link("a", "c", 5.0, 5.0, 1.0),
        Link("c", "d", 1.0, 1.0, 1.0),
    ],
)
BROKERS = list(SQUARE.brokers)
ATTACHED = {"w": "a", "r": "d"}
SCHEMA = EventSchema(
    {"x": AttributeType.INT64, "topic": AttributeType.STRING, "personal": AttributeType.BOOLEAN}
)
EVENTS = [
    Event(f"e{i}", "w", attributes={"x": i, "topic": "b", "personal": i % 2 == 0}, size_bytes=1000)
    for i in range(300)
]
BATCH = events_to_batch(EVENTS, SCHEMA)
GDPR = Rules(residency=(Residency("gdpr", "personal = true", brokers=frozenset({"b"})),))
GIVEN = OverlayRules(GDPR, MonthlyWeights(per_filter=0.5))
ALL = [Subscription("r/all", "r", "d", sql="x >= 0")]
CHEAP, DEAR = "spt:root=a", "hub=c"


def made(spec: str, rows: list[Subscription] = ALL) -> Plan:
    classes = Classes.collapse(rows, SQUARE, {})
    return make_plan(spec, Problem.of(SQUARE, classes, Demand.of([]), ATTACHED))


async def seen(plan: Plan, rules: Rules) -> Demand | None:
    found = tally([BATCH], plan.classes, plan.overlay, ATTACHED, tags=rules.tags({}))
    return replace(found, seconds=60.0)


async def put_rules(scene: Scene, rules: Rules, revision: int) -> None:
    store = await scene.store()
    await store.put(RULES, encode(OverlayRules(rules).record(revision, "test", 0.0)), force=True)


def test_a_replan_that_breaks_a_rule_is_refused_by_name_until_the_rule_goes(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        replanner = Replanner(seen, period_s=0.3, specs=(CHEAP, DEAR), enough_events=10**9)
        async with obeying(scene.server, BROKERS) as brokers:
            scene.coordinate(plan=made(DEAR), replanner=replanner, rules=GIVEN)
            store, term = await scene.store(), await scene.term()
            await until(lambda: term.plans.last)
            first = (await decisions(store))[0]
            assert (first.action, first.rules) == ("keep", 1)
            assert f"refused: {CHEAP} breaks residency: gdpr" in first.reason
            told = {each.spec: each.broken for each in first.tried}
            assert told[CHEAP][0].startswith("residency: gdpr: ")
            assert told[DEAR] == []
            assert term.book.epochs.live == (1,)

            await put_rules(scene, Rules(), 2)
            await until(lambda: all(each.flipped == 2 for each in brokers.values()))
            assert term.book.head.plan.scheme == "spt"

            await put_rules(scene, GDPR, 3)
            await until(lambda: all(each.flipped == 3 for each in brokers.values()))
            assert term.book.head.plan.scheme == "hub"
            back = [each for each in await decisions(store) if each.action == "install"][-1]
            assert "keeps rules that the plan before breaks (residency: gdpr" in back.reason
            assert back.saving is not None
            assert back.saving < 0
            assert back.broken[0].startswith("residency: gdpr: ")

    play(tmp_path, scenario)


def test_when_no_plan_keeps_a_rule_the_decision_says_which(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        replanner = Replanner(seen, period_s=0.3, specs=(CHEAP,), enough_events=10**9)
        async with obeying(scene.server, BROKERS):
            scene.coordinate(plan=made(CHEAP), replanner=replanner)
            store, term = await scene.store(), await scene.term()
            await put_rules(scene, GDPR, 1)
            await until(lambda: term.plans.last is not None and term.plans.last.rules == 1)
            last = (await decisions(store))[-1]
            assert last.action == "keep"
            assert last.reason.startswith("the plan breaks residency: gdpr")
            assert "no other plan keeps every rule" in last.reason

    play(tmp_path, scenario)


def test_a_plan_that_breaks_a_rule_is_not_rolled_back_to(tmp_path: Path) -> None:
    """It was replaced because of the rule, so what is measured now costs more."""

    async def report(scene: Scene, epoch: int, per_byte: int) -> None:
        store = await scene.store()
        sent = {epoch: {"c": LinkCount(2_000, 200_000 * per_byte, 200_000 * per_byte)}}
        entered = {epoch: (2_000, 200_000)}
        told = Status("a", f"session {epoch}", time.time(), 1.0, entered=entered, sent=sent)
        await store.put(f"status.{token('a')}", encode(told), force=True)

    async def scenario(scene: Scene) -> None:
        replanner = Replanner(seen, period_s=0.3, specs=(DEAR,), enough_events=1_000)
        async with obeying(scene.server, BROKERS) as brokers:
            scene.coordinate(plan=made(CHEAP), replanner=replanner)
            await report(scene, 1, per_byte=1)
            store, term = await scene.store(), await scene.term()
            await put_rules(scene, GDPR, 1)
            await until(lambda: all(each.flipped == 2 for each in brokers.values()))
            await report(scene, 2, per_byte=9)
            await until(lambda: term.plans.last is not None and "measured cost" in term.plans.last.reason)
            last = next(each for each in await decisions(store) if "measured cost" in each.reason)
            assert last.action == "keep"
            assert "but the plan before breaks residency: gdpr" in last.reason
            assert term.book.epochs.wanted == 2

    play(tmp_path, scenario)


def test_a_given_plan_that_breaks_the_rules_of_the_record_is_refused_in_the_log(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        async with obeying(scene.server, BROKERS):
            scene.coordinate("k0", plan=made(DEAR), rules=GIVEN)
            await scene.term()
            await end_tasks([scene.tasks.pop("k0")])
            del scene.coordinators["k0"]
            scene.coordinate("k1", plan=made(CHEAP), replace_plan=True)
            term = await scene.term()
            await until(lambda: term.plans.last)
            told = (await decisions(await scene.store()))[-1]
            assert (told.action, term.book.head.plan.scheme) == ("keep", "hub")
            assert "residency: gdpr" in told.reason

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (encode(OverlayRules(Rules(capacity={"paris": 1.0})).record(2, "test", 0.0)), "'paris' is unknown"),
        (b'{"revision": 2, "rules": {"residency": [{"name": "x"}]}}', "residency[0]: found no events"),
        (b"{damaged", "malformed"),
    ],
)
def test_a_record_of_rules_that_cannot_be_used_stops_plans_and_not_the_coordinator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stored: bytes, why: str
) -> None:
    """While it leads, and at its next term. A record that can be used lets it go on."""

    async def refused(scene: Scene, term: Term, id_: str) -> None:
        await until(lambda: term.plans.last is not None and why in term.plans.last.reason)
        assert term.plans.last is not None
        assert term.plans.last.action == "keep"
        assert term.plans.last.reason.startswith("no plan is installed: the record of rules cannot be used")
        assert "cannot be used, so no plan is installed" in caplog.text
        answer = await scene.ask("d", "r", Request("subscribe", id_, FilterText("x = 1"), wait_s=0.2))
        assert answer.ok
        assert answer.missing
        assert all(why in told for told in answer.missing.values())
        for mine in (made(DEAR), made("mst")):
            with pytest.raises(BrokenRulesError):
                term.book.propose(mine)
        with pytest.raises(BrokenRulesError):
            term.book.move({"r": "c"})
        assert "r/all" in term.book.head.plan.classes.class_of, "what runs goes on"
        assert term.book.epochs.live == (1,)

    async def scenario(scene: Scene) -> None:
        async with obeying(scene.server, BROKERS):
            scene.coordinate("k0", plan=made(DEAR), rules=GIVEN)
            term, store = await scene.term(), await scene.store()
            await store.put(RULES, stored, force=True)
            await refused(scene, term, "x")
            await end_tasks([scene.tasks.pop("k0")])
            del scene.coordinators["k0"]
            caplog.clear()
            scene.coordinate("k1")
            term = await scene.term()
            await refused(scene, term, "y")
            await put_rules(scene, GDPR, 9)
            answer = await scene.ask("d", "r", Request("subscribe", "y", FilterText("x = 1"), wait_s=60))
            assert answer.ok
            assert not answer.missing
            assert term.book.rules == GDPR

    play(tmp_path, scenario)


def test_a_first_start_waits_for_a_record_of_rules_that_can_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scene: Scene) -> None:
        await put_rules(scene, Rules(capacity={"paris": 1.0}), 1)
        async with obeying(scene.server, BROKERS):
            scene.coordinate(plan=made(DEAR))
            await until(lambda: "no plan is installed" in caplog.text)
            assert "'paris' is unknown" in caplog.text
            await put_rules(scene, GDPR, 2)
            assert (await scene.term()).book.rules == GDPR

    play(tmp_path, scenario)


def test_a_subscription_that_no_plan_may_serve_is_refused_with_the_rules_name(tmp_path: Path) -> None:
    """Nothing was sampled. One that was there before the rule goes out of the plans, and comes back."""

    async def scenario(scene: Scene) -> None:
        async with obeying(scene.server, BROKERS) as brokers:
            scene.coordinate(plan=made(DEAR, [*ALL, Subscription("o/all", "o", "b", sql="x >= 0")]))
            term = await scene.term()
            await put_rules(scene, GDPR, 1)
            await until(lambda: "o/all" not in term.book.head.plan.classes.class_of)
            await until(
                lambda: all("o/all" not in b.plans[1][1].classes.class_of for b in brokers.values())
            )
            assert not term.book.faults(term.book.head.plan, None)
            answer = await scene.ask("b", "n", Request("subscribe", "x", FilterText("x = 1"), wait_s=60))
            assert answer.error is not None
            assert answer.error.code == "forbidden"
            assert answer.error.reason.startswith("residency: gdpr: subscription n/x at b asks for events")
            clean = FilterText("x = 1 AND personal = false")
            answer = await scene.ask("b", "n", Request("subscribe", "x", clean, wait_s=60))
            assert answer.ok
            assert not answer.missing
            again = Request("subscribe", "all", FilterText("x >= 0"), wait_s=0.2)
            answer = await scene.ask("b", "o", again)
            assert answer.ok
            assert answer.missing
            assert all("the rules bar o/all: residency: gdpr" in why for why in answer.missing.values())
            # others are planned for all the same
            term.book.propose(made(DEAR))
            await put_rules(scene, Rules(), 2)
            await until(lambda: "o/all" in term.book.head.plan.classes.class_of)

    play(tmp_path, scenario)


def test_what_no_plan_can_serve_is_said_once_and_tried_later_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan's own scheme takes the forbidden way to d, whatever else is asked for."""
    monkeypatch.setattr(adaptation, "_LACK_RETRY_S", 0.02)
    jobs: list[ReplanJob] = []

    async def make(self: Coordinator, job: ReplanJob) -> ReplanResult:
        jobs.append(job)
        return await asyncio.to_thread(lambda: ReplanResult.decode(make_plans(job.encode())))

    monkeypatch.setattr(Coordinator, "_make", make)

    async def given_up(scene: Scene) -> list[PlanDecision]:
        return [each for each in await decisions(await scene.store()) if each.action == "give_up"]

    async def scenario(scene: Scene) -> None:
        async with obeying(scene.server, BROKERS):
            scene.coordinate(plan=made(CHEAP, []), rules=GIVEN)
            term = await scene.term()
            ask = Request("subscribe", "all", FilterText("x >= 0"), wait_s=0.2)
            answer = await scene.ask("d", "r", ask)
            assert answer.missing
            assert all("residency: gdpr" in why for why in answer.missing.values())
            await until(lambda: len(jobs) >= 4)
            assert len(await given_up(scene)) == 1
            assert term.plans._lack_pause_s >= 0.02 * 2**3
            # another lack is a change: it is tried at once, and the reason is the same
            pause = term.plans._lack_pause_s
            await scene.ask("d", "r", Request("subscribe", "more", FilterText("x >= 5"), wait_s=0.2))
            await until(lambda: term.plans._lack_pause_s < pause)
            await put_rules(scene, Rules(), 2)
            await until(lambda: not term.book.head.lacks)
            assert len(await given_up(scene)) == 1

    play(tmp_path, scenario)


def test_rules_of_a_control_server_elsewhere_are_shown_and_changed(tmp_path: Path) -> None:
    """A file that does not go with the overlay or the types of attributes is refused with its place."""
    key, file = tmp_path / "user.nk", tmp_path / "rules.json"
    key.write_text(USERS["test"].seed)
    key.chmod(0o600)

    async def scenario(scene: Scene) -> None:
        async def told(*words: str) -> tuple[int, str]:
            where = ("rules", "--control", scene.server.url, "--key", str(key))
            found = await asyncio.to_thread(CliRunner().invoke, app, [*where, *words])
            assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
            return found.exit_code, " ".join(found.output.split())

        async def refused(document: object, says: str) -> None:
            file.write_text(json.dumps(document))
            code, said = await told("--set", str(file))
            assert (code, says in said, "rules.json" in said.replace(" ", "")) == (2, True, True), said

        store = await scene.store()
        file.write_text("{}")
        code, said = await told("--set", str(file))
        assert (code, "has no plan yet" in said) == (2, True), said
        typed = Classes.collapse(ALL, SQUARE, SCHEMA.attributes)
        plan = make_plan(DEAR, Problem.of(SQUARE, typed, Demand.of([]), ATTACHED))
        async with obeying(scene.server, BROKERS):
            scene.coordinate(plan=plan)
            term = await scene.term()
            assert await told() == (0, "rules: none")
            await refused({"capacity_bytes_per_s": {"paris": 1}}, "broker 'paris' is unknown")
            await refused({"capacity": {"a": 1}}, "the unknown field 'capacity'")
            await refused({"capacity_bytes_per_s": {"a": "1"}}, "capacity_bytes_per_s.a: found")
            rule = {"name": "typed", "events": "personal > 5", "not_in": {"brokers": ["b"]}}
            await refused({"residency": [rule]}, "residency[0] (typed): events:")
            assert await store.get(RULES) is None
            file.write_text(json.dumps(GDPR.document()))
            assert await told("--set", str(file)) == (0, "rules, revision 1: residency: gdpr")
            await until(lambda: term.book.rules == GDPR)
            assert (await told("--per-filter", "2"))[1].endswith("0 for a million matchings")
            # one that cannot be used is said, and can be replaced
            await store.put(RULES, b'{"revision": 7, "rules": {"capacity": 1}}', force=True)
            code, said = await told("--per-filter", "2")
            assert (code, "Replace them" in said) == (2, True), said
            await store.put(RULES, b"{damaged", force=True)
            code, said = await told()
            assert (code, "the record of rules is damaged" in said) == (2, True), said
            assert await told("--set", str(file)) == (0, "rules, revision 1: residency: gdpr")

    play(tmp_path, scenario)


def test_the_first_plan_must_keep_the_rules(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        refused = scene.coordinate(plan=made(CHEAP), rules=GIVEN)
        with pytest.raises(PlanError, match="residency: gdpr"):
            await scene.tasks[refused.config.name]
        scene.tasks.clear()

    play(tmp_path, scenario)


def test_the_next_leader_goes_by_the_record_and_not_by_its_own_options(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        async with obeying(scene.server, BROKERS):
            scene.coordinate("k0", plan=made(DEAR), rules=GIVEN, rules_once="start")
            term = await scene.term()
            assert term.book.rules == GDPR
            changed = Rules(capacity={"a": 1e12})
            store = await scene.store()
            record = OverlayRules(changed).record(2, "start", 0.0)
            await store.put(RULES, encode(record), force=True)
            await until(lambda: term.book.rules == changed)
            scene.coordinate("k1", plan=made(DEAR), rules=GIVEN, rules_once="start")
            await end_tasks([scene.tasks.pop("k0")])
            del scene.coordinators["k0"]
            assert (await scene.term()).book.rules == changed
            # another start with a wish of its own does count
            scene.coordinate("k2", plan=made(DEAR), rules=GIVEN, rules_once="other")
            await end_tasks([scene.tasks.pop("k1")])
            del scene.coordinators["k1"]
            term = await scene.term()
            assert term.book.rules == GDPR
            found = await store.get(RULES)
            assert found is not None
            assert OverlayRules.read(found[0]) == replace(GIVEN, revision=3)

    play(tmp_path, scenario)


def test_a_newcomer_that_makes_the_plan_break_a_rule_gets_another_plan(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        replanner = Replanner(seen, period_s=600, specs=(CHEAP, DEAR))
        async with obeying(scene.server, BROKERS):
            scene.coordinate(plan=made(CHEAP, []), replanner=replanner, rules=GIVEN)
            term = await scene.term()
            answer = await scene.ask("d", "r", Request("subscribe", "all", FilterText("x >= 0"), wait_s=60))
            assert answer.ok
            assert not answer.missing
            assert term.book.head.plan.scheme == "hub"
            assert "r/all" in term.book.head.plan.classes.class_of

    play(tmp_path, scenario)


class Written:
    """A store of a leader that takes everything."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    async def write(self, writes: Sequence[Write]) -> None:
        self.writes += writes


def at_home(spec: str) -> Book:
    """The reader is where everything is published, so that nothing crosses a link."""
    names = iter(range(1_000))
    rows = [Subscription("r/all", "r", "a", sql="x >= 0")]
    classes = Classes.collapse(rows, SQUARE, {})
    plan = make_plan(spec, Problem.of(SQUARE, classes, Demand.of([]), {"w": "a", "r": "a"}))
    return Book.first(plan, lambda: f"n{next(names)}", GDPR)[0]


def test_a_move_with_which_the_plan_breaks_a_rule_is_declined_with_the_rule() -> None:
    async def moved(book: Book) -> tuple[Move, bool]:
        async def make(job: ReplanJob) -> ReplanResult:
            raise AssertionError("no plan needs to be made")

        conductor = MoveConductor(Written(), book, make, "mst", lambda: None)  # type: ignore[arg-type]
        now = time.time()
        conductor.moves["r"] = Move("m", "r", "a", "d", REPLICATED, now, now + 60)
        changed = await conductor.step()
        return conductor.moves["r"], changed

    book = at_home(CHEAP)
    move, changed = run_to_end(moved(book))
    assert (move.phase, changed) == (DECLINED, False)
    assert "breaks residency: gdpr" in move.why
    assert book.epochs.wanted == 1
    with pytest.raises(BrokenRulesError) as raised:
        book.move({"r": "d"})
    assert raised.value.names == ("residency: gdpr",)

    free = at_home(DEAR)
    move, changed = run_to_end(moved(free))
    assert (move.phase, changed) == (REPLICATED, True)
    assert free.head.at == {"r": "d"}

    # a rule that the plan breaks anyway does not hold the client back
    book.rules = Rules()
    book.move({"r": "d"})
    book.obey(GDPR)
    assert book.faults(book.head.plan, None)
    book.move({"r": "c"})
    assert book.head.at == {"r": "c"}


def test_of_clients_that_move_together_one_that_needs_another_plan_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The moves break a rule together. Each is tried alone; neither ends the coordinator."""
    book = at_home(CHEAP)
    book.put_records(
        [ClientRecord("s", "a", {"s/all": ClientSubscription(FilterText(sql="x >= 0"))}, lanes=[])]
    )
    real = book.move

    def move(to: Mapping[str, str], *more: Any) -> tuple[int, list[Write]]:
        if set(to) == {"s"}:
            raise PlanError("plan spt cannot have s there:", ["try another"])
        return real(to, *more)

    monkeypatch.setattr(book, "move", move)

    async def moved() -> tuple[dict[str, Move], bool]:
        async def make(job: ReplanJob) -> ReplanResult:
            raise AssertionError("no plan is made before the others are answered")

        conductor = MoveConductor(Written(), book, make, "mst", lambda: None)  # type: ignore[arg-type]
        now = time.time()
        for client in ("r", "s"):
            conductor.moves[client] = Move("m", client, "a", "d", REPLICATED, now, now + 60)
        changed = await conductor.step()
        return conductor.moves, changed

    moves, changed = run_to_end(moved())
    assert (moves["r"].phase, moves["s"].phase, changed) == (DECLINED, REPLICATED, False)
    assert "breaks residency: gdpr" in moves["r"].why


def test_a_move_to_where_the_rules_bar_the_client_is_declined() -> None:
    book = at_home(DEAR)
    with pytest.raises(BrokenRulesError) as raised:
        book.move({"r": "b"})
    assert raised.value.names == ("residency: gdpr",)
    assert book.epochs.wanted == 1


def test_demand_counted_under_other_rules_is_dropped() -> None:
    """Its tags are those of the rules before: it would say that no event falls under the new ones."""
    book = at_home(DEAR)
    plan = book.head.plan
    counted = tally([BATCH], plan.classes, SQUARE, ATTACHED, tags=GDPR.tags({}))
    book.head.demand = counted
    book.obey(GDPR)
    assert book.head.demand is counted, "the same rules"
    book.obey(GDPR, "damaged")
    assert book.head.demand is counted, "no other rules yet"
    other = Rules(residency=(Residency("other", "x > 5", brokers=frozenset({"c"})),))

    async def planned() -> Demand | None:
        async def make(job: ReplanJob) -> ReplanResult:
            book.obey(other)
            return ReplanResult((), None)

        conductor = MoveConductor(Written(), book, make, "mst", lambda: None)  # type: ignore[arg-type]
        return (await conductor._plan({"r": "d"}))[1]

    assert run_to_end(planned()) is None, "the rules changed while the plan was made"
    assert book.head.demand is None


class RulesStore:
    """The control store as far as rules need it. The first write fails."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.asked = 0

    async def get(self, key: str) -> tuple[bytes, int] | None:
        return (self.written[-1], len(self.written)) if self.written else None

    async def put(self, key: str, value: bytes, revision: int) -> int:
        self.asked += 1
        if self.asked == 1:
            raise LiveError("the control server is gone")
        self.written.append(value)
        return len(self.written)


def test_rules_whose_first_write_failed_are_written_by_the_next_term() -> None:
    async def scenario() -> None:
        store, plan = RulesStore(), made(DEAR)
        stores: Any = SimpleNamespace(store=store)
        control = Endpoint("nats://127.0.0.1:1", "", "", "")
        coordinator = Coordinator(CoordinatorConfig("k0", control, plan, rules=GIVEN))
        with pytest.raises(LiveError):
            await coordinator._rules(stores, plan)
        assert (await coordinator._rules(stores, plan)).rules == GDPR
        assert len(store.written) == 1
        assert (await coordinator._rules(stores, plan)).rules == GDPR
        assert len(store.written) == 1, "once is enough"

    run_to_end(scenario())


# ------------------------------------------------------------------------------------ newcomers' groups


def grouped() -> Plan:
    """Two groups on trees of their own: by b for topic a, by c for topic b."""
    rows = [
        Subscription("r/a", "r", "d", sql="topic = 'a'"),
        Subscription("r/b", "r", "d", sql="topic = 'b'"),
    ]
    classes = Classes.collapse(rows, SQUARE, {})
    problem = Problem.of(SQUARE, classes, Demand.of([]), ATTACHED)
    trees = [
        Tree.of_links(4, [(0, 1), (1, 3), (3, 2)], 0),
        Tree.of_links(4, [(0, 2), (2, 3), (0, 1)], 0),
    ]
    groups = [channel(f"group {k}", problem, tree, [k]) for k, tree in enumerate(trees)]
    return check(put_together("mult", problem, groups), problem)


def land(directory: Path, batch: pa.RecordBatch) -> None:
    """A file of samples, as the collector writes it."""
    directory.mkdir(exist_ok=True)
    write_parquet(directory / "samples-1-1-9.parquet", pa.Table.from_batches([batch]))
    replace_file(directory / PUBLISHERS, b'{"w": "a"}')


def test_the_window_counts_as_a_tally_does(tmp_path: Path) -> None:
    land(tmp_path / "samples", BATCH)
    window, plan = SampleWindow(tmp_path / "samples", 600.0), grouped()
    for _ in range(2):
        for sql in ("x < 100", "personal = true AND x < 7", "x < 0"):
            row = Subscription("n/x", "n", "c", sql=sql)
            found = window.matching(plan, row, GDPR)
            assert found is not None
            demand, matched = found
            oracle = tally([BATCH], plan.classes, SQUARE, ATTACHED, tags=[*GDPR.tags({}), row.parse({})])
            assert (demand.events, demand.size_bytes) == (oracle.events, oracle.size_bytes)
            assert int(demand.count[matched].sum()) == int(oracle.count[oracle.tags & 2 != 0].sum())
            personal = oracle.tags & 1 != 0
            assert int(demand.count[demand.tags & 1 != 0].sum()) == int(oracle.count[personal].sum())
            assert demand.tag_filters == 1
    assert SampleWindow(tmp_path / "none", 600.0).matching(plan, row, GDPR) is None


@pytest.mark.parametrize("sampled", [True, False])
def test_a_newcomer_joins_the_group_whose_cost_rises_least_on_the_samples(
    tmp_path: Path, sampled: bool
) -> None:
    """What is published is carried through c already, by the second group; filters alone say the first."""
    land(tmp_path / "samples", BATCH)

    async def scenario(scene: Scene) -> None:
        window = SampleWindow(tmp_path / "samples", 600.0)
        async with obeying(scene.server, BROKERS) as brokers:
            scene.coordinate(plan=grouped(), matching=window.matching if sampled else None)
            await scene.term()
            answer = await scene.ask("c", "n", Request("subscribe", "x", FilterText("x >= 0"), wait_s=60))
            assert answer.ok
            assert not answer.missing
            plan = brokers["a"].plans[1][1]
            k = plan.classes.class_of["n/x"]
            carrying = [c for c, each in enumerate(plan.channels) if (each.serves.classes == k).any()]
            assert carrying == ([1] if sampled else [0])

    play(tmp_path, scenario)


def test_samples_that_a_newcomer_is_held_against_stand_for_all_events(tmp_path: Path) -> None:
    """One event of ten is sampled, so that the capacity is ten times nearer than the samples say."""
    land(tmp_path / "samples", BATCH)
    window, plan = SampleWindow(tmp_path / "samples", 600.0), grouped()
    row = Subscription("n/x", "n", "c", sql="x >= 0")
    names = iter(range(100))
    book, _ = Book.first(plan, lambda: f"n{next(names)}")
    settings = Settings(matching=window.matching)
    adapter = Adapter(settings, None, None, book, None, lambda: None)  # type: ignore[arg-type]
    adapter.measured.add(Status("a", "s", 1.0, 0.0, published=1_000, sampled=100))
    assert book.matching is not None
    found, bare = book.matching(plan, row, Rules()), window.matching(plan, row, Rules())
    assert found is not None
    assert bare is not None
    assert (found[0].factor, bare[0].factor) == (10.0, 1.0)
    assert found[0].events == bare[0].events
    assert bare[0].seconds >= 1.0, "events without times span the time since they landed"

    def lacks(limit: float) -> bool:
        book.obey(Rules(capacity={"c": limit}))
        book.put_records([ClientRecord("n", "c", {"n/x": ClientSubscription(FilterText(sql="x >= 0"))})])
        book.revise(["n/x"])
        lacking = "n/x" in book.head.lacks
        book.put_records([ClientRecord("n", "c")])
        book.revise(["n/x"])
        return lacking

    # some minutes ago, so that how long this test takes does not count
    past = time.time() - 300
    os.utime(tmp_path / "samples" / "samples-1-1-9.parquet", (past, past))
    # with the newcomer in its group c gets 300 events of 1,000 bytes and passes them on to d
    rate = 300 * 1_000 / 300.0
    assert not lacks(100 * rate)
    assert lacks(5 * rate), "on unscaled samples it would join"
