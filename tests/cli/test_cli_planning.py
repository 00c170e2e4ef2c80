"""`ramify plan`, `ramify explain` and the demo: what a user types, sees and gets as exit code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from project import EXAMPLES
from ramify.cli import app
from ramify.planning.plans.files import read_plan

LOG = (
    "--events",
    str(EXAMPLES / "events.ndjson"),
    "--subscriptions",
    str(EXAMPLES / "subscriptions.jsonl"),
)
pytestmark = pytest.mark.usefixtures("spark")  # the commands join the session that runs already
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


def test_json_has_the_measures_of_every_scheme_and_the_references_beside_them() -> None:
    found = planned(*DEMO[:2], "--schemes", "unicast broadcast fbr kyra mbr")
    told = {name: row["measures"] for name, row in found["schemes"].items()}
    assert set(told) == {"unicast", "broadcast", "fbr", "kyra", "mbr", "mirror-all"}
    for name, row in told.items():
        figures = found["schemes"][name]["test"]
        assert row["nru"] == figures["resource_usage"]
        assert row["link_stress_mean"] == figures["link_stress_mean"]
        assert row["storage_max"] >= row["storage_mean"] > 0
        assert isinstance(found["schemes"][name]["settings"], dict)
        assert (row["processing"] is None) == (name not in ("fbr", "kyra"))
    assert found["schemes"]["kyra"]["settings"]["largest_clique"] >= 1
    assert told["kyra"]["storage_share"] <= 1
    ideal = found["references"]["ideal_multicast"]["test"]
    assert ideal["resource_usage"] == 1.0
    # copies along the same routes, none merged: no link below carries less
    assert told["unicast"]["link_stress_mean"] >= ideal["link_stress_mean"] > 0
    assert ideal["cost"] >= found["bound"]["value"] * (1 - 1e-9)
    assert found["references"]["opt"]["test"]["cost"] >= found["bound"]["value"] * (1 - 1e-9)


def test_the_table_has_ideal_multicast_and_measures_where_they_are_asked_for() -> None:
    words = (*DEMO[:2], "--schemes", "fbr kyra")
    _, plain, _ = run("plan", *words)
    assert "multicast (ideal)" in plain
    assert "NRU" not in plain
    code, out, _ = run("plan", *words, "--measures")
    assert code == 0
    table = out[out.index(" NRU") :].splitlines()
    (ideal,) = [line for line in table if line.startswith("ideal multicast")]
    assert ideal.split()[-1] == "1.000"
    assert max(map(len, table)) <= 80
    assert "…" not in out
    assert {line.split()[0] for line in table if line[:4] in ("fbr ", "kyra", "mirr")} == {
        "fbr",
        "kyra",
        "mirror-all",
    }


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
        '"not_in": {"brokers": ["azure-southafricanorth"]}}]}'
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
    assert "not used: 1 of 5 events in 1 file, 1 of 6 subscriptions; the rest was used" in err


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
        ((*DEMO, "--schemes", "single:tree=swap"), "single-swap"),
        ((*DEMO, "--today", "hub=nowhere"), "nowhere"),
        ((*DEMO, "--today", "missing.json"), "missing.json"),
        ((*DEMO, "--rules", "missing.json"), "missing.json"),
        ((*DEMO, "--sample", "0"), "sample"),
        ((*DEMO, "--hours", "-1"), "hours"),
        ((*DEMO, "--hours", "inf"), "hours"),
        ((*DEMO, "--schemes", ""), "no scheme"),
        ((*LOG, "--attachments", "missing.json"), "missing.json"),
        (("--overlay", "ring:4", *LOG), "no event to plan for"),
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
    code, out, _ = run("demo", "--events", "600", "--no-live", "--out", str(tmp_path / "plan.json"))
    assert code == 0
    assert "41 cloud regions" in out
    assert "Saves $" in out
    assert "The route of one event" in out
    assert "headers included" in out


@pytest.mark.long
def test_the_demo_runs_over_41_regions(tmp_path: Path) -> None:
    out = run(
        "demo", "--events", "1500", "--out", str(tmp_path / "plan.json"), "--dir", str(tmp_path / "d")
    )[1]
    assert "headers included" in out
    assert "0 lost, 0 doubled" in " ".join(out.split())


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


SQUARE = """{"schema": "ramify.overlay/1", "name": "square", "brokers": [{"name": "a"}, {"name": "b"},
 {"name": "c"}, {"name": "d"}], "links": [%s]}"""


def square(folder: Path, price: float = 1.0, *, order: int = 1, events: int = 400) -> list[str]:
    """Options for four brokers in a square with three subscriptions; `order` -1 lists them backwards."""
    links = [
        json.dumps({"a": x, "b": y, "price_per_gb": price * k, "latency_ms": 1.0})
        for k, (x, y) in enumerate(["ab", "bc", "cd", "da"], start=1)
    ]
    (folder / "overlay.json").write_text(SQUARE % ", ".join(links))
    rows = [{"id": f"s{k}", "client": f"c{k}", "broker": "bcd"[k], "sql": f"x = {k}"} for k in range(3)]
    (folder / "subs.jsonl").write_text("\n".join(json.dumps(row) for row in rows[::order]))
    log = [
        {"id": f"e{i}", "publisher": "abcd"[i % 4], "time": f"2026-03-01T{i % 24:02d}:00:00Z", "x": i % 4}
        for i in range(events)
    ]
    (folder / "log.ndjson").write_text("\n".join(json.dumps(row) for row in log))
    names = {"--overlay": "overlay.json", "--events": "log.ndjson", "--subscriptions": "subs.jsonl"}
    return [word for option, name in names.items() for word in (option, str(folder / name))]


def test_a_plan_file_is_priced_at_todays_prices_and_in_todays_numbers(tmp_path: Path) -> None:
    where = str(tmp_path / "plan.json")
    first = planned(*square(tmp_path), "--schemes", "explicit", "--today", "explicit", "--out", where)
    assert first["chosen"] == "explicit"
    for price, order in ((10.0, 1), (1.0, -1)):
        options = square(tmp_path, price, order=order)
        again = planned(*options, "--schemes", "explicit", "--today", where)
        today = again["schemes"][again["today"]]["test"]
        assert today["gap"] == pytest.approx(again["schemes"]["explicit"]["test"]["gap"])
        assert today["gap"] >= 1 - 1e-9
        assert today["messages"] == again["schemes"]["explicit"]["test"]["messages"]


def test_the_headline_never_calls_a_loss_a_saving(tmp_path: Path) -> None:
    options = square(tmp_path)
    for today, scheme in (("explicit", "unicast"), ("hub=a", "hub=c"), ("hub=c", "hub=a")):
        for seed in range(4):
            found = planned(*options, "--today", today, "--schemes", scheme, "--seed", str(seed))
            assert found["headline"].startswith("Saves") == (
                found["saving"] >= 0 and found["chosen"] != found["today"]
            )


def test_a_rule_that_a_single_event_breaks_is_seen_wherever_the_split_puts_it(tmp_path: Path) -> None:
    options = square(tmp_path)
    log = (tmp_path / "log.ndjson").read_text().splitlines()
    rules = tmp_path / "rules.json"
    rules.write_text('{"residency": [{"name": "rare", "events": "x = 99", "not_in": {"brokers": ["a"]}}]}')
    rare = '{"id": "rare", "publisher": "a", "time": "2026-03-01T00:00:00Z", "x": 99}'
    for row in range(6):
        (tmp_path / "log.ndjson").write_text("\n".join([*log[:row], rare, *log[row:]]))
        code, _, err = run("plan", *options, *QUICK, "--rules", str(rules))
        assert code == 2
        assert "residency: rare" in err


def test_json_is_json_where_nothing_is_delivered(tmp_path: Path) -> None:
    options = square(tmp_path)
    (tmp_path / "subs.jsonl").write_text('{"id": "s", "client": "c", "broker": "b", "sql": "x = 1000"}')
    code, out, _ = run("plan", *options, *QUICK, "--json")
    assert code == 0
    json.loads(out, parse_constant=pytest.fail)


def test_a_short_spelling_and_a_budget_go_together(tmp_path: Path) -> None:
    found = planned(*square(tmp_path), "--schemes", "portfolio=2", "--seconds", "3")
    assert "portfolio=2" in found["schemes"]


def test_a_plan_file_that_is_not_sound_is_refused_when_it_is_read(tmp_path: Path) -> None:
    where = tmp_path / "plan.json"
    assert run("plan", *square(tmp_path), "--schemes", "mst", "--today", "mst", "--out", str(where))[0] == 0
    sound = json.loads(where.read_text())
    for change in (
        lambda plan: plan["channels"][0].pop("tree"),
        lambda plan: plan["channels"][0].update(publishers=[1, 99]),
        lambda plan: plan["channels"][0].update(serves=[0, 0, 1, 2]),
        lambda plan: plan["attachments"].update(c0="zzz"),
    ):
        plan = json.loads(json.dumps(sound))
        change(plan)
        where.write_text(json.dumps(plan))
        code, _, err = run("explain", str(where), "--event", '{"x": 1}', "--at", "a")
        assert code == 2
        assert "PlanError" in err


def test_explain_passes_over_fields_that_no_filter_asks_for(tmp_path: Path) -> None:
    where = str(tmp_path / "plan.json")
    assert run("plan", *square(tmp_path), "--schemes", "mst", "--out", where)[0] == 0
    code, out, _ = run("explain", where, "--event", '{"x": 1, "extra": {"y": 2}}', "--at", "a", "--json")
    assert code == 0
    assert [match["subscription"] for match in json.loads(out)["matches"]] == ["s1"]


def test_a_price_by_the_month_needs_a_time_span(tmp_path: Path) -> None:
    options = square(tmp_path)
    log = [json.loads(line) for line in (tmp_path / "log.ndjson").read_text().splitlines()]
    for row in log:
        row["time"] = "2026-03-01T00:00:00Z"
    (tmp_path / "log.ndjson").write_text("\n".join(map(json.dumps, log)))
    code, _, err = run("plan", *options, *QUICK, "--per-filter", "1")
    assert code == 2
    assert "--hours" in err
    code, out, _ = run("plan", *options, *QUICK)
    assert code == 0
    assert "--hours" in out.splitlines()[0]
    assert "per 1,000 events" in out
