"""A re-plan keeps the rules of the overlay: the cheapest plan that breaks one is refused by name."""

from dataclasses import replace

import pytest

from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control import registry
from ramify.overlay.control.records import ClientRecord, ClientSubscription, FilterText, RulesRecord
from ramify.overlay.control.registry import Book
from ramify.planning.choosing.judgement import faults, likely_events
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, make_plans
from ramify.planning.choosing.weigh import MonthlyWeights
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans import files
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.pricing.rules import Residency, Rules, broken
from ramify.planning.schemes.catalog import make_plan

# from a to d: through b it is cheap, through c it is dear
SQUARE = Overlay.build(
    "square",
    ["a", "b", "c", "d"],
    [
        Link("a", "b", 1.0, 1.0, 1.0),
        Link("b", "d", 1.0, 1.0, 1.0),
        Link("a", "c", 5.0, 5.0, 1.0),
        Link("c", "d", 5.0, 5.0, 1.0),
    ],
)
ROWS = [Subscription("all", "r", "d", sql="x >= 0")]
CLASSES = Classes.collapse(ROWS, SQUARE, {})
SCHEMA = EventSchema({"x": AttributeType.INT64, "personal": AttributeType.BOOLEAN})
NOBODY = Classes.collapse([], SQUARE, {})
ATTACHED = {"w": "a", "r": "d"}
GDPR = Rules(residency=(Residency("gdpr", "personal = true", brokers=frozenset({"b"})),))
FREE = Rules(residency=(Residency("free", "personal = true", brokers=frozenset({"c"})),))


def counted(rules: Rules, personal: bool = True, classes: Classes = CLASSES) -> Demand:
    events = [
        Event(f"e{i}", "w", attributes={"x": i, "personal": personal and i % 4 == 0}, size_bytes=1000)
        for i in range(300)
    ]
    made = tally([events_to_batch(events, SCHEMA)], classes, SQUARE, ATTACHED, tags=rules.tags({}))
    return replace(made, seconds=60.0)


def made(spec: str, demand: Demand | None = None) -> Plan:
    problem = Problem.of(SQUARE, CLASSES, demand or Demand.of([]), ATTACHED)
    return make_plan(spec, problem)


def replanned(job: ReplanJob) -> ReplanResult:
    return ReplanResult.decode(make_plans(job.encode()))


CHEAP = made("spt:root=a")
DEAR = made("hub=c")


def test_the_two_ways_are_as_the_tests_need_them() -> None:
    demand = counted(GDPR)
    assert price(CHEAP, demand).money < price(DEAR, demand).money
    assert [fault.rule for fault in broken(price(CHEAP, demand), GDPR)] == ["residency: gdpr"]
    assert not broken(price(DEAR, demand), GDPR)


def test_a_cheaper_plan_that_breaks_a_rule_is_refused_with_its_name() -> None:
    free = replanned(ReplanJob(DEAR, ["spt:root=a"], counted(GDPR), 0.05))
    assert free.plan is not None, "without the rule it would be installed"
    kept = replanned(ReplanJob(DEAR, ["spt:root=a"], counted(GDPR), 0.05, rules=GDPR))
    assert kept.plan is None
    assert [fault.partition(": events")[0] for fault in kept.tried[0].broken] == ["residency: gdpr"]
    assert not kept.broken


def test_a_plan_that_breaks_a_rule_is_replaced_although_that_costs_more() -> None:
    found = replanned(ReplanJob(CHEAP, ["spt:root=a", "hub=c"], counted(GDPR), 0.05, rules=GDPR))
    assert found.plan is not None
    assert found.plan.scheme == "hub"
    assert found.saving is not None
    assert found.saving < 0
    assert [fault.partition(": events")[0] for fault in found.broken] == ["residency: gdpr"]
    none = replanned(ReplanJob(CHEAP, ["spt:root=a"], counted(GDPR), 0.05, rules=GDPR))
    assert none.plan is None
    assert none.broken


def test_without_a_threshold_the_first_plan_that_keeps_the_rules_is_made() -> None:
    bare = replace(CHEAP, channels=(), paths={}, legs={})
    for demand in (None, counted(GDPR)):
        found = replanned(ReplanJob(bare, ["spt:root=a", "hub=c", "mst"], demand, rules=GDPR))
        assert found.plan is not None
        assert found.plan.scheme == "hub"
        assert [bool(each.broken) for each in found.tried] == [True, False]
        assert replanned(ReplanJob(bare, ["spt:root=a"], demand)).plan is not None


def test_rates_and_weights_count_in_a_job() -> None:
    demand = counted(Rules())
    full = Rules(capacity={"b": 1.0})
    found = replanned(ReplanJob(DEAR, ["spt:root=a"], demand, 0.05, rules=full))
    assert found.plan is None
    assert found.tried[0].broken[0].startswith("capacity: b")
    dear = MonthlyWeights(per_million_matchings=1e9)
    plain, weighed = (
        replanned(ReplanJob(DEAR, ["spt:root=a"], demand, 0.05, weights=weights))
        for weights in (MonthlyWeights(), dear)
    )
    assert plain.old_cost is not None
    assert weighed.old_cost is not None
    assert weighed.old_cost > 1_000 * plain.old_cost


