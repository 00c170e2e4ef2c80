"""Channel expressions: what a channel admits, as hierarchies that must and must not want a message.

Owns the algebra of expressions over hierarchies, their evaluation by bitsets, and their translation to
expressions over classes, which plans carry. A hierarchy's own expression is any-of its profiles. The
paper's channels have three forms:

    1  E                            a hierarchy that was not merged
    2  E1 & ... & Ek                what merged hierarchies have in common
    3  (E1 & ...) & ~(F1 & ...)     the noise that one side of a merge does not share

Where noise merges too, expressions nest further (form 0). All are trees of `plan.Expression` whose terms
name one hierarchy each, so that one evaluator serves every form.

Guarantee  `common` and `noise` of two expressions are disjoint, and with the other side's noise they make
           up exactly what the two admitted.
Cost       One message: a word operation per 64 profiles and hierarchy, then per 64 hierarchies and channel;
           nested forms by walking the tree. A sample: a word operation per 64 messages and term.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.planning.plan import All, Expression, Match, Not, Some, evaluate

__all__ = ["ChannelTable", "common", "form", "hierarchy", "noise", "over_classes", "sampled", "terms"]

Words = npt.NDArray[np.uint64]


def hierarchy(h: int) -> Expression:
    """What a hierarchy wants (form 1)."""
    return Match((h,))


def common(a: Expression, b: Expression) -> Expression:
    """What two expressions both admit. Conjunctions are kept flat, each part once."""
    parts = tuple(dict.fromkeys((*_parts(a), *_parts(b))))
    return All(parts)


def noise(a: Expression, b: Expression) -> Expression:
    """What the first admits and the second does not."""
    return All((*_parts(a), Not(b)))


def _parts(expression: Expression) -> tuple[Expression, ...]:
    return expression.parts if isinstance(expression, All) else (expression,)


def terms(expression: Expression) -> frozenset[int]:
    """The hierarchies that an expression names."""
    match expression:
        case Match(named):
            return frozenset(named)
        case All(parts) | Some(parts):
            return frozenset().union(*map(terms, parts))
        case Not(part):
            return terms(part)


def _conjunction(expression: Expression) -> tuple[int, ...] | None:
    """The hierarchies of form 1 or 2; None for other expressions."""
    parts = _parts(expression)
    if parts and all(isinstance(part, Match) and len(part.classes) == 1 for part in parts):
        return tuple(part.classes[0] for part in parts if isinstance(part, Match))
    return None


def _sides(expression: Expression) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(must all want it, must not all want it) of forms 1 to 3; None for nested ones."""
    plain = _conjunction(expression)
    if plain is not None:
        return plain, ()
    *kept, last = _parts(expression) or (Not(All(())),)
    wanted = _conjunction(All(tuple(kept)))
    barred = _conjunction(last.part) if isinstance(last, Not) else None
    return None if wanted is None or barred is None else (wanted, barred)


def form(expression: Expression) -> int:
    """Which of the paper's forms an expression has: 1, 2, 3; 0 for what only merged noise needs."""
    sides = _sides(expression)
    if sides is None:
        return 0
    wanted, barred = sides
    return 3 if barred else min(len(wanted), 2)


def over_classes(expression: Expression, classes: Sequence[tuple[int, ...]]) -> Expression:
    """The same over classes: a hierarchy is any-of `classes[h]`, those of all its profiles."""
    match expression:
        case Match(named):
            return Match(tuple(k for h in named for k in classes[h]))
        case All(parts):
            return All(tuple(over_classes(part, classes) for part in parts))
        case Some(parts):
            return Some(tuple(over_classes(part, classes) for part in parts))
        case Not(part):
            return Not(over_classes(part, classes))


def sampled(expression: Expression, wanted: Words, everything: Words) -> Words:
    """The messages of a sample that an expression admits.

    `wanted` is uint64[h, words], the messages of each hierarchy; `everything` has a bit per message.
    """
    match expression:
        case Match(named):
            either: Words = np.bitwise_or.reduce(wanted[list(named)], axis=0)
            return either
        case All(parts):
            each = everything.copy()
            for part in parts:
                each &= sampled(part, wanted, everything)
            return each
        case Some(parts):
            some = np.zeros_like(everything)
            for part in parts:
                some |= sampled(part, wanted, everything)
            return some
        case Not(part):
            left: Words = everything & ~sampled(part, wanted, everything)
            return left


@dataclass(frozen=True, slots=True)
class ChannelTable:
    """Expressions made ready for one message at a time.

    Attributes
    ----------
    mask      uint64[h, profile words]: the profiles of each hierarchy
    wanted    uint64[c, hierarchy words]: hierarchies that must all want a message (forms 1 to 3)
    barred    uint64[c, hierarchy words]: hierarchies that must not all want it; none: no condition
    nested    the expressions of other forms, by channel; their rows above are not read
    """

    mask: Words
    wanted: Words
    barred: Words
    nested: dict[int, Expression]

    @classmethod
    def of(
        cls, expressions: Sequence[Expression], members: Sequence[Sequence[int]], profiles: int
    ) -> "ChannelTable":
        """`members` are the profiles of each hierarchy."""
        shape = (len(expressions), _words(len(members)))
        wanted, barred = np.zeros(shape, dtype=np.uint64), np.zeros(shape, dtype=np.uint64)
        nested: dict[int, Expression] = {}
        for c, expression in enumerate(expressions):
            sides = _sides(expression)
            if sides is None:
                nested[c] = expression
            else:
                wanted[c], barred[c] = (_packed(side, len(members)) for side in sides)
        mask = np.zeros((len(members), _words(profiles)), dtype=np.uint64)
        for h, row in enumerate(members):
            mask[h] = _packed(row, profiles)
        return cls(mask, wanted, barred, nested)

    def channels(self, matched: Sequence[int]) -> list[int]:
        """The channels that admit a message which matches exactly these profiles, ascending."""
        bits = np.zeros(self.mask.shape[1], dtype=np.uint64)
        for p in matched:
            bits[p >> 6] |= np.uint64(1 << (p & 63))
        want = np.flatnonzero((self.mask & bits).any(axis=1))
        r = _packed(want.tolist(), len(self.mask))
        holds = ((r & self.wanted) == self.wanted).all(axis=1)
        holds &= ~(self.barred.any(axis=1) & ((r & self.barred) == self.barred).all(axis=1))
        for c, expression in self.nested.items():
            holds[c] = evaluate(expression, frozenset(want.tolist()))
        return [int(c) for c in np.flatnonzero(holds)]


def _words(count: int) -> int:
    return (count + 63) // 64


def _packed(members: Sequence[int], count: int) -> Words:
    bits = np.zeros(_words(count), dtype=np.uint64)
    for m in members:
        bits[m >> 6] |= np.uint64(1 << (m & 63))
    return bits
