"""Settings that all tests share, and one Spark session per test process, started when first asked for."""

import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shared machine may pause for longer than Hypothesis expects. The printed blob replays a failure.
# On CI (where the variable CI is set) the same examples are drawn every time, so that a change is judged by
# itself; elsewhere every run draws new ones and keeps looking for what was missed. `make test-quick` draws
# half as many, `make test-all` ten times as many: draws were the largest part of the time of `make test`.
settings.register_profile(
    "ramify",
    deadline=None,
    print_blob=True,
    max_examples=50,
    derandomize=bool(os.environ.get("CI")),
)
settings.register_profile("quick", settings.get_profile("ramify"), max_examples=25)
settings.register_profile("long", settings.get_profile("ramify"), max_examples=500)
settings.load_profile("ramify")

# A shell starts a command in the background with SIGINT ignored, nohup one with SIGHUP, and every child
# inherits it: tests that press Ctrl-C in a child, or hang up, would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_HERE = Path(__file__).parent
_PURE = (
    "content",
    "network",
    "planning",
    "workloads",
    "overlay/control",
    "overlay/histories",
    "overlay/matchmaking",
    "overlay/routing",
    "fuzz",
)
"""Folders of modules that need neither Spark nor a server: what `make test-quick` runs."""

# The order in which folders are begun: what takes longest first, so that nothing long is left for the end.
_FIRST = ("overlay/live/system", "overlay/live/host", "pipeline", "cli", "packaging", "overlay/live")


def _folder(item: pytest.Item) -> str:
    return item.path.parent.relative_to(_HERE).as_posix().removeprefix(".")


def _mark(folder: str) -> str:
    """Of a folder's tests: none for pure modules, "command" for what is said of the whole."""
    if folder.startswith(_PURE):
        return ""
    return {"pipeline": "spark", "overlay": "live"}.get(folder.partition("/")[0], "command")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give marks by folder, and put what takes longest first."""
    for item in items:
        if mark := _mark(_folder(item)):
            item.add_marker(mark)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    items.sort(key=_rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Units of work by `_unit`, in the order of collection. Marks of xdist's own groups do nothing with
    pytest 9.2, which ignores the names that xdist 3.8 gives tests for them."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    config.option.loadscopereorder = False
    return ByUnit(config, log) if config.option.dist == "load" else None


def _unit(nodeid: str) -> str:
    """Tests with the same name here run in one worker.

    All modules of the shared Spark session do: it takes ten seconds to start and is slow until its code is
    warm. Tests of another module stay together, except for those of a live overlay, which mostly wait and
    have servers of their own unless a fixture of the module starts them.
    """
    return _module_unit(nodeid.partition("::")[0]) or nodeid


@cache
def _module_unit(name: str) -> str | None:
    """The unit of all tests of a module; None if each of them is one."""
    text = (_HERE.parent / name).read_text()
    if re.search(r'\bspark: "?SparkSession|usefixtures\("spark"\)', text):
        return "spark"
    return name if "overlay/live" not in name or 'scope="module"' in text else None


def _rank(item: pytest.Item) -> int:
    """The shared session first, then by folder; pure tests fill what is left."""
    if _unit(item.nodeid) == "spark":
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
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([*_MODULES, os.environ.get("PYTHONPATH", "")]),
    }
    scratch = tmp_path_factory.mktemp("spark")
    with spark_session("local[2]", memory="1g", conf=conf, scratch=scratch) as session:
        yield session
