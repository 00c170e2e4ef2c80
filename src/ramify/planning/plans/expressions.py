"""Channel expressions, read once: the terms they are made of, those they need, what holds for an event.

Owns the one form in which expressions are evaluated. A term is a set of classes that some `Match` names (in
SemCast: what a hierarchy of profiles asks for); expressions have few distinct ones. An event makes a term
true or not; an expression is true when the terms that it needs are all true and so is the rest of it, which
names terms by number. A channel is filed under one of the terms that it needs and looked at only when that
one is true, so that the cost of an event grows with what it matches, not with channels (after Papaemmanouil
and Cetintemel, 3.2.6, where terms are bits of a number).

Every evaluation of expressions starts from here: `layout` turns forms into tables, by which the pricer's
kernel evaluates patterns by the thousand; `holding` does one event in plain Python, for brokers, which do
not load kernels; `check` decides what forms imply. The definition is `plan.evaluate`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ramify.memo import derived
from ramify.planning.plans.plan import All, Expression, Holds, Match, Negation, Plan, Some, evaluate

__all__ = ["ChannelExpressions", "Form", "expressions_of", "ones"]


@dataclass(frozen=True, slots=True)
class Form:
    """True when all terms of `needs` are, and every part of `rest`.

    Attributes
    ----------
    needs   terms by number, as bits
    bars    parts of the rest that say "not all of these terms", as bits
    rest    the other parts, over terms: `Match` names them in place of classes
    """

    needs: int
    bars: tuple[int, ...]
    rest: tuple[Expression, ...]


class ChannelExpressions:
    """Expressions by channel.

    Attributes
    ----------
    terms     the classes of each term, ascending
    forms     by channel
    filed     term -> the channels to look at when it is true; each is filed under one that it needs
    unfiled   the channels that need none: they are looked at for every event
    """

    def __init__(self, expressions: Mapping[int, Expression]) -> None:
        self.terms: list[tuple[int, ...]] = []
        self._number: dict[tuple[int, ...], int] = {}
        self._bits: dict[int, int] = {}  # class -> the terms that it makes true
        self.forms = {channel: self._form(expression) for channel, expression in expressions.items()}
        self.filed: dict[int, list[int]] = {}
        self.unfiled: list[int] = []
        users = [0] * len(self.terms)
        needed = {channel: tuple(ones(form.needs)) for channel, form in self.forms.items()}
        for needs in needed.values():
            for term in needs:
                users[term] += 1
        for channel, needs in needed.items():
            if needs:
                self.filed.setdefault(min(needs, key=users.__getitem__), []).append(channel)
            else:
                self.unfiled.append(channel)

    def made_true(self, k: int) -> int:
        """The terms that name a class, as bits."""
        return self._bits.get(k, 0)

    def holding(self, classes: Iterable[int]) -> list[int]:
        """The channels whose expression is true for an event that matches exactly these classes."""
        true = 0
        for k in classes:
            true |= self._bits.get(k, 0)
        found = [c for c in self.unfiled if self._holds(c, true)]
        for term in ones(true):
            found += [c for c in self.filed.get(term, ()) if self._holds(c, true)]
        return found

    def _holds(self, channel: int, true: int) -> bool:
        form = self.forms[channel]
        if true & form.needs != form.needs or any(true & bar == bar for bar in form.bars):
            return False
        return not form.rest or evaluate(All(form.rest), frozenset(ones(true)))

    def _form(self, expression: Expression) -> Form:
        needs, bars, rest = 0, [], []
        for part in _conjuncts(expression):
            if isinstance(part, Match):
                needs |= 1 << self._term(part)
                continue
            barred = list(_conjuncts(part.part)) if isinstance(part, Negation) else []
            terms = [each for each in barred if isinstance(each, Match)]
            if isinstance(part, Negation) and len(terms) == len(barred):
                bars.append(sum({1 << self._term(each) for each in terms}))
            else:
                rest.append(self._over_terms(part))
        return Form(needs, tuple(bars), tuple(rest))

    def _over_terms(self, expression: Expression) -> Expression:
        match expression:
            case Match():
                return Match((self._term(expression),))
            case All(parts):
                return All(tuple(map(self._over_terms, parts)))
            case Some(parts):
                return Some(tuple(map(self._over_terms, parts)))
            case Negation(part):
                return Negation(self._over_terms(part))

    def _term(self, named: Match) -> int:
        key = tuple(sorted(set(named.classes)))
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.terms)
            self.terms.append(key)
            for k in key:
                self._bits[k] = self._bits.get(k, 0) | 1 << number
        return number


def expressions_of(plan: Plan) -> ChannelExpressions:
    """Those of a plan's channels, read once per plan. O(their length)."""

    def read() -> ChannelExpressions:
        contents = ((c, channel.admits.content) for c, channel in enumerate(plan.channels))
        return ChannelExpressions({c: each.expression for c, each in contents if isinstance(each, Holds)})

    return derived(plan, "_expressions", read)


def ones(bits: int) -> Iterator[int]:
    """Which bits of a number are set, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _conjuncts(expression: Expression) -> Iterator[Expression]:
    """The parts that must all be true, taken apart."""
    if isinstance(expression, All):
        for part in expression.parts:
            yield from _conjuncts(part)
    elif isinstance(expression, Some) and len(expression.parts) == 1:
        yield from _conjuncts(expression.parts[0])
    else:
        yield expression
