"""`--spark none` counts what Spark counts: the same demands, totals, rejects and quarantine."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.specs import overlay_from
from ramify.pipeline.passes import files as files_module
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.passes import PassResult, reckon, reckoned
from ramify.pipeline.session.engine import InProcess
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OVERLAY = overlay_from("ring:4")
SUBSCRIPTIONS = [
    Subscription("cheap", "one", OVERLAY.brokers[1], sql="price < 40"),
    Subscription("red", "two", OVERLAY.brokers[2], pattern='{"colour": ["red"]}'),
    Subscription("within", "four", OVERLAY.brokers[0], sql="data.price < 30"),
    Subscription("both", "three", OVERLAY.brokers[3], sql="price >= 10 AND colour = 'blue'"),
]


def lines(count: int, seed: int = 1) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        json.dumps(
            {
                "id": f"{seed}-{i}",
                "publisher": f"shop-{rng.integers(4)}",  # one of them has no broker
                "time": f"2024-01-01T{i % 24:02d}:00:00Z",
                "price": float(rng.integers(60)),
                "colour": ["red", "blue", "green"][rng.integers(3)],
            }
        )
        for i in range(count)
    ]


def bad_rows(folder: Path) -> list[str]:
    good = lines(500)
    for at, text in (
        (3, "no json"),
        (40, '{"price": 1}'),
        (41, ""),
        (77, "[1]"),
        (499, '{"id": "x", "id": "y"}'),
    ):
        good[at] = text
    (folder / "bad.ndjson").write_text("\n".join(good))
    return [str(folder / "bad.ndjson")]


def cloudevents(folder: Path) -> list[str]:
    made = [
        {"specversion": "1.0", "type": "sale", "source": "shop-1", "data": row}
        | {name: row[name] for name in ("id", "time")}
        for row in map(json.loads, lines(200))
    ]
    made[7].pop("type")
    (folder / "events.json").write_text(json.dumps(made))
    return [str(folder / "events.json")]


def parquet(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in lines(300)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "log.parquet", row_group_size=70)
    return [str(folder / "log.parquet")]


def several(folder: Path) -> list[str]:
    below = folder / "deep" / "er"
    below.mkdir(parents=True)
    (folder / "deep" / "a.ndjson").write_text("\n".join(lines(150, 2)) + "\nbroken\n")
    with gzip.open(below / "b.ndjson.gz", "wt") as file:
        file.write("\n".join([*lines(150, 3), "broken too"]))
    (below / "cut.ndjson.gz").write_bytes((below / "b.ndjson.gz").read_bytes()[:-200])
    (folder / "deep" / "what.xyz").write_text("?")
    (folder / "deep" / "c.parquet").write_bytes(b"PAR1 no more")
    return [str(folder / "deep")]


def changing(folder: Path) -> list[str]:
    """Files whose schema changes from one to the next, and some that were cut off."""
    for number, change in enumerate(
        (
            {},
            {"price": "dear"},
            {"price": [1, 2]},
            {"price": None},
            {"price": ...},
            {"colour": 7},
            {"publisher": ...},
            {"publisher": 1.5},
            {"time": ...},
            {"time": 1.5},
            {"id": ...},
            {"id": 2.5},
        )
    ):
        rows = [json.loads(line) | change for line in lines(40, number + 10)]
        kept = [{name: value for name, value in row.items() if value is not ...} for row in rows]
        pq.write_table(pa.Table.from_pylist(kept), folder / f"{number:02}.parquet", row_group_size=15)
    (folder / "cut.parquet").write_bytes((folder / "00.parquet").read_bytes()[:-100])
    (folder / "cut.ndjson").write_text("\n".join(lines(50, 50))[:-5])
    (folder / "empty.ndjson.gz").write_bytes(b"")
    return [str(folder)]


LOGS: dict[str, Callable[[Path], list[str]]] = {
    "bad rows": bad_rows,
    "cloudevents": cloudevents,
    "parquet": parquet,
    "several files": several,
    "a schema that changes": changing,
}


@dataclass(frozen=True)
class Found:
    """All that a pass says, comparable."""

    totals: Any
    rejects: Sequence[dict[str, Any]]
    unknown: Any
    unreached: Any
    spans: Any
    windows: Any


def found_of(result: PassResult) -> Found:
    windows = result.windows()
    demands = [
        sorted(
            zip(
                d.publisher.tolist(),
                [tuple(d.classes[a:b].tolist()) for a, b in zip(d.start[:-1], d.start[1:], strict=True)],
                d.count.tolist(),
                d.size.tolist(),
                d.weight.tolist(),
                strict=True,
            )
        )
        for d in (windows.whole, *windows.parts)
    ]
    rejects = [*result.first_rejects(10_000), *result.first_rejects(7)]  # all, and a choice of them
    spans = {k: (s.events, s.first_us, s.last_us) for k, s in result.spans.items()}
    return Found(result.totals, rejects, result.unknown, result.unreached, spans, demands)


def counting(classes: Classes, half_life_s: float | None) -> TallySettings:
    attached = {f"shop-{i}": OVERLAY.brokers[i] for i in range(3)}
    return TallySettings.of(
        classes, OVERLAY, attached, split=Split((0.5, 0.25, 0.25), 0.9, 3), half_life_s=half_life_s
    )


@pytest.mark.parametrize("half_life_s", [None, 3600.0])
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_this_process_counts_what_spark_counts(
    log: Callable[[Path], list[str]],
    half_life_s: float | None,
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = log(tmp_path)
    here = Files.of(InProcess(), paths, piece_bytes=4096)
    classes = Classes.collapse(SUBSCRIPTIONS, OVERLAY, here.schema.attributes)
    how = counting(classes, half_life_s)
    with reckoned(InProcess(), here, classes.filters, how) as result:
        mine = found_of(result)
    tiny = Files.of(spark, paths, piece_bytes=4096)
    with reckoned(spark, tiny, classes.filters, how) as result:  # one job, its rows kept here
        assert found_of(result) == mine
        kept = {row["position"]: row for row in result.quarantine.toArrow().to_pylist()}
    monkeypatch.setattr(files_module, "_TINY_BYTES", 0)
    large = Files.of(spark, paths, piece_bytes=4096)
    assert (large.schema, large.conflicts) == (here.schema, here.conflicts)
    with reckoned(spark, large, classes.filters, how) as result:  # rows kept by Spark
        assert found_of(result) == mine
    assert mine.totals.rows_in > 0
    assert len(kept) <= len(mine.rejects)
    demand, totals = reckon(InProcess(), here, classes.filters, how)
    assert totals == mine.totals
    assert demand.whole.events == mine.totals.counted


def test_the_comparison_sees_rejects_of_every_kind(tmp_path: Path) -> None:
    source = Files.of(InProcess(), bad_rows(tmp_path) + several(tmp_path), piece_bytes=4096)
    classes = Classes.collapse(SUBSCRIPTIONS, OVERLAY, source.schema.attributes)
    with reckoned(InProcess(), source, classes.filters, counting(classes, None)) as result:
        reasons = {row["reason"] for row in result.first_rejects(1000)}
        lines_of = {row["line"] for row in result.first_rejects(1000) if row["file"].endswith("bad.ndjson")}
    assert reasons >= {
        "not_json",
        "no_id",
        "not_an_object",
        "damaged_file",
        "unknown_kind",
    }
    assert lines_of == {4, 41, 78}


def test_a_schema_that_changes_costs_what_cannot_be_used_and_all_of_that_is_told(tmp_path: Path) -> None:
    source = Files.of(InProcess(), changing(tmp_path), piece_bytes=4096)
    assert {(c.attribute, str(c.used), str(c.other), Path(c.file).name) for c in source.conflicts} == {
        ("price", "double", "string", "01.parquet"),
        ("price", "double", "array<double>", "02.parquet"),
        ("colour", "string", "int64", "05.parquet"),
    }
    classes = Classes.collapse(SUBSCRIPTIONS, OVERLAY, source.schema.attributes)
    with reckoned(InProcess(), source, classes.filters, counting(classes, None)) as result:
        told = {(Path(row["file"]).name, row["reason"]): row for row in result.first_rejects(1000)}
        times = [row for row in result.first_rejects(1000) if row["reason"] == "bad_time"]
        few = {(Path(row["file"]).name, row["reason"]) for row in result.first_rejects(10)}
    assert told.keys() == {
        ("07.parquet", "unusable_columns"),
        ("09.parquet", "bad_time"),
        ("10.parquet", "missing_column"),
        ("11.parquet", "missing_column"),
        ("cut.parquet", "damaged_file"),
        ("cut.ndjson", "not_json"),
        ("empty.ndjson.gz", "damaged_file"),
    }
    assert few == told.keys()  # forty bad times hide nothing
    assert len(times) == 40
    assert result.totals.good == 8 * 40 + 49  # 12 files of 40 without four of them, and the lines


def test_what_only_spark_can_do_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Files.of(InProcess(), [str(tmp_path / "nothing.ndjson")])
    with pytest.raises(InputError, match="no file in it"):
        Files.of(InProcess(), [str(tmp_path)])
    with pytest.raises(InputError, match="only Spark"):
        Files.of(InProcess(), ["s3://bucket/log"])
    (tmp_path / "log.ndjson").write_text("\n".join(lines(5)))
    source = Files.of(InProcess(), [str(tmp_path)])
    classes = Classes.collapse(SUBSCRIPTIONS, OVERLAY, source.schema.attributes)
    with (
        reckoned(InProcess(), source, classes.filters, counting(classes, None)) as result,
        pytest.raises(InputError, match="leave out --spark none"),
    ):
        result.patterns  # noqa: B018
