"""Decay on Spark equals decay in one process; tables and landed files give it too."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from test_passes import same_windows
from typer.testing import CliRunner

from ramify.cli import app
from ramify.cli.coordinator_process import SampleDemand
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.pipeline.jobs import write_demand
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.generated import GeneratedEvents
from ramify.pipeline.passes.passes import reckon, reckoned
from ramify.pipeline.passes.sources import FrameSource, Source
from ramify.pipeline.passes.table_files import read_table, read_windows
from ramify.pipeline.tables.stored_overlap import read_overlap
from ramify.planning.choosing.study import SHARES, Comparison, Study, compare
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.overlap import Profiles, Statistics
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally, TallySettings, tally
from ramify.planning.demand.windows import Windows
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload

HALF_LIFE_S = 0.5
SPEC = "demo:events=1500,subscriptions=60"
SPLIT = Split((0.5, 0.25, 0.25), keep=0.8, seed=7)


@pytest.fixture(scope="module")
def overlay() -> Overlay:
    return overlay_from("cloud-regions")


@pytest.fixture(scope="module")
def workload(overlay: Overlay) -> Workload:
    return workload_from(SPEC, overlay, 3)


@pytest.fixture(scope="module")
def classes(workload: Workload, overlay: Overlay) -> Classes:
    return Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)


@pytest.fixture(scope="module")
def log(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("events")
    table = pa.Table.from_batches(list(workload.batches()))
    for k in range(3):
        pq.write_table(table.slice(k * 500, 500), where / f"{k}.parquet")
    return where


def recent_of(demand: Demand) -> np.ndarray:
    assert demand.recent is not None
    return demand.recent


def same_decay(one: Windows, other: Windows) -> None:
    same_windows(one, other)
    for a, b in zip((*one.parts, one.whole), (*other.parts, other.whole), strict=True):
        np.testing.assert_array_equal(recent_of(a), recent_of(b))  # to the last bit


def here(workload: Workload, classes: Classes, overlay: Overlay, **more: object) -> Windows:
    counted = Tally(classes, overlay, workload.attachments, **more)  # type: ignore[arg-type]
    for batch in workload.batches():
        counted.add(batch)
    return counted.windows()


@pytest.mark.parametrize(("kind", "partitions"), [("rows", 1), ("files", 3), ("generated", 7)])
def test_a_pass_decays_as_one_process_does(
    kind: str,
    partitions: int,
    spark: SparkSession,
    workload: Workload,
    classes: Classes,
    overlay: Overlay,
    log: Path,
) -> None:
    source: Source = GeneratedEvents.of(workload)
    if kind == "rows":
        source = FrameSource.of(spark.createDataFrame(pa.Table.from_batches(list(workload.batches()))))
    elif kind == "files":
        source = Files.of(spark, [str(log)], workload.schema)
    counting = TallySettings.of(
        classes, overlay, workload.attachments, split=SPLIT, by_client=True, half_life_s=HALF_LIFE_S
    )
    found, _ = reckon(spark, source, classes.filters, counting, partitions=partitions)
    expected = here(workload, classes, overlay, split=SPLIT, by_client=True, half_life_s=HALF_LIFE_S)
    same_decay(found, expected)
    whole = recent_of(found.whole)
    assert 0 < whole[0].sum() < 0.9 * found.whole.events, "the log spans more than a half-life"


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    under = tmp_path_factory.mktemp("tables")
    how = ("--pane", "0.1", "--half-life", "500ms", "--jaccard", "0.9", "--seed", "3")
    code, _, err = run("tables", "--workload", SPEC, *how, "--out", str(under))
    assert code == 0, err
    return under


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_tables_decay_like_demands_and_old_ones_still_load(
    spark: SparkSession, workload: Workload, classes: Classes, overlay: Overlay, tables: Path
) -> None:
    """By class, decayed demand equals the selectivity table; the stored demand decays when it is read."""
    source, split = GeneratedEvents.of(workload), Split(SHARES, seed=3)
    stored = read_windows(tables, half_life_s=HALF_LIFE_S)
    counting = TallySettings.of(
        classes, overlay, workload.attachments, split=split, half_life_s=HALF_LIFE_S, pane_us=100_000
    )
    direct, _ = reckon(spark, source, classes.filters, counting)
    same_decay(stored, direct)
    table = read_table(tables, "selectivity")
    who = np.asarray(table["class"])
    whole = stored.whole
    pattern = np.repeat(np.arange(len(whole)), np.diff(whole.start))
    for k, name in enumerate(("recent_events", "recent_bytes")):
        weight = recent_of(whole)[k][pattern]
        sums = np.bincount(whole.classes, weights=weight, minlength=len(classes))
        np.testing.assert_allclose(sums[who], np.asarray(table[name]), rtol=1e-9)
    plain = read_windows(tables)
    assert plain.whole.recent is None
    same_windows(plain, stored)


def test_the_overlap_of_tables_is_that_of_the_demand_of_the_same_events(
    workload: Workload, classes: Classes, overlay: Overlay, tables: Path
) -> None:
    profiles, plain = Profiles.of(classes), read_windows(tables)
    whole = read_windows(tables, half_life_s=HALF_LIFE_S).whole
    found = read_overlap(tables, classes)
    seen = Statistics.of_demand(plain.whole, profiles, plain.whole.weight)
    np.testing.assert_array_equal(found.overlap.rate, seen.rate)
    assert found.exact
    dense, wanted = found.overlap.dense(), seen.overlap().dense()
    np.testing.assert_array_equal(dense == 1, wanted == 1)  # containment, however unlike the two are
    np.testing.assert_allclose(dense[dense > 0], wanted[dense > 0])
    assert (dense < wanted).any(), "pairs that are merely alike are left out"
    decayed = read_overlap(tables, classes, half_life_s=HALF_LIFE_S).overlap
    late = Statistics.of_demand(whole, profiles, recent_of(whole).sum(axis=0))
    np.testing.assert_allclose(decayed.rate, late.rate, rtol=1e-9)
    with pytest.raises(InputError, match=r"0\.5 s"):
        read_overlap(tables, classes, half_life_s=60.0)
    fewer = Classes.collapse(workload.subscriptions[1:], overlay, workload.schema.attributes)
    with pytest.raises(InputError, match="other subscriptions"):
        read_overlap(tables, fewer)


def test_a_plan_by_half_life_and_tables(
    classes: Classes,
    overlay: Overlay,
    workload: Workload,
    tables: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command plans with what its parts say, and prices do not decay."""
    studies: list[Study] = []

    def noted(study: Study, *given: Any, **more: Any) -> Comparison:
        studies.append(study)
        return compare(study, *given, **more)

    monkeypatch.setattr("ramify.studies.study.compare", noted)
    asked = ("plan", "--workload", SPEC, "--seed", "3", "--schemes", "semcast", "--json")
    shown: list[dict[str, Any]] = []
    for more in ((), ("--half-life", "0.5s", "--overlap", str(tables))):
        code, out, err = run(*asked, *more)
        assert code == 0, err
        shown.append(json.loads(out))
    assert [found.get("half_life_s") for found in shown] == [None, 0.5]
    today = [found["schemes"]["mirror-all"] for found in shown]
    assert today[0]["test"] == today[1]["test"], "prices are of all events"
    plain, late = (study.problem for study in studies)
    assert plain.demand.recent is None
    assert plain.overlap is None
    counted = here(workload, classes, overlay, split=Split(SHARES, seed=3), half_life_s=HALF_LIFE_S)
    np.testing.assert_array_equal(recent_of(late.demand), recent_of(counted.parts[0]))
    assert late.overlap is not None
    stored = read_overlap(tables, classes, half_life_s=HALF_LIFE_S).overlap
    np.testing.assert_array_equal(late.overlap.dense(), stored.dense())
    code, out, _ = run(*asked[:-1], "--half-life", "0.5s")
    assert "Schemes plan for recent events (half-life 0.5s); prices count all events." in out


