"""Schemes from outside the package: registered by a call, or offered by a distribution. The code is that
of docs/how-to/new-scheme.md."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

import ramify
from project import ROOT
from ramify.cli import app
from ramify.overlay.live.coordinator.coordinator import make_in_process
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.choosing.replan import ReplanJob, grown, spec_of
from ramify.planning.schemes import outside
from ramify.planning.schemes.baselines import broadcast, mst
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world

PAGE = (ROOT / "docs" / "how-to" / "new-scheme.md").read_text()
MODULE, USE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PROJECT,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(COMMANDS,) = re.findall(r"```\n(ramify .*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_REGISTERED", {})
    monkeypatch.setattr(outside, "_LOADED", {})


def wheel(folder: Path) -> Path:
    """The wheel that the page's project builds to. Written here: a build backend need not be installed."""
    project = tomllib.loads(PROJECT)
    told, (module,) = project["project"], project["tool"]["setuptools"]["py-modules"]
    name, version = told["name"].replace("-", "_"), told["version"]
    entries = [f"{key} = {value}" for key, value in told["entry-points"]["ramify.schemes"].items()]
    info = f"{name}-{version}.dist-info"
    files = {
        f"{module}.py": MODULE,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: page\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(["[ramify.schemes]", *entries, ""]),
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the toy distribution is installed into."""
    target = tmp_path_factory.mktemp("site")
    made = wheel(tmp_path_factory.mktemp("toy"))
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(made)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(target.glob("toy_scheme-1.0.dist-info"))
    return target


@pytest.fixture
def toy(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(installed))
    yield installed
    sys.modules.pop("toy_scheme", None)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_an_installed_distribution_is_listed_by_a_fresh_process(installed: Path) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT / "src")]),
        "COLUMNS": "120",
    }
    listed = subprocess.run(
        [sys.executable, "-m", "ramify.cli", "list"], env=env, capture_output=True, text=True, check=False
    )
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"toy\W+shortest paths from one broker, filtered", listed.stdout)


@pytest.mark.usefixtures("spark")
def test_an_installed_distribution_is_planned_with_from_both_sides(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ramify.schemes()["toy"].summary == "shortest paths from one broker, filtered"
    assert "distribution toy-scheme (toy_scheme:SCHEME)" in repr(ramify.schemes())
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line)[1:] for line in COMMANDS.strip().splitlines()]
    for words in lines:
        done = run(*words)
        assert done.exit_code == 0, done.output
    log = ramify.read_log(workload="demo:events=400,subscriptions=20")
    found = ramify.study(log).compare(["toy", "mst"])
    told = json.loads(run(*lines[1][:-2], "--json").stdout)
    assert told["schemes"]["toy"]["test"] == json.loads(json.dumps(dict(found["toy"].price.figures())))  # type: ignore[union-attr]
    assert found["toy"].allowed
    assert found["toy"].plan.scheme == "toy"  # type: ignore[union-attr]


@pytest.mark.usefixtures("toy")
def test_a_running_plan_of_an_installed_scheme_is_planned_anew_by_it() -> None:
    """In the process that makes plans, as a leader does it."""
    world = seeded_world(5, 6, 12, 60)
    plan = make_plan("toy", world.problem)
    spec = spec_of(plan, "mst")
    assert spec.partition(":")[0] == "toy"
    wanted = {row.id: row for members in plan.classes.members for row in members}
    job = ReplanJob(grown(plan, wanted), [spec])
    found = run_to_end(make_in_process(job, 120.0))
    assert found.plan is not None, found.tried
    assert found.plan.scheme == "toy"
    assert found.plan.classes.class_of == plan.classes.class_of
    assert spec_of(replace(plan, scheme="gone"), "mst") == "mst"


@pytest.mark.usefixtures("spark")
def test_the_code_of_the_page_runs_with_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy_scheme.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    try:
        exec(compile(USE, "new-scheme.md", "exec"), {})
    finally:
        sys.modules.pop("toy_scheme", None)
    said = capsys.readouterr().out
    assert "toy:centre=aws-eu-central-1" in said
    assert "published at aws-us-east-1" in said


def test_a_name_that_is_taken_is_refused_with_both_origins(toy: Path) -> None:
    with pytest.raises(ramify.InputError, match=r"'mst'.*built in.*baselines\.broadcast"):
        ramify.register_scheme("mst", broadcast)
    with pytest.raises(ramify.InputError, match=r"distribution toy-scheme.*baselines\.mst"):
        ramify.register_scheme("toy", mst)
    ramify.register_scheme("mine", mst)
    ramify.register_scheme("mine", mst)  # a cell of a notebook runs again
    with pytest.raises(ramify.InputError, match=r"baselines\.mst.*baselines\.broadcast"):
        ramify.register_scheme("mine", broadcast)
    for name in ("auto", "a b", "x:y", "", "x=1"):
        with pytest.raises(ramify.InputError, match="cannot be called"):
            ramify.register_scheme(name, mst)
    with pytest.raises(ramify.InputError, match="Give a Scheme"):
        ramify.register_scheme("three", 3)  # type: ignore[arg-type]


def offer(folder: Path, name: str, entry: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ramify.schemes]\n{entry}\n")


def test_two_distributions_with_one_name_are_refused_with_both_named(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "rival", "toy = ramify.planning.schemes.baselines:mst")
    monkeypatch.syspath_prepend(str(tmp_path))
    from ramify.planning.schemes.catalog import scheme_from

    with pytest.raises(ramify.InputError) as caught:
        scheme_from("toy")
    assert "distribution rival" in str(caught.value)
    assert "distribution toy-scheme" in str(caught.value)
    with pytest.raises(ramify.InputError, match="two schemes are called 'toy'"):
        ramify.schemes()
    assert scheme_from("mst")[0] == "mst"


def test_a_distribution_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "broken", "odd = no_such_module:SCHEME")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ramify.InputError, match=r"'odd' of distribution broken .* cannot be loaded"):
        ramify.schemes()
    code = run("list")
    assert code.exit_code == 2
    assert "distribution broken" in code.stderr


def test_an_unknown_name_lists_what_there_is_from_outside_too(toy: Path) -> None:
    from ramify.planning.schemes.catalog import scheme_from

    with pytest.raises(ramify.InputError, match=r"unknown scheme 'tox'.*mst.*toy"):
        scheme_from("tox")
