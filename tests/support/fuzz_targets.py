"""Every parser of what others wrote, as a target of fuzzing: bytes in, and only its documented error out.

A target takes any bytes. It returns for what it could read, and raises `RefusedError` for what its parser
refuses with the error that its docstring names. Anything else that it raises is a find: another error, or
an answer that does not survive being written and read again.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from naive_patterns import matches
from project import ROOT
from ramify.content.events.events import batch_to_events, events_to_batch
from ramify.content.events.readers import read_cloudevents, read_ndjson
from ramify.content.filters.filters import Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sigma import parse_sigma
from ramify.content.filters.spellings import as_filter
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.subscriptions import read_subscriptions
from ramify.content.matching.matcher import Matcher
from ramify.content.matching.matcher_files import matcher_from_bytes, matcher_to_bytes
from ramify.errors import InputError, LimitError
from ramify.network.graphs.files import SUFFIXES, encode_overlay, read_overlay
from ramify.network.graphs.specs import overlay_from
from ramify.overlay.control import records
from ramify.overlay.control.epochs import BrokerReport
from ramify.overlay.control.frames import decode_events, encode_events
from ramify.overlay.control.intake import ARROW_TYPE, BATCH_TYPE, EVENT_TYPE, ClientMessage, take_in
from ramify.overlay.control.lanes import decode_positions, encode_positions
from ramify.overlay.control.moves import LaneEnd
from ramify.overlay.live.wire.connection import read_headers
from ramify.overlay.routing.headers import Header
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.pricing.rules import read_rules
from ramify.studies.verdicts import judge, read_cases

__all__ = ["TARGETS", "RefusedError", "Target"]


class RefusedError(Exception):
    """The parser refused its input as it says that it does."""


@dataclass(frozen=True)
class Target:
    """A parser, what it takes, and words that occur there. `errors` are those that its docstring names."""

    read: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    errors: tuple[type[Exception], ...] = (InputError, LimitError)

    def __call__(self, data: bytes) -> None:
        try:
            self.read(data)
        except self.errors as error:
            if not str(error):
                raise AssertionError("an error without a word") from error
            raise RefusedError(str(error)) from None


EVENTS: list[dict[str, Any]] = [
    {},
    {"x": 1, "s": "abc", "b": True, "xs": [1, None, "a"], "items": [{"a": 1, "b": "x"}, {"a": 2}]},
    {"x": "1", "s": None, "keywords": ["a", "b"], "d": {"e": 1.5, "f": {"g": []}}},
]
JSON_WORDS = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"true", b"-0", b"1e400", b"\\u0000")
JSON_WORDS += (b"\\ud800", b'"x"', b"9" * 25, b"\xff", b"\xef\xbb\xbf", b"[" * 3_000, b"\r\n", b"0.5", b" ")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _sound(filter_: Filter, again: Callable[[], Filter]) -> None:
    """A filter has a key, the same when it is parsed again; the matcher says what it says."""
    assert filter_.key == again().key
    events = [json.dumps({"id": str(k), **event}).encode() for k, event in enumerate(EVENTS)]
    batch = _batch(tuple(events))
    found = [bool(len(ids)) for ids in Matcher([filter_]).match(batch)]
    assert found == [filter_.holds(event.values) for event in batch_to_events(batch)]


@cache
def _batch(events: tuple[bytes, ...]) -> pa.RecordBatch:
    from ramify.content.events.flatten import decode_records

    return decode_records(list(events)).batch


def _sql(data: bytes) -> None:
    text = _text(data)
    _sound(parse_sql(text), lambda: parse_sql(text))


def _pattern(data: bytes) -> None:
    filter_ = parse_pattern(data)
    _sound(filter_, lambda: parse_pattern(data))
    pattern = json.loads(data)
    if not any(name in data for name in (b"id", b"time", b"publisher", b"\\u", b"cidr")) and _unique(data):
        for event in EVENTS:
            assert _holds(pattern, event) is matches(pattern, event), event


def _holds(pattern: Any, event: dict[str, Any]) -> bool | None:
    from ramify.studies.verdicts import Case

    return judge(Case("", "pattern", pattern, event)).matched


def _unique(data: bytes) -> bool:
    """Whether no object has a key twice: the oracle has Python's dicts."""
    repeated = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.extend(found[len(dict(found)) :])
        return dict(found)

    json.loads(data, object_pairs_hook=pairs)
    return not repeated


def _keywords(data: bytes) -> None:
    filter_ = as_filter(_text(data), "keywords")
    _sound(filter_, lambda: parse_keywords(json.loads(data)))


def _sigma(data: bytes) -> None:
    _sound(parse_sigma(data), lambda: parse_sigma(data))