def test_a_plan_says_what_is_wrong_with_half_life_and_tables(tables: Path, tmp_path: Path) -> None:
    asked = ("plan", "--workload", SPEC, "--seed", "3", "--schemes", "semcast")
    for more, said in (
        (("--half-life", "soon"), "half-life 'soon'"),
        (("--half-life", "0s"), "half-life '0s'"),
        (("--overlap", str(tmp_path)), "no table 'overlap'"),
        (("--overlap", str(tables), "--place", "greedy"), "a placement (--place) moves clients"),
        (("--overlap", str(tables), "--schemes", "mst hub"), "uses overlap tables"),
        (("--overlap", str(tables), "--seed", "4"), "other subscriptions"),
        (("--overlap", str(tables), "--half-life", "1h"), "3600 s"),
    ):
        code, _, err = run(*asked, *more)
        assert code == 2, (more, err)
        assert said in " ".join(err.split()), (more, err)


def test_a_stored_demand_without_panes_loads_and_cannot_decay(
    spark: SparkSession, workload: Workload, classes: Classes, overlay: Overlay, log: Path, tmp_path: Path
) -> None:
    counting = TallySettings.of(classes, overlay, workload.attachments)
    source = Files.of(spark, [str(log)], workload.schema)
    with reckoned(spark, source, classes.filters, counting) as found:
        write_demand(found, classes, str(tmp_path))
    assert read_windows(tmp_path).whole.events == 1500
    with pytest.raises(InputError, match="no event has a time"):
        read_windows(tmp_path, half_life_s=60.0)


