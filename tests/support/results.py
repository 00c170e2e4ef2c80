"""The figures of docs/reliability.md: what the long runs found, with the command and the seed of each.

    python benchmarks/soak.py | python tests/support/results.py soak "benchmarks/soak.py"

adds what a run prints as its last line.
"""

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from project import ROOT
from ramify.durable import replace_file
from ramify.overlay.live.host.server import find_server

RESULTS = ROOT / "docs" / "results" / "reliability.json"
KEPT = 12
"""Results of a kind; the oldest go."""


def add_result(kind: str, figures: dict[str, Any]) -> None:
    """Add a run to the file, with when and on what it was."""
    found = read_results()
    row = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), **about(), **figures}
    found[kind] = [*found.get(kind, []), row][-KEPT:]
    RESULTS.parent.mkdir(exist_ok=True)
    replace_file(RESULTS, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())


def read_results() -> dict[str, list[dict[str, Any]]]:
    """By kind, the oldest first."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def about() -> dict[str, str]:
    """Versions of what ran."""
    told = subprocess.run([find_server(), "--version"], capture_output=True, text=True, check=True).stdout
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "ramify": f"{version('ramify')}{f' ({commit})' if commit else ''}",
        "nats_server": told.split()[-1].removeprefix("v"),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    kind, command = sys.argv[1:]
    add_result(kind, {"command": command, **json.loads(sys.stdin.read().splitlines()[-1])})
