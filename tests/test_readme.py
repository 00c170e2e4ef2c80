"""README.md is true: its Python runs, its commands exist, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ramify.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "assert" in code
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "command",
    re.findall(r"ramify ((?:filter|overlay|workload|list|match|plan)[^`\n]*(?:\n[^`]*)?)[`\n]", README),
)
def test_the_commands_work(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (ROOT / "build").mkdir(exist_ok=True)
    words = shlex.split(command.replace("\n", " ").split("```")[0])
    result = CliRunner().invoke(app, words)
    # the example log holds one bad event and one bad subscription on purpose
    assert result.exit_code == (1 if "examples/events.ndjson" in words else 0), result.output


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets


def test_the_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_no_placeholder_is_left() -> None:
    assert not re.findall(r"\b[A-Z]+_[A-Z_]+\b", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
