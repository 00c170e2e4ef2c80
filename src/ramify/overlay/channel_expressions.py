"""Channel expressions of a plan, evaluated together by bits: which hold for an event, by what it matches.

Owns the compiled form. Expressions are built of few distinct `Match` terms (a term is what a hierarchy of
profiles asks for), so an event is first turned into one number, a bit per term that is true. The forms that
SemCast makes, terms that must all be true and terms that may not all be, then cost two operations on
numbers each (Papaemmanouil and Cetintemel, 3.2.6); any other form is evaluated as it is written. Only those
are looked at of which some term is true, so the cost grows with what matches, not with channels.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ramify.planning.plan import All, Expression, Match, Not, Some, evaluate

__all__ = ["ChannelExpressions"]


@dataclass(frozen=True, slots=True)
class _Form:
    """All terms of `needs` and not all of any of `bars`; or `other`, where that is not its form."""

    needs: int
    bars: tuple[int, ...]
    other: Expression | None = None


class ChannelExpressions:
    """Expressions by channel."""

    def __init__(self, expressions: Mapping[int, Expression]) -> None:
        self._terms: dict[tuple[int, ...], int] = {}
        # class -> the bits of the terms that it makes true
        self._bits: dict[int, int] = {}
        # term -> the channels to look at when it is true: those that need it, filed under one of them
        self._filed: dict[int, list[int]] = {}
        self._always: list[int] = []
        self._forms = {channel: self._compiled(expression) for channel, expression in expressions.items()}
        users: dict[int, int] = {}
        for form in self._forms.values():
            for term in _ones(form.needs):
                users[term] = users.get(term, 0) + 1
        for channel, form in self._forms.items():
            if form.other is not None or not form.needs:
                self._always.append(channel)
            else:
                self._filed.setdefault(min(_ones(form.needs), key=users.__getitem__), []).append(channel)

    def holding(self, classes: tuple[int, ...]) -> list[int]:
        """The channels whose expression is true for an event that matches exactly these classes."""
        true = 0
        for k in classes:
            true |= self._bits.get(k, 0)
        found = [c for c in self._always if self._holds(c, true, classes)]
        for term in _ones(true):
            found += [c for c in self._filed.get(term, ()) if self._holds(c, true, classes)]
        return found

    def _holds(self, channel: int, true: int, classes: tuple[int, ...]) -> bool:
        form = self._forms[channel]
        if form.other is not None:
            return evaluate(form.other, frozenset(classes))
        return true & form.needs == form.needs and not any(true & bar == bar for bar in form.bars)

    def _compiled(self, expression: Expression) -> _Form:
        needs, bars = 0, []
        for part in _conjuncts(expression):
            match part:
                case Match():
                    needs |= self._bit(part)
                case Not(barred):
                    terms = list(_conjuncts(barred))
                    if not all(isinstance(term, Match) for term in terms):
                        return _Form(0, (), expression)
                    bars.append(sum({self._bit(term) for term in terms if isinstance(term, Match)}))
                case _:
                    return _Form(0, (), expression)
        return _Form(needs, tuple(bars))

    def _bit(self, term: Match) -> int:
        key = tuple(sorted(set(term.classes)))
        if key not in self._terms:
            bit = self._terms[key] = 1 << len(self._terms)
            for k in key:
                self._bits[k] = self._bits.get(k, 0) | bit
        return self._terms[key]


def _conjuncts(expression: Expression) -> Iterator[Expression]:
    """The parts that must all be true, taken apart."""
    if isinstance(expression, All):
        for part in expression.parts:
            yield from _conjuncts(part)
    elif isinstance(expression, Some) and len(expression.parts) == 1:
        yield from _conjuncts(expression.parts[0])
    else:
        yield expression


def _ones(bits: int) -> Iterable[int]:
    """The bits of a number, one by one, lowest first."""
    while bits:
        low = bits & -bits
        yield low
        bits ^= low
