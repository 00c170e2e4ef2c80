"""The Sigma spelling: equal to a second evaluator, and refusing what one event cannot answer."""

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ramify
from naive_events import flatten
from naive_sigma import matches
from ramify.content.events.attributes import AttributeType
from ramify.content.events.flatten import decode_records
from ramify.content.filters.expressions import evaluate
from ramify.content.filters.filters import Filter
from ramify.content.filters.limits import FILTER_TEXT
from ramify.content.filters.regex_globs import regex_globs
from ramify.content.filters.sigma import parse_sigma, rename_fields
from ramify.content.filters.sigma_values import MODIFIERS
from ramify.content.filters.strings import StringTest, TestKind
from ramify.content.matching.matcher import Matcher
from ramify.errors import FilterError

Row = dict[str, Any]

# ------------------------------------------------------------------------------------------ the oracle

FIELDS = ["a", "b", "c.d"]
SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    46,
    1.5,
    "",
    "1",
    "46",
    "1.5",
    "TRUE",
    "a",
    "AB",
    "aba",
    "a*b",
]
PIECES = ["a", "A", "b", "É", "\\", "*", "?", "-a", " /b", ".", "\n", "1", "=", "YQ"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
HELD_TEXTS = st.lists(st.sampled_from([*PIECES, "é", "–a", "YUI=", "YQBCAA=="]), max_size=5).map("".join)
ADDRESSES = ["10.0.0.1", "10.0.1.1", "::1", "fe80::1", "0:0:0:0:0:0:0:1", "010.0.0.1"]
BLOCKS = ["10.0.0.0/24", "10.0.0.1/32", "::1/128", "fe80::/10", "0.0.0.0/0"]
STRING_MODIFIERS = [
    "",
    "|cased",
    "|contains",
    "|contains|all",
    "|startswith",
    "|endswith|cased",
    "|windash|contains",
    "|contains|windash|all",
    "|all",
]
WORDS = st.sampled_from(["ab", "aB?b", "b-é", "a"]).map(lambda word: word.replace("?", ""))
REGEXES = ["a", "^a", "b$", "^a.*b$", "(a|b)1", "[ab-]a", r"a\.b?", ".*a.*", r"\\", "É", "^$"]


def scalars() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from(SCALARS),
        HELD_TEXTS,
        st.sampled_from(ADDRESSES),
        st.sampled_from([46, 2**53 + 1, -1]),
    )


def events() -> st.SearchStrategy[Row]:
    value = st.one_of(scalars(), st.lists(scalars(), max_size=3))
    return st.fixed_dictionaries(
        {},
        optional={
            "a": value,
            "b": value,
            "c": st.fixed_dictionaries({}, optional={"d": value}),
        },
    )


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(values, st.lists(values, min_size=1, max_size=3))


def conditions_on_fields() -> st.SearchStrategy[tuple[str, Any]]:
    texts = st.one_of(TEXTS, st.sampled_from([1, 46, 1.5, True]))
    return st.one_of(
        st.tuples(st.sampled_from(STRING_MODIFIERS), some(texts)),
        st.tuples(st.just(""), some(st.one_of(st.sampled_from(SCALARS), TEXTS))),
        st.tuples(st.just("|exists"), st.booleans()),
        st.tuples(st.sampled_from(["|gt", "|gte", "|lt", "|lte"]), some(st.sampled_from([0, 1, 1.5, 46]))),
        st.tuples(st.sampled_from(["|cidr", "|cidr|all"]), some(st.sampled_from(BLOCKS))),
        st.tuples(st.sampled_from(["|re|s", "|re|i|s", "|re|all|s"]), some(st.sampled_from(REGEXES))),
        st.tuples(
            st.sampled_from(["|base64", "|base64|contains", "|wide|base64", "|wide|base64offset|contains"]),
            some(WORDS.filter(lambda word: len(word) > 1)),
        ),
    )


def maps() -> st.SearchStrategy[Row]:
    one = st.tuples(st.sampled_from(FIELDS), conditions_on_fields())
    return st.lists(one, min_size=1, max_size=2).map(
        lambda found: {f"{name}{modifiers}": value for name, (modifiers, value) in found}
    )


