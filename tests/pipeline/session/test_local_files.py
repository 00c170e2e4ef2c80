"""What is listed without Spark is what Spark lists."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ramify.pipeline.passes.files import Files, ListedFile, listed
from ramify.pipeline.session.engine import runs_here
from ramify.pipeline.session.local_files import local_files

NAMES = [
    "a.jsonl", "_hidden.jsonl", ".dot.jsonl", "_k=1.jsonl", "part._COPYING_", "k=1/b.parquet",
    "_k=2/c.jsonl",
    "_temporary/d.jsonl", ".x/e.jsonl", "deep/er/f.json.gz", "deep/_SUCCESS", "a b%20#.jsonl", "ü.jsonl",
    "12:30.jsonl", "empty.jsonl", "z{1}[2].jsonl",
]  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("" if name.startswith("empty") else name)
    (root / "hollow").mkdir()
    return root


def test_a_directory_is_listed_as_spark_does(spark: SparkSession, tree: Path) -> None:
    assert runs_here(spark)
    found = local_files(str(tree))
    assert found is not None
    assert [ListedFile(path, found[path]) for path in sorted(found)] == listed(spark, [str(tree)])
    assert list(Files.of(spark, [str(tree)]).files) == listed(spark, [str(tree)])


def test_single_files_are_listed_as_spark_does(spark: SparkSession, tree: Path) -> None:
    for name in ("a.jsonl", "k=1/b.parquet", "a b%20#.jsonl", "12:30.jsonl", "empty.jsonl"):
        path = str(tree / name)
        assert local_files(path) == {f"file:{path}": (tree / name).stat().st_size}
        assert listed(spark, [path]) == [ListedFile(f"file:{path}", (tree / name).stat().st_size)]
    assert local_files(f"{tree}/z\\{{1}}\\[2\\].jsonl") == {f"file:{tree}/z{{1}}[2].jsonl": 13}


def test_what_is_not_plain_is_left_to_spark(tree: Path) -> None:
    assert local_files(f"{tree}/*.jsonl") is None
    assert local_files(f"{tree}/nowhere") is None
    assert local_files(f"file:{tree}/a.jsonl") is None
    assert local_files("s3://bucket/a.jsonl") is None
    assert local_files(f"{tree}/_hidden.jsonl") is None
    (tree / "deep" / "link").symlink_to("er")
    assert local_files(str(tree)) is None
    (tree / "k=1" / "_metadata").write_text("x")
    assert local_files(f"{tree}/k=1") is None
