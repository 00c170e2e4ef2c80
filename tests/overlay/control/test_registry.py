"""A coordinator's decisions: plans follow records, whatever comes between two writes."""

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.overlay.control.epochs import BrokerReport, EpochError
from ramify.overlay.control.records import (
    STATE,
    ClientRecord,
    ClientSubscription,
    ControlState,
    FilterText,
    ForwardedRequest,
    LinkCount,
    Request,
    Status,
    decode,
)
from ramify.overlay.control.registry import Book, Write, applied, records_of
from ramify.overlay.control.replan import CostMeter, EpochCost, measured_row, takes_back
from ramify.overlay.control.requests import MOST_HELD, RequestLimits, ask
from ramify.overlay.control.revisions import PlanChanges
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, grown, make_plans, spec_of
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world
from worlds import FILTERS, SCHEMA

WORLD = seeded_world(5, 6, 12, 60)
BROKERS = WORLD.overlay.brokers
SPECS = ("mst", "explicit", "mult", "mirror-all", "portfolio:trees=2,rounds=2", "semcast", "kyra", "mbr")
# mirror-all has no way to v3, where nobody subscribes at first: it cannot take a newcomer there
PLANS = {spec: make_plan(spec, WORLD.problem) for spec in SPECS}
SPELLED = [
    FilterText(
        f.get("sql"),
        None if "pattern" not in f else {"x": [{"numeric": [">", 6]}]},
        list(f["keywords"]) if "keywords" in f else None,
        json.loads(f["sigma"]) if "sigma" in f else None,
    )
    for f in FILTERS
]


class Names:
    def __init__(self) -> None:
        self._count = itertools.count()

    def __call__(self) -> str:
        return f"n{next(self._count)}"


def rules(book: Book) -> RequestLimits:
    plan = book.head.plan
    return RequestLimits(frozenset(BROKERS), plan.classes.schema, plan.attachments, book.owner.get)


def request(book: Book, op: str, client: str, id_: str = "", filter_: int = 0) -> ForwardedRequest:
    broker = WORLD.attachments.get(client, BROKERS[3])
    what = SPELLED[filter_] if op == "subscribe" else None
    return ForwardedRequest(broker, client, Request(op, id_, what), "quota" if op == "suspend" else "")


Step = tuple[str, str, str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["subscribe", "subscribe", "unsubscribe", "suspend", "resume", "replan", "rebase"]),
        st.sampled_from(["c0", "c1", "c2", "new"]),
        st.sampled_from(["s0", "s1", "s2", "x", "y"]),
        st.integers(0, len(FILTERS) - 1),
    ),
    max_size=12,
)


def do(book: Book, step: Step, spec: str) -> list[Write]:
    """One thing that happens to a book, up to the state."""
    op, client, id_, number = step
    if op == "rebase":
        return [write for epoch in list(book.live) for write in book.rebase(epoch)] + [book.state()]
    if op == "replan":
        made = ReplanResult.decode(
            make_plans(ReplanJob(grown(book.head.plan, book.wanted), [spec]).encode())
        )
        assert made.plan is not None, made.tried
        try:
            _, writes = book.propose(made.plan)
        except EpochError:
            return []
        return [*writes, book.state()]
    asked = ask(book.records.get(client), request(book, op, client, id_, number), rules(book))
    if asked.problem is not None:
        return []
    writes = book.put_records([asked.record])
    return [*writes, *book.revise(asked.ids), book.state()]


