"""Files of histories, and the oracle of conditions."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import ROOT
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.overlay.histories.checker import judge
from ramify.overlay.histories.conditions import check_condition, digest, holds, sql_of
from ramify.overlay.histories.files import HistoryFile, read_history
from ramify.overlay.histories.rows import (
    Condition,
    DeliveryRow,
    EndRow,
    FaultRow,
    PublishRow,
    RunRow,
    StatusRow,
    SubscribeRow,
    UnsubscribeRow,
)

ROWS = [
    RunRow("r", 0.0, seed=3, ordered=True),
    SubscribeRow(
        "c", "s", ((("x", "<", 5), ("t", "in", ["a"])), (("t", "prefix", "b"),)), 1.0, "active", 1.5
    ),
    PublishRow("p", 2.0, (("e", {"x": 1, "t": "a"}),), "acknowledged", 2.5),
    DeliveryRow("c", 3.0, ("s",), (("e", digest({"t": "a", "x": 1})),), 1),
    StatusRow(3.0, 3.5, ("v0: lag 1",)),
    FaultRow("kill", 3.0, target="v0"),
    UnsubscribeRow("c", "s", 4.0, "ended", 4.5),
    EndRow(5.0),
]


def test_what_is_written_is_read_and_judged_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with HistoryFile(path) as file:
        for row in ROWS:
            file.add(row)
    found = list(read_history(path))
    assert [type(row) for row in found] == [type(row) for row in ROWS]
    assert judge(found) == judge(ROWS)
    assert judge(found).delivered == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"kind":"run"}', "run"),
        ('{"kind":"what"}', "what"),
        ("{", "truncated"),
        ('{"kind":"run","run":"r","at":0,"version":2}', "version 2"),
        (
            '{"kind":"subscribe","client":"c","subscription":"s","condition":[[["x","~",1]]],"at":1,'
            '"outcome":"active"}',
            "operator '~'",
        ),
    ],
)
def test_what_is_no_row_is_named_by_its_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"kind":"end","at":1}\n' + text + "\n")
    with pytest.raises(InputError, match=rf"history.jsonl:2.*{why}"):
        list(read_history(path))


def test_the_history_of_the_docs_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "history.jsonl"
    path.write_text(example)
    found = judge(read_history(path))
    assert found.is_kept
    assert (found.due, found.delivered) == (1, 1)


def test_a_history_is_not_written_over_another(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("kept")
    with pytest.raises(InputError, match="is there already"):
        HistoryFile(tmp_path / "h")


@pytest.mark.parametrize(
    "condition", [(), ((),), ((("x", "=", None),),), ((("x", "in", ()),),), ((("", "=", 1),),)]
)
def test_a_condition_without_sense_is_refused(condition: Any) -> None:
    with pytest.raises(InputError):
        check_condition(condition)


words = st.sampled_from(["", "a", "ab", "b", "it's"])
numbers = st.integers(-2, 3) | st.sampled_from([0.5, -1.5])
terms = (
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), numbers)
    | st.tuples(st.just("x"), st.just("in"), st.lists(st.integers(-2, 3), min_size=1, max_size=3))
    | st.tuples(st.just("t"), st.sampled_from(["=", "<>"]), words)
    | st.tuples(st.just("t"), st.just("in"), st.lists(words, min_size=1, max_size=3))
    | st.tuples(st.just("t"), st.just("prefix"), words)
)
rows = st.lists(st.lists(terms, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
values = st.fixed_dictionaries(
    {}, optional={"x": st.integers(-2, 3), "y": st.sampled_from([0.5, -1.5, 2.0]), "t": words}
)


@given(rows, values)
def test_the_oracle_and_the_filters_of_the_overlay_agree(
    condition: Condition, event: dict[str, Any]
) -> None:
    check_condition(condition)
    filter = Subscription("s", "c", "v", sql_of(condition)).parse({})
    assert filter.holds(event) == holds(condition, event)


def test_a_prefix_with_wildcards_has_no_sql() -> None:
    with pytest.raises(InputError, match="wildcards"):
        sql_of(((("t", "prefix", "a%"),),))
