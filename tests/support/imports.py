"""What a fresh process has loaded when it ends."""

import json
import subprocess
import sys

HEAVY = ("numba", "scipy", "pandas", "pyspark")
"""What takes long to load, and what few commands need."""

_TELL = "import sys, json; print(json.dumps([n for n in {names!r} if n in sys.modules]), file=sys.stderr)"


def loaded(code: str, names: tuple[str, ...] = HEAVY, given: str | None = None) -> list[str]:
    """Which of these modules a program has loaded at its end; `given` is its standard input."""
    program = f"import atexit\natexit.register(lambda: exec({_TELL.format(names=names)!r}, {{}}))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, timeout=240
    )
    assert "Traceback" not in done.stderr, done.stderr
    found: list[str] = json.loads(done.stderr.strip().splitlines()[-1])
    return found


def command(*words: str) -> str:
    """A program that runs `ramify` with these words."""
    return f"import sys; sys.argv[1:] = {list(words)!r}; from ramify.cli import main; main()"