def test_without_events_residency_is_judged_by_what_may_be_published() -> None:
    assert [fault.rule for fault in faults(CHEAP, None, GDPR)] == ["residency: gdpr"]
    assert not faults(DEAR, None, GDPR)
    assert not faults(CHEAP, None, FREE)
    assert not faults(CHEAP, None, Rules(capacity={"b": 1.0})), "of rates nothing is known"
    unseen = counted(GDPR, personal=False)
    assert [fault.rule for fault in faults(CHEAP, unseen, GDPR)] == ["residency: gdpr"]


def test_what_no_plan_can_keep_out_is_not_held_against_a_plan() -> None:
    walled = Rules(residency=(Residency("wall", "personal = true", brokers=frozenset({"b", "c"})),))
    assert likely_events(CHEAP, walled.residency).publisher.tolist() == [3], "those that stay at d"
    assert not faults(CHEAP, None, walled)
    here = Rules(residency=(Residency("here", "personal = true", brokers=frozenset({"d"})),))
    assert not faults(CHEAP, None, here), "it is wanted there"
    other = Rules(residency=(Residency("other", "x < 0", brokers=frozenset({"b"})),))
    assert not faults(CHEAP, None, other), "nobody asks for such events"


@pytest.mark.parametrize("scheme", ["kyra", "mbr"])
def test_plans_that_divide_the_content_space_are_judged_too(scheme: str) -> None:
    grid = Grid((Axis("x", (100, 200)),))
    events = tally([], CLASSES, SQUARE, ATTACHED, grid=grid)
    plan = make_plan(scheme, Problem.of(SQUARE, CLASSES, events, ATTACHED, grid=grid))
    likely = likely_events(plan, GDPR.residency)
    assert len(likely)
    assert price(plan, likely).undelivered == 0


def test_events_that_were_seen_do_not_hide_those_that_a_newcomer_may_get() -> None:
    """Tagged events were sampled, none for the class that is judged: its way is judged all the same."""
    seen = counted(
        GDPR, classes=Classes.collapse([Subscription("none", "r", "d", sql="x < 0")], SQUARE, {})
    )
    assert (seen.tags & 1).any()
    assert not len(seen.classes)
    assert [fault.rule for fault in faults(CHEAP, seen, GDPR)] == ["residency: gdpr"]
    assert not faults(DEAR, seen, GDPR)


def test_an_event_published_where_it_may_not_be_does_not_freeze_plans() -> None:
    """No plan keeps it out, so none is refused for it; a plan that sends others there still is."""
    home = Rules(residency=(Residency("home", "personal = true", brokers=frozenset({"a"})),))
    demand = counted(home)
    assert [fault.unavoidable for fault in broken(price(DEAR, demand), home)] == [True]
    assert not faults(DEAR, demand, home)
    both = Rules(residency=(Residency("both", "personal = true", brokers=frozenset({"a", "b"})),))
    assert [fault.rule for fault in faults(CHEAP, counted(both), both)] == ["residency: both"]


def test_a_proposal_leaves_out_a_newcomer_whose_way_breaks_a_rule() -> None:
    """The newcomer was refused on the running plan, and stays so on the next."""
    empty = make_plan("spt:root=a", Problem.of(SQUARE, NOBODY, Demand.of([]), ATTACHED))
    numbers = iter(range(100))
    book, _ = Book.first(empty, lambda: f"p{next(numbers)}")
    book.obey(GDPR)
    record = ClientRecord("n", "d", {"n/x": ClientSubscription(FilterText(sql="personal = true"))})
    book.put_records([record])
    book.revise(["n/x"])
    assert "residency: gdpr" in book.head.lacks["n/x"].reason
    epoch, _ = book.propose(empty, counted(GDPR, classes=NOBODY))
    assert "n/x" in book.live[epoch].lacks
    assert not book.faults(book.live[epoch].plan, None)


def test_rules_survive_their_document() -> None:
    rules = Rules(
        {"a": 5.0},
        {("a", "b"): 7.0},
        (Residency("gdpr", "personal = true", frozenset({"b"}), frozenset({"x"}), frozenset({"y"})),),
    )
    assert Rules.read(rules.document()) == rules
    assert Rules.read({}) == Rules()
    assert RulesRecord(1, rules.document()).names == ("capacity: a", "quota: a - b", "residency: gdpr")
    assert rules
    assert not Rules()


def test_a_plan_is_written_once_between_the_job_and_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader encodes a plan once, and stores what another process made as it came."""
    written: list[str] = []
    plain = files.encode_plan

    def counted_plan(plan: Plan) -> bytes:
        written.append(plan.scheme)
        return plain(plan)

    numbers = iter(range(100))
    book, _ = Book.first(made("hub=c"), lambda: f"p{next(numbers)}")
    monkeypatch.setattr(files, "encode_plan", counted_plan)
    monkeypatch.setattr(registry, "encode_plan", counted_plan, raising=False)
    job = ReplanJob(book.head.plan, ["spt:root=a"], counted(Rules()), 0.05)
    result = make_plans(job.encode())
    found = ReplanResult.decode(result)
    assert found.plan is not None
    _, writes = book.propose(found.plan)
    assert written == []
    (stored,) = (write.value for write in writes if write.key == book.head.plan_key)
    assert stored in result
    assert files.decode_plan(stored) == book.head.plan
