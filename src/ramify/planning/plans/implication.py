"""Whether channel expressions leave out no event that matches a class, decided without looking at events.

Problem    The channels that serve a class admit events by expressions; is one of them true for every event
           that the class matches?
Idea       Classes are taken as independent: any set of them that holds the class may be what an event
           matches. That is safe: what is accepted is right, and an expression that is right only because
           one filter implies another must say so by naming both classes (any-of). The terms that name the
           class are true. Over the other terms that occur, every assignment which some set of classes gives
           is tried, all at once: a formula's truth table is one number with a bit per assignment, so that a
           connective is one operation on numbers.
Guarantee  Exact for up to `MOST_TERMS` open terms. For more than `FEW_TERMS` a rule is tried first which is
           sound and takes polynomial time: of "these parts and not those" and "these parts and those" the
           first parts are left, which undoes what splitting a channel does, however often. Where neither
           decides, `LimitError`: nothing is taken as checked that was not.
Cost       O(length of the expressions * 2^(open terms) / 64) words, once per set of channels and of terms
           that name the class; the rule: O(channels^3) steps of sets.
"""

from functools import lru_cache, reduce
from typing import TypeAlias

from ramify.errors import LimitError
from ramify.planning.plans.expressions import ChannelExpressions, Form, ones
from ramify.planning.plans.plan import All, Expression, Match, Negation, Some

__all__ = ["FEW_TERMS", "MOST_TERMS", "Implication"]

FEW_TERMS = 12
"""Open terms up to which truth tables are cheaper than anything else."""
MOST_TERMS = 24
"""Open terms up to which truth tables are made: 2 MB each."""


class Implication:
    """Decides for the channels of one plan; remembers what it decided."""

    def __init__(self, expressions: ChannelExpressions) -> None:
        self._read = expressions
        self._asks = {channel: _named(form) for channel, form in expressions.forms.items()}
        self._known: dict[tuple[tuple[int, ...], int], bool] = {}

    def surely(self, k: int, channels: tuple[int, ...]) -> bool:
        """Whether the expression of one of these channels is true for every event that matches class k.

        `LimitError` when it cannot be decided.
        """
        asked = reduce(int.__or__, (self._asks[channel] for channel in channels), 0)
        true = asked & self._read.made_true(k)
        key = (channels, true)
        if key not in self._known:
            forms = [self._read.forms[channel] for channel in channels]
            self._known[key] = self._decide(forms, true, asked & ~true)
        return self._known[key]

    def _decide(self, forms: list[Form], true: int, left: int) -> bool:
        count = left.bit_count()
        if count > FEW_TERMS and _fold(forms, true):
            return True
        if count > MOST_TERMS:
            raise LimitError(
                f"the channels that serve one class ask for {count} different any-of terms besides those "
                f"that name it; at most {MOST_TERMS} can be checked. Merge channels."
            )
        tables = _Tables(tuple(ones(left)), true)
        missed = tables.possible({term: self._read.terms[term] for term in ones(left)})
        for form in forms:
            missed &= ~tables.of(form)
            if not missed:
                return True
        return not missed


def _named(form: Form) -> int:
    """The terms of a form, as bits."""
    return reduce(int.__or__, (*form.bars, *map(_named_in, form.rest)), form.needs)


def _named_in(expression: Expression) -> int:
    match expression:
        case Match((term,)):
            return 1 << term
        case All(parts) | Some(parts):
            return reduce(int.__or__, map(_named_in, parts), 0)
        case Negation(part):
            return _named_in(part)
    raise AssertionError(expression)


# ----------------------------------------------------------------------------------------- truth tables


