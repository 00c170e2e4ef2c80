"""Who keeps what among coordinators that share the attributes."""

from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.overlay.control.records import ClientRecord, ClientSubscription, FilterText
from ramify.overlay.control.registry import applied, records_of, revised, spelled
from ramify.overlay.control.shares import Share, compared, covering, owner, owners
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.files import encode_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world
from worlds import FILTERS, SCHEMA

WORLD = seeded_world(5, 6, 12, 60)
PLAN = make_plan("semcast", WORLD.problem)
NAMES = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6, unique=True)
ATTRIBUTES = [f"a{i}" for i in range(40)]


# ---------------------------------------------------------------------------------------------- owners


@pytest.mark.parametrize("count", [2, 3, 7])
def test_attributes_are_spread_evenly(count: int) -> None:
    names = [f"k{i}" for i in range(count)]
    held = Counter(owner(f"attribute {i}", names) for i in range(700 * count))
    assert set(held) == set(names)
    # six standard deviations of a fair throw
    assert all(abs(n - 700) < 6 * 700**0.5 for n in held.values()), held


@given(NAMES, st.data())
def test_when_one_leaves_only_its_attributes_change_hands(names: list[str], data: st.DataObject) -> None:
    before = {a: owner(a, names) for a in ATTRIBUTES}
    assert before == {a: owner(a, data.draw(st.permutations(names))) for a in ATTRIBUTES}
    if len(names) > 1:
        gone = data.draw(st.sampled_from(names))
        left = [name for name in names if name != gone]
        for attribute, had in before.items():
            assert owner(attribute, left) == had or had == gone


def test_a_filter_without_attributes_is_everybodys_and_nobody_owns_nothing() -> None:
    assert owners((), ["a", "b"]) == {"a", "b"}
    assert owners(["x"], ["a", "b"]) == {owner("x", ["a", "b"])}
    with pytest.raises(InputError, match="no coordinator"):
        owner("x", [])


# ---------------------------------------------------------------------------------------------- shares


def _record(client: str, held: dict[str, tuple[int, bool]]) -> ClientRecord:
    """Subscriptions id -> (number of a filter, whether it is suspended)."""
    rows = {
        id_: ClientSubscription(
            spelled(Subscription(id_, client, "v0", **FILTERS[number])),  # type: ignore[arg-type]
            suspended="quota" if off else "",
        )
        for id_, (number, off) in held.items()
    }
    return ClientRecord(client, "v0", rows)


def _put(share: Share, key: str, record: ClientRecord) -> None:
    share.put(key, record, share.read(key, record))


def _should_keep(share: Share, records: dict[str, ClientRecord]) -> dict[str, FilterText]:
    rows = [Subscription("s", "c", "v0", **given) for given in FILTERS]  # type: ignore[arg-type]
    found = {}
    for record in records.values():
        for id_, held in record.subscriptions.items():
            row = next(row for row in rows if spelled(row) == held.filter)
            responsible = owners(row.parse(SCHEMA.attributes).paths, share.coordinators)
            if not held.suspended and share.name in responsible:
                found[id_] = held.filter
    return found


def _all(share: Share) -> dict[str, FilterText]:
    return share.page("", 1 << 30)[0]


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.none()
        | st.dictionaries(
            st.integers(0, 3), st.tuples(st.integers(0, len(FILTERS) - 1), st.booleans()), max_size=4
        ),
    ),
    max_size=8,
)


@given(CHANGES)
@settings(max_examples=60)
def test_a_share_keeps_what_looks_at_its_attributes_whatever_came_before(
    changes: list[tuple[int, dict[int, tuple[int, bool]] | None]],
) -> None:
    names = ["k0", "k1", "k2"]
    shares = [Share(name, names, SCHEMA.attributes) for name in names]
    records: dict[str, ClientRecord] = {}
    for client, held in changes:
        key = f"clients.c{client}"
        if held is None:
            records.pop(key, None)
            for share in shares:
                share.drop(key)
            continue
        records[key] = _record(f"c{client}", {f"c{client}/{i}": each for i, each in held.items()})
        for share in shares:
            _put(share, key, records[key])
    everything = {
        id_ for r in records.values() for id_, held in r.subscriptions.items() if not held.suspended
    }
    for share in shares:
        assert _all(share) == _should_keep(share, records)
        assert share.filters().keys() == _all(share).keys()
        # when another leaves it keeps more, and parses only what it had not
        fewer = Share(share.name, names[:2], SCHEMA.attributes, share)
        for key, record in records.items():
            _put(fewer, key, record)
        assert _all(fewer) == _should_keep(fewer, records)
    assert {id_ for share in shares for id_ in _all(share)} == everything


def test_each_filter_is_parsed_once_and_one_that_cannot_be_read_is_named() -> None:
    parse, parsed = Subscription.parse, list[str]()

    def counting(row: Subscription, *args: object) -> object:
        parsed.append(row.id)
        return parse(row, *args)  # type: ignore[arg-type]

    with patch.object(Subscription, "parse", counting):
        share = Share("k0", ["k0"], SCHEMA.attributes)
        _put(share, "clients.c", _record("c", {"a": (0, False)}))
        _put(share, "clients.c", _record("c", {"a": (0, False), "b": (2, False)}))
        again = Share("k0", ["k0", "k1"], SCHEMA.attributes, share)
        _put(again, "clients.c", _record("c", {"a": (0, False), "b": (2, False)}))
        assert parsed == ["a", "b"]
        bad = ClientRecord("d", "v0", {"d/x": ClientSubscription(FilterText("topic >"))})
        _put(share, "clients.d", bad)
    assert list(share.unreadable) == ["d/x"]
    assert set(_all(share)) == {"a", "b"}
    share.drop("clients.d")
    assert not share.unreadable


