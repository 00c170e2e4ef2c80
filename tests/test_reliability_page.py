"""docs/reliability.md is what its generator makes, and the tests that it names exist."""

import subprocess
import sys
from pathlib import Path

import pytest

from project import ROOT

GENERATOR = ROOT / "docs" / "generate_reliability.py"


def test_the_page_is_that_of_its_generator_and_of_the_results(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    subprocess.run([sys.executable, str(GENERATOR), str(page)], check=True)
    stale = "docs/reliability.md is stale: run `make docs`"
    assert page.read_text() == (ROOT / "docs" / "reliability.md").read_text(), stale


def test_a_test_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GENERATOR.parent)
    import generate_reliability

    with pytest.raises(SystemExit, match="has no test test_that_is_gone"):
        generate_reliability.check("test_memo.py:test_that_is_gone")
