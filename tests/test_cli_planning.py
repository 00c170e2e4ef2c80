"""`ramify plan`, `ramify explain` and the demo: what a user types, sees and gets as exit code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ramify.cli import app
from ramify.planning.plan_files import read_plan

EXAMPLES = Path(__file__).parent.parent / "examples"
LOG = (
    "--events",
    str(EXAMPLES / "events.ndjson"),
    "--subscriptions",
    str(EXAMPLES / "subscriptions.jsonl"),
)
QUICK = ("--schemes", "mst mult explicit")
DEMO = ("--workload", "demo:events=600,subscriptions=40", *QUICK)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def planned(*words: str) -> dict[str, Any]:
    code, out, _ = run("plan", "--json", *words)
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_first_line_is_the_saving_a_month_against_today() -> None:
    code, out, _ = run("plan", *DEMO)
    assert code == 0
    first = out.splitlines()[0]
    assert re.fullmatch(
        r"Saves \$[\d,]+\.\d\d a month \(\d+\.\d %\) against mirror-all: (mst|mult|explicit)\.", first
    )
    assert "reported on" in out


def test_the_saving_follows_the_sampling_factor_and_the_time_span() -> None:
    whole = planned(*DEMO, "--hours", "10")
    sampled = planned(*DEMO, "--hours", "10", "--sample", "0.5")
    longer = planned(*DEMO, "--hours", "40")
    assert sampled["saving_per_month"] == pytest.approx(2 * whole["saving_per_month"])
    assert longer["saving_per_month"] == pytest.approx(whole["saving_per_month"] / 4)
    assert sampled["saving"] == pytest.approx(whole["saving"])


def test_json_has_every_figure_of_every_scheme() -> None:
    found = planned(*DEMO)
    assert set(found["schemes"]) == {"mst", "mult", "explicit", "mirror-all"}
    for row in found["schemes"].values():
        assert row["test"]["undelivered"] == 0
        assert row["test"]["gap"] >= 1 - 1e-9
        for name in (
            "messages",
            "wire_bytes",
            "money",
            "node_stress_max",
            "resource_usage",
            "ms_p99",
            "state",
        ):
            assert any(key.startswith(name) for key in row["test"]) or name == "state"
    assert found["chosen"] in found["schemes"]
    assert found["bound"]["exact"]


def test_the_chosen_plan_is_written_and_one_event_is_explained_on_it(tmp_path: Path) -> None:
    where = tmp_path / "plan.json"
    code, out, _ = run("plan", *DEMO, "--out", str(where))
    assert code == 0
    assert str(where) in out.replace("\n", "")
    assert read_plan(where).scheme in ("mst", "mult", "explicit", "mirror-all")
    event = '{"type": "order.created", "price": 40, "keywords": ["sale"], "priority": 1}'
    code, out, _ = run("explain", str(where), "--event", event, "--at", "aws-us-east-1")
    assert code == 0
    assert "published at aws-us-east-1" in out
    code, out, _ = run("explain", str(where), "--event", event, "--at", "aws-us-east-1", "--json")
    told = json.loads(out)
    assert set(told) == {"event", "publisher_broker", "matches", "channels", "links", "cost"}
    assert told["cost"] == pytest.approx(sum(link["cost"] for link in told["links"]))
    reached = {"aws-us-east-1", *(link["to"] for link in told["links"])}
    assert {match["broker"] for match in told["matches"]} <= reached
    assert all(match["ms"] is not None and match["why"] for match in told["matches"])


def test_todays_plan_may_be_a_file(tmp_path: Path) -> None:
    where = tmp_path / "today.json"
    assert run("plan", *DEMO, "--schemes", "mst", "--out", str(where))[0] == 0
    found = planned(*DEMO, "--today", str(where))
    assert found["today"] == "today (mst, today.json)"
    assert found["saving"] >= 0


def test_todays_plan_for_another_world_is_refused(tmp_path: Path) -> None:
    where = tmp_path / "today.json"
    assert run("plan", *DEMO, "--schemes", "mst", "--out", str(where))[0] == 0
    code, _, err = run("plan", "--workload", "demo:events=100,subscriptions=5", "--today", str(where))
    assert code == 2
    assert "PlanError" in err
    assert "Traceback" not in err


def test_a_plan_that_breaks_a_rule_is_discarded_with_its_name(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(
        '{"residency": [{"name": "stay-out", "events": "region = \'azure-westeurope\'", '
        '"not_in": {"brokers": ["aws-af-south-1"]}}]}'
    )
    workload = "demo:events=400,subscriptions=12"
    found = planned("--workload", workload, "--schemes", "broadcast explicit", "--rules", str(rules))
    assert any("residency: stay-out" in reason for reason in found["schemes"]["broadcast"]["broken"])
    assert found["chosen"] != "broadcast"


def test_when_no_plan_keeps_the_rules_that_is_said_and_none_is_written(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"capacity_bytes_per_s": {"aws-us-east-1": 0.000001}}')
    where = tmp_path / "plan.json"
    code, out, err = run("plan", *DEMO, "--rules", str(rules), "--out", str(where))
    assert code == 2
    assert "No plan keeps every rule" in out
    assert "capacity: aws-us-east-1" in err
    assert not where.exists()


def test_bad_rows_of_the_log_are_listed_and_the_exit_code_tells() -> None:
    code, out, err = run("plan", *LOG, "--attachments", str(EXAMPLES / "attachments.json"), *QUICK)
    assert code == 1
    assert out.startswith("Saves")
    assert "not used: 1 of 6 subscriptions, 1 of 5 events" in err


def test_events_of_unknown_publishers_are_counted() -> None:
    code, _, err = run("plan", *LOG, *QUICK, "--publisher-field", "type")
    assert code == 2
    assert "no broker is known for the publishers" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --events and --subscriptions"),
        (("--workload", "demo", *LOG), "not both"),
        (("--workload", "nothing"), "unknown workload"),
        ((*DEMO, "--schemes", "best"), "unknown scheme"),
        ((*DEMO, "--schemes", "portfolio:trees=many"), "trees"),
        ((*DEMO, "--today", "hub=nowhere"), "nowhere"),
        ((*DEMO, "--today", "missing.json"), "missing.json"),
        ((*DEMO, "--rules", "missing.json"), "missing.json"),
        ((*DEMO, "--sample", "0"), "sample"),
        ((*DEMO, "--hours", "-1"), "hours"),
        ((*LOG, "--attachments", "missing.json"), "missing.json"),
        (("--overlay", "ring:4", *LOG), "is at broker"),
    ],
)
def test_a_users_mistake_gets_one_message_and_never_a_traceback(words: tuple[str, ...], said: str) -> None:
    code, _, err = run("plan", *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_explain_says_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "ramify-plan/99"}')
    code, _, err = run("explain", str(bad), "--event", "{}")
    assert code == 2
    assert "ramify-plan/99" in err
    where = tmp_path / "plan.json"
    assert run("plan", *DEMO, "--schemes", "mst", "--out", str(where))[0] == 0
    code, _, err = run("explain", str(where), "--event", '{"type": "x"}')
    assert code == 2
    assert "--at" in err
    code, _, err = run("explain", str(where), "--event", "{", "--at", "aws-us-east-1")
    assert code == 2


def test_the_demo_plans_and_shows_the_way_of_an_event(tmp_path: Path) -> None:
    code, out, _ = run("demo", "--events", "1500", "--out", str(tmp_path / "plan.json"))
    assert code == 0
    assert "41 cloud regions" in out
    assert "Saves $" in out
    assert "The way of one event" in out
    assert "headers included" in out


def test_two_plans_are_compared(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    assert run("plan", *DEMO, "--schemes", "mst", "--out", str(one))[0] == 0
    assert run("plan", *DEMO, "--schemes", "explicit", "--out", str(other))[0] == 0
    code, out, _ = run("diff", str(one), str(other))
    assert code == 0
    assert "channel" in out
    code, out, _ = run("diff", str(one), str(other), "--json")
    assert json.loads(out)
    assert "no difference" in run("diff", str(one), str(one))[1]
