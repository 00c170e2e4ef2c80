"""Plans as files: what is read equals what was written; what is not a plan is refused with the place."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.plans.files import PLAN_SCHEMA as FILE_SCHEMA
from ramify.planning.plans.files import decode_plan, encode_plan, read_plan, write_plan
from ramify.planning.plans.plan import (
    Admission,
    All,
    Cells,
    Channel,
    ChannelTree,
    Entry,
    Everything,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Some,
    Stamped,
)
from ramify.planning.pricing.price import price
from worlds import GRID, SCHEMA, World, plans, worlds


def same_plan(one: Plan, other: Plan) -> None:
    """Every field; classes by what they mean."""
    for name in ("scheme", "overlay", "channels", "grid", "rule"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("attachments", "paths", "settings"):
        assert dict(getattr(one, name)) == dict(getattr(other, name)), name
    assert len(one.regions) == len(other.regions)
    for mine, theirs in zip(one.regions, other.regions, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    mine, theirs = one.classes, other.classes
    np.testing.assert_array_equal(mine.broker, theirs.broker)
    assert [f.key for f in mine.filters] == [f.key for f in theirs.filters]
    assert mine.schema == theirs.schema
    assert mine.class_of == theirs.class_of
    for group, again in zip(mine.members, theirs.members, strict=True):
        kept = [(row.id, row.client, row.broker, row.latency_ms) for row in group]
        assert kept == [(row.id, row.client, row.broker, row.latency_ms) for row in again]


@st.composite
def planned(draw: st.DrawFn) -> tuple[World, Plan]:
    world = draw(worlds(6))
    plan = draw(plans(world))
    settings = draw(
        st.dictionaries(st.text(max_size=5), st.booleans() | st.integers(-9, 9) | st.text(max_size=5))
    )
    return world, replace(plan, settings=settings)


@settings(max_examples=25)
@given(planned())
def test_what_is_read_equals_what_was_written_and_costs_the_same(case: tuple[World, Plan]) -> None:
    world, plan = case
    again = decode_plan(encode_plan(plan))
    same_plan(plan, again)
    assert price(again, world.demand).figures() == price(plan, world.demand).figures()
    assert encode_plan(again) == encode_plan(plan)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def everything_in_one() -> Plan:
    """A plan that uses every part of the form."""
    overlay = Overlay.build("line", "abc", [Link("a", "b", 1.0, 2.0, 3.0), Link("b", "c", 0.5, 0.0, 1.0)])
    rows = [
        Subscription("s0", "c0", "b", sql="publisher = 'é'", latency_ms=80.0),
        Subscription("s1", "c1", "b", pattern='{"publisher": ["é"]}'),
        Subscription("s2", "c2", "c", keywords=(("news", "sport"), ("art",))),
        Subscription("s3", "c3", "a", keywords=("news",)),
    ]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    classes, _ = classes.without_subscription("s3")  # class 2 is vacant
    tree = ChannelTree(ints(0, 1, 1, 2).reshape(-1, 2), 1)
    serves = Serves.at_hosts([0, 1, 2], classes)
    expression = All((Match((0, 1)), Some((Negation(Match((2,))), Match(())))))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    channels = (
        Channel("holds", Admission(Holds(expression)), serves, Pruning.NONE, tree, Entry.to(1, 3)),
        Channel("cells", Admission(Cells(ints(0, 2)), frozenset([2, 0])), serves, Pruning.FILTER, tree),
        Channel("legs", Admission(Everything()), serves, Pruning.FILTER, tree, Entry(ints(-1, -1, 0))),
        Channel("carried", Admission(Stamped()), serves, Pruning.TREE),
        Channel(
            "proxy", Admission(Everything(), frozenset()), Serves(ints(1, 1), ints(0, 2), ints(0, 1)),
            Pruning.NONE, ChannelTree(ints(0, 2).reshape(-1, 2)), marks={(0, 2): "p", (2, 0): "s"},
        ),
    )  # fmt: skip
    grid = Grid(
        (Axis("x", (1, 2.5)), Axis("topic", ("k", "é")), Axis("time", (start, start.replace(year=2027))))
    )
    return Plan(
        "all", overlay, classes, channels, {"c0": "b", "p": "a"}, {(0, 2): (0, 1, 2)}, grid,
        (ints(0, 1), ints()), "latency", {"k": 3, "share": 0.5, "name": "x", "on": True},
    )  # fmt: skip


def test_every_part_of_the_form_is_kept(tmp_path: Path) -> None:
    plan = everything_in_one()
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    same_plan(plan, again)
    assert again.classes.vacant.tolist() == [False, False, True]
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]


def test_a_plan_without_anything_is_kept() -> None:
    alone = Overlay.build("alone", ["a"], [])
    plan = Plan("none", alone, Classes.collapse([], alone, {}), ())
    same_plan(plan, decode_plan(encode_plan(plan)))


# ------------------------------------------------------------------------------------------ what is wrong


def document() -> dict[str, Any]:
    return json.loads(encode_plan(everything_in_one()))  # type: ignore[no-any-return]


def refused(content: bytes) -> InputError:
    with pytest.raises(InputError) as raised:
        decode_plan(content)
    assert str(raised.value)
    return raised.value


def changed(path: tuple[str | int, ...], value: Any) -> bytes:
    whole: Any = document()
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(whole).encode()


WRONG: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "an unknown pruning": (("channels", 0, "pruning"), "some", "channel holds has pruning 'some'"),
    "an unknown content": (("channels", 0, "admits"), "nothing", "channel holds admits nothing"),
    "two contents": (("channels", 0, "admits"), {"cells": [], "holds": {}}, "channel holds admits"),
    "a content that is a number": (("channels", 0, "admits"), 3, "channel holds admits 3"),
    "cells that are no list": (("channels", 1, "admits"), {"cells": 3}, "channel cells admits"),
    "cells that are words": (("channels", 1, "admits"), {"cells": ["0"]}, "cells: expected whole"),
    "cells that are fractions": (("channels", 1, "admits"), {"cells": [0.5]}, "cells: expected whole"),
    "cells that are lists": (("channels", 1, "admits"), {"cells": [[0], [1]]}, "cells: expected whole"),
    "cells that are truths": (("channels", 1, "admits"), {"cells": [True]}, "cells: expected whole"),
    "cells that are too large": (("channels", 1, "admits"), {"cells": [2**31]}, "cells: a number"),
    "cells beyond any size": (("channels", 1, "admits"), {"cells": [10**30]}, "channel cells"),
    "an unknown operator": (("channels", 0, "admits"), {"holds": {"xor": []}}, "bad expression"),
    "an operator without parts": (("channels", 0, "admits"), {"holds": {"all": 3}}, "bad expression"),
    "a term of words": (("channels", 0, "admits"), {"holds": {"any": ["a"]}}, "bad expression"),
    "a term of truths": (("channels", 0, "admits"), {"holds": {"any": [True]}}, "bad expression"),
    "an expression that is a list": (("channels", 0, "admits"), {"holds": []}, "bad expression"),
    "an odd tree": (("channels", 0, "tree"), {"links": [0, 1, 2]}, "the tree of channel holds has an odd"),
    "a tree of huge numbers": (("channels", 0, "tree"), {"links": [0, 2**40]}, "holds: a number"),
    "a huge root": (("channels", 0, "tree"), {"links": [], "root": 2**40}, "holds: a number"),
    "a huge entry": (("channels", 0, "entry"), 2**40, "holds: a number"),
    "a huge target": (("channels", 2, "entry"), [0, 0, 2**40], "channel legs: a number is too"),
    "an unknown class": (("channels", 0, "serves"), [0, 3], "channel holds serves a class outside 0..2"),
    "uneven entries": (
        ("channels", 0, "serves"), {"classes": [0], "at": [], "region": []}, "one class, one broker",
    ),
    "a class at no broker": (("classes", 1, "broker"), 3, "class 1 is at broker 3, which is unknown"),
    "a class at a negative broker": (("classes", 1, "broker"), -1, "class 1 is at broker -1"),
    "a class with two filters": (("classes", 0, "keywords"), ["a"], "in one of sql, pattern, keywords"),
    "a member of two classes": (("classes", 1, "members"), [["s0", "c", None]], "a member of two classes"),
    "a member without a name": (("classes", 1, "members"), [["", "c", None]], "needs id"),
    "a bound below zero": (("classes", 1, "members"), [["s9", "c", -1.0]], "latency_ms must be a positive"),
    "an unknown type": (("attributes", "x"), "complex", "attribute 'x' has the unknown type 'complex'"),
    "a path of one": (("paths", 0), [0], "a path has fewer than two brokers"),
    "a region of words": (("regions", 0), ["a"], "$.regions[0][0]"),
    "a huge region": (("regions", 0), [2**40], "region 0: a number is too large"),
    "an unknown rule": (("rule",), "luck", "unknown rule 'luck'"),
    "a time that is none": (("grid", 2, "edges"), ["noon"], "axis time"),
    "a time that is a number": (("grid", 2, "edges"), [12], "axis time"),
    "edges of two kinds": (("grid", 0, "edges"), [1, "a"], "edges of x"),
    "edges that are lists": (("grid", 0, "edges"), [[1]], "edges of x"),
    "edges that fall": (("grid", 0, "edges"), [2, 1], "edges of x must increase"),
    "an axis of an unknown kind": (("grid", 0, "kind"), "colour", "axis x"),
    "two axes of one attribute": (("grid", 1, "path"), "x", "two axes on one attribute"),
    "an overlay that is a list": (("overlay",), [], "overlay"),
    "a field too many": (("more",), 1, "more"),
    "a channel that is a number": (("channels", 0), 3, "$.channels[0]"),
    "a scheme that is a number": (("scheme",), 3, "$.scheme"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named_with_its_place(wrong: str) -> None:
    path, value, gist = WRONG[wrong]
    assert gist in str(refused(changed(path, value)))


def test_an_overlay_that_is_wrong_is_named_as_the_overlay() -> None:
    whole = document()
    whole["overlay"]["links"] = "none"
    assert "links" in str(refused(json.dumps(whole).encode()))


@pytest.mark.parametrize("name", ["ramify-plan/2", "ramify-plan/0", "other"])
def test_another_version_is_named_with_ours(name: str) -> None:
    for whole in ({**document(), "schema": name}, {"schema": name, "wholly": "different"}):
        error = refused(json.dumps(whole).encode())
        assert name in str(error)
        assert FILE_SCHEMA in str(error)
        assert "Plan again" in str(error)


def test_errors_name_the_file(tmp_path: Path) -> None:
    where = tmp_path / "plan.json"
    with pytest.raises(InputError, match=r"plan\.json.*cannot be read"):
        read_plan(where)
    for content in (b"", b"{}", changed(("rule",), "luck"), changed(("grid", 0, "edges"), [])):
        where.write_bytes(content)
        with pytest.raises(InputError, match=r"plan\.json"):
            read_plan(where)
    with pytest.raises(InputError, match="cannot be written"):
        write_plan(everything_in_one(), tmp_path / "none" / "plan.json")


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    parts = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for step, part in parts:
        yield from places(part, (*path, step))


PLACES = list(places(document()))
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.sampled_from([2**31, -(2**31) - 1, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, "", "x", "0"]),
    st.lists(st.integers(-1, 3) | st.none() | st.text(max_size=2), max_size=3),
    st.dictionaries(
        st.sampled_from(["any", "all", "not", "links", "x"]), st.none() | st.integers(), max_size=2
    ),
)


def read_or_refused(content: bytes) -> None:
    """Never another exception. What can be read can be written again."""
    try:
        plan = decode_plan(content)
    except InputError:
        return
    again = decode_plan(encode_plan(plan))
    assert (again.channels, again.paths, again.rule) == (plan.channels, plan.paths, plan.rule)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=3))
def test_no_change_to_a_file_raises_anything_else(changes: list[tuple[tuple[str | int, ...], Any]]) -> None:
    whole: Any = document()
    for path, value in changes:
        place = whole
        try:
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    read_or_refused(json.dumps(whole).encode())


@pytest.mark.parametrize("path", PLACES, ids=str)
def test_no_missing_part_raises_anything_else(path: tuple[str | int, ...]) -> None:
    whole: Any = document()
    place = whole
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    read_or_refused(json.dumps(whole).encode())


def test_required_parts_are_asked_for_by_name() -> None:
    for name in ("scheme", "overlay", "attributes", "classes", "channels"):
        whole = document()
        del whole[name]
        assert name in str(refused(json.dumps(whole).encode()))


@settings(max_examples=100)
@given(st.data())
def test_no_bytes_raise_anything_else(data: st.DataObject) -> None:
    whole = encode_plan(everything_in_one())
    kind = data.draw(st.sampled_from(["cut", "random", "flipped"]))
    if kind == "cut":
        refused(whole[: data.draw(st.integers(0, len(whole) - 1))])
    elif kind == "random":
        refused(data.draw(st.binary(max_size=200)))
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        read_or_refused(whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :])


@pytest.mark.parametrize("depth", [90, 150, 400, 900, 5_000, 200_000])
@pytest.mark.parametrize("where", ["admits", "holds", "pattern", "settings", "overlay", "junk"])
def test_deep_nesting_is_refused_or_read(where: str, depth: int) -> None:
    deep = '{"not":' * depth + '{"any":[0]}' + "}" * depth
    whole = document()
    hole = "HOLE"
    match where:
        case "admits":
            whole["channels"][0]["admits"] = hole
        case "holds":
            whole["channels"][0]["admits"] = {"holds": hole}
        case "pattern":
            whole["classes"][0] = {**whole["classes"][0], "pattern": hole}
            whole["classes"][0].pop("sql", None)
        case "settings":
            whole["settings"]["deep"] = hole
        case "overlay":
            whole["overlay"] = hole
        case _:
            whole["junk"] = hole
    read_or_refused(json.dumps(whole).replace('"HOLE"', deep).encode())


def test_the_files_grid_is_the_plans() -> None:
    plan = replace(everything_in_one(), grid=GRID, regions=())
    assert decode_plan(encode_plan(plan)).grid == GRID


def test_a_plan_error_has_its_faults() -> None:
    error = refused(changed(("rule",), "luck"))
    assert isinstance(error, PlanError)
    assert error.faults == ("unknown rule 'luck'",)