def conditions(names: list[str]) -> st.SearchStrategy[str]:
    terms = st.sampled_from(
        [*names, "1 of them", "all of them", "any of sel*", "all of s*1", "1 of _*", "1 of *"]
    )
    return st.recursive(
        terms,
        lambda part: st.one_of(
            part.map(lambda p: f"not {p}"),
            st.tuples(part, st.sampled_from(["and", "or"]), part).map(" ".join),
            part.map(lambda p: f"({p})"),
        ),
        max_leaves=4,
    )


@st.composite
def detections(draw: st.DrawFn) -> Row:
    names = ["sel1", "sel2", "_other"]
    found: Row = {name: draw(st.one_of(maps(), st.lists(maps(), min_size=1, max_size=2))) for name in names}
    found["condition"] = draw(some(conditions(names)))
    return found


def parsed(detection: Row) -> Filter | None:
    """None for what takes too many boxes: the one refusal that these rules may meet."""
    try:
        return parse_sigma(detection)
    except FilterError as error:
        if "normal form" in error.reason or "boxes" in error.reason:
            return None
        raise


@given(detections(), st.lists(events(), min_size=2, max_size=6))
@settings(max_examples=300)
def test_rules_agree_with_the_second_evaluator(detection: Row, found: list[Row]) -> None:
    filter_ = parsed(detection)
    assume(filter_ is not None)
    assert filter_ is not None
    assert filter_.expression is not None
    for event in found:
        flat = flatten(event)
        due = matches(detection, flat)
        assert evaluate(filter_.expression, flat) is due, event
        assert filter_.holds(flat) is due, event


@given(st.lists(detections(), min_size=1, max_size=4), st.lists(events(), min_size=1, max_size=6))
def test_the_matcher_finds_what_the_second_evaluator_does(asked: list[Row], found: list[Row]) -> None:
    filters = [(detection, filter_) for detection in asked if (filter_ := parsed(detection)) is not None]
    texts = [json.dumps({"id": str(k), **event}).encode() for k, event in enumerate(found)]
    decoded = decode_records(texts)
    matched = Matcher([filter_ for _, filter_ in filters]).match(decoded.batch)
    due = [
        [k for k, (detection, _) in enumerate(filters) if matches(detection, flatten(event))]
        for event in found
    ]
    assert [ids.tolist() for ids in matched] == due


@given(detections())
@settings(max_examples=50)
def test_text_bytes_objects_and_whole_rules_are_one_filter(detection: Row) -> None:
    filter_ = parsed(detection)
    assume(filter_ is not None)
    text = json.dumps(detection)
    assert parse_sigma(text) == parse_sigma(text.encode()) == filter_
    assert parse_sigma({"title": "a rule", "level": "high", "detection": detection}) == filter_


# ------------------------------------------------------------------------------------------ the meaning


def holds(selection: Any, event: Row, condition: str = "s") -> bool:
    return ramify.matches({"s": selection, "condition": condition}, event, spelling="sigma")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"a\b", "a\\b"),
        (r"a\\b", "a\\b"),
        (r"a\*", "a*"),
        (r"a\?", "a?"),
        (r"a\\*", "a\\anything"),
        (r"a\\\*", r"a\*"),
        (r"a\\\\", r"a\\"),
        (r"a\\\b", r"a\\b"),
        ("a?c", "aXc"),
        ("A*", "abc"),
    ],
)
def test_backslashes_escape_as_the_specification_says(written: str, text: str) -> None:
    assert holds({"f": written}, {"f": text})
    assert not holds({"f": written}, {"f": "x" + text})


def test_escapes_are_plain_characters() -> None:
    assert not holds({"f": r"a\*"}, {"f": "abc"})
    assert not holds({"f": r"a\?"}, {"f": "ab"})
    assert not holds({"f": r"a\\\*"}, {"f": r"a\bc"})