class Stored:
    """A store that may stop taking writes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def write(self, writes: Iterable[Write]) -> None:
        self.values.update({write.key: write.value for write in writes})

    def load(self, names: Names) -> Book:
        clients = [value for key, value in self.values.items() if key.startswith("clients.")]
        return Book.load(self.values.__getitem__, clients, names)

    def plans(self) -> dict[int, bytes]:
        """What a broker makes of the state: bases with their changes redone."""
        found = {}
        for epoch in decode(self.values[STATE], ControlState).live:
            plan = decode_plan(self.values[epoch.plan_key])
            for revision, key in epoch.changes:
                changes = decode(self.values[key], PlanChanges)
                assert (changes.epoch, changes.revision) == (epoch.epoch, revision)
                plan = applied(plan, changes.changes)
            found[epoch.epoch] = encode_plan(plan)
        return found


def as_wanted(plan: Plan, wanted: Mapping[str, Subscription]) -> bool:
    """Whether a plan has exactly these subscriptions, with these filters, at these brokers."""
    classes = plan.classes
    have = {
        row.id: (row.client, WORLD.overlay.brokers[classes.broker[k]], classes.filters[k].key)
        for k, members in enumerate(classes.members)
        for row in members
    }
    want = {id_: (s.client, s.broker, s.parse(classes.schema).key) for id_, s in wanted.items()}
    return have == want


def registry(values: Mapping[str, bytes]) -> dict[str, Subscription]:
    """What the records ask for, read on their own."""
    found = {}
    for key, value in values.items():
        if key.startswith("clients."):
            record = decode(value, ClientRecord)
            for id_, held in record.subscriptions.items():
                if not held.suspended:
                    words = held.filter.keywords
                    found[id_] = Subscription(
                        id_,
                        record.client,
                        record.broker,
                        held.filter.sql,
                        None if held.filter.pattern is None else '{"x": [{"numeric": [">", 6]}]}',
                        None if words is None else tuple(words),  # type: ignore[arg-type]
                        sigma=None if held.filter.sigma is None else FILTERS[-1]["sigma"],  # type: ignore[arg-type]
                    )
    return found


@settings(max_examples=40, deadline=None)
@given(steps, st.sampled_from(SPECS), st.sampled_from(SPECS))
def test_plans_follow_the_registry_and_brokers_redo_them(todo: list[Step], first: str, next_: str) -> None:
    store, names = Stored(), Names()
    book, writes = Book.first(PLANS[first], names)
    store.write(writes)
    for step in todo:
        store.write(do(book, step, next_))
        wanted = registry(store.values)
        for epoch, live in book.live.items():
            lacking = {id_: row for id_, row in wanted.items() if id_ not in live.lacks}
            assert as_wanted(live.plan, lacking), (epoch, step)
        assert store.plans() == {epoch: encode_plan(live.plan) for epoch, live in book.live.items()}
        problem = Problem.of(WORLD.overlay, book.head.plan.classes, Demand.of([]), WORLD.attachments)
        if not book.head.lacks:
            check(book.head.plan, problem)


@settings(max_examples=40, deadline=None)
@given(steps.filter(len), st.sampled_from(SPECS), st.sampled_from(SPECS), st.data())
def test_a_takeover_between_two_writes_ends_where_the_leader_would_have(
    todo: list[Step], first: str, next_: str, data: st.DataObject
) -> None:
    store, names = Stored(), Names()
    book, writes = Book.first(PLANS[first], names)
    store.write(writes)
    for step in todo[:-1]:
        store.write(do(book, step, next_))
    before = Stored()
    before.values = dict(store.values)
    writes = do(book, todo[-1], next_)
    store.write(writes)
    cut = data.draw(st.integers(0, len(writes)), "writes that arrived")
    before.write(writes[:cut])
    other = before.load(names)
    before.write([*other.revise(), other.state()])
    assert other.wanted == registry(before.values) or all(
        other.wanted[id_].parse({}).key == row.parse({}).key for id_, row in registry(before.values).items()
    )
    for live in other.live.values():
        lacking = {id_: row for id_, row in other.wanted.items() if id_ not in live.lacks}
        assert as_wanted(live.plan, lacking)
    assert before.plans() == {epoch: encode_plan(live.plan) for epoch, live in other.live.items()}
    if cut and todo[-1][0] not in ("replan", "rebase"):
        # the record had arrived: all of the rest follows from it
        assert registry(before.values) == registry(store.values)
        assert {e: set(live.plan.classes.class_of) for e, live in other.live.items()} == {
            e: set(live.plan.classes.class_of) for e, live in book.live.items()
        }
    if cut == len(writes):
        assert before.plans() == store.plans()


# -------------------------------------------------------------------------------------------- requests


def empty_rules(**more: object) -> RequestLimits:
    given = {"owner": {}.get, "attached": {}} | more
    return RequestLimits(frozenset(BROKERS), SCHEMA.attributes, **given)  # type: ignore[arg-type]


def passed(
    op: str, id_: str = "x", filter_: FilterText | None = None, broker: str = "v0", **more: object
) -> ForwardedRequest:
    return ForwardedRequest(broker, "c", Request(op, id_, filter_, **more))  # type: ignore[arg-type]


SQL = FilterText("x > 3")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["subscribe", "unsubscribe", "resume", "suspend", "advertise", "unadvertise"]),
            st.sampled_from(["x", "y", "c/x"]),
            st.sampled_from(
                [SQL, FilterText("x  >  3"), FilterText("topic = 'a'"), FilterText("x >"), None]
            ),
        ),
        max_size=12,
    )
)
def test_a_request_again_changes_nothing_and_a_refused_one_too(
    todo: list[tuple[str, str, FilterText | None]],
) -> None:
    record = None
    for op, id_, filter_ in todo:
        once = ask(record, passed(op, id_, filter_), empty_rules())
        if once.problem is not None:
            assert once.record == (record or ClientRecord("c", "v0"))
            continue
        before = record or ClientRecord("c", "v0")
        went = (before.subscriptions.keys() - once.record.subscriptions.keys()) | (
            before.advertisements.keys() - once.record.advertisements.keys()
        )
        knows = empty_rules(removed=lambda client, id_, went=went: id_ in went)
        again = ask(once.record, passed(op, id_, filter_), knows)
        assert again.problem is None
        assert again.record == once.record
        assert set(again.ids) == set(once.ids) or op == "subscribe"
        record = once.record


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (passed("subscribe", "x", FilterText("x >")), "bad_filter"),
        (passed("subscribe", "x", FilterText()), "bad_request"),
        (passed("subscribe", "x"), "bad_request"),
        (passed("subscribe", "", SQL), "bad_request"),
        (passed("subscribe", "x", SQL, quota_bytes=0), "bad_request"),
        (passed("subscribe", "x", SQL, broker="nowhere"), "bad_request"),
        (passed("subscribe", "x" * 300, SQL), "bad_request"),
        (passed("unsubscribe", "x"), "unknown"),
        (passed("unadvertise", "x"), "unknown"),
        (passed("advertise", "x"), "bad_request"),
        (passed("dance", "x"), "bad_request"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(request_: ForwardedRequest, code: str) -> None:
    asked = ask(None, request_, empty_rules())
    assert asked.problem is not None
    assert asked.problem.code == code


def test_ids_of_a_plan_are_found_and_those_of_others_kept_from() -> None:
    record = ClientRecord("c", "v0", {"s1": ClientSubscription(SQL)})
    assert ask(record, passed("unsubscribe", "s1"), empty_rules()).record.subscriptions == {}
    assert "c/s2" in ask(record, passed("subscribe", "s2", SQL), empty_rules()).record.subscriptions
    taken = empty_rules(owner={"c/s2": "other"}.get)
    refused = ask(record, passed("subscribe", "s2", SQL), taken).problem
    assert refused is not None
    assert refused.code == "exists"
    moved = ask(record, passed("subscribe", "s2", SQL, broker="v1"), empty_rules()).problem
    assert moved is not None
    assert "attached to broker 'v0'" in moved.reason
    many = ClientRecord("c", "v0", {f"c/{i}": ClientSubscription(SQL) for i in range(MOST_HELD)})
    full = ask(many, passed("subscribe", "s2", SQL), empty_rules()).problem
    assert full is not None
    assert full.code == "limit"


# ------------------------------------------------------------------------------------ where it is active


def confirm(book: Book, broker: str, epochs: Mapping[int, int], flipped: int, number: int) -> None:
    book.epochs.on_register(broker, "s")
    installed = frozenset(epochs.items())
    book.epochs.on_report(BrokerReport(broker, "s", number, installed, flipped, book.epochs.turn))


def test_a_change_is_active_only_where_events_are_routed_with_it() -> None:
    book, _ = Book.first(PLANS["mirror-all"], Names())
    assert book.missing(["s0"], 0)
    for number in (1, 2):
        for broker in ("v0", "v1"):
            confirm(book, broker, {1: 0}, 1 if number == 2 else 0, number)
    assert not book.missing(["s0"], 0)
    asked = ask(None, request(book, "subscribe", "new", "x"), rules(book))
    book.put_records([asked.record])
    book.revise(asked.ids)
    # the plan cannot take it: whatever brokers confirm, it is not active
    assert book.head.lacks
    assert set(book.missing(asked.ids, book.epochs.revision)) == {"v0", "v1"}
    made = ReplanResult.decode(make_plans(ReplanJob(grown(book.head.plan, book.wanted), ["mst"]).encode()))
    assert made.plan is not None
    epoch, _ = book.propose(made.plan)
    revision = book.epochs.revision
    assert book.missing(asked.ids, revision)
    for broker in ("v0", "v1"):
        confirm(book, broker, {1: revision, epoch: revision}, 1, 3)
    assert book.epochs.target == epoch
    # held by both, but events may still be stamped with the first epoch
    assert set(book.missing(asked.ids, revision)) == {"v0", "v1"}
    confirm(book, "v0", {1: revision, epoch: revision}, epoch, 4)
    assert set(book.missing(asked.ids, revision)) == {"v1"}
    confirm(book, "v1", {1: revision, epoch: revision}, epoch, 4)
    assert not book.missing(asked.ids, revision)
    assert not book.can_roll_back_to(1)
    assert book.can_roll_back_to(epoch)


def test_a_plan_that_was_overtaken_is_not_proposed() -> None:
    book, _ = Book.first(PLANS["mst"], Names())
    asked = ask(None, request(book, "subscribe", "new", "x"), rules(book))
    book.put_records([asked.record])
    book.revise(asked.ids)
    with pytest.raises(PlanError, match="overtaken"):
        book.propose(PLANS["mirror-all"])
    assert book.epochs.live == (1,)


def test_a_plan_may_lack_what_the_head_lacks_too() -> None:
    """Else subscriptions that keep coming would keep every plan that can take them from being installed."""
    book, _ = Book.first(PLANS["mirror-all"], Names())
    asked = ask(None, request(book, "subscribe", "new", "x"), rules(book))
    book.put_records([asked.record])
    book.revise(asked.ids)
    assert book.head.lacks
    epoch, _ = book.propose(PLANS["mirror-all"])
    assert book.epochs.wanted == epoch
    assert set(book.head.lacks) == set(asked.ids)
    assert book.missing(asked.ids, 1)


def test_a_new_base_is_spelled_as_its_readers_spell_it() -> None:
    store, names = Stored(), Names()
    rows = [Subscription(id_, "c", "v0", sql="x > 1") for id_ in ("a", "b")]
    classes = Classes.collapse(rows, WORLD.overlay, SCHEMA.attributes)
    book, writes = Book.first(make_plan("mst", Problem.of(WORLD.overlay, classes, Demand.of([]))), names)
    store.write(writes)
    # the one that spells the class goes
    asked = ask(book.records["c"], ForwardedRequest("v0", "c", Request("unsubscribe", "a")), rules(book))
    store.write([*book.put_records([asked.record]), *book.revise(asked.ids), book.state()])
    store.write([*book.rebase(1), book.state()])
    assert store.plans() == {1: encode_plan(book.live[1].plan)}
    assert not set(book.dropped) & book.referred()


def test_a_client_at_two_brokers_cannot_be_begun_with() -> None:
    rows = [Subscription("a", "c", "v0", sql="x > 1"), Subscription("b", "c", "v1", sql="x > 1")]
    classes = Classes.collapse(rows, WORLD.overlay, SCHEMA.attributes)
    plan = make_plan("mst", Problem.of(WORLD.overlay, classes, Demand.of([])))
    with pytest.raises(InputError, match="one broker"):
        records_of(plan)


# ------------------------------------------------------------------------------------------- re-plans


def test_the_cheapest_plan_is_kept_only_when_it_saves_enough() -> None:
    old = make_plan("broadcast", WORLD.problem)
    demand = replace(WORLD.demand, cell=np.full_like(WORLD.demand.cell, -1))
    made = ReplanResult.decode(make_plans(ReplanJob(old, ["mst", "explicit"], demand, 0.05).encode()))
    costs = {each.spec: each.cost for each in made.tried}
    assert made.plan is not None
    assert made.new_cost == min(cost for cost in costs.values() if cost is not None)
    assert costs[made.plan.scheme] == made.new_cost
    assert made.saving == pytest.approx(1 - made.new_cost / made.old_cost)  # type: ignore[operator]
    none = ReplanResult.decode(
        make_plans(ReplanJob(old, ["mst", "explicit"], demand, made.saving).encode())
    )
    assert none.plan is None
    assert none.saving == made.saving


def test_a_plan_is_weighed_on_events_that_it_has_not_seen() -> None:
    """Every event asks for other brokers: what a plan learns of one half says little of the other."""
    rng = np.random.default_rng(4)
    overlay = overlay_from("random:24:3")
    rows = [Subscription(f"s{i}", f"c{i}", overlay.brokers[i], sql=f"x = {i}") for i in range(24)]
    classes = Classes.collapse(rows, overlay, {})
    patterns = [(0, rng.choice(24, 6, replace=False).tolist(), 1, 100) for _ in range(240)]
    demand = Demand.of(patterns)
    old = make_plan("mst", Problem.of(overlay, classes, demand))
    spec = "portfolio:trees=16,rounds=4"
    told = ReplanResult.decode(make_plans(ReplanJob(old, [spec], demand, 0.0).encode()))
    in_sample = price(make_plan(spec, Problem.of(overlay, classes, demand)), demand).cost
    assert told.saving is not None
    assert told.saving < 1 - in_sample / price(old, demand).cost, (
        "no plan does as well on what it never saw"
    )


def test_the_spec_of_a_plan_makes_it_again() -> None:
    for spec in (*SPECS, "hub=v2", "single"):
        plan = make_plan(spec, WORLD.problem)
        again = make_plan(spec_of(plan, "unicast"), WORLD.problem)
        assert encode_plan(again) == encode_plan(plan)
    assert spec_of(replace(PLANS["mst"], scheme="by hand"), "unicast") == "unicast"


def test_measured_cost_counts_each_session_once_at_the_price_of_the_direction() -> None:
    overlay = Overlay.build("two", ["a", "b"], [Link("a", "b", 3.0, 5.0, 1.0)])
    measured = CostMeter()

    def status(broker: str, session: str, at: float, entered: int, sent: Mapping[str, int]) -> Status:
        links = {to: LinkCount(1, count, 2 * count) for to, count in sent.items()}
        return Status(broker, session, at, 0.0, entered={7: (10, entered)}, sent={7: links})

    measured.add(status("a", "s1", 1, 10**9, {"b": 10**9}))
    measured.add(status("a", "s1", 2, 2 * 10**9, {"b": 2 * 10**9}))
    measured.add(status("a", "s1", 1, 10**9, {"b": 10**9}))
    measured.add(status("a", "s2", 3, 10**9, {"b": 10**9}))
    measured.add(status("b", "s1", 1, 10**9, {"a": 10**9, "gone": 10**9}))
    cost = measured.cost(7, overlay)
    assert cost.events == 30
    assert cost.money == pytest.approx(3 * 3.0 + 5.0)
    assert cost.per_gb == pytest.approx(14 / 4)
    assert measured.cost(8, overlay).per_gb is None


@pytest.mark.parametrize(
    ("before", "after", "risen"),
    [
        (1.0, 1.05, False),
        (1.0, 1.06, True),
        (1.0, 0.5, False),
        (0.0, 1.0, True),
        (0.0, 0.0, False),
        (None, 9.0, False),
        (1.0, None, False),
    ],
)
def test_a_plan_is_taken_back_when_its_cost_rose_beyond_the_tolerance(
    before: float | None, after: float | None, risen: bool
) -> None:
    plan = make_plan("mst", seeded_world(5, 6, 12, 60).problem)
    costs = [EpochCost(1, 0 if c is None else 10**9, c or 0.0) for c in (before, after)]
    old, new = (measured_row(plan, cost) for cost in costs)
    assert takes_back(new, old, 0.05) is risen
    assert not takes_back(new, measured_row(plan, costs[0], ["residency: gdpr"]), 0.05)
