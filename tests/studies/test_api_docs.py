"""The examples in the docstrings of the API run, and docs/api.md says what the docstrings say."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ramify
from project import EXAMPLES, ROOT
from ramify.planning.schemes import outside

HOMES = sorted({home for home in ramify._HOME.values() if home.startswith("ramify.studies.")})


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("module", [*HOMES, "ramify.planning.schemes.catalog"])
def test_the_examples_of_docstrings_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(outside, "_REGISTERED", {})
    flags = doctest.NORMALIZE_WHITESPACE
    done = doctest.testmod(importlib.import_module(module), optionflags=flags)
    assert done.failed == 0


def test_every_use_case_has_an_example() -> None:
    cases = ["read_log", "study", "price", "simulate", "explain", "diff", "schemes", "register_scheme"]
    for name in cases:
        assert ">>> " in (getattr(ramify, name).__doc__ or ""), name


def test_every_public_name_is_documented() -> None:
    for name in ramify.__all__:
        if name != "__version__":
            assert (getattr(ramify, name).__doc__ or "").strip(), name


def test_the_page_of_the_api_is_that_of_the_docstrings(tmp_path: Path) -> None:
    page = tmp_path / "api.md"
    subprocess.run([sys.executable, str(ROOT / "docs" / "generate_api.py"), str(page)], check=True)
    stale = "docs/api.md is stale: run `make docs`"
    assert page.read_text() == (ROOT / "docs" / "api.md").read_text(), stale
