"""`import ramify` as its users have it: logs, studies, plans, bad input, the same numbers as commands."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import ramify
from project import EXAMPLES
from ramify.cli import app

pytestmark = pytest.mark.usefixtures("spark")  # use cases join the session that runs already

SHOP = "demo:events=600,subscriptions=40"
WANTED = [
    {"id": "s1", "client": "c1", "broker": "v2", "sql": "x = 1"},
    {"id": "s2", "client": "c2", "broker": "v3", "sql": "x >= 1"},
]


def events(count: int = 60) -> list[dict[str, Any]]:
    return [
        {"id": f"e{i}", "publisher": f"v{i % 5}", "time": f"2026-03-01T00:{i:02d}:00Z", "x": i % 3}
        for i in range(count)
    ]


def ring(given: Any, **more: Any) -> ramify.Log:
    return ramify.read_log(given, subscriptions=WANTED, overlay="ring:5", **more)


@pytest.fixture(scope="module")
def example(spark: object) -> ramify.Log:
    return ramify.read_log(
        EXAMPLES / "events.ndjson",
        subscriptions=EXAMPLES / "subscriptions.jsonl",
        attachments=EXAMPLES / "attachments.json",
    )


@pytest.fixture(scope="module")
def shop(spark: object) -> ramify.LogStudy:
    return ramify.study(ramify.read_log(workload=SHOP))


@pytest.fixture(scope="module")
def found(shop: ramify.LogStudy) -> ramify.Findings:
    return shop.compare(["mst", "explicit"])


# ------------------------------------------------------------------------------------------- the package


def test_the_package_loads_nothing_heavy_and_each_name_when_it_is_used() -> None:
    code = """
