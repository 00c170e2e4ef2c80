"""Memos: what follows from a frozen value, computed once and kept with it.

Owns the one way to do so. `functools.cached_property` is for what a class derives from itself; `derived` is
for what another module derives from a value whose class must not know that module, and `preset` for what is
known already when a value is made, so that its cached property need not compute it.

All of it lies in the value's `__dict__`: it goes when the value goes, is no part of equality, and needs a
class without slots. It must be a function of the value alone: nothing here is ever brought up to date.
"""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["derived", "is_known", "preset"]

T = TypeVar("T")


def derived(value: object, name: str, make: Callable[[], T]) -> T:
    """What is kept with a value under a name; `make` computes it the first time."""
    kept = value.__dict__
    if name not in kept:
        kept[name] = make()
    found: T = kept[name]
    return found


def preset(value: object, **known: object) -> None:
    """Keep what cached properties of a value would compute."""
    value.__dict__.update(known)


def is_known(value: object, name: str) -> bool:
    """Whether a cached property of a value has been computed, or preset."""
    return name in value.__dict__
