"""Placing first, then planning: a study after placement, the scheme, and the file of access prices."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from ramify.content.events.events import AttributeType, Event, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, LimitError, PlacementError
from ramify.network.graphs.specs import overlay_from
from ramify.planning.choosing.placements import ALGORITHMS, place_study, read_access, read_capacity
from ramify.planning.choosing.study import SHARES, Study, compare, prepare
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally
from ramify.planning.plans.check import check
from ramify.planning.pricing.access import access_cost
from ramify.planning.pricing.price import price
from ramify.planning.schemes import zhao_wu
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.shared.grids import grid_for
from ramify.workloads.catalog import workload_from


@pytest.fixture(scope="module")
def study() -> Study:
    overlay = overlay_from("majumder:12")
    workload = workload_from("zhao_wu:users=40,events=2000", overlay, 1)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    grid = grid_for(classes)
    counted = Tally(
        classes, overlay, workload.attachments, grid=grid, by_client=True, split=Split(SHARES, seed=1)
    )
    for batch in workload.batches():
        counted.add(batch)
    return prepare(overlay, classes, counted.windows(), workload.attachments, hours=1.0, grid=grid)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "exact"])
def test_after_placement_every_scheme_plans_as_usual(study: Study, algorithm: str) -> None:
    brokers = study.problem.overlay.brokers
    access = {(f"user-{u}", b): float((7 * u + i) % 12) for u in range(40) for i, b in enumerate(brokers)}
    made = place_study(study, algorithm, 1, access=access)
    assert made.moved > 0
    assert made.study.whole.events == study.whole.events
    assert made.study.whole.size_bytes == study.whole.size_bytes
    if algorithm == "greedy":  # no capacity: everybody at the broker that costs nothing
        assert made.access == 0 < made.access_before
    found = compare(made.study, ["mst", "zhao-wu"], today="spt-best")
    assert all(row.allowed for row in found.everything)
    # every plan pays for the links of clients, as the placement does but for the share of events it saw
    for row in found.everything:
        assert row.train is not None
        factor = made.study.problem.demand.factor
        assert row.train.access_money * factor == pytest.approx(made.access)
        assert row.train.figures()["access_money"] == row.train.access_money


def test_brokers_that_move_clients_by_themselves_say_how_in_each_round(study: Study) -> None:
    brokers = study.problem.overlay.brokers
    access = {(f"user-{u}", b): float((7 * u + i) % 12) for u in range(40) for i, b in enumerate(brokers)}
    made = place_study(study, "rounds", 1, access=access)
    assert len(made.rounds) > 1
    assert made.rounds[0].moves == made.rounds[-1].moves == 0
    costs = [one.cost for one in made.rounds]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(made.placement.total)
    assert 0 < made.moved <= sum(one.moves for one in made.rounds)
    assert made.access < made.access_before


def test_who_only_subscribes_is_seen_to_move(study: Study) -> None:
    published = {study.problem.demand.clients[c] for c in study.problem.demand.client.tolist()}
    quiet = replace(
        study,
        problem=replace(
            study.problem,
            attachments={c: b for c, b in study.problem.attachments.items() if c in published},
        ),
    )
    far = {
        (f"user-{u}", b): float((7 * u + i) % 12)
        for u in range(40)
        for i, b in enumerate(study.problem.overlay.brokers)
    }
    known, unknown = (place_study(each, "greedy", 1, access=far).moved for each in (study, quiet))
    assert known == unknown


def test_the_exact_program_is_for_few_and_says_what_none_can_beat(study: Study) -> None:
    with pytest.raises(LimitError):
        place_study(study, "exact", 1)
    rows = [
        Subscription(f"s{i}", f"c{i}", b, sql)
        for i, (b, sql) in enumerate([("v0", "x = 1"), ("v1", "x = 2"), ("v2", "x > 0")])
    ]
    overlay = overlay_from("ring:3")
    classes = Classes.collapse(rows, overlay, {"x": AttributeType.INT64})
    grid = grid_for(classes)
    counted = Tally(
        classes,
        overlay,
        {f"c{i}": f"v{i}" for i in range(3)},
        grid=grid,
        by_client=True,
        split=Split(SHARES),
    )
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    events = [
        Event(str(k), f"c{k % 3}", begin + timedelta(seconds=k), {"x": 1 + k % 2}, size_bytes=100)
        for k in range(120)
    ]
    counted.add(events_to_batch(events))
    few = prepare(overlay, classes, counted.windows(), {f"c{i}": f"v{i}" for i in range(3)}, grid=grid)
    access = {(f"c{i}", b): float(abs(i - j)) for i in range(3) for j, b in enumerate(overlay.brokers)}
    best = place_study(few, "exact", 1, access=access)
    assert best.bound is not None
    assert best.bound == pytest.approx(best.total)
    others = [place_study(few, name, 1, access=access).total for name in ALGORITHMS if name != "exact"]
    assert best.total <= min(others) * (1 + 1e-9)
    assert best.total <= best.total_before * (1 + 1e-9)


def test_capacities_hold_and_what_does_not_fit_is_said_with_how_much_is_missing(
    study: Study, tmp_path: Path
) -> None:
    brokers = study.problem.overlay.brokers
    access = {(f"user-{u}", b): 1.0 for u in range(40) for b in brokers}
    free = place_study(study, "greedy", 1, access=access)
    seconds = study.problem.demand.seconds
    every = float(free.placement.load.sum()) / seconds / 1e6
    file = tmp_path / "capacity.csv"
    file.write_text("broker,mb_per_s\n" + "".join(f"{b},{every / 4}\n" for b in brokers))
    made = place_study(study, "greedy", 1, access=access, capacity=read_capacity(file))
    assert (made.placement.load <= every / 4 * 1e6 * seconds * (1 + 1e-9)).all()
    with pytest.raises(PlacementError) as told:
        place_study(study, "greedy", 1, access=access, capacity=dict.fromkeys(brokers, every / 24))
    assert told.value.missing > 0
    assert told.value.users
    file.write_text("broker,mb_per_s\nv0,often\n")
    with pytest.raises(InputError, match="mb_per_s 'often'"):
        read_capacity(file)


def test_clients_that_pay_the_core_price_to_move_need_not(study: Study) -> None:
    made = place_study(study, "greedy", 1)
    assert (made.moved, made.access) == (0, 0.0)
    assert made.study.problem.attachments == study.problem.attachments


def test_trees_of_sub_channels_cost_no_more_than_one_tree_and_spanning_trees_more_than_steiner(
    study: Study,
) -> None:
    cost = {}
    for spec in ("zhao-wu", "zhao-wu:trees=mst", "zhao-wu-tree", "mst"):
        plan = make_plan(spec, study.problem, 1)
        check(plan, study.problem)
        cost[spec] = price(plan, study.test).money
    assert cost["zhao-wu-tree"] == pytest.approx(cost["mst"])
    assert cost["zhao-wu"] <= cost["zhao-wu:trees=mst"] * 1.01
    assert cost["zhao-wu"] <= cost["zhao-wu-tree"] * 1.01
    with pytest.raises(InputError, match="trees = 'x'"):
        make_plan("zhao-wu:trees=x", study.problem, 1)


def test_too_many_trees_are_not_searched_and_that_is_said(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = make_plan("zhao-wu", study.problem, 1)
    monkeypatch.setattr(zhao_wu, "MOST_SEARCHED", 1)
    grown = make_plan("zhao-wu", study.problem, 1)
    check(grown, study.problem)
    assert (searched.settings["searched"], grown.settings["searched"]) == (True, False)
    train = study.problem.demand
    assert price(searched, train).money <= price(grown, train).money * (1 + 1e-9)


def test_zhao_wu_without_a_grid_is_one_group(study: Study) -> None:
    problem = replace(study.problem, grid=None)
    plan = make_plan("zhao-wu", problem, 1)
    check(plan, problem)
    assert plan.settings["groups"] == 1


def test_clients_pay_for_what_they_send_and_get_once_and_not_for_their_own() -> None:
    overlay = overlay_from("ring:3")
    rows = [
        Subscription("s0", "c0", "v0", "x = 1"),
        Subscription("s1", "c0", "v0", "x > 0"),
        Subscription("s2", "c1", "v1", "x > 0"),
    ]
    classes = Classes.collapse(rows, overlay, {"x": AttributeType.INT64})
    counted = Tally(classes, overlay, {"c0": "v0", "c1": "v1", "c2": "v2"}, by_client=True)
    counted.add(
        events_to_batch(
            [Event(str(k), f"c{k}", attributes={"x": 1}, size_bytes=99 + 100 * k) for k in range(3)]
        )
    )
    demand = counted.windows().whole
    # c0 sends 100 and gets 200 and 300 once though two of its filters match; c2 wants nothing
    prices = {"c0": 1.0, "c1": 10.0, "c2": 100.0, "nobody": 5.0}
    assert access_cost(prices, classes, demand) == 600 + 10 * (200 + 100 + 300) + 100 * 300
    assert access_cost({}, classes, demand) == 0
    with pytest.raises(InputError, match="publishing clients"):
        access_cost(prices, classes, replace(demand, client=np.full(len(demand), -1, np.int32)))


def test_access_prices_are_read_and_faults_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "access.csv"
    path.write_text("client,broker,price\na,b0,1.5\na,b1,0\n")
    assert read_access(path) == {("a", "b0"): 1.5, ("a", "b1"): 0.0}
    path.write_text("client,broker,price\na,b0,1.5\na,b1,dear\n")
    with pytest.raises(InputError, match=r"access\.csv:3: price 'dear'"):
        read_access(path)
    path.write_text("client,price\na,1.5\n")
    with pytest.raises(InputError, match="columns client, broker and price"):
        read_access(path)


def test_an_unknown_algorithm_is_named(study: Study) -> None:
    with pytest.raises(InputError, match=r"no placement algorithm 'best'.*local-search"):
        place_study(study, "best", 1)
    assert np.isfinite(place_study(study, "local-search", 1).placement.total)