import sys, ramify, ramify.studies
heavy = {"pyspark", "numba", "asyncio", "pandas", "scipy", "numpy", "pyarrow"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
assert "read_log" in dir(ramify) and "Plan" in dir(ramify)
ramify.InputError
assert not heavy & sys.modules.keys()
ramify.read_log, ramify.study, ramify.price, ramify.explain
assert "pyspark" not in sys.modules and "nats" not in sys.modules
try:
    ramify.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_package_exists_and_is_typed() -> None:
    stub = (Path(ramify.__file__).parent / "__init__.pyi").read_text()
    for name in ramify.__all__:
        assert getattr(ramify, name) is not None
        assert f"{name}: str" in stub or f" import {name} as {name}\n" in stub


# ------------------------------------------------------------------------------------------- use cases


def test_a_log_is_studied_compared_and_its_best_plan_kept(found: ramify.Findings, tmp_path: Path) -> None:
    assert found.best is not None
    assert found.best.name == "explicit"
    assert found.best.plan is not None
    found.best.plan.save(tmp_path / "plan.json")
    again = ramify.Plan.load(tmp_path / "plan.json")
    assert again == found.best.plan
    assert not ramify.diff(again, tmp_path / "plan.json")
    assert ramify.diff(found["mst"].plan, again)
    with pytest.raises(KeyError, match="mult"):
        found["mult"]


def test_the_table_of_findings_has_money_gap_latency_and_broken_rules(found: ramify.Findings) -> None:
    lines = repr(found).splitlines()
    assert lines[0].startswith("Saves $")
    assert lines[1].split() == ["scheme", "$", "a", "month", "saves", "gap", "p99", "ms", "trees", "breaks"]
    assert [line.split()[0] for line in lines[2:5]] == ["explicit", "mst", "mirror-all"]
    assert str(found) == repr(found)
    assert len(lines) < 8
    page = found._repr_html_()
    assert page.count("<tr") == 4
    assert '<tr style="font-weight: bold"><td>explicit' in page


def test_a_frame_holds_what_its_docstring_says(found: ramify.Findings) -> None:
    frame = found.to_frame()
    told = ramify.Findings.to_frame.__doc__ or ""
    assert [name for name in frame.columns if name not in told] == []
    assert frame.loc[frame["chosen"], "scheme"].tolist() == ["explicit"]
    assert frame.loc[frame["today"], "saving"].tolist() == [0.0]
    assert found.best is not None
    assert frame.loc[0, "money_per_month"] == found.best.money_per_month
    assert found.best.saving == pytest.approx(found.saving)


def test_simulating_and_pricing_a_plan_count_the_same(
    found: ramify.Findings, shop: ramify.LogStudy
) -> None:
    assert found.best is not None
    plan = found.best.plan
    assert plan is not None
    ran, priced = ramify.simulate(plan, shop.log), ramify.price(plan, shop.log)
    assert ran.messages == priced.messages > 0
    assert ran.events == priced.events == 600
    assert ran.money == pytest.approx(priced.price.money)
    assert ran.to_frame().equals(priced.to_frame())
    assert ran.to_frame()["messages"].sum() == ran.messages


def test_an_event_is_explained_as_a_dict_a_text_or_with_its_publisher(spark: object) -> None:
    log = ring(events(), attachments={"shop": "v0"})
    plan = ramify.study(log).compare(["mst"], today="mst").today.plan
    assert plan is not None
    one = ramify.explain(plan, {"x": 1}, at="v0")
    assert {row.id for row in one.matches} == {"s1", "s2"}
    ways = (one, ramify.explain(plan, '{"x": 1, "publisher": "shop"}'))
    (first, second) = ([(row["from"], row["to"]) for row in way.links()] for way in ways)
    assert first == second != []
    assert one.to_frame()["cost"].sum() == pytest.approx(one.cost)
    assert "2 subscriptions match" in repr(one)
    with pytest.raises(ramify.InputError, match="has no publisher"):
        ramify.explain(plan, {"x": 1})
    with pytest.raises(ramify.OverlayError, match="nobody"):
        ramify.explain(plan, {"x": 1}, at="nobody")
    with pytest.raises(ramify.InputError, match="cannot be used"):
        ramify.explain(plan, "{", at="v0")


def test_events_may_be_files_dicts_or_tables(tmp_path: Path) -> None:
    rows = events()
    (tmp_path / "log.ndjson").write_text("\n".join(map(json.dumps, rows)))
    table = pa.Table.from_pylist(rows)
    forms = [str(tmp_path / "*.ndjson"), [tmp_path / "log.ndjson"], rows, table, pd.DataFrame(rows)]
    messages = set()
    for form in forms:
        study = ramify.study(ring(form), hours=1)
        assert not study.rejected
        plan = study.compare(["mst"], today="mst").today.plan
        messages.add(ramify.simulate(plan, study.log).messages)
    assert len(messages) == 1


def test_schemes_that_need_cells_are_counted_by_cells_when_they_are_compared() -> None:
    log = ramify.read_log(workload=SHOP)
    study = ramify.study(log)
    assert study.problem.grid is None
    late = study.compare(["kyra"])
    assert study.problem.grid is not None
    early = ramify.study(log, schemes=["kyra"]).compare(["kyra"])
    assert late["kyra"].price.figures() == early["kyra"].price.figures()  # type: ignore[union-attr]


def test_what_is_run_today_may_be_a_plan(shop: ramify.LogStudy, found: ramify.Findings) -> None:
    plan = found["mst"].plan
    assert plan is not None
    again = shop.compare(["explicit"], today=plan)
    assert again.today.money_per_month == found["mst"].money_per_month


def test_rules_may_be_given_as_a_mapping_and_what_breaks_them_is_shown() -> None:
    rules = {"residency": [{"name": "stay", "events": "x = 1", "not_in": {"brokers": ["v1", "v4"]}}]}
    log = ring([row for row in events() if row["publisher"] == "v0"])
    found = ramify.study(log, rules=rules, hours=1).compare(["mst", "explicit"])
    assert found.best is None
    assert "residency: stay" in repr(found)
    assert repr(found).startswith("No plan keeps every rule.")
    with pytest.raises(ramify.InputError, match="atlantis"):
        ramify.study(log, rules={"capacity_bytes_per_s": {"atlantis": 1}})


# ------------------------------------------------------------------------------ what could not be used


def test_what_was_not_used_is_in_the_log_and_in_every_repr(example: ramify.Log) -> None:
    study = ramify.study(example, hours=24)
    found = study.compare(["explicit"])
    rejected = example.rejected
    assert rejected
    assert (rejected.reasons, len(rejected.subscriptions), len(rejected)) == ({"no_id": 1}, 1, 2)
    assert [row.place for row in rejected.first] == [
        "line 6 (subscription typo)",
        f"{EXAMPLES / 'events.ndjson'}, line 4",
    ]
    for shown in (example, study, found, rejected):
        assert "not used: 1 of 5 events in 1 file, 1 of 6 subscriptions" in repr(shown)
        assert "not used: 1 of 5 events in 1 file, 1 of 6 subscriptions" in shown._repr_html_()
    ramify.price(found.today.plan, example, hours=24)
    assert example.rejected is rejected  # the subscriptions are still told of


def test_a_log_tells_what_was_not_used_before_it_is_studied() -> None:
    log = ring([*events(5), {"publisher": "v0"}, {"id": "lost", "publisher": "nobody", "x": 1}])
    assert "not read yet" in repr(log)
    assert log.rejected.reasons == {"no_id": 1, "unknown_publisher": 1}
    assert log.rejected.unknown == {"nobody": 1}
    assert [row.place for row in log.rejected.first] == ["number 6 of the events given"]
    assert "2 of 7 events" in repr(log)


def test_attachments_to_unknown_brokers_are_told() -> None:
    log = ring(events(), attachments={"shop": "atlantis"})
    assert "'atlantis'" in log.rejected.first[0].detail
    assert "1 attachment" in repr(log)


def test_a_study_keeps_what_it_could_not_use_when_the_log_is_read_again() -> None:
    log = ring([*events(), *({"id": f"n{i}", "publisher": "nobody", "x": 1} for i in range(40))])
    part = ramify.study(log, keep=0.5)
    few, shown = part.rejected, repr(part)
    whole = ramify.study(log)
    assert few.unknown["nobody"] < whole.rejected.unknown["nobody"] == 40
    assert part.rejected is few
    assert repr(part) == shown
    assert part.compare(["mst"]).rejected is few


# ------------------------------------------------------------------------------------------- bad input


def test_bad_input_is_refused_with_a_domain_error(tmp_path: Path) -> None:
    log = ring(events())
    study = ramify.study(log, hours=1)
    refused: list[tuple[Any, str]] = [
        (lambda: ring(str(tmp_path / "missing.ndjson")), "no such file"),
        (lambda: ring(str(tmp_path / "*.parquet")), "such a name"),
        (lambda: ramify.read_log(events(), subscriptions="missing.jsonl"), "missing.jsonl"),
        (lambda: ramify.read_log(), "no events"),
        (lambda: ramify.read_log(events(), workload="demo"), "not both"),
        (lambda: ring(events(), attachments="missing.json"), "missing.json"),
        (lambda: ring(events(), time_unit="weeks"), "weeks"),
        (lambda: ring(events(), schema={"x": "colour"}), "colour"),
        (lambda: ramify.read_log(events(), overlay="blob:7"), "unknown overlay"),
        (lambda: study.compare(["best"]), "unknown scheme"),
        (lambda: study.compare([]), "no scheme"),
        (lambda: study.compare(["mst"], today="missing.json"), "missing.json"),
        (lambda: ramify.study(log, hours=-1), "hours"),
        (lambda: ramify.study(log, keep=0), "keep"),
        (lambda: ramify.study(log, half_life="soon"), "half-life"),
        (lambda: ramify.study(log, place="anywhere"), "anywhere"),
        (lambda: ramify.study(log, schemes="best"), "unknown scheme"),
        (lambda: ramify.study("log.ndjson"), "read_log"),  # type: ignore[arg-type]
        (lambda: ramify.study(ring([]), hours=1), "no event to plan for"),
        (lambda: ramify.study(ring([{"id": "1", "publisher": "x"}])), "no broker is known"),
        (lambda: ramify.study(ramify.read_log(events(), overlay="ring:5")), "no subscriptions"),
        (lambda: ring([{"id": object()}]).rejected, "cannot be written as JSON"),
        (
            lambda: ramify.study(log, spark="sparkle://x"),
            "URL of a Spark; allowed are auto, none, local",
        ),
        (lambda: ramify.price(tmp_path / "missing.json", log), "missing.json"),
    ]
    for call, said in refused:
        with pytest.raises(ramify.InputError) as caught:
            call()
        assert said in str(caught.value)


# ------------------------------------------------------------------------- the commands say the same


def command(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code in (0, 1), result.stderr
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def without_times(told: dict[str, Any]) -> dict[str, Any]:
    for row in told["schemes"].values():
        del row["seconds"]
    return json.loads(json.dumps(told))  # type: ignore[no-any-return]


def test_the_command_line_and_the_api_give_the_same_numbers(
    found: ramify.Findings, shop: ramify.LogStudy, tmp_path: Path
) -> None:
    plan = str(tmp_path / "plan.json")
    told = command("plan", "--workload", SHOP, "--schemes", "mst explicit", "--out", plan)
    mine = {**found.figures(), **found.rejected.figures()}
    assert without_times(told) == without_times(mine)
    priced = ramify.price(plan, ramify.read_log(workload=SHOP))
    assert command("price", plan, "--workload", SHOP) == json.loads(json.dumps(priced.figures()))
    event = '{"type": "order.created", "price": 40}'
    way = ramify.explain(plan, event, at="aws-us-east-1")
    assert command("explain", plan, "--event", event, "--at", "aws-us-east-1") == way.figures()


def test_an_example_log_has_the_same_numbers_by_both_ways(example: ramify.Log) -> None:
    rules = EXAMPLES / "rules.json"
    files = {"events": "events.ndjson", "subscriptions": "subscriptions.jsonl"}
    files |= {"attachments": "attachments.json", "rules": "rules.json"}
    words = [word for key, name in files.items() for word in (f"--{key}", str(EXAMPLES / name))]
    told = command("plan", *words, "--hours", "24", "--schemes", "mst mult")
    found = ramify.study(example, rules=rules, hours=24).compare("mst mult")
    assert without_times(told) == without_times({**found.figures(), **found.rejected.figures()})


def test_a_name_whose_extra_is_not_installed_says_which() -> None:
    """As on a host with `pip install ramify` alone: scipy is not to be found."""
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "import ramify\n"
        "try:\n    ramify.schemes\n"
        "except ramify.MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'ramify[plan]'" in done.stdout, done.stderr