class _Tables:
    """Truth tables over open terms: bit a of a table is the value under assignment a.

    In assignment a the i-th open term is true when bit i of a is set; the terms `true` always are.
    """

    def __init__(self, terms: tuple[int, ...], true: int) -> None:
        self._all = (1 << (1 << len(terms))) - 1
        self._of_term = dict(zip(terms, _variables(len(terms)), strict=True))
        self._of_term |= dict.fromkeys(ones(true), self._all)

    def of(self, form: Form) -> int:
        """The table of a form."""
        found = self._both(form.needs)
        for bar in form.bars:
            found &= ~self._both(bar)
        for part in form.rest:
            found &= self._value(part)
        return found

    def possible(self, terms: dict[int, tuple[int, ...]]) -> int:
        """The assignments that some set of matched classes gives to the open terms, which have these.

        An open term can be true when one of its classes is in no open term that is false.
        """
        naming: dict[int, list[int]] = {}
        for term, classes in terms.items():
            for each in classes:
                naming.setdefault(each, []).append(term)
        found = self._all
        for term, classes in terms.items():
            if any(len(naming[each]) == 1 for each in classes):
                continue
            free = 0
            for each in classes:
                free |= reduce(int.__and__, (self._of_term[other] for other in naming[each]))
            found &= free | ~self._of_term[term]
        return found

    def _both(self, terms: int) -> int:
        return reduce(int.__and__, (self._of_term[term] for term in ones(terms)), self._all)

    def _value(self, expression: Expression) -> int:
        match expression:
            case Match((term,)):
                return self._of_term[term]
            case All(parts):
                return reduce(int.__and__, map(self._value, parts), self._all)
            case Some(parts):
                return reduce(int.__or__, map(self._value, parts), 0)
            case Negation(part):
                return self._all ^ self._value(part)
        raise AssertionError(expression)


@lru_cache(maxsize=16)
def _variables(count: int) -> tuple[int, ...]:
    """The table of each of so many terms alone: for term i, 2^i bits off, 2^i bits on, again and again."""
    found = []
    for i in range(count):
        table, width = ((1 << (1 << i)) - 1) << (1 << i), 2 << i
        while width < 1 << count:
            table |= table << width
            width *= 2
        found.append(table)
    return tuple(found)


# ---------------------------------------------------------------------------------------------- the rule


_Parts: TypeAlias = "frozenset[int | _Parts]"
"""Parts that must all be true: a term by its number, or a set of parts of which one must be false."""
_NOTHING: _Parts = frozenset()


def _fold(forms: list[Form], true: int) -> bool:
    """Whether undoing splits leaves a form that asks for nothing. Sound, not complete.

    Where some form is true whenever `kept` and `barred` are, "kept and not barred" may as well be "kept".
    """
    read = (
        _union(
            _needed(form.needs, true),
            *(_negated(_needed(bar, true)) for bar in form.bars),
            *(_parts(part, true) for part in form.rest),
        )
        for form in forms
    )
    left = {parts for parts in read if _NOTHING not in parts}
    before = None
    while _NOTHING not in left and left != before:
        before = set(left)
        for whole in before:
            left.remove(whole)
            left.add(_undone(whole, before))
    return _NOTHING in left


def _undone(whole: _Parts, forms: set[_Parts]) -> _Parts:
    """What is left of a form without the parts that may as well be missing."""
    for barred in whole:
        if isinstance(barred, frozenset):
            kept = whole - {barred}
            if any(form <= kept | barred for form in forms):
                whole = kept
    return whole


def _parts(expression: Expression, true: int) -> _Parts:
    """An expression over terms as parts; terms that are true are left out."""
    match expression:
        case Match((term,)):
            return _needed(1 << term, true)
        case All(parts):
            return _union(*(_parts(part, true) for part in parts))
        case Some(parts):
            return _negated(_union(*(_negated(_parts(part, true)) for part in parts)))
        case Negation(part):
            return _negated(_parts(part, true))
    raise AssertionError(expression)


def _needed(terms: int, true: int) -> _Parts:
    return frozenset(ones(terms & ~true))


def _union(*parts: _Parts) -> _Parts:
    return _NOTHING.union(*parts)


def _negated(parts: _Parts) -> _Parts:
    """Parts that are true when not all of these are."""
    if _NOTHING in parts:  # one of them never is
        return _NOTHING
    only = next(iter(parts)) if len(parts) == 1 else None
    return only if isinstance(only, frozenset) else frozenset((parts,))
