"""docs/security.md names a test for each thing that it says is stopped, and those tests exist."""

import ast
import re
from functools import cache

from project import ROOT

PAGE = ROOT / "docs" / "security.md"
ROWS = "## Who, what they may, and what stops them"


@cache
def existing() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    return frozenset(n.name for tree in trees for n in tree.body if isinstance(n, ast.FunctionDef))


def rows(text: str) -> list[list[str]]:
    part = text.split(ROWS)[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def missing(text: str) -> list[str]:
    """Rows without a test, and names of tests that there are not."""
    found = [row[-2] for row in rows(text) if not re.findall(r"`test_\w+`", row[-1])]
    return found + [name for name in re.findall(r"`(test_\w+)`", text) if name not in existing()]


def test_every_line_names_a_test_that_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(rows(text)) > 15
    assert missing(text) == []


def test_a_line_without_one_and_a_test_that_is_gone_are_noticed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert missing(text.replace("`test_strangers_are_refused`", "", 1)) == ["servers ask for a key"]
    gone = "test_that_is_gone"
    assert missing(text.replace("test_strangers_are_refused", gone, 1)) == [gone]
