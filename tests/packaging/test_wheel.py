"""A wheel built from the repository installs into an empty environment outside it, and works there."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.wheel


def run(*command: object, code: int = 0, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NUMBA", "COV"))}
    clean["NUMBA_DISABLE_JIT"] = "1"
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=clean, timeout=500
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    return done


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


def test_client_and_plan_work_where_only_the_wheel_is(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "env"
    run(sys.executable, "-m", "venv", home)
    python, ramify = home / "bin" / "python", home / "bin" / "ramify"
    install = (python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt")
    run(*install, wheel)

    version = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "version" in line)
    assert run(ramify, "--version", cwd=tmp_path).stdout.strip() in version
    run(python, "-c", "import ramify; ramify.Client; ramify.BlockingClient", cwd=tmp_path)
    assert "valid" in run(ramify, "filter", "price > 3", cwd=tmp_path).stdout
    run(python, "-c", "import ramify.overlay.live.host.process", cwd=tmp_path)  # a broker's host
    files = [
        *("--events", EXAMPLES / "events.ndjson", "--subscriptions", EXAMPLES / "subscriptions.jsonl"),
        *("--attachments", EXAMPLES / "attachments.json", "--schemes", "mst explicit", "--json"),
    ]
    refused = run(ramify, "plan", *files, code=2, cwd=tmp_path).stderr.strip()
    assert refused.endswith("pip install 'ramify[plan]'")
    assert "\n" not in refused

    run(*install, f"ramify[plan] @ {wheel.as_uri()}")
    refused = run(ramify, "plan", *files, code=2, cwd=tmp_path).stderr.strip()
    assert refused.endswith("pip install 'ramify[spark]'")
    # 1: some rows of the examples cannot be used. Kernels run as plain Python: compiling them all for five
    # events would take minutes
    found = json.loads(run(ramify, "plan", *files, "--spark", "none", code=1, cwd=tmp_path).stdout)
    assert set(found["schemes"]) >= {"mst", "explicit"}
    assert found["rows_good"] == 4
