"""Each kind of rule, kept and broken; and rule files with every kind of mistake."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.overlay import Link, Overlay, Site
from ramify.network.trees.trees import Tree
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import Price, price
from ramify.planning.pricing.rules import BrokenRule, Residency, Rules, broken, read_rules
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.scheme import channel, put_together
from worlds import SCHEMA, World, worlds

SITES = {
    "a": Site(region="europe", provider="aws"),
    "b": Site(region="asia", provider="gcp"),
    "c": Site(region="europe", provider="gcp"),
}
LINKS = [
    Link.symmetric("a", "b", latency_ms=10),
    Link.symmetric("b", "c", latency_ms=20),
    Link.symmetric("a", "c", latency_ms=50),
]
OVERLAY = Overlay.build("three", "abc", LINKS, sites=SITES)
THROUGH_B, DIRECT = ((0, 1), (1, 2)), ((0, 1), (0, 2))
WANTED = [
    Subscription("s0", "c0", "c", sql="x < 5", latency_ms=40.0),
    Subscription("s1", "c1", "c", sql="x < 5"),
]
HOUR = 3600.0


def planned(tree: tuple[tuple[int, int], ...] = THROUGH_B, rows: list[Subscription] = WANTED) -> Plan:
    classes = Classes.collapse(rows, OVERLAY, SCHEMA.attributes)
    problem = Problem.of(OVERLAY, classes, Demand.of([]))
    made = channel("one", problem, Tree.of_links(3, tree, 0), np.arange(len(classes)))
    return put_together("one", problem, [made])


def priced(
    plan: Plan,
    *,
    origin: int = 0,
    seconds: float = HOUR,
    tags: int = 0,
    count: int = 10,
    factor: float = 1.0,
) -> Price:
    demand = Demand.of([(origin, range(len(plan.classes)), count, 1000 * count)], seconds=seconds)
    marked = replace(demand, tags=np.array([tags], dtype=np.uint64), factor=factor, tag_filters=2)
    return price(plan, marked)


def names(found: list[BrokenRule]) -> list[str]:
    return [each.rule for each in found]


# ----------------------------------------------------------------------------------------------- rules


def test_a_latency_bound_is_kept_up_to_the_bound_and_broken_beyond() -> None:
    assert broken(priced(planned()), Rules()) == []
    exact = [replace(WANTED[0], latency_ms=30.0)]
    assert broken(priced(planned(rows=exact)), Rules()) == []
    (found,) = broken(priced(planned(DIRECT)), Rules())
    assert found == BrokenRule(
        "latency: subscription s0", "an event takes 50 ms to s0 at c; allowed: 40 ms"
    )
    assert str(found) == "latency: subscription s0: an event takes 50 ms to s0 at c; allowed: 40 ms"


def test_only_the_subscriptions_whose_own_bound_is_passed_are_named() -> None:
    rows = [
        *WANTED,
        Subscription("s2", "c2", "c", sql="x < 5", latency_ms=45.0),
        replace(WANTED[0], id="s3", latency_ms=60.0),
    ]
    assert names(broken(priced(planned(DIRECT, rows)), Rules())) == [
        "latency: subscription s0",
        "latency: subscription s2",
    ]


def test_capacity_counts_what_a_broker_receives_and_sends_on_the_wire() -> None:
    result = priced(planned())
    header = int(result.wire[0].sum()) - 10_000
    assert header > 0
    rate = 2 * (10_000 + header) / HOUR  # b receives and sends
    assert broken(result, Rules(capacity={"b": rate, "a": rate})) == []
    (found,) = broken(result, Rules(capacity={"a": rate, "b": rate * 0.99}))
    assert found.rule == "capacity: b"
    assert f"{rate:,.6g}" in found.sentence
    assert names(broken(priced(planned(), factor=2.0), Rules(capacity={"b": rate}))) == ["capacity: b"]
    assert names(broken(priced(planned(), seconds=HOUR / 2), Rules(capacity={"b": rate}))) == [
        "capacity: b"
    ]
    assert broken(result, Rules(capacity={"c": rate / 2})) == []


def test_a_quota_counts_both_directions_over_a_month() -> None:
    plan = planned(rows=[WANTED[1], Subscription("s2", "c2", "a", sql="x < 5")])
    demand = Demand.of([(0, [0], 10, 10_000), (2, [1], 10, 10_000)], seconds=HOUR)
    result = price(plan, demand)
    assert (result.wire[0] > 0).all()
    month = float(result.wire[0].sum()) * 720
    assert broken(result, Rules(quotas={("b", "a"): month})) == []
    (found,) = broken(result, Rules(quotas={("b", "a"): month * 0.99, ("a", "c"): 0.0}))
    assert found.rule == "quota: b - a"
    assert f"{month:,.6g} bytes per month" in found.sentence


def test_rates_need_a_time_span_but_only_where_events_flow() -> None:
    for rules in (Rules(capacity={"b": 1e9}), Rules(quotas={("a", "b"): 1e9})):
        with pytest.raises(InputError, match="--hours"):
            broken(priced(planned(), seconds=0.0), rules)
        assert broken(price(planned(), Demand.of([])), rules) == []
    assert broken(priced(planned(), seconds=0.0), Rules()) == []


def residency(**places: set[str]) -> Rules:
    other = Residency("other", "x = 99", brokers=frozenset("abc"))
    rule = Residency("gdpr", "x < 5", **{place: frozenset(named) for place, named in places.items()})
    return Rules(residency=(other, rule))


@pytest.mark.parametrize("places", [{"brokers": {"b"}}, {"regions": {"asia"}}])
def test_events_may_not_pass_through_a_forbidden_place(places: dict[str, set[str]]) -> None:
    (found,) = broken(priced(planned(rows=WANTED[1:]), tags=2), residency(**places))
    assert found.rule == "residency: gdpr"
    assert (
        found.sentence
        == "events where x < 5 are at 1 of the brokers that they may not be at: passing through b"
    )
    assert broken(priced(planned(DIRECT, WANTED[1:]), tags=2), residency(**places)) == []
    assert broken(priced(planned(rows=WANTED[1:]), tags=0), residency(**places)) == []


def test_where_no_plan_can_keep_events_out_the_sentence_says_so() -> None:
    (found,) = broken(priced(planned(DIRECT, WANTED[1:]), tags=2), residency(providers={"aws", "gcp"}))
    assert "published at a, where no plan can keep them out" in found.sentence
    assert "wanted by subscriptions at c, where no plan can keep them out" in found.sentence
    assert "passing" not in found.sentence
    (found,) = broken(priced(planned(rows=WANTED[1:]), tags=2), residency(regions={"asia", "europe"}))
    assert "are at 3 of the brokers" in found.sentence
    assert "passing through b" in found.sentence


@settings(max_examples=40)
@given(worlds())
def test_residency_is_broken_exactly_where_a_tagged_event_was(world: World) -> None:
    """Against the messages of the pricer, one event at a time."""
    rules = Rules(residency=(Residency("r", "x < 5", brokers=frozenset(world.overlay.brokers[:2])),))
    (tag,) = rules.tags(SCHEMA.attributes)
    plan = make_plan("mst", world.problem, 0)
    demand = tally([world.batch], world.classes, world.overlay, world.attachments, tags=[tag])
    expected = False
    for i in np.flatnonzero(demand.tags).tolist():
        used = price(plan, demand.take([i])).messages.sum(axis=1) > 0
        expected |= bool({int(demand.publisher[i]), *world.overlay.ends[used].ravel().tolist()} & {0, 1})
    assert bool(broken(price(plan, demand), rules)) == expected
    tagged = [event for event in world.events if tag.holds(event.values)]
    assert bool(tagged) == bool(demand.tags.any())


def test_tags_are_the_filters_in_order_with_the_types_of_the_schema() -> None:
    rules = Rules(
        residency=(Residency("p", "x = 1", frozenset("a")), Residency("q", "topic = 'a'", frozenset("a")))
    )
    first, second = rules.tags({"x": AttributeType.INT64, "topic": AttributeType.STRING})
    assert first.holds({"x": 1})
    assert second.holds({"topic": "a"})


# ------------------------------------------------------------------------------------------------ file

GOOD: dict[str, Any] = {
    "capacity_bytes_per_s": {"a": 1000, "b": 2.5e6},
    "quota_bytes_per_month": [{"a": "a", "b": "b", "bytes": 5e12}],
    "residency": [{"name": "gdpr", "events": "x < 5", "not_in": {"regions": ["asia"], "brokers": ["c"]}}],
}


def written(folder: Path, content: Any) -> Path:
    path = folder / "rules.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_rules_are_read_as_written(tmp_path: Path) -> None:
    rules = read_rules(written(tmp_path, GOOD), OVERLAY)
    assert rules == Rules(
        {"a": 1000.0, "b": 2.5e6},
        {("a", "b"): 5e12},
        (Residency("gdpr", "x < 5", frozenset("c"), frozenset(["asia"])),),
    )
    assert rules.residency[0].forbids(OVERLAY).tolist() == [False, True, True]
    assert read_rules(written(tmp_path, {})) == Rules()


def quota(**change: Any) -> dict[str, Any]:
    return {"quota_bytes_per_month": [{**GOOD["quota_bytes_per_month"][0], **change}]}


def rule(**change: Any) -> dict[str, Any]:
    return {"residency": [{**GOOD["residency"][0], **change}]}


MISTAKES: list[tuple[Any, str]] = [
    (b"{", "not JSON: .*line 1, column 2"),
    (b"\xff{}", "not UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"residency": [], "residency": []}', "'residency' appears twice"),
    ([], r"the file: found \[\]. Allowed: an object with capacity_bytes_per_s, quota"),
    (
        {"quota": []},
        "the unknown field 'quota'. Allowed: an object with capacity_bytes_per_s, quota_bytes_per_month",
    ),
    ({"capacity_bytes_per_s": []}, "capacity_bytes_per_s: found .* an object of broker names"),
    (
        {"capacity_bytes_per_s": {"a": "much"}},
        'capacity_bytes_per_s.a: found "much". Allowed: a number, 0 or more',
    ),
    ({"capacity_bytes_per_s": {"a": True}}, "found true. Allowed: a number"),
    ({"capacity_bytes_per_s": {"a": -1}}, "found -1. Allowed: a number, 0 or more"),
    (b'{"capacity_bytes_per_s": {"a": NaN}}', "found NaN. Allowed: a number"),
    ({"capacity_bytes_per_s": {"a": 10**400}}, "Allowed: a number"),
    ({"capacity_bytes_per_s": {"z": 1}}, "broker 'z' is unknown in overlay three. Allowed: a, b, c"),
    ({"quota_bytes_per_month": {}}, "quota_bytes_per_month: found {}. Allowed: a list"),
    (
        {"quota_bytes_per_month": [5]},
        r"quota_bytes_per_month\[0\]: found 5. Allowed: an object with a, b, bytes",
    ),
    ({"quota_bytes_per_month": [{"a": "a", "b": "b"}]}, r"\[0\]: found no bytes"),
    (quota(a=1), r"quota_bytes_per_month\[0\].a: found 1. Allowed: a non-empty string"),
    (quota(bytes=None), r"\[0\].bytes: found null"),
    (quota(b="z"), "broker 'z' is unknown"),
    (quota(b="a"), "no link joins a and a in overlay three. Allowed: a link, such as a with b, c"),
    (
        {"quota_bytes_per_month": [*GOOD["quota_bytes_per_month"]] * 2},
        r"\[1\]: found a second quota for a - b",
    ),
    (
        {"quota_bytes_per_month": [GOOD["quota_bytes_per_month"][0], {"a": "b", "b": "a", "bytes": 1}]},
        "two quotas for the link b - a",
    ),
    ({"residency": [{"name": "n", "events": "x < 5"}]}, r"residency\[0\]: found no not_in"),
    (rule(name=""), r"residency\[0\].name: found \"\""),
    (rule(events="x <"), r"(?s)residency\[0\]: residency 'gdpr': its events are not a filter"),
    (rule(events=5), r"residency\[0\].events: found 5"),
    (rule(not_in={}), "'gdpr' forbids no place. Name some in not_in: brokers, regions, providers"),
    (rule(not_in={"brokers": []}), "forbids no place"),
    (
        rule(not_in={"cities": ["x"]}),
        "the unknown field 'cities'. Allowed: an object with brokers, regions, providers",
    ),
    (rule(not_in={"regions": "asia"}), r'not_in.regions: found "asia". Allowed: a list'),
    (rule(not_in={"regions": [1]}), "not_in.regions: found 1. Allowed: a non-empty string"),
    (rule(not_in={"regions": ["mars"]}), "'mars' is unknown in overlay three. Allowed: asia, europe"),
    (rule(not_in={"providers": ["x"]}), "not_in.providers: 'x' is unknown .* Allowed: aws, gcp"),
    (rule(not_in={"brokers": ["z"]}), "not_in.brokers: 'z' is unknown .* Allowed: a, b, c"),
    ({"residency": GOOD["residency"] * 2}, "two residency rules are named 'gdpr'"),
    (
        {"residency": [{**GOOD["residency"][0], "name": f"n{i}"} for i in range(65)]},
        "can keep 64 apart",
    ),
]


@pytest.mark.parametrize(("content", "says"), MISTAKES, ids=[says[:40] for _, says in MISTAKES])
def test_a_mistake_in_a_file_is_told_with_file_place_and_choices(
    tmp_path: Path, content: Any, says: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=says) as error:
        read_rules(path, OVERLAY)
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_rules(tmp_path / "none.json")


def test_rules_for_another_overlay_are_refused_when_a_plan_is_judged() -> None:
    with pytest.raises(InputError, match="broker 'z' is unknown"):
        broken(priced(planned()), Rules(capacity={"z": 1.0}))
    bare = Overlay.build("bare", "abc", LINKS)
    with pytest.raises(InputError, match="Allowed: none: its sites do not say"):
        Rules(residency=(Residency("r", "x < 5", regions=frozenset(["asia"])),)).require_known(bare)


def test_limits_must_be_numbers() -> None:
    for limit in (-1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="Allowed: a number, 0 or more"):
            Rules(capacity={"a": limit})
        with pytest.raises(InputError, match="the quota of a - b"):
            Rules(quotas={("a", "b"): limit})
    with pytest.raises(InputError, match="non-empty string"):
        Residency("", "x < 5", frozenset("a"))


def test_events_that_were_not_held_against_a_residency_rule_are_no_proof_that_it_is_kept() -> None:
    plan = planned(rows=WANTED[1:])
    with pytest.raises(InputError, match="held against 0 of them"):
        broken(price(plan, replace(priced(plan).demand, tag_filters=0)), residency(regions={"asia"}))
