"""The same jobs give the same rows on local[2], on a standalone cluster and over Connect."""

import json
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from clusters import HERE, connect_server, run_here, run_jobs, run_python, standalone_cluster
from ramify.network.graphs.specs import overlay_from
from ramify.workloads.catalog import workload_from

REFUSED = """
import sys
from ramify.errors import SparkError
from ramify.pipeline.session.session import spark_session
try:
    with spark_session(sys.argv[1]):
        print("let in")
except SparkError as error:
    print(error)
"""


def log_with_bad_rows(folder: Path) -> str:
    """Files of three kinds, and all that can be wrong with them."""
    workload = workload_from("demo:events=3000", overlay_from("cloud-regions"), 5)
    folder.mkdir()
    table = pa.Table.from_batches(list(workload.batches()))
    pq.write_table(table.slice(0, 1200), folder / "a.parquet", row_group_size=250)
    pq.write_table(table.slice(1200, 800), folder / "b.parquet")
    (folder / "cut.parquet").write_bytes((folder / "b.parquet").read_bytes()[:-100])
    lines = [b'{"id": "x%d", "publisher": "aws-eu-west-1", "price": %d}' % (i, i) for i in range(300)]
    lines[17:17] = [
        b"{",
        b"",
        b'{"id": "\xff"}',
        b'{"price": "much", "id": "y"}',
    ]
    (folder / "c.ndjson").write_bytes(b"\n".join(lines))
    (folder / "readme.txt").write_text("not a log")
    return str(folder)


# One test: the parts would each start their own cluster when tests are spread over processes.
def test_a_job_gives_the_same_rows_on_a_standalone_cluster_and_over_connect_as_locally(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = log_with_bad_rows(tmp_path / "log")
    jobs = [(HERE / "job_smoke.py", ("1000",)), (HERE / "job_pipeline.py", (folder,))]
    with ExitStack() as stack:
        places = {
            "standalone": stack.enter_context(standalone_cluster(tmp_path / "cluster")),
            "connect": stack.enter_context(connect_server(tmp_path / "server")),
        }
        url = places["connect"].url
        refused = run_python(REFUSED, url.partition("token=")[0] + "token=wrong").stdout
        written = {name: run_jobs(place, jobs, tmp_path / name) for name, place in places.items()}
    written["local"] = run_here(spark, jobs, tmp_path / "local")
    results = {name: [file.read_text() for file in files] for name, files in written.items()}
    assert "4" in results["local"][0]
    found = json.loads(results["local"][1])
    reasons = {json.loads(row)["reason"] for row in found["quarantine"]}
    assert reasons == {"not_json", "bad_utf8", "wrong_type", "damaged_file", "unknown_kind"}
    assert all(found.values()), "every table has rows"
    assert results["standalone"] == results["local"]
    assert results["connect"] == results["local"]
    assert "refused the token" in refused
    assert "wrong" not in refused
