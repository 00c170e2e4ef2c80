"""Channel expressions: what a channel admits, as hierarchies that must and must not want a message.

Owns the algebra of expressions over hierarchies and their translation to expressions over classes, which
plans carry and `plans.expressions` evaluates. A hierarchy's own expression is any-of its profiles. The
paper's channels have three forms:

    1  E                            a hierarchy that was not merged
    2  E1 & ... & Ek                what merged hierarchies have in common
    3  (E1 & ...) & ~(F1 & ...)     the noise that one side of a merge does not share

Where noise merges too, expressions nest further (form 0). All are trees of `plan.Expression` whose terms
name one hierarchy each.

Guarantee  `common` and `noise` of two expressions are disjoint, and with the other side's noise they make
           up exactly what the two admitted.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.6.
"""

from collections.abc import Sequence

from ramify.planning.plans.plan import All, Expression, Match, Negation, Some

__all__ = ["common", "form", "hierarchy", "noise", "over_classes", "terms"]


def hierarchy(h: int) -> Expression:
    """What a hierarchy wants (form 1)."""
    return Match((h,))


def common(a: Expression, b: Expression) -> Expression:
    """What two expressions both admit. Conjunctions are kept flat, each part once."""
    parts = tuple(dict.fromkeys((*_parts(a), *_parts(b))))
    return All(parts)


def noise(a: Expression, b: Expression) -> Expression:
    """What the first admits and the second does not."""
    return All((*_parts(a), Negation(b)))


def _parts(expression: Expression) -> tuple[Expression, ...]:
    return expression.parts if isinstance(expression, All) else (expression,)


def terms(expression: Expression) -> frozenset[int]:
    """The hierarchies that an expression names."""
    match expression:
        case Match(named):
            return frozenset(named)
        case All(parts) | Some(parts):
            return frozenset().union(*map(terms, parts))
        case Negation(part):
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
    *kept, last = _parts(expression) or (Negation(All(())),)
    wanted = _conjunction(All(tuple(kept)))
    barred = _conjunction(last.part) if isinstance(last, Negation) else None
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
        case Negation(part):
            return Negation(over_classes(part, classes))
