"""Subscription files: good lines are kept, bad ones reported by line, id and reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import Subscription, read_subscriptions, write_subscriptions
from ramify.errors import FilterError, InputError

GOOD = {"id": "s", "client": "c", "broker": "b", "sql": "x = 1"}


def line(**changes: Any) -> str:
    return json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not ...})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "a subscription is a JSON object"),
        (line(id=...), "needs id"),
        (line(id=5), "needs id"),
        (line(client=""), "needs client"),
        (line(broker=None), "needs broker"),
        (line(sql=...), "it has none"),
        (line(keywords=["a"]), "it has sql and keywords"),
        (line(sql=5), "sql must be a string"),
        (line(sql=..., keywords="a"), "keywords must be a list"),
        (line(sql=..., keywords=[]), "non-empty"),
        (line(sql=..., pattern={"a": "x"}), "must be an object or an array"),
        (line(sql="x = UPPER(y)"), "UPPER"),
        (line(latency_ms=0), "latency_ms"),
        (line(latency_ms=True), "latency_ms"),
        (line(latency_ms="5"), "latency_ms"),
        (line(colour="red"), "unknown field 'colour'"),
        ('{"id": "a", "id": "b"}', "'id' appears twice"),
        (line(pattern={"a": ["x" * (1 << 20)]}), "longer than"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_reported_and_the_rest_kept(text: str, reason: str) -> None:
    read = read_subscriptions([line(id="first"), text, line(id="last")])
    assert [s.id for s in read.good] == ["first", "last"]
    assert len(read.filters) == 2
    (bad,) = read.bad
    assert bad.line == 2
    assert reason in bad.reason
    assert str(bad).startswith("line 2")


def test_a_repeated_id_is_reported_with_its_first_line() -> None:
    read = read_subscriptions([line(), "", line()])
    assert [s.id for s in read.good] == ["s"]
    assert str(read.bad[0]) == "line 3 (subscription s): the id was already used on line 1"


def test_bytes_that_are_no_utf8_spoil_one_line_only(tmp_path: Path) -> None:
    path = tmp_path / "subs.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line(id="a").encode() + b"\r\n\xff\xfe\n" + line(id="b").encode())
    read = read_subscriptions(path)
    assert [s.id for s in read.good] == ["a", "b"]
    assert "UTF-8" in read.bad[0].reason


def test_a_missing_file_is_an_error_with_its_path() -> None:
    with pytest.raises(InputError, match=r"/no/such\.jsonl"):
        read_subscriptions("/no/such.jsonl")


def test_the_schema_is_used() -> None:
    read = read_subscriptions([line(sql="x > 'soon'")], {"x": AttributeType.TIMESTAMP})
    assert "'soon' is not a timestamp" in read.bad[0].reason


WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
SPELLINGS = st.one_of(
    st.fixed_dictionaries({"sql": st.sampled_from(["x = 1", "s LIKE 'a%' AND NOT y > 2", "TRUE"])}),
    st.fixed_dictionaries(
        {
            "pattern": st.dictionaries(
                WORDS.filter(lambda w: w not in ("$or", "time")), st.just(["v", 1, None]), min_size=1
            ).map(json.dumps)
        }
    ),
    st.fixed_dictionaries({"keywords": st.lists(WORDS, min_size=1).map(tuple)}),
    st.fixed_dictionaries(
        {"keywords": st.lists(st.lists(WORDS, min_size=1).map(tuple), min_size=1).map(tuple)}
    ),
)


@given(WORDS, SPELLINGS, st.none() | st.floats(0.1, 1e6))
def test_what_is_written_is_read_back(id_: str, spelling: dict[str, Any], latency_ms: float | None) -> None:
    subscription = Subscription(id_, "client", "broker", **spelling, latency_ms=latency_ms)
    read = read_subscriptions([subscription.to_json()])
    assert read.bad == ()
    assert read.good[0].to_json() == subscription.to_json()
    assert read.filters[0] == subscription.parse()
    assert subscription.text


def test_files_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "subs.jsonl"
    subscriptions = [Subscription("a", "c", "b", sql="x = 1"), Subscription("b", "c", "b", keywords=("é",))]
    assert write_subscriptions(path, subscriptions) == 2
    assert list(read_subscriptions(path).good) == subscriptions


def test_a_subscription_with_a_bad_filter_says_so_when_parsed() -> None:
    with pytest.raises(FilterError):
        Subscription("a", "c", "b", sql="x =").parse()
