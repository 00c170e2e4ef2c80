"""Canonical keys: filters that accept the same events get the same 16 bytes.

A union of boxes has many spellings. Read as a decision diagram it has one: take the attributes in
order; split the first attribute's domain where any box does; give each piece the canonical diagram of
the boxes that hold there, restricted to the attributes after it; unite pieces with equal diagrams; drop
the attribute when a single piece is left. Equal sets give equal diagrams, because every step depends on
the set alone (the argument for reduced ordered decision diagrams, Bryant 1986, with intervals as edges).

Tests and array conditions are boolean variables of their own, right after their attribute. That they
may be dependent (a suffix test implies another) is not seen: such filters may be equal and yet have
different keys, which costs a merge of classes and nothing else. Equal keys always mean equal filters.

Cost: one diagram node per distinct set of live boxes. Past `_NODES` nodes the key is taken from the
sorted boxes instead, marked so that it cannot equal a diagram's.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from ramify.content.constraints import ANYTHING, Constraint
from ramify.content.filters import Box, merge_boxes
from ramify.content.values import EVERY_VALUE, ValueSet, cut_contains

__all__ = ["canonical_key"]

_NODES = 20_000
_EMPTY = b"empty"
_FULL = b"full"
# A box under way: what it still asks, by attribute; and of the boolean variables it asks now.
_Rest = tuple[tuple[str, Constraint], ...]
_Live = tuple[_Rest, tuple[tuple[str, bool], ...]]


def canonical_key(boxes: Sequence[Box]) -> bytes:
    """16 bytes that are equal for equal filters (see the module for what equal means with tests)."""
    merged = merge_boxes(boxes)
    try:
        key = _Diagram().node(frozenset((box.constraints, ()) for box in merged))
    except _TooLargeError:
        key = _digest("boxes", sorted(_spell(box) for box in merged))
    return _digest("filter", key)


class _TooLargeError(Exception):
    """The diagram has more nodes than it may have."""


class _Diagram:
    """Builds keys of sub-diagrams bottom up, each distinct set of live boxes once."""

    def __init__(self) -> None:
        self.memo: dict[frozenset[_Live], bytes] = {}

    def node(self, live: frozenset[_Live]) -> bytes:
        if not live:
            return _EMPTY
        if any(not box and not flags for box, flags in live):
            return _FULL
        known = self.memo.get(live)
        if known is None:
            if len(self.memo) >= _NODES:
                raise _TooLargeError
            known = self._variable(live) if any(flags for _, flags in live) else self._attribute(live)
            self.memo[live] = known
        return known

    def _variable(self, live: frozenset[_Live]) -> bytes:
        """Branch on the first boolean variable that any box asks about."""
        variable = min(f[0] for _, flags in live for f in flags)
        children = []
        for value in (False, True):
            children.append(
                self.node(
                    frozenset(
                        (box, tuple(f for f in flags if f[0] != variable))
                        for box, flags in live
                        if (variable, not value) not in flags
                    )
                )
            )
        return children[0] if children[0] == children[1] else _digest("if", variable, *children)

    def _attribute(self, live: frozenset[_Live]) -> bytes:
        """Branch on the first attribute that any box asks about."""
        path = min(box[0][0] for box, _ in live if box)
        split = [_split(box, path) for box, _ in live]
        children: dict[bytes, list[tuple[str, Any]]] = {}
        for name, piece, survivors in _pieces(split):
            children.setdefault(self.node(survivors), []).append((name, piece))
        if len(children) == 1:
            return next(iter(children))
        edges = []
        for child, pieces in children.items():
            if child != _EMPTY:
                edges.append(_digest("edge", _unite(pieces), child))
        return _digest("split", path, sorted(edges))


def _split(box: _Rest, path: str) -> tuple[Constraint, _Rest]:
    """What the box asks of `path` (its first attribute, or nothing), and of the others."""
    if box and box[0][0] == path:
        return box[0][1], box[1:]
    return ANYTHING, box


def _pieces(split: list[tuple[Constraint, _Rest]]) -> Iterable[tuple[str, Any, frozenset[_Live]]]:
    """The parts of an attribute's domain on which every box's answer is the same."""
    yield "absent", True, frozenset((rest, ()) for c, rest in split if c.absent)
    yield "null", True, frozenset((rest, ()) for c, rest in split if c.null)
    for name in ("numbers", "booleans", "times"):
        for low, high in _cells(name, split):
            inside = ((rest, ()) for c, rest in split if cut_contains(getattr(c.scalars, name), low))
            yield name, _cell(low, high), frozenset(inside)
    yield from _string_pieces(split)
    yield (
        "arrays",
        True,
        frozenset(
            (
                rest,
                (
                    *((_spell_values(s), True) for s in c.arrays.some),
                    *((_spell_values(n), False) for n in c.arrays.none),
                ),
            )
            for c, rest in split
            if c.arrays is not None
        ),
    )


def _string_pieces(split: list[tuple[Constraint, _Rest]]) -> Iterable[tuple[str, Any, frozenset[_Live]]]:
    """As `_pieces`; a cell of a single string decides its tests, any other keeps them as variables."""
    for low, high in _cells("strings", split):
        inside = [(c.scalars, rest) for c, rest in split if cut_contains(c.scalars.strings, low)]
        if high == low + "\0":
            live = frozenset((rest, ()) for values, rest in inside if low in values)
        else:
            live = frozenset((rest, _spell_tests(values)) for values, rest in inside)
        yield "strings", _cell(low, high), live


def _cells(name: str, split: list[tuple[Constraint, _Rest]]) -> list[tuple[Any, Any]]:
    """The intervals between neighbouring cuts of any box, from the least point of the line on."""
    cuts = {cut for c, _ in split for cut in getattr(c.scalars, name)}
    ordered = sorted(cuts | set(getattr(EVERY_VALUE, name)))
    return [(cut, ordered[k + 1] if k + 1 < len(ordered) else None) for k, cut in enumerate(ordered)]


def _cell(low: Any, high: Any) -> tuple[Any, ...]:
    return (low,) if high is None else (low, high)


def _unite(pieces: list[tuple[str, Any]]) -> str:
    """One spelling of a union of pieces: neighbouring cells, which come in order, merge."""
    parts: dict[str, Any] = {}
    for name, piece in pieces:
        if piece is True:
            parts[name] = True
            continue
        cells = parts.setdefault(name, [])
        if cells and cells[-1] == piece[0]:
            cells.pop()
            cells += piece[1:]
        else:
            cells += piece
    return repr(sorted(parts.items()))


def _spell(box: Box) -> str:
    return repr([(path, _spell_constraint(c)) for path, c in box.constraints])


def _spell_constraint(c: Constraint) -> Any:
    arrays = None
    if c.arrays is not None:
        arrays = (sorted(map(_spell_values, c.arrays.some)), sorted(map(_spell_values, c.arrays.none)))
    return c.absent, c.null, _spell_values(c.scalars), arrays


def _spell_values(values: ValueSet) -> str:
    return repr((values.numbers, values.strings, values.booleans, values.times, _spell_tests(values)))


def _spell_tests(values: ValueSet) -> tuple[tuple[str, bool], ...]:
    return tuple(
        sorted(
            (repr(sorted((t.kind.value, t.codes) for t in tests)), wanted) for tests, wanted in values.tests
        )
    )


def _digest(*parts: Any) -> bytes:
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