@pytest.mark.parametrize("dash", "-/–—―")
def test_windash_takes_every_dash_before_a_word(dash: str) -> None:
    assert holds({"f|windash|contains": " -enc"}, {"f": f"x {dash}ENC y"})
    assert holds({"f|contains|windash": " /enc"}, {"f": f"x {dash}enc y"})
    assert holds({"f|windash": "a-b"}, {"f": f"a{dash}b"}) is (dash == "-")


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz"])
def test_base64offset_finds_a_value_wherever_it_stands(before: str) -> None:
    from base64 import b64encode

    text = b64encode(f"{before}Get-Item c:".encode()).decode()
    wide = b64encode(f"{before}Get-Item c:".encode("utf-16-le")).decode()
    assert holds({"f|base64offset|contains": "Get-Item"}, {"f": text})
    assert holds({"f|wide|base64offset|contains": "Get-Item"}, {"f": wide})
    assert not holds({"f|base64offset|contains": "Set-Item"}, {"f": text})


def test_not_holds_where_the_field_is_absent() -> None:
    assert holds({"f": "x"}, {}, "not s")
    assert holds({"f|contains": "x"}, {"f": None}, "not s")
    assert holds({"f|gt": 5}, {"f": "nine"}, "not s")
    assert not holds({"f": "x"}, {"f": ["y", "X"]}, "not s")


def test_a_field_may_be_a_time_as_it_was_written() -> None:
    rule = {"s": {"at|startswith": "2024-05"}, "condition": "s"}
    schema = {"at": AttributeType.TIMESTAMP}
    assert ramify.matches(
        {"s": {"time|startswith": "2024"}, "condition": "s"}, {"time": "2024-05-01T00:00:00Z"}, "sigma"
    )
    assert parse_sigma(rule, schema) != parse_sigma(rule)


# Rules of the kind that people write, and events that they are about.
DOWNLOAD = {
    "selection_img": [
        {"Image|endswith": ["\\fetcher.exe", "\\getfile.exe"]},
        {"OriginalFileName": "FETCH?.EXE"},
    ],
    "selection_cli": {
        "CommandLine|contains|windash": [" -url ", " -download "],
        "CommandLine|contains|all": ["http", "://"],
    },
    "filter_main_updater": {
        "ParentImage|startswith": "C:\\Program Files\\Updater\\",
        "User|contains": "SYSTEM",
    },
    "filter_main_null": {"ParentImage": None},
    "filter_optional_lan": {"DestinationIp|cidr": ["10.0.0.0/8", "::1/128", "127.0.0.1/32"]},
    "condition": "all of selection_* and not 1 of filter_main_* and not 1 of filter_optional_*",
}
FETCH = {
    "EventID": 1,
    "Image": "C:\\Tools\\FETCHER.exe",
    "CommandLine": "fetcher /URL https://example.org/a",
    "ParentImage": "C:\\Windows\\explorer.exe",
    "User": "someone",
}


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, True),
        ({"Image": "C:\\other.exe"}, False),
        ({"Image": "C:\\other.exe", "OriginalFileName": "fetch1.exe"}, True),
        ({"CommandLine": "fetcher -url ftp"}, False),
        ({"ParentImage": None}, False),
        ({"ParentImage": "c:\\program files\\updater\\u.exe", "User": "NT AUTHORITY\\System"}, False),
        ({"ParentImage": "c:\\program files\\updater\\u.exe"}, True),
        ({"DestinationIp": "10.1.2.3"}, False),
        ({"DestinationIp": "0:0:0:0:0:0:0:1"}, False),
        ({"DestinationIp": "11.1.2.3"}, True),
    ],
)
def test_a_rule_of_the_kind_that_people_write(changes: Row, due: bool) -> None:
    event = {**FETCH, **changes}
    assert ramify.matches(DOWNLOAD, event, spelling="sigma") is due
    assert matches(DOWNLOAD, event) is due


def test_such_rules_are_few_boxes() -> None:
    assert len(parse_sigma(DOWNLOAD).boxes) <= 8


# ------------------------------------------------------------------------------------------ expressions

REGEX_PARTS = [
    "a",
    "b",
    r"\.",
    r"\\",
    "[ab]",
    "[a-c]",
    "(a|b)",
    "(?:b|)",
    "a?",
    "(ab)?",
    ".*",
    ".+",
    ".",
    "^",
    "$",
    "|",
]


