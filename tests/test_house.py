"""The house as a whole: names mean one thing, and docs/architecture.md says what is there."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from project import ROOT

SOURCE = ROOT / "src" / "ramify"
MODULES = sorted(path for path in SOURCE.rglob("*.py"))

# Words that end like participles and are nouns, or words of the papers and of their messages.
NOUNS = {"Crossing", "Everything", "Joined", "Marking", "Matching", "Pruning", "Routing", "Seed", "Stamped"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def classes() -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, name_of(path)


def type_aliases() -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for node in tree_of(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][a-z]\w*", target.id):
                    yield target.id, name_of(path)


def test_a_class_name_stands_for_one_concept() -> None:
    places = defaultdict(list)
    for name, module in classes():
        if not name.startswith("_"):
            places[name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_values_are_named_by_nouns() -> None:
    """A single participle (`Told`, `_Held`, `Growing`) says what happened, not what a thing is."""
    irregular = [
        "Told",
        "Held",
        "Made",
        "Kept",
        "Drawn",
        "Written",
        "Taken",
        "Given",
        "Sent",
        "Wrote",
        "Shown",
        "Seen",
        "Known",
        "Found",
        "Laid",
        "Lost",
        "Done",
        "Gone",
        "Begun",
        "Broken",
        "Built",
        "Chosen",
        "Grown",
        "Hung",
        "Led",
        "Left",
        "Met",
        "Spent",
        "Thrown",
    ]
    found = {
        (name, module)
        for name, module in (*classes(), *type_aliases())
        if (word := name.lstrip("_")) not in NOUNS
        and (re.fullmatch(r"[A-Z][a-z]+(ed|ing)", word) or word in irregular)
    }
    assert found == set()


def constants() -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for node in tree_of(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]+", name.id):
                        yield name.id, name_of(path)


# Each paper's workload has a name, and each paper's room its hooks.
REPEATED = {"NAME", "HOOKS"}


def test_a_constant_has_one_name_and_one_value() -> None:
    """A public constant, and any number of seconds or bytes or most of something, is defined once."""
    places = defaultdict(list)
    for name, module in constants():
        if not name.startswith("_") or name.endswith(("_S", "_BYTES")) or name.startswith("_MOST_"):
            places[name].append(module)
    found = {name: at for name, at in places.items() if len(at) > 1 and name not in REPEATED}
    assert found == {}


def defined(module: str) -> dict[str, ast.AST]:
    path = SOURCE / (module.replace(".", "/") + ".py")
    if not path.exists():
        return {}
    found: dict[str, ast.AST] = {}
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[f"{node.name}.{inner.name}"] = inner
    return found


WALKS = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STATIONS = sorted(set(re.findall(r"`([a-z_.]+):([A-Za-z_.]+)`", WALKS)))


def test_the_walks_have_stations() -> None:
    walks = WALKS.split("\n## ")
    for title in ("An event", "A subscription", "A log", "A re-plan"):
        (walk,) = (text for text in walks if text.startswith(title))
        assert len(re.findall(r"`[a-z_.]+:[A-Za-z_.]+`", walk)) >= 4, title


@pytest.mark.parametrize(("module", "name"), STATIONS)
def test_every_station_of_a_walk_exists(module: str, name: str) -> None:
    assert name in defined(module), f"docs/architecture.md names {module}:{name}"


def test_rooms_in_the_picture_are_the_rooms_there_are() -> None:
    """The drawing of docs/architecture.md has every floor and room, and no other."""
    picture = WALKS.split("```")[1]
    floors = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    rooms = {
        room.name
        for floor in ("content", "network", "overlay", "pipeline", "planning")
        for room in (SOURCE / floor).iterdir()
        if (room / "__init__.py").exists()
    }
    live = {
        room.name for room in (SOURCE / "overlay" / "live").iterdir() if (room / "__init__.py").exists()
    }
    words = set(re.findall(r"[a-z_]+", picture))
    assert floors | rooms | live <= words
    drawn = {
        name
        for row in re.findall(r"[a-z_]+(?: [<|] [a-z_]+)+", picture)
        for name in re.split(" [<|] ", row)
    }
    assert drawn == rooms | live