def _in_file(read: Callable[[Path], None], suffix: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"x{suffix}"
            path.write_bytes(data)
            read(path)

    return run


def _cases(path: Path) -> None:
    for case in read_cases(path):
        judge(case)


def _events(reader: Callable[..., Any]) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        lines = len(path.read_bytes().splitlines()) + 1
        for decoded in reader(path):
            assert decoded.batch.num_rows + len(decoded.rejected) <= lines + path.read_bytes().count(b",")
            events = batch_to_events(decoded.batch)
            assert batch_to_events(events_to_batch(events)) == events

    return read


def _rules(path: Path) -> None:
    rules = read_rules(path)
    path.write_text(json.dumps(rules.document()))
    assert read_rules(path).document() == rules.document()


def _overlay(path: Path) -> None:
    overlay = read_overlay(path)
    again = path.with_suffix(".json")
    again.write_bytes(encode_overlay(overlay))
    assert read_overlay(again) == overlay


def _subscriptions(path: Path) -> None:
    for row in read_subscriptions(path).good:
        (again,) = read_subscriptions([row.to_json()]).good
        assert again.parse() == row.parse()


def _frame(data: bytes) -> None:
    """A neighbour's batch can be passed on. Times beyond the calendar are for `take_in` to refuse."""
    batch = decode_events(data)
    again = decode_events(encode_events(batch))
    assert again.schema == batch.schema
    assert again.num_rows == batch.num_rows


def _intake(data: bytes) -> None:
    """No message raises, and each of its events is a row or a rejection."""
    for kind in (EVENT_TYPE, BATCH_TYPE, ARROW_TYPE, None):
        batch, rejected = take_in([ClientMessage("c", data, kind, "m", 7)])
        if kind == EVENT_TYPE:
            assert (0 if batch is None else batch.num_rows) + len(rejected) == 1
        if batch is not None:
            assert set(batch.column("publisher").to_pylist()) == {"c"}
            batch_to_events(decode_events(encode_events(batch)))


def _records(data: bytes) -> None:
    refused = 0
    for kind in RECORDS:
        try:
            found = records.decode(data, kind)
        except InputError:
            refused += 1
        else:
            assert records.decode(records.encode(found), kind) == found
    try:
        BrokerReport.from_json(data)
    except InputError:
        refused += 1
    if refused == len(RECORDS) + 1:
        raise InputError("nobody takes this record")


RECORDS = [
    kind
    for kind in vars(records).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
]


def _positions(data: bytes) -> None:
    found = decode_positions(_text(data))
    assert decode_positions(encode_positions(found)) == found


def _headers(data: bytes) -> None:
    found = read_headers(data)
    assert found is None or all(isinstance(v, str) for pair in found.items() for v in pair)


def _header(data: bytes) -> None:
    header = Header.decode(data)
    assert Header.decode(header.encode()) == header


def _plan(data: bytes) -> None:
    plan = decode_plan(data)
    assert decode_plan(encode_plan(plan)) == plan


def _matcher(data: bytes) -> None:
    assert matcher_from_bytes(data).filters >= 0


def _lane_end(data: bytes) -> None:
    """A header's value, of which `read_headers` has made text."""
    LaneEnd.decode(data.decode(errors="replace"))


@cache
def _small_plan() -> bytes:
    from ramify.planning.schemes.catalog import make_plan
    from running import seeded_world

    return encode_plan(make_plan("mst", seeded_world(4, brokers=3, subscriptions=3, events=20).problem, 1))


def _event(**data: Any) -> bytes:
    envelope = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "time": "2026-01-31T09:00:00Z"}
    return json.dumps({**envelope, "data": data}).encode()


SQL = (
    b"x = 1 AND (s LIKE 'a%' OR NOT b) AND x IN (1, NULL)",
    b"exists(items, i -> i.a = 1 AND i.b ILIKE '%x') OR array_contains(xs, 1)",
    b"lower(s) = 'abc' OR `d.e` BETWEEN -1.5 AND 2e3 AND time >= TIMESTAMP '2026-01-31 12:00:00'",
)
SQL_WORDS = tuple(
    word.encode()
    for word in [
        "AND",
        "OR",
        "NOT",
        "NULL",
        "IS",
        "IN",
        "LIKE",
        "ILIKE",
        "BETWEEN",
        "exists(",
        "->",
        "(",
        ")",
        "'",
        '"',
        "`",
        ",",
        ".",
        "::",
        "[",
        "]",
        "{",
        "}",
        "?",
        "@",
        "--",
        "/*",
        ";",
        "%",
        "_",
        "\\",
        "CASE",
        "WHEN",
        "CAST(",
        "INTERVAL",
        "DATE",
        "lower(",
        "upper(",
        "array_contains(",
        "1e999",
        "9e9L",
        "5D",
        "TRUE",
        "SELECT",
        "*",
        "||",
        "é",
        "\x00",
    ]
)
PATTERNS = (
    b'{"x": [1, "1", null], "d": {"e": [{"numeric": [">", 0, "<=", 5]}]}}',
    b'{"s": [{"prefix": "a"}, {"anything-but": {"suffix": ["c", "d"]}}], "xs": [{"exists": true}]}',
    b'{"$or": [{"items": {"a": [1], "b": [{"wildcard": "*x"}]}}, {"s": [{"equals-ignore-case": "ABC"}]}]}',
)
PATTERN_WORDS = (*JSON_WORDS, b"$or", b'"exists"', b'"anything-but"', b'"wildcard"', b"**", b'"numeric"')
SIGMA = (
    b'{"a": {"s|contains": ["b", "-x"], "x": 1}, "filter": {"s": null}, "condition": "a and not filter"}',
    b'{"a": [{"s|re": "a(b|c)?"}, {"s|base64offset|contains": "xyz"}], "condition": "1 of a*"}',
)
SIGMA_WORDS = (
    *JSON_WORDS,
    b"|re",
    b"|all",
    b"|cidr",
    b"|windash",
    b"1 of them",
    b"not ",
    b"(",
    b")",
    b"[a-z]",
)
RECORD = (
    b'{"op":"subscribe","id":"s","filter":{"sql":"x = 1"},"quota_bytes":1000,"lease_s":60}',
    b'{"op":"subscribe","id":"s","filter":{"pattern":{"x":[1]}}}',
)
GRAPHML = (
    b'<?xml version="1.0"?><graphml><key id="k" for="node" attr.name="Latitude"/>'
    b'<graph edgedefault="undirected"><node id="0"><data key="k">1.5</data></node><node id="1"/>'
    b'<edge source="0" target="1"/></graph></graphml>'
)
RULES = (ROOT / "examples" / "rules.json").read_bytes()


