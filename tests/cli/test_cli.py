"""The command line: what a user types, sees and gets as exit code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from project import EXAMPLES
from ramify.cli import app


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_match_counts_and_reports_what_was_not_used() -> None:
    code, out, err = run(
        "match",
        "--events",
        str(EXAMPLES / "events.ndjson"),
        "--subscriptions",
        str(EXAMPLES / "subscriptions.jsonl"),
        "--json",
    )
    assert code == 1
    assert json.loads(out) == {
        "events": 4,
        "matches": 8,
        "events_without_match": 0,
        "rejected_events": 1,
        "rejected_subscriptions": 1,
        "subscriptions": {"big-orders": 1, "alerts": 1, "no-tier": 2, "bargains": 3, "late": 1},
    }
    assert "line 6 (subscription typo): unknown function UPPER at position 8" in err
    assert "line 4" in err
    assert "not used: 1 of 6 subscriptions, 1 of 5 events" in err


def test_match_takes_the_publisher_and_id_from_other_fields(tmp_path: Path) -> None:
    events = tmp_path / "log.jsonl"
    events.write_text('{"site": "berlin", "x": 1}\n{"site": "lima", "x": 2}\n')
    subscriptions = tmp_path / "subs.jsonl"
    subscriptions.write_text(
        '{"id": "s", "client": "c", "broker": "b", "sql": "publisher = \'berlin\' AND site = \'berlin\'"}\n'
    )
    words = ["match", "--events", str(events), "--subscriptions", str(subscriptions), "--id-field", "none"]
    code, out, _ = run(*words, "--publisher-field", "site", "--json")
    assert code == 0
    assert json.loads(out)["subscriptions"] == {"s": 1}


def test_match_finds_a_field_that_first_occurs_late_in_the_log(tmp_path: Path) -> None:
    late = {"order": {"items": [{"sku": "a", "price": 3}, {"sku": "b", "price": 9}]}, "rare": "yes"}
    events = tmp_path / "late.ndjson"
    with events.open("w") as file:
        for k in range(66_000):
            file.write(json.dumps({"id": f"e{k}", "n": k} | (late if k >= 65_990 else {})) + "\n")
    asked = [
        {"id": "column", "sql": "rare = 'yes'"},
        {"id": "together", "pattern": {"order": {"items": {"sku": ["a"], "price": [3]}}}},
        {"id": "apart", "pattern": {"order": {"items": {"sku": ["a"], "price": [9]}}}},
    ]
    subscriptions = tmp_path / "subs.jsonl"
    rows = (json.dumps({"client": "c", "broker": "b"} | row) for row in asked)
    subscriptions.write_text("\n".join(rows))
    code, out, err = run("match", "--events", str(events), "--subscriptions", str(subscriptions), "--json")
    assert code == 0, err
    assert json.loads(out)["subscriptions"] == {"column": 10, "together": 10, "apart": 0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [
                "match",
                "--events",
                "/nowhere.json",
                "--subscriptions",
                str(EXAMPLES / "subscriptions.jsonl"),
            ],
            "/nowhere.json",
        ),
        (
            ["match", "--events", str(EXAMPLES / "events.ndjson"), "--subscriptions", "/nowhere.jsonl"],
            "/nowhere.jsonl",
        ),
        (["filter", "price < UPPER('x')"], "unknown function UPPER at position 8"),
        (["filter", "[1]", "--spelling", "pattern"], "a pattern is a JSON object"),
        (["filter", "[", "--spelling", "keywords"], "keywords are not JSON"),
        (["filter", "x = 1", "--spelling", "xpath"], "unknown spelling"),
        (["filter", "x = 1", "--event", "{"], "the event cannot be used"),
        (["overlay", "no-such-overlay"], "no-such-overlay"),
        (["workload", "no-such-workload"], "no-such-workload"),
    ],
)
def test_a_users_mistake_is_a_message_not_a_traceback(words: list[str], said: str) -> None:
    code, _, err = run(*words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_filter_says_what_held_with_the_actual_value() -> None:
    code, out, _ = run("filter", "price < 5 AND name LIKE 'a%'", "--event", '{"price": 4, "name": "bob"}')
    assert code == 0
    assert out.splitlines() == [
        "does not match",
        "  no      all of",
        "    yes     price < 5   price is 4",
        "    no      name LIKE 'a%'   name is 'bob'",
    ]


def test_filter_without_an_event_is_checked() -> None:
    code, out, _ = run("filter", '[["a", "b"], ["c"]]', "--spelling", "keywords")
    assert code == 0
    assert "valid: 2 boxes over keywords" in out


def test_overlay_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    assert run("overlay", "ring:7", "--out", str(path))[0] == 0
    code, out, _ = run("overlay", str(path), "--json")
    assert code == 0
    assert json.loads(out)["links"] == 7


def test_workload_shows_realised_averages() -> None:
    code, out, _ = run("workload", "majumder:x=2:events=500", "--overlay", "majumder:100")
    assert code == 0
    assert "realised" in out


def test_list_names_everything_that_can_be_made() -> None:
    code, out, _ = run("list")
    assert code == 0
    assert "cloud-regions" in out
    assert "majumder" in out


def test_version() -> None:
    assert run("--version")[0] == 0


def test_text_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    subscriptions = tmp_path / "subs.jsonl"
    row = {"id": "[/red]x", "client": "c", "broker": "[bold]b", "sql": "type = '[/]'"}
    subscriptions.write_text(json.dumps(row) + "\n")
    code, out, _ = run(
        "match", "--events", str(EXAMPLES / "events.ndjson"), "--subscriptions", str(subscriptions)
    )
    assert code == 1, "one event of the example is bad"
    assert "[/red]x" in out
    assert "[bold]b" in out


def test_a_filter_on_another_type_than_most_events_hold_is_used(tmp_path: Path) -> None:
    subscriptions = tmp_path / "subs.jsonl"
    subscriptions.write_text('{"id": "s", "client": "c", "broker": "b", "sql": "type = 5"}\n')
    code, _, err = run(
        "match", "--events", str(EXAMPLES / "events.ndjson"), "--subscriptions", str(subscriptions)
    )
    assert code == 1
    assert "not used: 0 of 1 subscriptions, 1 of 5 events" in err


def test_an_overlay_with_an_underlay_shows_its_routers() -> None:
    code, out, _ = run("overlay", "kyra:1:10", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["brokers"], found["routers"]) == (500, 2500)
    assert abs(found["router_links"] - 8938) < 100
