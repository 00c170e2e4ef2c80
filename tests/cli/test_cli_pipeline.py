"""`ramify price`, `generate` and `tables`, and logs of all kinds in `ramify plan`: what a user gets."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ramify.cli import app
from ramify.content.events.readers import read_events
from ramify.pipeline.passes.table_files import TABLES, read_table, read_windows

pytestmark = pytest.mark.usefixtures("spark")  # the commands join the session that runs already
SMALL = "demo:events=700,subscriptions=40"
QUICK = ("--schemes", "mst explicit")


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    return result.exit_code, result.stdout, result.stderr


def told(*words: str, code: int = 0) -> dict[str, Any]:
    got, out, err = run(*words, "--json")
    assert got == code, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def log(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload as a log of several Parquet files, with everything beside it."""
    where = tmp_path_factory.mktemp("log") / "demo"
    made = told("generate", SMALL, "--out", str(where), "--files", "3")
    assert (made["events"], made["files"]) == (700, 3)
    return where


def on(log: Path) -> tuple[str, ...]:
    return (
        "--overlay", str(log / "overlay.json"), "--events", str(log / "events"),
        "--subscriptions", str(log / "subscriptions.jsonl"), "--attachments", str(log / "attachments.json"),
    )  # fmt: skip


def test_a_generated_log_is_planned_like_the_workload_it_was_made_from(log: Path) -> None:
    from_files = told("plan", *on(log), *QUICK)
    from_workload = told("plan", "--workload", SMALL, *QUICK)
    for found in (from_files, from_workload):
        for scheme in found["schemes"].values():
            del scheme["seconds"]
    assert from_files["schemes"] == from_workload["schemes"]
    assert from_files["saving_per_month"] == from_workload["saving_per_month"]
    assert (from_files["rows_in"], from_files["rows_good"], from_files["files"]) == (700, 700, 3)


