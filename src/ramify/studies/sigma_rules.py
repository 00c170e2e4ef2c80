"""Files of Sigma rules, and the subscriptions that they become.

A file is YAML with a rule in each document. A rule that cannot be a filter is named with its file and the
reason; the others are kept. What a rule means is said in `content.filters.sigma`. Needs the extra sigma.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from ramify.content.filters.limits import FILTER_DEPTH, FILTER_TEXT
from ramify.content.filters.sigma import detection_of, rename_fields
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import FilterError, InputError

__all__ = ["RULE_FILE_BYTES", "BadRule", "FieldNames", "RuleSubscriptions", "rule_subscriptions"]

RULE_FILE_BYTES = 1 << 20
"""The longest file of rules that is read."""

_SUFFIXES = (".yml", ".yaml")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """How events call the fields of rules: each by its new name, or with the prefix before the rule's.

    Keywords, which have no field, are looked for in `text_field`; without it they are refused.
    """

    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    text_field: str | None = None

    def of(self, name: str) -> str:
        """The name in events."""
        return self.renamed.get(name, f"{self.prefix}{name}")


@dataclass(frozen=True, slots=True)
class BadRule:
    """A rule that cannot be used: where it is, and why."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RuleSubscriptions:
    """What files of rules held: a subscription for each rule that is a filter, and the others."""

    good: tuple[Subscription, ...]
    bad: tuple[BadRule, ...]


def rule_subscriptions(
    paths: Iterable[str | Path], client: str, broker: str, names: FieldNames | None = None
) -> RuleSubscriptions:
    """Read files of rules, and all files below directories, as subscriptions of a client at a broker.

    Raises InputError for a path that cannot be read. Nothing in a file raises.
    """
    good: dict[str, Subscription] = {}
    bad: list[BadRule] = []
    for path in _files(paths):
        for place, number, document in _documents(path):
            if isinstance(document, BadRule):
                bad.append(document)
                continue
            try:
                row = _subscription(document, (path, number), client, broker, names or FieldNames())
                if row.id in good:
                    raise InputError(f"another rule has the id {row.id!r} already")
                row.parse()
            except InputError as error:
                bad.append(BadRule(place, str(error)))
            else:
                good[row.id] = row
    return RuleSubscriptions(tuple(good.values()), tuple(bad))


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            below = sorted(found for found in path.rglob("*") if found.suffix in _SUFFIXES)
            if not below:
                raise InputError(f"no file below ends in {' or '.join(_SUFFIXES)}", path=str(path))
            yield from below
        else:
            yield path


def _documents(path: Path) -> Iterator[tuple[str, int, Any]]:
    """The documents of a file: the place for messages, the number from 1, and what it holds."""
    try:
        with path.open("rb") as file:
            data = file.read(RULE_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"the rules cannot be read ({error.strerror or error})", path=str(path)) from None
    if len(data) > RULE_FILE_BYTES:
        yield str(path), 1, BadRule(str(path), f"the file is longer than {RULE_FILE_BYTES} bytes: split it")
        return
    number, held = 0, False
    try:
        for number, document in enumerate(yaml.load_all(data, _RuleLoader), 1):
            place = str(path) if number == 1 else f"{path} (document {number})"
            if document is not None:
                yield place, number, document
                held = True
        if not held:
            yield str(path), 1, BadRule(str(path), "the file holds no rule")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        yield str(path), number + 1, BadRule(str(path), f"not YAML ({reason})")


class _RuleLoader(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
    """Reads plain values only, and refuses a key that stands twice: one of the two would be lost."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice in one map", key.start_mark
                )
            keys.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def _subscription(
    rule: Any, at: tuple[Path, int], client: str, broker: str, names: FieldNames
) -> Subscription:
    path, number = at
    if not isinstance(rule, dict):
        raise InputError("a rule is a map with a detection")
    if "action" in rule:
        raise InputError(f"action: {rule['action']} joins documents: write each rule in full")
    if "detection" not in rule and "correlation" not in rule:
        raise InputError("the rule has no detection")
    detection = detection_of({key: rule[key] for key in ("detection", "correlation") if key in rule})
    plain = _PlainTree().copy(detection)
    sigma = json.dumps(rename_fields(plain, names.of, names.text_field), ensure_ascii=False)
    id_ = rule.get("id") or (path.stem if number == 1 else f"{path.stem}-{number}")
    return Subscription(str(id_), client, broker, sigma=sigma)


@dataclass(slots=True)
class _PlainTree:
    """Copies what YAML held as JSON can hold it. Anchors may make a tree of any size of a short text."""

    left: int = FILTER_TEXT

    def copy(self, value: Any, depth: int = 0) -> Any:
        self.left -= len(value) + 2 if isinstance(value, str) else 1
        if self.left < 0 or depth > FILTER_DEPTH:
            raise FilterError(
                "the detection is too long or too deep",
                allowed=f"up to {FILTER_TEXT} characters, {FILTER_DEPTH} levels",
            )
        if isinstance(value, dict):
            return {self.key(key): self.copy(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.copy(inner, depth + 1) for inner in value]
        if isinstance(value, date):
            raise FilterError(f"YAML reads {value} as a date, and events hold texts", allowed=f"'{value}'")
        if value is not None and not isinstance(value, str | int | float):
            raise FilterError(f"a {type(value).__name__} is no value of a field", allowed="texts, numbers")
        return value

    def key(self, key: Any) -> str:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise FilterError(f"YAML reads a key as {key!r}", allowed="names of fields, in quotes")
        return str(self.copy(str(key)))