HEADERS = (b"\0\2\xc5\4\xfd\x99\0", b"\x81\3\4\4\2\1\2\3\0", b"\2\0\xcd\1\xbd\x1f", b"\5\2\xad\4\0\xd6-")
HEADERS += (b"\x84\4\2\3\0\0\2\4\4", b"\3\4\3\3\4\1\0\0\1")


def _seeded() -> dict[str, Target]:
    frame = encode_events(
        _batch(tuple(json.dumps({"id": str(k), **e}).encode() for k, e in enumerate(EVENTS)))
    )
    overlay = encode_overlay(overlay_from("ring:4"))
    lines = b"\n".join(json.dumps({"id": str(k), **event}).encode() for k, event in enumerate(EVENTS))
    clouds = _event(x=1) + b"\n" + _event(x="1", items=[{"a": [1, None]}, [2]])
    row = b'{"id": "s", "client": "c", "broker": "b", "keywords": [["a", "b"], ["c"]], "latency_ms": 5}'
    found = {
        "sql": Target(_sql, SQL, SQL_WORDS),
        "pattern": Target(_pattern, PATTERNS, PATTERN_WORDS),
        "keywords": Target(_keywords, (b'["a", "b"]', b'[["a", "b"], ["c"]]'), JSON_WORDS),
        "sigma": Target(_sigma, SIGMA, SIGMA_WORDS),
        "cases": Target(_in_file(_cases, ".jsonl"), (b'{"sql": "x = 1", "event": {"x": 1}}',), JSON_WORDS),
        "subscriptions": Target(_in_file(_subscriptions, ".jsonl"), (row,), JSON_WORDS),
        "ndjson": Target(_in_file(_events(read_ndjson), ".ndjson"), (lines,), JSON_WORDS),
        "cloudevents": Target(_in_file(_events(read_cloudevents), ".json"), (clouds,), JSON_WORDS),
        "intake": Target(
            _intake, (_event(x=1), b"[" + _event(x=[1, {"y": None}]) + b"]", frame), JSON_WORDS
        ),
        "frame": Target(_frame, (frame,)),
        "headers": Target(
            _headers, (b"NATS/1.0 404 Gone\r\nA: b\r\nA:c\r\n\r\n",), (b"\r\n", b":", b"\xff")
        ),
        "header": Target(_header, HEADERS, (b"\x80", b"\xff" * 9)),
        "positions": Target(_positions, (b"a:1,b:22",), (b":", b",", b"9" * 19, "٣".encode())),
        "records": Target(_records, RECORD, JSON_WORDS),
        "lane_end": Target(_lane_end, (LaneEnd("m", "b", 5).encode().encode(),), JSON_WORDS),
        "plan": Target(_plan, (_small_plan(),), JSON_WORDS),
        "matcher": Target(_matcher, (matcher_to_bytes(Matcher([parse_sql("x = 1 AND s LIKE '%a%'")])),)),
        "rules": Target(_in_file(_rules, ".json"), (RULES,), JSON_WORDS),
        "overlay_json": Target(_in_file(_overlay, ".json"), (overlay,), JSON_WORDS),
        "overlay_graphml": Target(
            _in_file(_overlay, ".graphml"), (GRAPHML,), (b"<", b">", b"&", b"<!DOCTYPE")
        ),
        "overlay_edges": Target(
            _in_file(_overlay, ".csv"), (b"a,b,1.5\nb,c,2,0.1,0.2\n",), (b",", b"nan", b"#")
        ),
    }
    assert ".csv" in SUFFIXES
    return found


TARGETS = _seeded()