def test_a_plan_is_priced_on_a_whole_log(log: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    code, _, _ = run("plan", *on(log), *QUICK, "--out", str(plan))
    assert code == 0
    whole = told("price", str(plan), "--events", str(log / "events"))
    drawn = told("price", str(plan), "--workload", SMALL)
    assert whole["events"] == 700
    assert whole["undelivered"] == 0
    assert {name: whole[name] for name in ("messages", "wire_bytes", "cost", "gap", "ms_p99")} == {
        name: drawn[name] for name in ("messages", "wire_bytes", "cost", "gap", "ms_p99")
    }
    half = told("price", str(plan), "--events", str(log / "events"), "--keep", "0.5")
    assert 250 < half["events"] < 450
    assert half["money_per_month"] == pytest.approx(whole["money_per_month"], rel=0.3)
    code, out, _ = run("price", str(plan), "--events", str(log / "events"))
    assert code == 0
    assert out.startswith("explicit on 700 events: $")
    assert "times what no plan can beat" in out.splitlines()[0]


def test_a_rule_that_a_plan_breaks_on_the_log_is_named(log: Path, tmp_path: Path) -> None:
    plan, rules = tmp_path / "plan.json", tmp_path / "rules.json"
    assert run("plan", *on(log), *QUICK, "--out", str(plan))[0] == 0
    rules.write_text(json.dumps({"capacity_bytes_per_s": {"aws-us-east-1": 1e-9}}))
    code, _, err = run("price", str(plan), "--events", str(log / "events"), "--rules", str(rules))
    assert code == 2
    assert "breaks rules on this log" in err
    assert "capacity: aws-us-east-1" in err


def test_all_tables_are_written_and_come_back(log: Path, tmp_path: Path) -> None:
    axes = ("--axis", "price", "--axis", "type")
    rows = told("tables", *on(log), *axes, "--half-life", "60", "--out", str(tmp_path / "t"))["rows"]
    assert set(rows) == set(TABLES)
    for name, count in rows.items():
        table = read_table(tmp_path / "t", name)
        assert table.num_rows == count, name
        assert table.schema.equals(TABLES[name].schema), name
    assert all(rows[name] for name in set(TABLES) - {"quarantine", "unknown", "overlap"})
    windows = read_windows(tmp_path / "t")
    assert windows.whole.events == 700
    assert sum(window.events for window in windows.parts) == 700
    profile = {row["path"]: row for row in read_table(tmp_path / "t", "profile").to_pylist()}
    assert profile["id"]["distinct"] == 700
    assert set(read_table(tmp_path / "t", "content_space")["grid"].to_pylist()) == {
        "price", "type", "price x type",
    }  # fmt: skip


@pytest.mark.parametrize("form", ["ndjson", "cloudevents"])
def test_other_forms_can_be_read_back_and_planned(form: str, tmp_path: Path) -> None:
    where = tmp_path / form
    assert told("generate", SMALL, "--out", str(where), "--form", form)["events"] == 700
    found = told("plan", *on(where), *QUICK)
    assert found["rows_good"] == 700
    (file,) = sorted((where / "events").glob("part-*"))
    assert sum(part.batch.num_rows for part in read_events(file)) == 700


def test_what_is_there_is_not_overwritten_unless_told(log: Path) -> None:
    code, _, err = run("generate", SMALL, "--out", str(log))
    assert code == 2
    assert "there are files here already" in err


# ------------------------------------------------------------------------------------------ bad input


@pytest.fixture
def messy(log: Path, tmp_path: Path) -> Path:
    """The log with one of everything that can be wrong."""
    folder = tmp_path / "events"
    folder.mkdir()
    for file in (log / "events").glob("*.parquet"):
        (folder / file.name).write_bytes(file.read_bytes())
    first = sorted(folder.glob("*.parquet"))[0]
    (folder / "cut.parquet").write_bytes(first.read_bytes()[:-200])
    pq.write_table(pa.table({"name": ["x"]}), folder / "noid.parquet")
    other = pa.table({"id": ["m1", "m2"], "publisher": ["aws-us-east-1"] * 2, "price": ["cheap", None]})
    pq.write_table(other, folder / "mixed.parquet")
    (folder / "bad.ndjson").write_bytes(b'{"id": "b1"}\n{"id": "\xff"}\n{"id":\n')
    (folder / "notes.txt").write_text("not a log")
    return folder


def test_everything_bad_is_reported_by_name_and_place_and_the_rest_proceeds(
    messy: Path, log: Path, tmp_path: Path
) -> None:
    options = [*on(log), *QUICK, "--tables", str(tmp_path / "tables")]
    options[options.index("--events") + 1] = str(messy)
    code, out, err = run("plan", *options)
    assert code == 1
    assert out.startswith("Saves")
    for said in ("cut.parquet", "noid.parquet", "bad.ndjson, line 2", "notes.txt"):
        assert said in err, err
    bad = read_table(tmp_path / "tables", "quarantine").to_pylist()
    found = {(Path(row["file"]).name, row["line"], row["reason"]) for row in bad}
    assert found == {
        ("cut.parquet", None, "damaged_file"),
        ("noid.parquet", None, "missing_column"),
        ("bad.ndjson", 2, "bad_utf8"),
        ("bad.ndjson", 3, "not_json"),
        ("notes.txt", None, "unknown_kind"),
    }
    counts = told("plan", *options[: options.index("--tables")], code=1)
    assert counts["rows_in"] == counts["rows_good"] + counts["rows_quarantined"]
    assert counts["rows_good"] == 703


def test_one_bad_filter_and_one_unknown_broker_among_thousands_are_named(log: Path, tmp_path: Path) -> None:
    rows = [
        json.dumps(
            {"id": f"s{i}", "client": f"c{i}", "broker": "aws-us-east-1", "sql": f"price > {i % 90}"}
        )
        for i in range(3000)
    ]
    rows[1234] = json.dumps({"id": "odd", "client": "x", "broker": "aws-us-east-1", "sql": "price >"})
    rows[2345] = json.dumps({"id": "lost", "client": "x", "broker": "atlantis", "sql": "price > 1"})
    many = tmp_path / "many.jsonl"
    many.write_text("\n".join(rows))
    attachments = json.loads((log / "attachments.json").read_text()) | {"ghost-shop": "nowhere"}
    (tmp_path / "attachments.json").write_text(json.dumps(attachments))
    options = [*on(log), *QUICK]
    options[options.index("--subscriptions") + 1] = str(many)
    options[options.index("--attachments") + 1] = str(tmp_path / "attachments.json")
    code, out, err = run("plan", *options)
    assert code == 1
    assert out
    assert "line 1235 (subscription odd)" in err
    assert "line 2346 (subscription lost): the overlay has no broker 'atlantis'" in err
    assert "client 'ghost-shop' is attached to 'nowhere'" in err
    assert "2 of 3,000 subscriptions, 1 attachment" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--events": "nowhere/*.parquet"}, "nowhere"),
        ({"--events": "s3a://bucket/log"}, "s3a"),
        ({"--subscriptions": "missing.jsonl"}, "no such file"),
        ({"--schema": "missing.json"}, "missing.json"),
        ({"--spark": "sparkle://x"}, "is not the URL of a Spark"),
        ({"--keep": "0"}, "keep"),
    ],
)
def test_mistakes_get_one_message(log: Path, change: dict[str, str], said: str) -> None:
    given = dict(zip(on(log)[::2], on(log)[1::2], strict=True)) | change
    code, _, err = run("plan", *QUICK, *[word for pair in given.items() for word in pair])
    assert code == 2
    assert said in err


def test_an_empty_directory_is_told(log: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    options = [*on(log), *QUICK]
    options[options.index("--events") + 1] = str(tmp_path / "empty")
    code, _, err = run("plan", *options)
    assert code == 2
    assert "empty" in err


def test_a_schema_can_be_given(log: Path, tmp_path: Path) -> None:
    types = tmp_path / "types.json"
    types.write_text(json.dumps({"price": "double", "type": "string"}))
    subscriptions = tmp_path / "s.jsonl"
    subscriptions.write_text(
        json.dumps({"id": "a", "client": "c", "broker": "aws-us-east-1", "sql": "price > 5"})
        + "\n"
        + json.dumps({"id": "b", "client": "c", "broker": "aws-us-east-1", "sql": "sku = 'x'"})
    )
    options = [*on(log), *QUICK, "--schema", str(types)]
    options[options.index("--subscriptions") + 1] = str(subscriptions)
    code, _, err = run("plan", *options)
    assert code in (0, 1)
    assert "not used" not in err
    assert "no event has it" not in err, "a field without a column is reached all the same"


def test_events_without_a_broker_are_named_and_the_exit_code_tells(log: Path, tmp_path: Path) -> None:
    rows = [{"id": f"e{i}", "publisher": "atlantis" if i % 2 else "aws-us-east-1"} for i in range(100)]
    half = tmp_path / "half.ndjson"
    half.write_text("\n".join(json.dumps({**row, "type": "order.created"}) for row in rows))
    options = [*on(log), *QUICK]
    options[options.index("--events") + 1] = str(half)
    code, _, err = run("plan", *options, "--out", str(tmp_path / "plan.json"))
    assert code == 1
    assert "these publishers have no known broker: atlantis (50)" in err
    assert "not used: 50 of 100 events in 1 file" in err
    found = told("plan", *options, code=1)
    assert found["publishers_without_broker"] == {"atlantis": 50}
    code, out, err = run("tables", *options[:8], "--out", str(tmp_path / "t"))
    assert code == 1
    assert "demand" in out
    assert "atlantis (50)" in err
    nobody = tmp_path / "nobody.ndjson"
    nobody.write_text(json.dumps({"id": "1", "publisher": "atlantis"}))
    code, _, err = run("price", str(tmp_path / "plan.json"), "--events", str(nobody))
    assert code == 2
    assert "no event to price the plan on" in err


def test_a_field_that_comes_late_in_the_log_is_filtered_by(log: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.ndjson"
    rows = [{"id": f"e{i}", "publisher": "aws-us-east-1", "n": i} for i in range(270_000)]
    late.write_text(
        "\n".join(json.dumps(row | ({"rare": 1} if row["n"] >= 269_000 else {})) for row in rows)
    )
    subscriptions = tmp_path / "s.jsonl"
    wanted = [("a", "rare = 1"), ("b", "nowhere = 2")]
    subscriptions.write_text(
        "\n".join(
            json.dumps({"id": id_, "client": "c", "broker": "aws-eu-west-1", "sql": sql})
            for id_, sql in wanted
        )
    )
    options = [*on(log), "--schemes", "explicit"]
    options[options.index("--events") + 1] = str(late)
    options[options.index("--subscriptions") + 1] = str(subscriptions)
    code, _, err = run("plan", *options, "--out", str(tmp_path / "plan.json"))
    assert code == 0, err
    assert "subscription b asks for the field 'nowhere', but no event has it" in err
    assert told("price", str(tmp_path / "plan.json"), "--events", str(late))["deliveries"] == 1000


def test_mistakes_of_tables_are_seen_before_anything_is_written(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    for words, said in (
        (("--half-life", "-1"), "half-life"),
        (("--axis", "nosuch"), "no attribute 'nosuch'"),
        (("--axis", "price", "--axis", "price"), "twice"),
    ):
        code, _, err = run("tables", *on(log), *words, "--out", str(out))
        assert code == 2
        assert said in err
        assert not out.exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    code, _, err = run("tables", *on(log), "--out", str(tmp_path / "full"))
    assert code == 2
    assert "--overwrite" in err
    code, _, err = run("plan", *on(log), *QUICK, "--out", str(tmp_path / "nodir" / "p.json"))
    assert code == 2
    assert "nodir" in err


def test_the_sample_holds_for_every_table(log: Path, tmp_path: Path) -> None:
    told("tables", *on(log), "--keep", "0.3", "--axis", "price", "--out", str(tmp_path / "t"))
    counted = read_windows(tmp_path / "t").whole.events
    assert 120 < counted < 300
    assert set(read_table(tmp_path / "t", "profile")["events"].to_pylist()) == {counted}
    for name in ("content_space", "generating"):
        assert sum(read_table(tmp_path / "t", name)["events"].to_pylist()) == counted