@given(
    st.lists(st.sampled_from(REGEX_PARTS), min_size=1, max_size=5).map("".join),
    st.booleans(),
    st.lists(st.lists(st.sampled_from("abcd.\\\n"), max_size=6).map("".join), min_size=3, max_size=8),
)
@settings(max_examples=400)
def test_globs_of_a_regular_expression_are_what_it_finds(
    regex: str, dot_all: bool, texts: list[str]
) -> None:
    try:
        globs = regex_globs(regex, dot_all)
    except FilterError:
        assume(False)
    compiled = re.compile(regex, re.DOTALL if dot_all else 0)
    for text in texts:
        due = compiled.search(text) is not None
        assert any(StringTest(TestKind.GLOB, codes).holds(text) for codes in globs) is due, text


@pytest.mark.parametrize(
    "regex",
    [
        r"\d",
        "a+",
        "a{2}",
        "[^a]",
        "(?=a)",
        "a.b",
        "^a.*$",
        "(a",
        "a)",
        "a^b",
        "*",
        "[[:digit:]]",
        "a**",
        "[",
    ],
)
def test_other_regular_expressions_are_refused(regex: str) -> None:
    with pytest.raises(FilterError, match="cannot be decided"):
        holds({"f|re": regex}, {})


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"s": {"f": 1}}, "no condition"),
        ({"condition": "s"}, "no selection"),
        ({"s": {"f": 1}, "condition": "t"}, "no selection 't'"),
        ({"s": {"f": 1}, "condition": "s | count() > 5"}, "several events"),
        ({"s": {"f": 1}, "condition": "s near t"}, "several events"),
        ({"s": {"f": 1}, "timeframe": "5m", "condition": "s"}, "several events"),
        ({"correlation": {"type": "event_count"}}, "several events"),
        ({"s": {"f": 1}, "condition": "s and"}, "missing"),
        ({"s": {"f": 1}, "condition": "(s"}, "not closed"),
        ({"s": {"f": 1}, "condition": "s)"}, "not expected"),
        ({"s": {"f": 1}, "condition": "2 of s*"}, "cannot be asked"),
        ({"s": {"f": 1}, "condition": "1 of t*"}, "no selection is called"),
        ({"s": {"f": 1}, "condition": "1 of"}, "name is missing"),
        ({"s": {"f": 1}, "condition": []}, "empty"),
        ({"s": {"f": 1}, "condition": ""}, "is a text"),
        ({"s": ["evil", "words"], "condition": "s"}, "--text-field"),
        ({"s": {"|all": ["evil", "words"]}, "condition": "s"}, "--text-field"),
        ({"s": {}, "condition": "s"}, "empty map"),
        ({"s": [], "condition": "s"}, "a selection is"),
        ({"s": None, "condition": "s"}, "a selection is"),
        ({"s": {"f": []}, "condition": "s"}, "empty list"),
        ({"s": {"f": {"g": 1}}, "condition": "s"}, "a value is"),
        ({"s": {"f|fieldref": "g"}, "condition": "s"}, "two fields"),
        ({"s": {"f|expand": "%x%"}, "condition": "s"}, "not in the rule"),
        ({"s": {"f|neq": 5}, "condition": "s"}, "not before it"),
        ({"s": {"f|startwith": "g"}, "condition": "s"}, "unknown modifier 'startwith'"),
        ({"s": {"f|i": "g"}, "condition": "s"}, "unknown modifier 'i'"),
        ({"s": {"f|re|contains": "g"}, "condition": "s"}, "beside re"),
        ({"s": {"f|re|m": "g"}, "condition": "s"}, "lines"),
        ({"s": {"f|re|cidr": "g"}, "condition": "s"}, "together"),
        ({"s": {"f|contains": None}, "condition": "s"}, "not null"),
        ({"s": {"f|gt": "5"}, "condition": "s"}, "takes a number"),
        ({"s": {"f|exists": "yes"}, "condition": "s"}, "true or false"),
        ({"s": {"f|cidr": "10.0.0.300/8"}, "condition": "s"}, "not a CIDR block"),
        ({"s": {"f|contains|base64": "a"}, "condition": "s"}, "wildcard"),
        ({"s": {"f|base64offset": ""}, "condition": "s"}, "too short"),
        ({"s": {"f|utf16": "a"}, "condition": "s"}, "not text"),
        ({"s": {"f|windash": "-a -b -c -d"}, "condition": "s"}, "too many forms"),
        ({"s": {"f": 10**400}, "condition": "s"}, "double"),
        ({"s": {"f": "\ud800"}, "condition": "s"}, "surrogate"),
        ('{"s": {"f": 1, "f": 2}, "condition": "s"}', "stands twice"),
        ('{"s": {"f": NaN}, "condition": "s"}', "NaN"),
        ("[1]", "a JSON object"),
        ("{", "not JSON"),
        (b"\xff", "not UTF-8"),
        ("[" * 5000, "not JSON"),
        (5, "int is not a rule"),
        ({"s": {"f": "x" * FILTER_TEXT}, "condition": "s"}, "characters long"),
        ({"s": {"f": 1}, "condition": "(" * 40 + "s" + ")" * 40}, "too deeply"),
    ],
)
def test_what_cannot_be_a_filter_is_refused_with_the_reason(rule: Any, reason: str) -> None:
    with pytest.raises(FilterError) as refusal:
        parse_sigma(rule)
    assert reason in str(refusal.value)


