"""Settings that all tests share, and one Spark session per test process, started when first asked for."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shared machine may pause for longer than Hypothesis expects. The printed blob replays a failure.
# On CI (where the variable CI is set) the same examples are drawn every time, so that a change is judged by
# itself; elsewhere every run draws new ones and keeps looking for what was missed.
settings.register_profile(
    "ramify",
    deadline=None,
    print_blob=True,
    max_examples=100,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("ramify")

# A shell starts a command in the background with SIGINT ignored, and every child inherits it: tests that
# press Ctrl-C in a child would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Functions of test modules travel to Spark's workers by name, which look for them in these places.
_HERE = Path(__file__).parent
_MODULES = [
    str(_HERE / "support"),
    *(str(room) for room in (_HERE / "pipeline").iterdir() if room.is_dir()),
]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A session of two task slots on loopback, without a UI; its scratch goes with the test run.

    The quick compiler only: it saves a third of the time to start, and no test runs long enough for the
    other one to pay. Workers find the test modules, whose functions travel by name.
    """
    from ramify.pipeline.session.session import spark_session

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_MODULES),
    }
    scratch = tmp_path_factory.mktemp("spark")
    with spark_session("local[2]", memory="1g", conf=conf, scratch=scratch) as session:
        yield session
