"""Schemes from outside this package: registered by a call, or offered by an installed distribution.

Owns where they are kept, how entry points of the group `ramify.schemes` are found and loaded, and that a
name stands for one scheme. Entry points are looked for when a name is asked for that is not built in, or
all are listed; not before.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

import numpy as np

from ramify.errors import InputError
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import NoParams, Progress, Scheme

__all__ = ["BUILT_IN", "GROUP", "PlanFunction", "find", "found", "origin", "register"]

GROUP = "ramify.schemes"
"""The group of entry points: the name of a scheme, and a `Scheme` or a function as its value."""

BUILT_IN = "built in"

PlanFunction: TypeAlias = Callable[[Problem, Any, np.random.Generator, Progress], Plan]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_TAKEN = ("auto",)


@dataclass(frozen=True, slots=True)
class _Outsider:
    scheme: Scheme
    origin: str


# What this process has registered, and what entry points were loaded to, each once.
_REGISTERED: dict[str, _Outsider] = {}
_LOADED: dict[tuple[str, str], Scheme] = {}


def register(name: str, given: Scheme | PlanFunction, built_in: Collection[str]) -> Scheme:
    """Keep a scheme under a name. `InputError` for a name that is taken or cannot be used."""
    scheme = _scheme(name, given)
    where = _defined(given.plan if isinstance(given, Scheme) else given)
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise InputError(
            f"a scheme cannot be called {name!r}. Use letters, digits, '-', '_' and '.', a letter first."
        )
    if name in built_in:
        raise InputError(_clash(name, BUILT_IN, where))
    mine = _REGISTERED.get(name)
    if mine is not None and mine.origin != where:
        raise InputError(_clash(name, mine.origin, where))
    for entry in entry_points(group=GROUP, name=name):
        raise InputError(_clash(name, _distribution(entry), where))
    _REGISTERED[name] = _Outsider(scheme, where)
    return scheme


def find(name: str) -> Scheme | None:
    """The scheme of that name from outside; None where there is none. `InputError` where there are two."""
    offers = [(_distribution(entry), entry) for entry in entry_points(group=GROUP, name=name)]
    mine = _REGISTERED.get(name)
    origins = [*([mine.origin] if mine else []), *(where for where, _ in offers)]
    if len(origins) > 1:
        raise InputError(_clash(name, origins[0], origins[1]))
    if mine is not None:
        return mine.scheme
    return _load(offers[0][1]) if offers else None


def found(built_in: Collection[str]) -> dict[str, Scheme]:
    """All of them, by name. `InputError` where one has the name of another, or cannot be loaded."""
    names = dict.fromkeys([*_REGISTERED, *sorted(entry.name for entry in entry_points(group=GROUP))])
    for name in names:
        if name in built_in:
            raise InputError(_clash(name, BUILT_IN, origin(name)))
    return {name: scheme for name in names if (scheme := find(name)) is not None}


def origin(name: str) -> str:
    """Where a scheme from outside comes from. `InputError` for a name that none has."""
    if name in _REGISTERED:
        return _REGISTERED[name].origin
    for entry in entry_points(group=GROUP, name=name):
        return _distribution(entry)
    raise InputError(f"unknown scheme {name!r}. Register it, or install the distribution that has it.")


def _load(entry: EntryPoint) -> Scheme:
    key = (entry.name, entry.value)
    if key not in _LOADED:
        try:
            given = entry.load()
        except Exception as error:
            raise InputError(
                f"scheme {entry.name!r} of {_distribution(entry)} cannot be loaded: "
                f"{type(error).__name__}: {error}. Mend or uninstall it."
            ) from error
        _LOADED[key] = _scheme(entry.name, given)
    return _LOADED[key]


def _scheme(name: str, given: Any) -> Scheme:
    if isinstance(given, Scheme):
        if not is_dataclass(given.params):
            raise InputError(f"scheme {name!r}: its params must be a dataclass, not {given.params!r}.")
        return given
    if not callable(given):
        raise InputError(
            f"scheme {name!r} is {type(given).__name__}. Give a Scheme, or a function "
            "plan(problem, params, rng, progress)."
        )
    summary = (given.__doc__ or "a scheme from outside").strip().splitlines()[0]
    return Scheme(summary, NoParams, given)


def _defined(function: Any) -> str:
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', type(function).__name__)}"


def _distribution(entry: EntryPoint) -> str:
    name = entry.dist.name if entry.dist is not None else "an unnamed distribution"
    return f"distribution {name} ({entry.value})"


def _clash(name: str, one: str, other: str) -> str:
    return f"two schemes are called {name!r}: one is {one}, the other is {other}. Rename or remove one."
