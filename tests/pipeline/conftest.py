"""One Spark session per test process, started by the first test that asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ramify.pipeline.session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two task slots on loopback, without a UI; its scratch goes with the test run.

    The quick compiler only: it saves a third of the time to start, and no test runs long enough for the
    other one to pay. Workers find the test modules, whose functions travel by name.
    """
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent),
    }
    scratch = tmp_path_factory.mktemp("spark")
    with spark_session("local[2]", memory="1g", conf=conf, scratch=scratch) as session:
        yield session