def test_every_modifier_that_is_promised_is_taken() -> None:
    values = {"exists": True, "gt": 1, "gte": 1, "lt": 1, "lte": 1, "cidr": "10.0.0.0/8", "utf16": None}
    for modifier in MODIFIERS.split(", "):
        name = f"f|{modifier}|base64" if modifier.startswith(("utf", "wide")) else f"f|{modifier}"
        parse_sigma({"s": {name: values.get(modifier) or "abc"}, "condition": "s"})


def any_json() -> st.SearchStrategy[Any]:
    names = st.sampled_from(["s", "f|re", "f|all", "|", "condition", "detection", "f|cidr|gt"])
    leaf = st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=3))
    return st.recursive(
        leaf,
        lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(names, part, max_size=3)),
        max_leaves=8,
    )


@given(any_json())
def test_any_json_is_a_filter_or_refused(tree: Any) -> None:
    for rule in (tree, {"s": tree, "condition": "s"}, {"s": {"f": 1}, "condition": tree}):
        try:
            parse_sigma(rule)
        except FilterError:
            continue


def test_a_long_rule_is_refused_before_it_costs_much() -> None:
    """Ten filters of three fields each: 3^10 boxes."""
    filters = {f"filter_{k}": {f"{name}{k}|contains": ["x", "y"] for name in "abc"} for k in range(10)}
    with pytest.raises(FilterError, match=r"normal form|boxes"):
        parse_sigma({**filters, "condition": "not 1 of filter_*"})


def test_many_forms_of_dashes_are_charged() -> None:
    with pytest.raises(FilterError, match="normal form"):
        parse_sigma({"s": {"f|windash": [f"-a -b -c{k}" for k in range(600)]}, "condition": "s"})


# ------------------------------------------------------------------------------------------ names


def test_fields_are_renamed_and_keywords_get_one() -> None:
    detection = {
        "s": {"Image|endswith": "x", "User": ["a"]},
        "words": ["evil", 7],
        "all": {"|all": ["a", "b"]},
        "mixed": ["evil", {"User": "b"}],
        "condition": "1 of them",
    }
    assert rename_fields(detection, lambda name: f"data.{name}", "message") == {
        "s": {"data.Image|endswith": "x", "data.User": ["a"]},
        "words": {"message|contains": ["evil", 7]},
        "all": {"message|contains|all": ["a", "b"]},
        "mixed": [{"message|contains": "evil"}, {"data.User": "b"}],
        "condition": "1 of them",
    }
    with pytest.raises(FilterError, match="stands twice"):
        rename_fields({"s": {"a": 1, "b": 2}, "condition": "s"}, lambda _: "c")