def test_a_filter_that_changed_is_read_anew() -> None:
    share = Share("k0", ["k0"], SCHEMA.attributes)
    for number in (0, 2):
        record = _record("c", {"c/x": (number, False)})
        _put(share, "clients.c", record)
        assert _all(share) == _should_keep(share, {"clients.c": record})
        assert _all(share)["c/x"] == record.subscriptions["c/x"].filter
    assert share.filters()["c/x"].paths == {"x"}


@given(st.integers(1, 400))
@settings(max_examples=20)
def test_pages_put_together_are_all(most: int) -> None:
    share = Share("k0", ["k0"], SCHEMA.attributes)
    _put(share, "clients.c", _record("c", {f"c/{i}": (i % len(FILTERS), False) for i in range(9)}))
    found, after, more = dict[str, FilterText](), "", True
    while more:
        page, more = share.page(after, most)
        assert page
        assert not page.keys() & found.keys()
        found |= page
        after = max(page)
    assert found == _all(share)
    assert len(found) == 9


def test_those_that_cover_are_named() -> None:
    filters = {row.id: row.parse(SCHEMA.attributes) for row in WORLD.subscriptions}
    hits = 0
    for wanted in filters.values():
        told = covering(filters, wanted)
        assert told == sorted(
            id_ for id_, f in filters.items() if f.paths <= wanted.paths and f.covers(wanted)
        )
        hits += len(told)
    assert hits > len(filters)


def test_differences_of_a_share_and_the_registry_are_named() -> None:
    a, b = FilterText("x > 1"), FilterText("x > 2")
    names = ["k0", "k1"]
    mine = owner("x", names)
    other = next(name for name in names if name != mine)
    registry = {"s0": (a, frozenset({"x"})), "s1": (a, frozenset({"x"})), "s2": (a, frozenset({"x"}))}
    differs = compared(mine, names, {"s0": a, "s1": b, "s9": a}, registry)
    assert differs.lacking == ("s1", "s2")
    assert differs.beyond == ("s9",)
    assert compared(other, names, {"s0": a}, registry) == compared(other, names, {}, registry)
    assert compared(other, names, {}, registry).lacking == ()


# ----------------------------------------------------------------------------------------------- hints


def _checked(plan: Plan) -> None:
    check(plan, Problem.of(plan.overlay, plan.classes, Demand.of([]), plan.attachments, grid=plan.grid))


@given(
    st.lists(st.tuples(st.integers(0, len(FILTERS) - 1), st.integers(0, 5)), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_no_hint_excludes_anybody(asked: list[tuple[int, int]], data: st.DataObject) -> None:
    new = [
        Subscription(f"n{i}", f"d{i}", f"v{at}", **FILTERS[number])  # type: ignore[arg-type]
        for i, (number, at) in enumerate(asked)
    ]
    wanted = {row.id: row for row in (*WORLD.subscriptions, *new)}
    ids = st.sampled_from([*wanted, "unknown", ""])
    hints = data.draw(st.dictionaries(st.sampled_from(sorted(wanted)), st.sets(ids)))
    made = revised(PLAN, wanted, hints=hints)
    assert not made.lacks
    assert set(made.plan.classes.class_of) == set(wanted)
    _checked(made.plan)
    assert encode_plan(applied(PLAN, made.changes)) == encode_plan(made.plan)


def test_a_hint_decides_where_to_look() -> None:
    """With the one that covers it a newcomer joins its channel; with none, or a wrong one, it opens one."""
    base = _two_channels()
    row = Subscription("n", "d", "v3", "x > 5 AND x < 7")
    wanted = {"wide": WIDE, "other": OTHER, "n": row}
    channels = len(base.channels)
    for hints, opened in (
        (None, 0),
        ({"n": ["wide", "unknown"]}, 0),
        ({"n": []}, 1),
        ({"n": ["other"]}, 1),
        ({"wide": []}, 0),
    ):
        made = revised(base, wanted, ["n"], hints=hints)
        assert len(made.plan.channels) == channels + opened, hints
        _checked(made.plan)


WIDE = Subscription("wide", "w", "v0", "x > 1")
OTHER = Subscription("other", "o", "v1", "topic = 'a'")


def _two_channels() -> Plan:
    """A SemCast plan of two subscriptions with channels of their own."""
    empty = make_plan(
        "semcast",
        Problem.of(
            WORLD.overlay, Classes.collapse([], WORLD.overlay, SCHEMA.attributes), Demand.of([]), {}
        ),
    )
    return revised(empty, {"wide": WIDE, "other": OTHER}).plan


def test_the_registry_of_a_plan_spells_filters_as_shares_do() -> None:
    for record in records_of(PLAN).values():
        for id_, held in record.subscriptions.items():
            row = next(r for r in WORLD.subscriptions if r.id == id_)
            assert spelled(row) == held.filter
