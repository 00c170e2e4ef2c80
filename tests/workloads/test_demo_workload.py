from itertools import pairwise

import numpy as np
import pytest

from ramify.content.events.events import batch_to_events
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sql import parse_sql
from ramify.network.graphs.clouds import cloud_regions
from ramify.network.graphs.generators import ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.tally import tally
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from ramify.workloads.demo import TYPES, DemoModel, generate

OVERLAY = cloud_regions()
WORKLOAD = generate(OVERLAY, DemoModel(), 1)


def test_all_three_spellings_are_there() -> None:
    report = WORKLOAD.report
    spellings = [report[f"subscriptions_{name}"] for name in ("sql", "pattern", "keywords")]
    assert sum(spellings) == report["subscriptions"] == 200
    assert min(spellings) > 30
    forms = {type(row.keywords[0]) for row in WORKLOAD.subscriptions if row.keywords}
    assert forms == {str, tuple}, "any-of and a disjunction of conjunctions"


def test_every_kind_of_subscription_gets_events() -> None:
    events = [event.attributes for event in batch_to_events(WORKLOAD.events(0, 3_000))]
    matched: dict[str, int] = {}
    for row in WORKLOAD.subscriptions[:104]:
        if row.sql is not None:
            wanted = parse_sql(row.sql, WORKLOAD.schema.attributes)
        elif row.pattern is not None:
            wanted = parse_pattern(row.pattern, WORKLOAD.schema.attributes)
        else:
            assert row.keywords is not None
            wanted = parse_keywords(row.keywords)
        team = row.id.rsplit("-", 1)[0]
        matched[team] = matched.get(team, 0) + sum(wanted.holds(event) for event in events)
    assert len(matched) == 13
    assert all(matched.values()), matched
    assert max(matched.values()) < 8 * len(events), "no team wants everything"


def test_traffic_is_local() -> None:
    assert WORKLOAD.report["events_about_own_region"] == pytest.approx(0.85, abs=0.02)
    elsewhere = generate(OVERLAY, DemoModel(locality=0), 1)
    assert elsewhere.report["events_about_own_region"] == 0


def test_kinds_have_their_shares_and_come_from_the_right_publisher() -> None:
    batch = WORKLOAD.events(0, 20_000)
    kinds = np.array(batch.column("type").to_pylist())
    for kind, share in TYPES.items():
        assert (kinds == kind).mean() == pytest.approx(share, abs=0.015)
    assert sum(TYPES.values()) == pytest.approx(1)
    publishers = np.array(batch.column("publisher").to_pylist())
    from_warehouse = np.char.startswith(publishers, "warehouse-")
    assert (from_warehouse == (np.char.startswith(kinds, "shipment") | (kinds == "stock.low"))).all()


def test_absent_attributes_are_absent_where_they_make_no_sense() -> None:
    for event in batch_to_events(WORKLOAD.events(0, 2_000)):
        stock = event.attributes["type"] == "stock.low"
        assert ("price" in event.attributes) is not stock
        assert ("customer.tier" in event.attributes) is not stock
        assert ("delay_minutes" in event.attributes) is (event.attributes["type"] == "shipment.delayed")
        assert event.attributes["region"] in event.attributes["keywords"]  # type: ignore[operator]
        assert event.size_bytes > 0


def test_names_with_quotes_make_filters_that_parse() -> None:
    names = ["it's", 'the "other"', "back\\slash"]
    overlay = Overlay.build("odd", names, [Link.symmetric(a, b) for a, b in pairwise(names)])
    workload = generate(overlay, DemoModel(subscriptions=78, events=500), 3)
    events = [event.attributes for event in batch_to_events(workload.events(0, 500))]
    for row in workload.subscriptions:
        if row.id.startswith("sales-"):
            assert any(parse_sql(row.sql or "").holds(event) for event in events), row
        elif row.pattern is not None:
            parse_pattern(row.pattern)


NIGHT = generate(OVERLAY, DemoModel(stand_ins=8), 1)


def test_at_night_the_quietest_regions_publish_what_all_did() -> None:
    day, night = WORKLOAD.events(0, 5_000), NIGHT.events(0, 5_000)
    assert night.drop_columns("publisher").equals(day.drop_columns("publisher"))
    assert NIGHT.subscriptions == WORKLOAD.subscriptions
    assert NIGHT.attachments == WORKLOAD.attachments
    quiet = np.argsort(-WORKLOAD.arrays["traffic"], kind="stable")[-8:]
    at = {NIGHT.attachments[str(name)] for name in night.column("publisher").to_pylist()}
    assert at == {OVERLAY.brokers[i] for i in quiet}
    everybody = generate(OVERLAY, DemoModel(stand_ins=1_000), 1)
    assert len(set(everybody.events(0, 5_000).column("publisher").to_pylist())) > 40


def test_the_night_makes_a_plan_for_the_day_worse_than_one_for_itself() -> None:
    """What the demonstration shows is due to the change of traffic: the same scheme, planned anew."""
    classes = Classes.collapse(WORKLOAD.subscriptions, OVERLAY, WORKLOAD.schema.attributes)
    attached = dict(WORKLOAD.attachments)
    day, seen, later = (
        tally([made.events(start, 2_000)], classes, OVERLAY, attached)
        for made, start in ((WORKLOAD, 0), (NIGHT, 0), (NIGHT, 4_000))
    )
    old, new = (
        make_plan("portfolio", Problem.of(OVERLAY, classes, demand, attached)) for demand in (day, seen)
    )
    assert price(new, later).cost < 0.95 * price(old, later).cost


def test_the_number_of_subscriptions_is_a_parameter() -> None:
    assert len(generate(ring(5), DemoModel(subscriptions=7, events=10), 1).subscriptions) == 7
