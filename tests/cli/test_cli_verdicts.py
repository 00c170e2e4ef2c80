"""`test-filter` as a user types it, and `ramify.matches`."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ramify
from ramify.cli import app
from ramify.studies.verdicts import judge, read_cases


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


CASES = [
    {"name": "cheap", "sql": "price < 10", "event": {"price": 5}, "expect": True},
    {"name": "dear", "sql": "price < 10", "event": {"price": 50}, "expect": False},
    {"name": "eu", "pattern": {"region": [{"prefix": "eu-"}]}, "event": {"region": "eu-1"}, "expect": True},
    {"name": "words", "keywords": ["a", "b"], "event": {"keywords": ["b"]}},
    {"name": "typo", "sql": "price <", "event": {}, "expect": "refused"},
]


def test_cases_of_all_spellings_get_their_verdicts(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(map(json.dumps, CASES)))
    code, out, err = run("test-filter", "--cases", str(file), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0, err
    assert [row["matched"] for row in rows] == [True, False, True, True, None]
    array = tmp_path / "cases.json"
    array.write_text(json.dumps(CASES))
    assert run("test-filter", "--cases", str(array), "--json")[1] == out


def test_a_verdict_that_is_not_expected_fails_and_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(CASES[1] | {"expect": True}))
    code, out, err = run("test-filter", "--cases", str(file), "--explain")
    assert code == 1
    assert "dear: does not match   (expected: matches)" in out
    assert "price is 50" in out
    assert "0 passed, 1 failed" in err


def test_one_filter_on_many_events(tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    file.write_text('{"x": 1}\n\n{"x": 9}\nno json\n')
    code, out, err = run("test-filter", "x > 5", "--events", str(file))
    assert code == 1
    assert out.splitlines()[:2] == ["line 1: does not match", "line 3: matches"]
    assert "line 4: refused: the event cannot be used" in out
    assert "1 of 3 events accepted, 1 not readable" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --cases FILE"),
        (["x > 5"], "give --cases FILE"),
        (["x >", "--event", "{}"], "FilterError"),
        (["x > 5", "--event", "{}", "--spelling", "latin"], "unknown spelling 'latin'"),
        (["--cases", "nowhere.jsonl"], "cannot be read"),
        (["x > 5", "--events", "nowhere.jsonl"], "cannot be read"),
    ],
)
def test_what_cannot_be_asked_is_said(words: list[str], said: str) -> None:
    code, _, err = run("test-filter", *words)
    assert code == 2
    assert said in err


def test_a_case_that_is_none_names_its_number(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"sql": "x = 1", "event": {}}\n{"sql": "x = 1", "evnt": {}}\n')
    code, _, err = run("test-filter", "--cases", str(file))
    assert code == 2
    assert "case 2: unknown field 'evnt'" in err


def test_matches_takes_every_spelling() -> None:
    assert ramify.matches("x = 1", {"x": 1})
    assert ramify.matches({"x": [1]}, '{"x": 1}')
    assert not ramify.matches(["a"], {"keywords": ["b"]})
    assert ramify.matches(ramify.parse_sql("x = 1"), {"x": 1})
    with pytest.raises(ramify.FilterError):
        ramify.matches("x =", {"x": 1})
    with pytest.raises(ramify.InputError):
        ramify.matches("x = 1", "[]")


def test_id_time_and_publisher_are_fields_like_others() -> None:
    assert ramify.matches({"id": ["a"]}, {"id": "a"})
    assert ramify.matches("id = 'a'", {"id": "a"})
    assert ramify.matches({"id": [{"exists": False}]}, {})
    assert not ramify.matches({"id": [{"exists": True}]}, {"id": {"x": 1}})
    assert ramify.matches({"time": [{"numeric": [">", 5]}]}, {"time": 1_700_000_000_000})
    assert ramify.matches({"time": [{"prefix": "2026 "}]}, {"time": "2026 is no time"})
    assert ramify.matches("time > TIMESTAMP '2026-01-01 00:00:00'", {"time": "2026-01-01T01:00:00+00:00"})
    assert ramify.matches({"publisher": [True]}, {"publisher": True})


@pytest.mark.parametrize(
    "event", [[1], None, 5, {"x": object()}, {"x": b"a"}, "[1]", "{", '{"x": 1} 2', '{"x": 1}, "y": 2']
)
def test_what_is_no_event_is_an_error_of_the_caller(event: Any) -> None:
    with pytest.raises(ramify.InputError, match="event"):
        ramify.matches("x = 1", event)


def test_a_bad_event_of_a_case_spoils_no_other_and_numbers_may_be_huge(tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(
        '{"name": "list", "pattern": {"x": [1]}, "event": [1]}\n'
        '{"name": "huge", "sql": "x > 5", "event": {"x": 1e400}, "expect": true}\n'
        '{"name": "self", "pattern": {"x": [18446744073709551617]}, "event": {"x": 18446744073709551617}, '
        '"expect": true}\n'
    )
    verdicts = {verdict.case.name: verdict for verdict in map(judge, read_cases(cases))}
    assert verdicts["list"].error is not None
    assert verdicts["huge"].passed
    assert verdicts["self"].passed


def test_a_spelling_that_is_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    cases = [
        {"sql": {"a": [1]}, "event": {"a": 1}},
        {"sql": None, "event": {"a": 1}},
        {"pattern": ["a"], "event": {"keywords": "a"}},
        {"keywords": {"a": [1]}, "event": {"a": 1}},
    ]
    file.write_text("\n".join(map(json.dumps, cases)))
    assert [judge(case).matched for case in read_cases(file)] == [None] * 4
    assert "dict is not SQL" in run("test-filter", "--cases", str(file))[1]


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    cases, events = tmp_path / "cases.jsonl", tmp_path / "events.ndjson"
    cases.write_bytes(b'\xef\xbb\xbf{"sql": "x = 1", "event": {"x": 1}, "expect": true}\r\n\r\n')
    events.write_bytes(b'\xef\xbb\xbf{"x": 1}\r\n{"x": 2}\r\n')
    assert run("test-filter", "--cases", str(cases))[0] == 0
    assert run("test-filter", "x = 1", "--events", str(events))[1].splitlines() == [
        "line 1: matches",
        "line 2: does not match",
    ]


@pytest.mark.parametrize(
    "line", ['{"x":' * 100_000, '{"x": 1}, "y": {"x": 1}', "[" * 100_000, '{"x": NaN}', "\0", '{"x": "\0"}']
)
def test_an_event_that_cannot_be_read_is_named_and_the_others_are_judged(tmp_path: Path, line: str) -> None:
    file = tmp_path / "events.ndjson"
    file.write_text(f'{{"x": 1}}\n{line}\n{{"x": 1}}\n')
    code, out, _ = run("test-filter", "x = 1", "--events", str(file), "--json")
    assert code == 1
    assert [json.loads(row)["matched"] for row in out.splitlines()] == [True, None, True]
