"""Rules of an overlay on a real control server: given, changed while it runs, kept by the next leader."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from test_live_coordinator import Scene, decisions, play

from obedient import obeying, until
from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.durable import replace_file, write_parquet
from ramify.errors import PlanError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.trees import Tree
from ramify.overlay.control.moves import DECLINED, REPLICATED
from ramify.overlay.control.names import token
from ramify.overlay.control.records import RULES, FilterText, LinkCount, Move, Request, Status, encode
from ramify.overlay.control.registry import Book, BrokenRulesError, Write
from ramify.overlay.control.rules import OverlayRules
from ramify.overlay.live.coordinator.adaptation import Replanner
from ramify.overlay.live.coordinator.collector import PUBLISHERS
from ramify.overlay.live.coordinator.moves import MoveConductor
from ramify.overlay.live.coordinator.samples import SampleWindow
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.choosing.replan import ReplanJob, ReplanResult
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


def test_rules_that_do_not_go_with_the_overlay_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(scene: Scene) -> None:
        async with obeying(scene.server, BROKERS):
            scene.coordinate(plan=made(DEAR), rules=GIVEN)
            term = await scene.term()
            await put_rules(scene, Rules(capacity={"paris": 1.0}), 2)
            await until(lambda: "cannot be used" in caplog.text)
            assert "'paris' is unknown" in caplog.text
            assert term.book.rules == GDPR
            answer = await scene.ask("d", "r", Request("subscribe", "x", FilterText("x = 1"), wait_s=60))
            assert answer.ok

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


def test_a_newcomer_with_whom_the_plan_breaks_a_rule_gets_another_plan(tmp_path: Path) -> None:
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
    move, changed = asyncio.run(moved(book))
    assert (move.phase, changed) == (DECLINED, False)
    assert "breaks residency: gdpr" in move.why
    assert book.epochs.wanted == 1
    with pytest.raises(BrokenRulesError) as raised:
        book.move({"r": "d"})
    assert raised.value.names == ("residency: gdpr",)

    free = at_home(DEAR)
    move, changed = asyncio.run(moved(free))
    assert (move.phase, changed) == (REPLICATED, True)
    assert free.head.at == {"r": "d"}

    # a rule that the plan breaks anyway does not hold the client back
    book.rules = Rules()
    book.move({"r": "d"})
    book.obey(GDPR)
    assert book.faults(book.head.plan, None)
    book.move({"r": "c"})
    assert book.head.at == {"r": "c"}


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
