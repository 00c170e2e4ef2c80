"""What the user wrote: predicates under AND, OR and NOT, in SQL's three-valued logic.

Every spelling parses to an `Expression`. An atom knows, for its attribute, the constraints under which
it is TRUE and those under which it is FALSE; wherever neither holds it is NULL (unknown). From these

    boxes(e, True)    the events for which e is TRUE, as boxes: what a filter accepts
    boxes(e, False)   the events for which e is FALSE: what NOT e accepts
    evaluate(e, ...)  TRUE, FALSE or None for one event
    explain(...)      the same, predicate by predicate, with the actual values

NOT swaps the two sets, AND and OR follow De Morgan; nothing else needs to know about NULL.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from math import prod

from ramify.content.events.attributes import TEXT_MARK, AttributeType, Event
from ramify.content.filters.constraints import ABSENT, EVERY_ARRAY, ArraySet, Constraint, Value, value_at
from ramify.content.filters.describe import describe_constraint
from ramify.content.filters.filters import (
    EVERYTHING,
    MAX_BOXES,
    Box,
    Filter,
    merge_boxes,
    products,
    too_many_boxes,
)
from ramify.content.filters.joints import Joint, JointPart, root_of
from ramify.content.filters.values import EVERY_ELEMENT, NO_VALUE, ValueSet
from ramify.content.filters.work import COMPILE_STEPS, Work
from ramify.errors import FilterError

__all__ = [
    "CONTEXT_TYPES",
    "MISSING",
    "And",
    "Atom",
    "Constant",
    "Explanation",
    "ExplanationLine",
    "Expression",
    "Not",
    "Or",
    "SomeElement",
    "Together",
    "boxes_of",
    "compile_filter",
    "evaluate",
    "explain",
    "found",
    "some_element",
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


@dataclass(frozen=True, slots=True)
class Together:
    """All parts hold, each of another attribute; inside an array of objects, in one element (`joints`).

    TRUE or FALSE, never NULL. A part asks for a value, which may be any element of an array, or for
    absence: it is an `Atom` of which each constraint is `found` or `missing`.
    """

    parts: tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class SomeElement:
    """Some element of the array at `path` satisfies a condition: SQL's exists(xs, x -> ...).

    TRUE when the parts of one alternative hold in one element. FALSE when no element is in `unsure`, the
    values for which the condition is not FALSE; NULL otherwise. Without `unsure` nothing says FALSE: in an
    array of objects one without the field leaves the condition unknown, and no column remembers it.
    """

    path: str
    text: str
    alternatives: tuple[tuple[JointPart, ...], ...]
    unsure: ValueSet | None = None


Expression = Atom | Constant | And | Or | Not | SomeElement | Together


def compile_filter(expression: Expression) -> Filter:
    """The filter of the events for which the expression is TRUE. Raises FilterError when it explodes."""
    with Work(COMPILE_STEPS) as work:
        return Filter(boxes_of(expression, True, work), expression).simplify()


def boxes_of(expression: Expression, wanted: bool, work: Work) -> tuple[Box, ...]:
    """The boxes of the events for which the expression is TRUE (wanted) or FALSE (not wanted)."""
    match expression:
        case Atom(path, _, true, false):
            asked = true if wanted or false is None else false
            boxes = tuple(box for c in asked if (box := Box.of({path: c})) is not None)
            if wanted or false is not None:
                return boxes
            return EVERYTHING.subtract_within(Filter(boxes), work).boxes
        case Constant(value):
            return (Box(),) if value is wanted else ()
        case Not(part):
            return boxes_of(part, not wanted, work)
        case Together(atoms):
            boxes = _boxes_together(atoms, work)
            return boxes if wanted else EVERYTHING.subtract_within(Filter(boxes), work).boxes
        case SomeElement(path, text, alternatives, unsure):
            if wanted:
                work.spend(len(alternatives))
                return merge_boxes(_element_box(parts) for parts in alternatives)
            if unsure is None:
                raise FilterError(
                    f"NOT {text} cannot be decided: in an object without the field it is unknown",
                    allowed="NOT exists over arrays of plain values; exists over arrays of objects",
                )
            return (Box(((path, Constraint(arrays=ArraySet(none=frozenset([unsure])))),)),)
        case And(parts) | Or(parts):
            if isinstance(expression, Or) is wanted:
                work.spend(len(parts))
                return merge_boxes(box for part in parts for box in boxes_of(part, wanted, work))
            single: list[Box] = []
            several: list[tuple[Box, ...]] = []
            for part in parts:
                found = boxes_of(part, wanted, work)
                if not found:
                    return ()
                if len(found) == 1:
                    single += found
                else:
                    several.append(found)
            both = _common(single, work)
            left: tuple[Box, ...] = () if both is None else (both,)
            for right in several:
                left = merge_boxes(products(left, right, work))
            return left


def _common(boxes: Sequence[Box], work: Work) -> Box | None:
    """The intersection of boxes, None when it is empty. Halves first: a box of many tests is made once."""
    if len(boxes) <= 1:
        return boxes[0] if boxes else Box()
    half = len(boxes) // 2
    one, other = _common(boxes[:half], work), _common(boxes[half:], work)
    if one is None or other is None:
        return None
    work.spend(one.weight + other.weight)
    return one.intersect(other)


def found(values: ValueSet) -> Constraint:
    """The value, or some element of the array, lies in `values`; null counts where `values` has it."""
    scalars = replace(values, nulls=False) if values.nulls else values
    return Constraint(null=values.nulls, scalars=scalars, arrays=ArraySet(some=frozenset([values])))


MISSING = Constraint(absent=True, arrays=ArraySet(none=frozenset([EVERY_ELEMENT])))
"""The attribute is absent, or an array without an element."""


def _boxes_together(atoms: tuple[Atom, ...], work: Work) -> tuple[Box, ...]:
    """The boxes of a `Together`, with the joints that they need.

    Boxes that want no field absent are merged first: one value for a field in A or in B is one in their
    union. The others keep what is asked of each box apart.
    """
    # what an atom asks is apart because it does not unite, so no two of these boxes will
    if prod(len(atom.true) for atom in atoms) > MAX_BOXES:
        raise too_many_boxes()
    paths = [atom.path for atom in atoms]
    plain: list[Box] = []
    bound: list[Box] = []
    for choice in product(*(atom.true for atom in atoms)):
        work.spend(1 + len(atoms) // 4)
        asked = dict(zip(paths, choice, strict=True))
        if any(c.absent and _has_elder(path, paths) for path, c in asked.items()):
            bound.append(_jointed(asked))
        elif (box := Box.of(asked)) is not None:
            plain.append(box)
    return merge_boxes([*(_jointed(box.by_path) for box in merge_boxes(plain)), *bound])


def _has_elder(path: str, paths: Sequence[str]) -> bool:
    """Whether a value of another field is chosen before this one, in an array that may hold both."""
    root = root_of(path)
    return any(other < path and root_of(other) == root for other in paths)


def _jointed(constraints: Mapping[str, Constraint]) -> Box:
    """A box whose fields hold together. Fields that no array can hold in common need no joint."""
    paths = sorted(constraints)
    alike = Counter(map(root_of, paths))
    rooted = [path for path in paths if alike[root_of(path)] > 1]
    if not rooted:
        return Box(tuple((path, constraints[path]) for path in paths))
    joint = Joint(tuple(_part(path, constraints[path]) for path in rooted))
    asked = {
        # In another element of an array the field may well be there: the joint decides.
        path: _PERHAPS_MISSING if c.absent and _has_elder(path, paths) else c
        for path, c in constraints.items()
    }
    return Box(tuple((path, asked[path]) for path in paths), frozenset([(joint, True)]))


def _element_box(parts: tuple[JointPart, ...]) -> Box:
    """Arrays that have the values of all parts, in one element."""
    asked = tuple(
        (path, Constraint(arrays=ArraySet(some=frozenset([values])))) for path, _, values in parts
    )
    return Box(asked, frozenset([(Joint(parts), True)]) if len(parts) > 1 else frozenset())


_PERHAPS_MISSING = Constraint(absent=True, arrays=EVERY_ARRAY)


def _part(path: str, constraint: Constraint) -> JointPart:
    if constraint.absent:
        return JointPart(path, True, NO_VALUE)
    if constraint.arrays is None:
        return JointPart(path, False, replace(constraint.scalars, nulls=constraint.null))
    (values,) = constraint.arrays.some
    return JointPart(path, False, values)


def some_element(path: str, text: str, body: Expression) -> SomeElement:
    """`body`, a condition on scalars at `path` and below it, asked of the elements of an array there.

    Raises
    ------
    FilterError
        When the condition asks for absence or for an array, which elements do not show.
    """
    work = Work(COMPILE_STEPS // 4)
    with work:
        alternatives = [
            tuple(JointPart(p, False, _of_element(p, c, path)) for p, c in box.constraints)
            for box in boxes_of(body, True, work)
        ]
    if not all(alternatives):
        raise FilterError("the condition inside exists is constant", allowed="a comparison of x")
    alone = paths_of(body) <= {path}
    with work:
        unsure = _unsure(path, body, work) if alone else None
    return SomeElement(path, text, tuple(alternatives), unsure)


def _of_element(path: str, constraint: Constraint, array: str) -> ValueSet:
    """What a constraint on a scalar asks of an element of an array, or of a field of it."""
    if path == array:
        return replace(constraint.scalars, nulls=constraint.null)
    if constraint.absent or constraint.null or constraint.arrays is not None:
        raise FilterError(
            "inside exists, a field can be compared, and not asked for NULL or for what an array holds",
            allowed="comparisons of x or of its fields with literals, AND, OR, NOT",
        )
    return constraint.scalars


def _unsure(path: str, body: Expression, work: Work) -> ValueSet | None:
    """The elements for which a condition on them alone is not FALSE, where one set can say it."""
    left = EVERY_ELEMENT
    for box in boxes_of(body, False, work):
        sure = _of_element(path, box[path], path)
        if sure.tests:
            return None
        left = left.minus_plain(sure)
    return left


def paths_of(expression: Expression) -> frozenset[str]:
    """The attributes that an expression names."""
    match expression:
        case Atom(path, _, _, _) | SomeElement(path, _, _, _):
            return frozenset([path])
        case Not(part):
            return paths_of(part)
        case And(parts) | Or(parts) | Together(parts):
            return frozenset().union(*map(paths_of, parts))
    return frozenset()


def evaluate(expression: Expression, attributes: Mapping[str, Value]) -> bool | None:
    """Three-valued evaluation on one event's attributes, without any algebra."""
    match expression:
        case Atom(path, _, true, false):
            value = value_at(attributes, path)
            if any(value in c for c in true):
                return True
            return False if false is None or any(value in c for c in false) else None
        case Constant(value):
            return value
        case Not(part):
            inner = evaluate(part, attributes)
            return None if inner is None else not inner
        case SomeElement(path, _, alternatives, unsure):
            if any(_element_box(parts).holds(attributes) for parts in alternatives):
                return True
            elements = value_at(attributes, path)
            if unsure is None or not isinstance(elements, tuple | list):
                return None
            return None if any(element in unsure for element in elements) else False
        case Together(atoms):
            ordered = sorted(atoms, key=lambda atom: atom.path)
            return any(
                Joint(tuple(_part(atom.path, c) for atom, c in zip(ordered, choice, strict=True))).holds(
                    attributes
                )
                for choice in product(*(atom.true for atom in ordered))
            )
        case And(parts) | Or(parts):
            decisive = isinstance(expression, Or)
            verdicts = {evaluate(part, attributes) for part in parts}
            if decisive in verdicts:
                return decisive
            return None if None in verdicts else not decisive


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
        saw = "" if self.path is None else f"   {self.path.removesuffix(TEXT_MARK)} {_show(self.actual)}"
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
            yield ExplanationLine(depth, text, verdict, path, value_at(attributes, path))
        case SomeElement(path, text, alternatives, _):
            yield ExplanationLine(depth, text, verdict)
            for name in dict.fromkeys(part.path for parts in alternatives for part in parts):
                yield ExplanationLine(depth + 1, f"{name}", verdict, name, value_at(attributes, name))
        case Constant():
            yield ExplanationLine(depth, str(verdict).upper() if verdict is not None else "NULL", verdict)
        case Not(part):
            yield ExplanationLine(depth, "NOT", verdict)
            yield from _steps(part, attributes, depth + 1)
        case And(parts) | Or(parts) | Together(parts):
            yield ExplanationLine(depth, _connective(expression), verdict)
            for part in parts:
                yield from _steps(part, attributes, depth + 1)


