"""The Sigma spelling: the detection of a Sigma rule (JSON) as an `Expression`.

    {"selection": {"EventID": 4688, "Image|endswith": ["\\\\cmd.exe", "\\\\powershell.exe"]},
     "filter": {"User": "SYSTEM"},
     "condition": "selection and not filter"}

A whole rule, an object with `detection`, is taken too; what else it says is not part of the filter. Rules
are YAML files as a rule: `ramify sigma` and `studies.sigma_rules` write them as JSON.

What a detection means (Sigma specification 2.1): the fields of a map must all match (AND), of the values of
a field any (OR; `sigma_values`), of a list of maps any. A condition joins these selections with and, or,
not, brackets, `1 of` and `all of`. Everything is TRUE or FALSE: `not filter` holds where the field that the
filter asks for is absent.

Where our reading needs saying
    keywords   a list of texts without a field is refused: an event here has fields, and no full message
    names      a field is the path of an attribute, with dots where objects are inside each other
    times      `time`, and what a schema calls a timestamp, is matched as the text that it was written with
    several    events together (aggregations behind |, near, timeframe, correlation) are no filter: refused
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ramify.content.events.attributes import AttributeType, text_path
from ramify.content.filters.expressions import (
    CONTEXT_TYPES,
    And,
    Expression,
    Not,
    Or,
    compile_filter,
)
from ramify.content.filters.filters import Filter
from ramify.content.filters.limits import FILTER_DEPTH, FILTER_TEXT
from ramify.content.filters.sigma_values import field_expression
from ramify.content.filters.work import COMPILE_STEPS, Work, charge
from ramify.errors import FilterError

__all__ = ["detection_of", "parse_sigma", "parse_sigma_expression", "rename_fields"]

_FORM = '{"selection": {"field|modifier": value}, "condition": "selection"}'
_CONDITION = "names of selections, and, or, not, ( ), 1 of them, all of them, 1 of name*, all of name*"
_TOKEN = re.compile(r"\s*(?:([()|])|([^\s()|]+))")
_NOT_SELECTIONS = ("condition", "timeframe")


def parse_sigma(
    rule: str | bytes | Mapping[str, Any], schema: Mapping[str, AttributeType] | None = None
) -> Filter:
    """Parse a detection, or a whole rule (JSON text, or the decoded object), to a filter.

    A schema says which attributes are timestamps. Raises FilterError.
    """
    return compile_filter(parse_sigma_expression(rule, schema))


def parse_sigma_expression(
    rule: str | bytes | Mapping[str, Any], schema: Mapping[str, AttributeType] | None = None
) -> Expression:
    """Parse a detection to its expression, without building boxes."""
    detection = detection_of(_tree(_text(rule)))
    types = {**CONTEXT_TYPES, **(schema or {})}
    with Work(COMPILE_STEPS):
        selections = {
            name: _selection(body, name, types)
            for name, body in detection.items()
            if name not in _NOT_SELECTIONS
        }
        conditions = detection["condition"]
        listed = conditions if isinstance(conditions, list) else [conditions]
        parts = [_condition(condition, selections) for condition in listed]
    return parts[0] if len(parts) == 1 else Or(tuple(parts))


def detection_of(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """The detection of a rule; what has no detection is one. Raises FilterError for what is no filter."""
    if "correlation" in rule and "detection" not in rule:
        raise FilterError("a correlation looks at several events", allowed="rules that look at one event")
    # A selection may be called `detection`: only a rule has no condition beside it.
    detection = rule if "condition" in rule else rule.get("detection", rule)
    if not isinstance(detection, Mapping) or "condition" not in detection:
        raise FilterError("the detection has no condition", allowed=_FORM)
    if "timeframe" in detection:
        raise FilterError("timeframe looks at several events", allowed="rules that look at one event")
    if not detection.keys() - set(_NOT_SELECTIONS):
        raise FilterError("the detection has no selection", allowed=_FORM)
    if detection["condition"] == []:
        raise FilterError("the list of conditions is empty", allowed=_CONDITION)
    return detection


def rename_fields(
    detection: Mapping[str, Any], new_name: Callable[[str], str], text_field: str | None = None
) -> dict[str, Any]:
    """The detection with other names of fields; keywords are looked for in `text_field`, where given.

    Raises FilterError when two fields of one map get the same name.
    """
    return {
        name: body if name in _NOT_SELECTIONS else _renamed(body, new_name, text_field)
        for name, body in detection.items()
    }


def _renamed(body: Any, new_name: Callable[[str], str], text_field: str | None) -> Any:
    if isinstance(body, list):
        if text_field is not None and body and not any(isinstance(item, list | Mapping) for item in body):
            return {f"{text_field}|contains": body}
        return [_renamed(item, new_name, text_field) for item in body]
    if isinstance(body, Mapping):
        return _without_twins([(_new_key(k, new_name, text_field), v) for k, v in body.items()])
    return body if text_field is None else {f"{text_field}|contains": body}


def _new_key(key: str, new_name: Callable[[str], str], text_field: str | None) -> str:
    name, bar, modifiers = key.partition("|")
    if name:
        return f"{new_name(name)}{bar}{modifiers}"
    return key if text_field is None else f"{text_field}|contains{bar}{modifiers}"


# ------------------------------------------------------------------------------------------- selections


def _selection(body: Any, name: str, types: Mapping[str, AttributeType]) -> Expression:
    """A map (all fields), or a list of maps (any of them)."""
    if isinstance(body, list) and body and all(isinstance(item, Mapping) for item in body):
        parts = [_map(item, name, types) for item in body]
        return parts[0] if len(parts) == 1 else Or(tuple(parts))
    if isinstance(body, Mapping):
        return _map(body, name, types)
    if isinstance(body, list | str | int | float) and body not in ([], True, False):
        _fail_keywords(name)
    raise FilterError(f"{name}: a selection is a map of fields or a list of maps", allowed=_FORM)


def _map(body: Mapping[str, Any], name: str, types: Mapping[str, AttributeType]) -> Expression:
    if not body:
        raise FilterError(f"{name}: an empty map would match everything", allowed=_FORM)
    parts = [_field(key, value, name, types) for key, value in body.items()]
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _field(key: str, value: Any, name: str, types: Mapping[str, AttributeType]) -> Expression:
    path, *modifiers = key.split("|")
    if not path:
        _fail_keywords(name)
    if types.get(path) is AttributeType.TIMESTAMP:
        path = text_path(path)  # rules know texts, not times
    return field_expression(path, modifiers, value, key)


def _fail_keywords(name: str) -> NoReturn:
    raise FilterError(
        f"{name}: keywords without a field ask for the whole message, and an event has fields",
        allowed='{"field|contains": [...]}; `ramify sigma --text-field FIELD` writes that',
    )


# ------------------------------------------------------------------------------------------- conditions


def _condition(text: Any, selections: Mapping[str, Expression]) -> Expression:
    if not isinstance(text, str) or not text.strip():
        raise FilterError("a condition is a text", allowed=_CONDITION)
    reader = _ConditionReader(text, selections)
    expression = reader.either(0)
    if reader.word:
        reader.fail(f"{reader.word!r} is not expected here")
    return expression


@dataclass(slots=True)
class _ConditionReader:
    """Reads a condition. Binding, from weak to strong: or, and, not, `of`, brackets."""

    text: str
    selections: Mapping[str, Expression]
    # The words that are not read yet, the next one last, each with its place.
    ahead: list[tuple[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        found = [(m[1] or m[2], m.start(m.lastindex or 0)) for m in _TOKEN.finditer(self.text)]
        self.ahead = found[::-1]

    def either(self, depth: int) -> Expression:
        if depth > FILTER_DEPTH:
            self.fail("the condition is nested too deeply")
        parts = [self.both(depth)]
        while self.takes("or"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def both(self, depth: int) -> Expression:
        parts = [self.negation(depth)]
        while self.takes("and"):
            parts.append(self.negation(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def negation(self, depth: int) -> Expression:
        negative = False
        while self.takes("not"):
            negative = not negative
        part = self.term(depth)
        return Not(part) if negative else part

    def term(self, depth: int) -> Expression:
        charge(1)
        if self.takes("("):
            inner = self.either(depth + 1)
            if not self.takes(")"):
                self.fail("a bracket is not closed")
            return inner
        if len(self.ahead) > 1 and self.ahead[-2][0].lower() == "of":
            return self.some_of()
        if self.word not in self.selections:
            self.fail(f"there is no selection {self.word!r}" if self.word else "a selection is missing")
        return self.selections[self.pop()]

    def some_of(self) -> Expression:
        """1 of them, all of them, 1 of name*, all of name*."""
        count = self.word.lower()
        if count not in ("1", "any", "all"):
            self.fail(f"{self.word!r} of selections cannot be asked")
        self.pop()
        self.pop()
        parts = [self.selections[name] for name in self.names()]
        self.pop()
        charge(len(parts))
        if len(parts) == 1:
            return parts[0]
        return And(tuple(parts)) if count == "all" else Or(tuple(parts))

    def names(self) -> list[str]:
        """The selections that the next word means; those with _ before their names are not among `them`."""
        if self.word.lower() == "them":
            chosen = [name for name in self.selections if not name.startswith("_")]
        else:
            wanted = re.compile(".*".join(map(re.escape, re.split(r"\*+", self.word))), re.DOTALL)
            chosen = [name for name in self.selections if wanted.fullmatch(name)]
        if not chosen:
            self.fail(f"no selection is called {self.word!r}" if self.word else "a name is missing")
        return chosen

    @property
    def word(self) -> str:
        """The next word, empty at the end."""
        return self.ahead[-1][0] if self.ahead else ""

    def pop(self) -> str:
        return self.ahead.pop()[0]

    def takes(self, word: str) -> bool:
        """Pass the next word, if it is this one."""
        if self.word.lower() != word:
            return False
        self.ahead.pop()
        return True

    def fail(self, reason: str) -> NoReturn:
        if self.word == "|" or self.word.lower() == "near":
            reason = "an aggregation looks at several events"
        place = self.ahead[-1][1] if self.ahead else len(self.text)
        raise FilterError(f"condition: {reason}", text=self.text, position=place, allowed=_CONDITION)


# ------------------------------------------------------------------------------------------- JSON


def _text(rule: str | bytes | Mapping[str, Any]) -> str:
    if isinstance(rule, bytes):
        try:
            rule = rule.decode()
        except UnicodeDecodeError as error:
            raise FilterError(f"the rule is not UTF-8 (byte {error.start})") from None
    if not isinstance(rule, str | Mapping):
        raise FilterError(f"{type(rule).__name__} is not a rule", allowed="JSON text, or its object")
    if not isinstance(rule, str):
        try:
            rule = json.dumps(rule, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise FilterError(f"the rule is not JSON ({error})") from None
    if len(rule) > FILTER_TEXT:
        raise FilterError(
            f"the rule is {len(rule)} characters long", allowed=f"up to {FILTER_TEXT} characters"
        )
    return rule


def _tree(text: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_constant)
        json.dumps(tree, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise FilterError(f"the rule is not JSON ({error.msg})", text=text, position=error.pos) from None
    except UnicodeEncodeError:
        raise FilterError("the rule holds half a surrogate pair", allowed="valid Unicode text") from None
    except FilterError:
        raise
    except (RecursionError, ValueError) as error:
        raise FilterError(f"the rule is not JSON ({error})", text=text) from None
    if not isinstance(tree, Mapping):
        raise FilterError("a rule is a JSON object", text=text, allowed=_FORM)
    return tree


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key stands twice: one of two would be lost without a word."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise FilterError(f"{name!r} stands twice in one map", allowed="a list of values, or of maps")
        found[name] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise FilterError(f"{name} is not a JSON number")
