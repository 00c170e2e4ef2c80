"""Canonical keys: filters that accept the same events get the same 16 bytes.

A union of boxes has many spellings. Read as a decision diagram it has one: take the attributes in
order; split the first attribute's domain where any box does; give each piece the canonical diagram of
the boxes that hold there, restricted to the attributes after it; unite pieces with equal diagrams; drop
the attribute when a single piece is left. Equal sets give equal diagrams, because every step depends on
the set alone (the argument for reduced ordered decision diagrams, Bryant 1986, with intervals as edges).

Tests and array conditions are boolean variables of their own, right after their attribute; joints are the
first of all. That they
may be dependent (a suffix test implies another) is not seen: such filters may be equal and yet have
different keys, which costs a merge of classes and nothing else. Equal keys always mean equal filters.

Cost: one diagram node per distinct set of live boxes, and the size of that set per cell of an attribute.
Past `_STEPS` such steps, or `_DEPTH` levels, the key is taken from the sorted boxes instead, marked so that
it cannot equal a diagram's. Both bounds count the filter alone: the key is the same in every process.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from ramify.content.filters.constraints import ANYTHING, Constraint
from ramify.content.filters.filters import Box, merge_boxes
from ramify.content.filters.values import EVERY_VALUE, ValueSet

__all__ = ["canonical_key"]

# About 40 ms of work.
_STEPS = 80_000
_NODE_STEPS = 20
_DEPTH = 150
_EMPTY = b"empty"
_FULL = b"full"
# A box under way: what it still asks, by attribute; and of the boolean variables it asks now.
_Rest = tuple[tuple[str, Constraint], ...]
_Flags = tuple[tuple[str, bool], ...]
_Live = tuple[_Rest, _Flags]


def canonical_key(boxes: Sequence[Box]) -> bytes:
    """16 bytes that are equal for equal filters (see the module for what equal means with tests)."""
    merged = merge_boxes(boxes)
    diagram = _Diagram()
    try:
        if any(len(box.constraints) > _DEPTH for box in merged):
            raise _TooLargeError  # a level for each attribute at least
        key = diagram.node(
            frozenset(diagram.number((box.constraints, _joint_flags(box))) for box in merged), 0
        )
    except _TooLargeError:
        key = _digest("boxes", sorted(_spell(box) for box in merged))
    return _digest("filter", key)


class _TooLargeError(Exception):
    """The diagram takes more work than it may."""


class _Diagram:
    """Builds keys of sub-diagrams bottom up, each distinct set of live boxes once.

    Live boxes go by number, so that a set of them is hashed and compared without looking inside.
    """

    def __init__(self) -> None:
        self.memo: dict[frozenset[int], bytes] = {}
        self.numbers: dict[_Live, int] = {}
        self.boxes: list[_Live] = []
        self.left = _STEPS

    def number(self, box: _Live) -> int:
        number = self.numbers.setdefault(box, len(self.boxes))
        if number == len(self.boxes):
            self.boxes.append(box)
        return number

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _TooLargeError

    def node(self, live: frozenset[int], depth: int) -> bytes:
        if not live:
            return _EMPTY
        known = self.memo.get(live)
        if known is None:
            self.spend(_NODE_STEPS * len(live))
            if depth > _DEPTH:
                raise _TooLargeError
            boxes = [self.boxes[k] for k in live]
            if any(not rest and not flags for rest, flags in boxes):
                known = _FULL
            elif any(flags for _, flags in boxes):
                known = self._variable(boxes, depth)
            else:
                known = self._attribute(boxes, depth)
            self.memo[live] = known
        return known

    def _variable(self, boxes: list[_Live], depth: int) -> bytes:
        """Branch on the first boolean variable that any box asks about."""
        variable = min(f[0] for _, flags in boxes for f in flags)
        if_false, if_true = (
            self.node(
                frozenset(
                    self.number((rest, tuple(f for f in flags if f[0] != variable)))
                    for rest, flags in boxes
                    if (variable, not value) not in flags
                ),
                depth + 1,
            )
            for value in (False, True)
        )
        return if_false if if_false == if_true else _digest("if", variable, if_false, if_true)

    def _attribute(self, boxes: list[_Live], depth: int) -> bytes:
        """Branch on the first attribute that any box asks about."""
        path = min(rest[0][0] for rest, _ in boxes if rest)
        children: dict[bytes, list[tuple[str, Any]]] = {}
        for name, piece, survivors in self._pieces([_split(rest, path) for rest, _ in boxes]):
            self.spend(1 + len(survivors))
            children.setdefault(self.node(survivors, depth + 1), []).append((name, piece))
        if len(children) == 1:
            return next(iter(children))
        edges = [
            _digest("edge", _unite(pieces), child) for child, pieces in children.items() if child != _EMPTY
        ]
        return _digest("split", path, sorted(edges))

    def _pieces(self, split: list[tuple[Constraint, _Rest]]) -> Iterator[tuple[str, Any, frozenset[int]]]:
        """The parts of an attribute's domain on which every box's answer is the same."""
        plain = [self.number((rest, ())) for _, rest in split]
        yield "absent", True, frozenset(n for (c, _), n in zip(split, plain, strict=True) if c.absent)
        yield "null", True, frozenset(n for (c, _), n in zip(split, plain, strict=True) if c.null)
        for name in ("numbers", "booleans", "times"):
            for low, high, inside in _cells(name, split):
                yield name, _cell(low, high), frozenset(plain[k] for k in inside)
        tested = [self.number((rest, _test_flags(c.scalars))) for c, rest in split]
        for low, high, inside in _cells("strings", split):
            if high == low + "\0":  # a cell of a single string decides its tests
                live = frozenset(plain[k] for k in inside if low in split[k][0].scalars)
            else:
                live = frozenset(tested[k] for k in inside)
            yield "strings", _cell(low, high), live
        arrays = ((rest, _array_flags(c)) for c, rest in split if c.arrays is not None)
        yield "arrays", True, frozenset(self.number(box) for box in arrays)


def _split(box: _Rest, path: str) -> tuple[Constraint, _Rest]:
    """What the box asks of `path` (its first attribute, or nothing), and of the others."""
    if box and box[0][0] == path:
        return box[0][1], box[1:]
    return ANYTHING, box


def _cells(name: str, split: list[tuple[Constraint, _Rest]]) -> Iterator[tuple[Any, Any, list[int]]]:
    """The intervals between neighbouring cuts of any box, and which boxes hold there: one sweep."""
    flips: dict[Any, list[int]] = {getattr(EVERY_VALUE, name)[0]: []}
    for k, (constraint, _) in enumerate(split):
        for cut in getattr(constraint.scalars, name):
            flips.setdefault(cut, []).append(k)
    ordered = sorted(flips)
    inside: dict[int, None] = {}
    for cut, following in zip(ordered, [*ordered[1:], None], strict=True):
        for k in flips[cut]:
            if k in inside:
                del inside[k]
            else:
                inside[k] = None
        yield cut, following, list(inside)


def _cell(low: Any, high: Any) -> tuple[Any, ...]:
    return (low,) if high is None else (low, high)


def _test_flags(values: ValueSet) -> _Flags:
    return tuple(
        sorted(
            (repr(sorted((t.kind.value, t.codes) for t in tests)), wanted) for tests, wanted in values.tests
        )
    )


def _array_flags(constraint: Constraint) -> _Flags:
    assert constraint.arrays is not None
    return (
        *sorted((s.spelling, True) for s in constraint.arrays.some),
        *sorted((n.spelling, False) for n in constraint.arrays.none),
    )


def _joint_flags(box: Box) -> _Flags:
    return tuple(sorted((joint.spelling, wanted) for joint, wanted in box.joints))


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
    return repr(([(path, _spell_constraint(c)) for path, c in box.constraints], _joint_flags(box)))


def _spell_constraint(c: Constraint) -> Any:
    arrays = None
    if c.arrays is not None:
        arrays = (sorted(s.spelling for s in c.arrays.some), sorted(n.spelling for n in c.arrays.none))
    return c.absent, c.null, c.scalars.spelling, arrays


def _digest(*parts: Any) -> bytes:
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