def _connective(expression: And | Or | Together) -> str:
    if isinstance(expression, Or):
        return "any of"
    paths = [atom.path for atom in expression.parts] if isinstance(expression, Together) else []
    shared = len(set(map(root_of, paths))) < len(paths)
    return "all of, in the same objects where they stand in an array" if shared else "all of"


def _box_steps(filter_: Filter, attributes: Mapping[str, Value]) -> Iterator[ExplanationLine]:
    yield ExplanationLine(1, f"any of {len(filter_.boxes)} boxes", filter_.holds(attributes))
    for box in filter_.boxes:
        together = " together in one element" if box.joints else ""
        head = f"all of{together}" if box.constraints else "everything"
        yield ExplanationLine(2, head, box.holds(attributes))
        for path, constraint in box.constraints:
            value = value_at(attributes, path)
            yield ExplanationLine(
                3,
                f"{path.removesuffix(TEXT_MARK)} {describe_constraint(constraint)}",
                value in constraint,
                path,
                value,
            )


def _show(value: Value) -> str:
    if value is ABSENT:
        return "is absent"
    if isinstance(value, datetime):
        return f"is {value.isoformat()}"
    text = repr(list(value)) if isinstance(value, list | tuple) else repr(value)
    return "is null" if value is None else f"is {text if len(text) <= 80 else text[:77] + '...'}"
