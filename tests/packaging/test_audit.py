"""The audit of dependencies finds what it looks for."""

import importlib.util
import io
import json
import sys
import urllib.error
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

FILE = Path(__file__).parents[2] / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", FILE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = made
    spec.loader.exec_module(made)
    return made


def test_what_this_project_needs_is_in_order(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([]) == 0
    assert "held against" in capsys.readouterr().out


def test_each_fault_is_found(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit.unbounded([Requirement("a>=1"), Requirement("b"), Requirement("c<2")]) == [
        "b has no lower bound in pyproject.toml: write b>=...",
        "c has no lower bound in pyproject.toml: write c>=...",
    ]
    assert audit.outside([Requirement("a>=2")], {"a": "1.9"}) == [
        "a==1.9 of constraints.txt is outside >=2 of pyproject.toml"
    ]
    here = audit.metadata.version("numpy")
    assert audit.unpinned(["numpy"], {"numpy": here}) == []
    assert audit.unpinned(["numpy"], {}) == [f"numpy {here} is not in constraints.txt: add numpy=={here}"]
    assert "install that" in audit.unpinned(["numpy"], {"numpy": "1.0"})[0]
    licences = {"a": "MIT License", "b": "GNU General Public License v3", "c": "", "d": "Apache-2.0"}
    monkeypatch.setattr(audit, "licence_of", licences.__getitem__)
    assert [row.split()[0] for row in audit.unlicensed(licences)] == ["b", "c"]


def test_versions_that_are_known_to_be_bad_are_found(audit: ModuleType) -> None:
    advisories, when = audit.offline_advisories()
    assert when >= "2021-07-01"
    (found,) = audit.bad_offline({"numpy": "1.16.0", "msgspec": "0.22.0"}, advisories)
    assert "CVE-2019-6446" in found
    assert audit.bad_offline({"numpy": "2.4.6"}, advisories) == []


def test_all_that_comes_along_is_looked_at(audit: ModuleType) -> None:
    assert {"nats-py", "nkeys", "pynacl", "cffi", "pycparser"} <= audit.closure(
        [Requirement("nats-py"), Requirement("nkeys")]
    )


def test_the_index_is_asked_and_its_silence_is_said(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "GHSA-1", "fixed_in": ["2.0"]}
    gone = {"id": "GHSA-2", "withdrawn": "2026-01-01"}

    def answers(told: Any) -> Any:
        return lambda url, timeout: io.BytesIO(json.dumps(told).encode())

    monkeypatch.setattr(audit.urllib.request, "urlopen", answers({"vulnerabilities": [row, gone]}))
    assert audit.bad_live({"a": "1.0"}, "https://index") == ["a 1.0: GHSA-1: mended in 2.0"]
    assert audit.main(["--live"]) == 1

    def away(url: str, timeout: float) -> Any:
        raise urllib.error.URLError("no route")

    for silence in (away, answers({})):
        monkeypatch.setattr(audit.urllib.request, "urlopen", silence)
        capsys.readouterr()
        assert audit.main(["--live"]) == 0
        assert "NOT against those of today" in capsys.readouterr().out
