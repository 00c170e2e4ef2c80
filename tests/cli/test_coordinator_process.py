"""Where a coordinator counts its samples: on a Spark of its own, on one that runs, or in its process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from ramify.cli import app, coordinator_process
from ramify.cli.coordinator_process import CoordinatorOptions, SampleDemand
from ramify.content.events.events import Event, events_to_batch
from ramify.durable import replace_file, write_parquet
from ramify.overlay.live.coordinator.collector import PUBLISHERS
from ramify.overlay.live.wire.security import new_user
from ramify.pipeline.session import session, warm
from ramify.pipeline.session.engine import Engine, InProcess
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.pricing.rules import Residency, Rules
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world
from worlds import SCHEMA

WORLD = seeded_world(5, 6, 12, 60)
BROKERS = WORLD.overlay.brokers
RULES = Rules(residency=(Residency("some", "x > 3", brokers=frozenset({BROKERS[0]})),))


def landed(directory: Path) -> tuple[pa.RecordBatch, dict[str, str]]:
    """A file of samples, as the collector writes it."""
    rng = np.random.default_rng(3)
    events = [
        Event(f"e{i}", f"p{i % 3}", attributes={"x": int(rng.integers(9))}, size_bytes=100 + i)
        for i in range(200)
    ]
    batch = events_to_batch(events, SCHEMA)
    directory.mkdir()
    write_parquet(directory / "samples-1-1-9.parquet", pa.Table.from_batches([batch]))
    attached = {f"p{i}": BROKERS[i] for i in range(3)}
    replace_file(directory / PUBLISHERS, str(attached).replace("'", '"').encode())
    return batch, attached


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("url", ["none", "auto"])
def test_samples_are_counted_without_spark_and_by_the_spark_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, running: bool
) -> None:
    """What a session would be opened with is noted; the pass is that of `--spark none`."""
    batch, attached = landed(tmp_path / "samples")
    used: list[str] = []

    @contextmanager
    def spark_session(where: str, **options: object) -> Iterator[Engine]:
        used.append(where)
        yield InProcess()

    class Running:
        url, where, slots, mismatch = "sc://localhost:1/;token=t", "sc://localhost:1", 2, None

    monkeypatch.setattr(session, "spark_session", spark_session)
    monkeypatch.setattr(warm, "found", lambda: Running() if running else None)
    monkeypatch.setattr(warm, "note_local", lambda spark, slots: None)
    plan = make_plan("mst", WORLD.problem)
    source = SampleDemand(tmp_path / "samples", 600.0, url)
    try:
        found = source.count(plan, RULES)
    finally:
        source.close()
    assert used == ([] if url == "none" else [Running.url if running else "local[*]"])
    oracle = tally(
        [batch], plan.classes, WORLD.overlay, {**attached, **plan.attachments}, tags=RULES.tags({})
    )
    assert found is not None
    assert found.tag_filters == 1
    assert patterns(found) == patterns(oracle)


def patterns(demand: Demand) -> list[tuple[object, ...]]:
    return sorted(
        (int(demand.publisher[i]), demand[i].tolist(), int(demand.tags[i]), int(demand.count[i]), int(size))
        for i, size in enumerate(demand.size.tolist())
    )


@pytest.mark.parametrize("spark", ["auto", "none", "local[2]"])
def test_a_coordinator_takes_what_other_commands_take_for_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: str
) -> None:
    key = tmp_path / "user.nk"
    key.write_text(new_user().seed)
    key.chmod(0o600)
    asked: list[CoordinatorOptions] = []
    monkeypatch.setattr(coordinator_process, "run_coordinator", asked.append)
    words = ["coordinator", "--control", "nats://127.0.0.1:1", "--key", str(key), "--spark", spark]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert asked[0].spark == spark
