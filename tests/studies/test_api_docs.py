"""The examples in the docstrings of the API run, and docs/api.md says what the docstrings say."""

import builtins
import doctest
import importlib
import inspect
import re
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


def named_errors(text: str) -> set[str]:
    return {name for name in re.findall(r"\b[A-Z]\w*Error\b", text) if not hasattr(builtins, name)}


def public_docstrings() -> dict[str, str]:
    """Of every public name, and of every public method of a public class."""
    found = {}
    for name in ramify.__all__:
        if name == "__version__":
            continue
        value = getattr(ramify, name)
        found[name] = inspect.getdoc(value) or ""
        for method, member in inspect.getmembers(value) if inspect.isclass(value) else ():
            if not method.startswith("_"):
                found[f"{name}.{method}"] = inspect.getdoc(member) or ""
    return found


def test_every_error_that_is_documented_can_be_imported_and_caught() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md"), ROOT / "README.md"]
    said = {str(page.relative_to(ROOT)): page.read_text() for page in pages} | public_docstrings()
    assert len(said) > 100, "there is more to look at"
    missing = {
        f"{where}: {name}"
        for where, text in said.items()
        for name in named_errors(text)
        if not issubclass(getattr(ramify, name, object), ramify.RamifyError)
    }
    assert not missing
