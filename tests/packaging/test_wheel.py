"""A wheel built from the repository installs into an empty environment outside it, and works there.

Kernels run as plain Python: compiling them for a few events would take minutes. The long form compiles, and
runs the demo on Spark.
"""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from project import EXAMPLES, ROOT

pytestmark = pytest.mark.wheel
LOG = (
    *("--events", EXAMPLES / "events.ndjson", "--subscriptions", EXAMPLES / "subscriptions.jsonl"),
    *("--attachments", EXAMPLES / "attachments.json", "--schemes", "mst explicit", "--json"),
)


def clean(**more: str) -> dict[str, str]:
    """Our environment without what would lead a Python to the repository."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NUMBA", "COV"))}
    return own | more


def run(
    *command: object, code: int = 0, cwd: Path | None = None, compiles: bool = False, limit_s: float = 900
) -> "subprocess.CompletedProcess[str]":
    env = clean() if compiles else clean(NUMBA_DISABLE_JIT="1")
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env, timeout=limit_s)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    return done


class EmptyEnvironment:
    """An environment of its own, with a directory to work in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel, self.work = wheel, folder / "work"
        self.work.mkdir()
        # without pip of its own: to unpack one takes longer than all the rest
        run(sys.executable, "-m", "venv", "--without-pip", folder / "env")
        self.python = folder / "env" / "bin" / "python"
        self.ramify = folder / "env" / "bin" / "ramify"

    def install(self, extra: str = "") -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-compile")
        run(*pip, "-c", ROOT / "constraints.txt", f"ramify{extra} @ {self.wheel.as_uri()}")

    def call(self, *words: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        return run(self.ramify, *words, code=code, cwd=self.work)

    @contextmanager
    def up(self, *words: str) -> Iterator[None]:
        """`ramify up` in the directory `live`, once it routes; ended by Ctrl-C."""
        log = self.work / "up.log"
        command = [str(self.ramify), "up", "--dir", "live", *words]
        with log.open("wb") as sink:
            env = clean(NUMBA_DISABLE_JIT="1")
            process = subprocess.Popen(command, cwd=self.work, env=env, stdout=sink, stderr=sink)
        try:
            end = time.monotonic() + 300
            while "Ctrl-C stops" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what git would have: the tree as it is, without what builds leave in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        run("cp", "-r", ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source)
    (built,) = folder.glob("ramify-*.whl")
    return built


def test_the_wheel_holds_the_data_and_the_types(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src"
    wanted = [p for p in package.rglob("*") if p.suffix in (".py", ".pyi", ".csv", ".json", ".typed")]
    missing = sorted({str(p.relative_to(package)) for p in wanted} - held)
    assert not [name for name in missing if "egg-info" not in name]
    assert any(name.endswith(".csv") for name in held)


def test_client_plan_and_overlay_work_where_only_the_wheel_is(wheel: Path, tmp_path: Path) -> None:
    env = EmptyEnvironment(tmp_path, wheel)
    env.install()
    version = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "version" in line)
    assert env.call("--version").stdout.strip() in version
    # what a client's host needs, and a broker's
    needs = "import ramify; ramify.Client; ramify.BlockingClient; import ramify.overlay.live.host.process"
    run(env.python, "-c", needs, cwd=env.work)
    assert "valid" in env.call("filter", "price > 3").stdout
    for words in (("plan", *LOG), ("up", "--dir", "live", "--overlay", "ring:2"), ("demo",)):
        refused = env.call(*words, code=2).stderr.strip()
        assert refused.endswith("pip install 'ramify[plan]'")
        assert "\n" not in refused

    env.install("[plan]")
    assert env.call("plan", *LOG, code=2).stderr.strip().endswith("pip install 'ramify[spark]'")
    # 1: some rows of the examples cannot be used
    found = json.loads(env.call("plan", *LOG, "--spark", "none", code=1).stdout)
    assert set(found["schemes"]) >= {"mst", "explicit"}
    assert found["rows_good"] == 4
    with env.up("--overlay", "ring:2", "--client", "alice@v0", "--client", "bob@v1"):
        env.call("pub", "--dir", "live", "--client", "bob", EXAMPLES / "orders.ndjson")
        reading = ("--dir", "live", "--client", "alice", "--sql", "type = 'order.created'", "--count", "2")
        subscribed = subprocess.Popen(
            [str(env.ramify), "sub", *reading],
            cwd=env.work,
            env=clean(NUMBA_DISABLE_JIT="1"),
            stdout=subprocess.PIPE,
            text=True,
        )
        _publish_until(env, subscribed)
        told = [json.loads(line)["id"] for line in subscribed.communicate()[0].splitlines()]
        assert len(told) == 2


def _publish_until(env: EmptyEnvironment, subscribed: "subprocess.Popen[str]") -> None:
    """Publish until a subscriber has what it waits for: an event before it was active is not for it."""
    end = time.monotonic() + 300
    number = 0
    while subscribed.poll() is None:
        assert time.monotonic() < end
        number += 1
        line = json.dumps({"id": f"n{number}", "type": "order.created"})
        (env.work / "one.ndjson").write_text(line + "\n")
        env.call("pub", "--dir", "live", "--client", "bob", "one.ndjson")


@pytest.mark.long
def test_the_demo_runs_where_only_the_wheel_is(wheel: Path, tmp_path: Path) -> None:
    env = EmptyEnvironment(tmp_path, wheel)
    env.install("[all]")
    told = run(env.ramify, "demo", cwd=env.work, compiles=True).stdout
    assert "0 lost, 0 doubled" in " ".join(told.split())
