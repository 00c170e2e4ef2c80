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
# itself; elsewhere every run draws new ones and keeps looking for what was missed. `make test-quick` draws
# fewer, `make test-all` more.
settings.register_profile(
    "ramify",
    deadline=None,
    print_blob=True,
    max_examples=100,
    derandomize=bool(os.environ.get("CI")),
)
settings.register_profile("quick", settings.get_profile("ramify"), max_examples=25)
settings.register_profile("long", settings.get_profile("ramify"), max_examples=500)
settings.load_profile("ramify")

# A shell starts a command in the background with SIGINT ignored, and every child inherits it: tests that
# press Ctrl-C in a child would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HERE = Path(__file__).parent
_PURE = (
    "content",
    "network",
    "planning",
    "workloads",
    "overlay/control",
    "overlay/matchmaking",
    "overlay/routing",
)
"""Folders of modules that need neither Spark nor a server: what `make test-quick` runs."""

# The order in which folders are begun: what takes longest first, so that nothing long is left for the end.
_FIRST = ("overlay/live/system", "overlay/live/host", "pipeline", "cli", "overlay/live")


def _folder(item: pytest.Item) -> str:
    return item.path.parent.relative_to(_HERE).as_posix().removeprefix(".")


def _mark(folder: str) -> str:
    """Of a folder's tests: none for pure modules, "command" for what is said of the whole."""
    if folder.startswith(_PURE):
        return ""
    return {"pipeline": "spark", "overlay": "live"}.get(folder.partition("/")[0], "command")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give marks by folder, and workers what they share.

    All tests of the shared Spark session run in one worker: a session takes ten seconds to start and is
    slow until its code is warm. Tests of a module stay together for the sake of its fixtures, except for
    those of a live overlay, which have servers of their own and mostly wait.
    """
    for item in items:
        folder = _folder(item)
        if mark := _mark(folder):
            item.add_marker(mark)
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures:
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif mark in ("", "command") or _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=_rank)


def _shares(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that its module starts once."""
    found = getattr(item, "_fixtureinfo", None)
    named = found.name2fixturedefs.values() if found is not None else ()
    return any(each.scope == "module" for defs in named for each in defs)


def _rank(item: pytest.Item) -> int:
    """The shared session first, then by folder; pure tests fill what is left."""
    if "spark" in getattr(item, "fixturenames", ()):
        return -1
    folder = _folder(item)
    return next((i for i, name in enumerate(_FIRST) if folder.startswith(name)), len(_FIRST))


# Functions of test modules travel to Spark's workers by name, which look for them in these places.
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
