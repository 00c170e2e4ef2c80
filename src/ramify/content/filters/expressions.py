"""What the user wrote: predicates under AND, OR and NOT, in SQL's three-valued logic.

Every spelling parses to an `Expression`. An atom knows, for its attribute, the constraints under which
it is TRUE and those under which it is FALSE; wherever neither holds it is NULL (unknown). From these

    boxes(e, True)    the events for which e is TRUE, as boxes: what a filter accepts
    boxes(e, False)   the events for which e is FALSE: what NOT e accepts
    evaluate(e, ...)  TRUE, FALSE or None for one event
    explain(...)      the same, predicate by predicate, with the actual values

NOT swaps the two sets, AND and OR follow De Morgan; nothing else needs to know about NULL.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from ramify.content.events.attributes import AttributeType, Event
from ramify.content.filters.constraints import ABSENT, Constraint, Value
from ramify.content.filters.describe import describe_constraint
from ramify.content.filters.filters import Box, Filter, Work, merge_boxes, products

__all__ = [
    "CONTEXT_TYPES",
    "And",
    "Atom",
    "Constant",
    "Explanation",
    "ExplanationLine",
    "Expression",
    "Not",
    "Or",
    "boxes_of",
    "compile_filter",
    "evaluate",
    "explain",
]

# The fixed columns of every batch that a filter may name. A schema does not list them.
CONTEXT_TYPES = {
    "id": AttributeType.STRING,
    "publisher": AttributeType.STRING,
    "time": AttributeType.TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class Atom:
    """One predicate on one attribute, as it was written. `false` None: wherever it is not TRUE."""

    path: str
    text: str
    true: tuple[Constraint, ...]
    false: tuple[Constraint, ...] | None


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL, whatever the event."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold."""

    parts: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """Some part holds."""

    parts: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """The part is false (not: unknown)."""

    part: "Expression"


Expression = Atom | Constant | And | Or | Not


def compile_filter(expression: Expression) -> Filter:
    """The filter of the events for which the expression is TRUE. Raises FilterError when it explodes."""
    return Filter(boxes_of(expression, True, Work()), expression).simplify()


def boxes_of(expression: Expression, wanted: bool, work: Work) -> tuple[Box, ...]:
    """The boxes of the events for which the expression is TRUE (wanted) or FALSE (not wanted)."""
    match expression:
        case Atom(path, _, true, false):
            asked = true if wanted or false is None else false
            found = tuple(box for c in asked if (box := Box.of({path: c})) is not None)
            return Filter(found).complement().boxes if not wanted and false is None else found
        case Constant(value):
            return (Box(),) if value is wanted else ()
        case Not(part):
            return boxes_of(part, not wanted, work)
        case And(parts) | Or(parts):
            if isinstance(expression, Or) is wanted:
                work.spend(len(parts))
                return merge_boxes(box for part in parts for box in boxes_of(part, wanted, work))
            left: tuple[Box, ...] = (Box(),)
            for part in parts:
                right = boxes_of(part, wanted, work)
                if len(left) == len(right) == 1:
                    both = left[0].intersect(right[0])
                    left = () if both is None else (both,)
                else:
                    left = merge_boxes(products(left, right, work))
                if not left:
                    break
            return left


def evaluate(expression: Expression, attributes: Mapping[str, Value]) -> bool | None:
    """Three-valued evaluation on one event's attributes, without any algebra."""
    match expression:
        case Atom(path, _, true, false):
            value = attributes.get(path, ABSENT)
            if any(value in c for c in true):
                return True
            return False if false is None or any(value in c for c in false) else None
        case Constant(value):
            return value
        case Not(part):
            inner = evaluate(part, attributes)
            return None if inner is None else not inner
        case And(parts) | Or(parts):
            decisive = isinstance(expression, Or)
            found = {evaluate(part, attributes) for part in parts}
            if decisive in found:
                return decisive
            return None if None in found else not decisive


@dataclass(frozen=True, slots=True)
class ExplanationLine:
    """One line of an explanation: a predicate or a connective, its verdict, the value it saw."""

    depth: int
    text: str
    verdict: bool | None
    path: str | None = None
    actual: Value = ABSENT

    def __str__(self) -> str:
        mark = {True: "yes", False: "no", None: "unknown"}[self.verdict]
        saw = "" if self.path is None else f"   {self.path} {_show(self.actual)}"
        return f"{'  ' * self.depth}{mark:<8}{self.text}{saw}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a filter accepts an event or not, predicate by predicate."""

    matched: bool
    steps: tuple[ExplanationLine, ...]

    def __str__(self) -> str:
        head = "matches" if self.matched else "does not match"
        return "\n".join([head, *(str(step) for step in self.steps)])


def explain(event: Event | Mapping[str, Value], filter_: Filter) -> Explanation:
    """Say what held and what did not, with the actual values, for an event or just its attributes.

    Follows what the user wrote when the filter was parsed; a filter that the algebra made is explained
    box by box.
    """
    attributes = event.values if isinstance(event, Event) else event
    if filter_.expression is None:
        steps = tuple(_box_steps(filter_, attributes))
    else:
        steps = tuple(_steps(filter_.expression, attributes, 1))
    return Explanation(filter_.holds(attributes), steps)


def _steps(
    expression: Expression, attributes: Mapping[str, Value], depth: int
) -> Iterator[ExplanationLine]:
    verdict = evaluate(expression, attributes)
    match expression:
        case Atom(path, text, _, _):
            yield ExplanationLine(depth, text, verdict, path, attributes.get(path, ABSENT))
        case Constant():
            yield ExplanationLine(depth, str(verdict).upper() if verdict is not None else "NULL", verdict)
        case Not(part):
            yield ExplanationLine(depth, "NOT", verdict)
            yield from _steps(part, attributes, depth + 1)
        case And(parts) | Or(parts):
            yield ExplanationLine(depth, "all of" if isinstance(expression, And) else "any of", verdict)
            for part in parts:
                yield from _steps(part, attributes, depth + 1)


def _box_steps(filter_: Filter, attributes: Mapping[str, Value]) -> Iterator[ExplanationLine]:
    yield ExplanationLine(1, f"any of {len(filter_.boxes)} boxes", filter_.holds(attributes))
    for box in filter_.boxes:
        yield ExplanationLine(2, "all of" if box.constraints else "everything", box.holds(attributes))
        for path, constraint in box.constraints:
            value = attributes.get(path, ABSENT)
            yield ExplanationLine(
                3, f"{path} {describe_constraint(constraint)}", value in constraint, path, value
            )


def _show(value: Value) -> str:
    if value is ABSENT:
        return "is absent"
    if isinstance(value, datetime):
        return f"is {value.isoformat()}"
    text = repr(list(value)) if isinstance(value, list | tuple) else repr(value)
    return "is null" if value is None else f"is {text if len(text) <= 80 else text[:77] + '...'}"