def test_landed_files_decay_by_when_they_landed(
    spark: SparkSession, workload: Workload, classes: Classes, overlay: Overlay, log: Path
) -> None:
    """Not by what their events say of time; and filters still see that."""
    now = 1_700_000_000
    files = sorted(log.glob("*.parquet"))
    for k, file in enumerate(files):
        os.utime(file, (now - 64 * k, now - 64 * k))
    source = Files.of(spark, [str(log)], workload.schema)
    counting = TallySettings.of(classes, overlay, workload.attachments, half_life_s=64.0)
    for partitions in (1, 2):
        given = (classes.filters, counting)
        found, _ = reckon(spark, source.arriving(), *given, partitions=partitions)
        alone = [
            tally([batch], classes, overlay, workload.attachments)
            for file in files
            for batch in pq.read_table(file).combine_chunks().to_batches()
        ]
        rows = [
            (int(d.publisher[i]), d[i].tolist(), int(d.count[i]), int(d.size[i]), 2.0**-k)
            for k, d in enumerate(alone)
            for i in range(len(d))
        ]
        expected = Demand.of([row[:4] for row in rows], weights=[row[4] for row in rows])
        assert found.whole.events == expected.events == 1500
        np.testing.assert_allclose(recent_of(found.whole).sum(axis=1), recent_of(expected).sum(axis=1))
        ours = {
            (int(d.publisher[i]), tuple(d[i])): recent_of(d)[:, i]
            for d in [found.whole]
            for i in range(len(d))
        }
        for i in range(len(expected)):
            key = int(expected.publisher[i]), tuple(expected[i])
            np.testing.assert_allclose(ours[key], recent_of(expected)[:, i])
    for k, file in enumerate(files):
        file.rename(file.with_name(f"samples-{k}.parquet"))
    plan = make_plan("mst", Problem.of(overlay, classes, Demand.of([]), workload.attachments))
    samples = SampleDemand(log, time.time() - now + 200, "local[2]", ("mst",), 64.0)
    counted = samples.count(plan)
    assert counted is not None
    np.testing.assert_array_equal(recent_of(counted), recent_of(found.whole))
    older = SampleDemand(log, time.time() - now + 200, "local[2]").count(plan)
    assert older is not None
    assert older.recent is None
    spans = here(workload, classes, overlay).whole.seconds
    assert found.whole.seconds == spans, "the time that events span is their own"
    with pytest.raises(InputError, match="local files"):
        replace(source, through_spark=True).arriving()
