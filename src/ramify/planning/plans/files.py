"""Plans as files: schema-versioned JSON, complete and checked on the way in.

Owns the form on disk. Brokers are named once, in the embedded overlay, and are indices of it elsewhere;
so are classes. A plan that was read equals the one that was written. Reading checks the form; `check`
proves the rest.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.memo import derived
from ramify.network.graphs.files import decode_overlay, encode_overlay
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.plans.check import form_faults
from ramify.planning.plans.plan import (
    Admission,
    All,
    AnyOf,
    Cells,
    Channel,
    ChannelTree,
    Content,
    Entry,
    Everything,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Some,
    Stamped,
)

__all__ = [
    "PLAN_SCHEMA",
    "decode_plan",
    "encode_plan",
    "encoded",
    "keep_encoded",
    "read_plan",
    "write_plan",
]

PLAN_SCHEMA = "ramify-plan/1"
PLAN_FILE_BYTES = 1 << 30

_PLAIN: dict[str, Content] = {"everything": Everything(), "any-of": AnyOf(), "stamped": Stamped()}


class _Class(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    broker: int
    members: list[tuple[str, str, float | None]]
    id: str
    client: str
    sql: str | None = None
    pattern: Any = None
    keywords: list[Any] | None = None
    sigma: Any = None


class _Axis(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    edges: list[Any]
    kind: str


class _Tree(msgspec.Struct, forbid_unknown_fields=True):
    links: list[int]
    root: int | None = None


class _Serves(msgspec.Struct, forbid_unknown_fields=True):
    classes: list[int]
    at: list[int]
    region: list[int]


class _Channel(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    admits: Any
    pruning: str
    serves: list[int] | _Serves
    publishers: list[int] | None = None
    tree: _Tree | None = None
    entry: int | list[int] | None = None
    marks: list[tuple[int, int, str]] = []


class _Plan(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    schema: str
    scheme: str
    overlay: msgspec.Raw
    attributes: dict[str, str]
    classes: list[_Class]
    channels: list[_Channel]
    attachments: dict[str, str] = {}
    paths: list[list[int]] = []
    grid: list[_Axis] = []
    regions: list[list[int]] = []
    rule: str = "price"
    settings: dict[str, Any] = {}
    legs: list[list[int]] = []


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan as JSON. The file is replaced whole."""
    where = Path(path)
    part = where.with_name(where.name + ".part")
    try:
        part.write_bytes(encode_plan(plan) + b"\n")
        part.replace(where)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}. Check the folder.", path=str(path)
        ) from error


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file, sound in form: trees are trees, what is named exists.

    Raises `PlanError` or another `InputError` that names the file and the place. Whether it serves a
    problem is for `check` to prove.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(PLAN_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be read: {reason}. Check the path.", path=str(path)) from error
    if len(content) > PLAN_FILE_BYTES:
        raise InputError(f"larger than {PLAN_FILE_BYTES:,} bytes.", path=str(path))
    try:
        plan = decode_plan(content)
        wrong = list(form_faults(plan))
        if wrong:
            raise PlanError(f"plan {plan.scheme} cannot be used:", wrong)
        return plan
    except PlanError as error:
        raise PlanError(error.what, error.faults, path=str(path)) from error
    except InputError as error:
        raise InputError(error.reason, path=str(path)) from error


def encoded(plan: Plan) -> bytes:
    """As `encode_plan`, made once and kept with the plan: for a plan that is sent and then stored."""
    return derived(plan, "_encoded", lambda: encode_plan(plan))


def keep_encoded(plan: Plan, data: bytes) -> Plan:
    """A plan that was decoded from these bytes, which `encoded` then gives back as they are."""
    derived(plan, "_encoded", lambda: data)
    return plan


def encode_plan(plan: Plan) -> bytes:
    """The plan as one line of JSON."""
    classes = plan.classes
    document = _Plan(
        PLAN_SCHEMA,
        plan.scheme,
        msgspec.Raw(encode_overlay(plan.overlay)),
        {path: str(kind) for path, kind in classes.schema.items()},
        [_class_out(classes, k) for k in range(len(classes))],
        [_channel_out(plan, channel) for channel in plan.channels],
        dict(plan.attachments),
        [list(path) for path in plan.paths.values()],
        [] if plan.grid is None else [_axis_out(axis) for axis in plan.grid.axes],
        [region.tolist() for region in plan.regions],
        plan.rule,
        dict(plan.settings),
        [list(path) for path in plan.legs.values()],
    )
    return msgspec.json.encode(document)


def decode_plan(content: bytes) -> Plan:
    """The plan in these bytes. Raises `PlanError` with the place that is wrong."""
    try:
        document = msgspec.json.decode(content, type=_Plan)
    except msgspec.ValidationError as error:
        wrong_schema = _schema_of(content)
        if wrong_schema is not None:
            raise _other_schema(wrong_schema) from error
        raise PlanError("not a plan:", [str(error)]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError("not JSON:", [str(error)]) from error
    if document.schema != PLAN_SCHEMA:
        raise _other_schema(document.schema)
    overlay = decode_overlay(bytes(document.overlay))
    attributes = _attributes(document.attributes)
    classes = _classes_in(document.classes, overlay, attributes)
    return Plan(
        document.scheme,
        overlay,
        classes,
        tuple(_channel_in(row, classes, len(overlay)) for row in document.channels),
        document.attachments,
        {(path[0], path[-1]): tuple(path) for path in _long_enough(document.paths)},
        Grid(tuple(_axis_in(axis) for axis in document.grid)) if document.grid else None,
        tuple(_ints(region, f"region {k}") for k, region in enumerate(document.regions)),
        _rule(document.rule),
        document.settings,
        {(path[0], path[-1]): tuple(path) for path in _long_enough(document.legs)},
    )


# ------------------------------------------------------------------------------------------------- out


def _class_out(classes: Classes, k: int) -> _Class:
    row = classes.spelled[k]
    return _Class(
        int(classes.broker[k]),
        [(member.id, member.client, member.latency_ms) for member in classes.members[k]],
        row.id,
        row.client,
        row.sql,
        None if row.pattern is None else json.loads(row.pattern),
        None if row.keywords is None else list(row.keywords),
        None if row.sigma is None else json.loads(row.sigma),
    )


def _channel_out(plan: Plan, channel: Channel) -> _Channel:
    serves = channel.serves
    plain = (serves.region < 0).all() and np.array_equal(serves.at, plan.classes.broker[serves.classes])
    ids = serves.classes.tolist()
    tree = channel.tree
    allowed = channel.admits.publishers
    return _Channel(
        channel.name,
        _content_out(channel.admits.content),
        str(channel.pruning),
        ids if plain else _Serves(ids, serves.at.tolist(), serves.region.tolist()),
        None if allowed is None else sorted(allowed),
        None if tree is None else _Tree(tree.links.ravel().tolist(), tree.root),
        _entry_out(channel.entry, len(plan.overlay)),
        [(u, v, mark) for (u, v), mark in channel.marks.items()],
    )


def _content_out(content: Content) -> Any:
    match content:
        case Cells(cells):
            return {"cells": cells.tolist()}
        case Holds(expression):
            return {"holds": _expression_out(expression)}
        case _:
            return next(name for name, plain in _PLAIN.items() if plain == content)


def _expression_out(expression: Expression) -> Any:
    match expression:
        case Match(classes):
            return {"any": list(classes)}
        case All(parts):
            return {"all": [_expression_out(part) for part in parts]}
        case Some(parts):
            return {"some": [_expression_out(part) for part in parts]}
        case Negation(part):
            return {"not": _expression_out(part)}


def _entry_out(entry: Entry, brokers: int) -> int | list[int] | None:
    if entry.targets is None:
        return None
    same = len(entry.targets) == brokers and (entry.targets == entry.targets[0]).all()
    return int(entry.targets[0]) if same else entry.targets.tolist()


def _axis_out(axis: Axis) -> _Axis:
    first = axis.edges[0]
    if isinstance(first, datetime):
        return _Axis(axis.path, [edge.isoformat() for edge in axis.edges], "time")  # type: ignore[union-attr]
    return _Axis(axis.path, list(axis.edges), "string" if isinstance(first, str) else "number")


# -------------------------------------------------------------------------------------------------- in


def _attributes(given: Mapping[str, str]) -> dict[str, AttributeType]:
    known = {str(kind) for kind in AttributeType}
    for path, kind in given.items():
        if kind not in known:
            raise PlanError("not a plan:", [f"attribute {path!r} has the unknown type {kind!r}"])
    return {path: AttributeType(kind) for path, kind in given.items()}


def _classes_in(
    rows: Sequence[_Class], overlay: Overlay, attributes: Mapping[str, AttributeType]
) -> Classes:
    spelled: list[Subscription] = []
    members: list[tuple[Subscription, ...]] = []
    for k, row in enumerate(rows):
        if not 0 <= row.broker < len(overlay):
            raise PlanError("not a plan:", [f"class {k} is at broker {row.broker}, which is unknown"])
        pattern = None if row.pattern is None else json.dumps(row.pattern, ensure_ascii=False)
        words = None if row.keywords is None else tuple(_word(word) for word in row.keywords)
        sigma = None if row.sigma is None else json.dumps(row.sigma, ensure_ascii=False)
        broker = overlay.brokers[row.broker]
        spelled.append(Subscription(row.id, row.client, broker, row.sql, pattern, words, sigma=sigma))
        members.append(
            tuple(
                replace(spelled[-1], id=id_, client=client, latency_ms=latency_ms)
                for id_, client, latency_ms in row.members
            )
        )
    ids = [member.id for group in members for member in group]
    if len(set(ids)) < len(ids):
        raise PlanError("not a plan:", ["a subscription is a member of two classes"])
    hosts = np.array([row.broker for row in rows], dtype=np.int32)
    first = tuple(group[0] if group else row for group, row in zip(members, spelled, strict=True))
    return Classes(first, tuple(members), hosts, dict(attributes))


def _word(word: Any) -> Any:
    return tuple(word) if isinstance(word, list) else word


def _channel_in(row: _Channel, classes: Classes, brokers: int) -> Channel:
    where = f"channel {row.name}"
    if row.pruning not in tuple(Pruning):
        choices = ", ".join(Pruning)
        raise PlanError("not a plan:", [f"{where} has pruning {row.pruning!r}. Choose one of: {choices}"])
    tree = None
    if row.tree is not None:
        links = _ints(row.tree.links, where)
        if len(links) % 2:
            raise PlanError("not a plan:", [f"the tree of {where} has an odd number of ends"])
        root = row.tree.root
        tree = ChannelTree(links.reshape(-1, 2), None if root is None else int(_ints([root], where)[0]))
    return Channel(
        row.name,
        Admission(
            _content_in(row.admits, where), None if row.publishers is None else frozenset(row.publishers)
        ),
        _serves_in(row.serves, classes, where),
        Pruning(row.pruning),
        tree,
        _entry_in(row.entry, brokers, where),
        {(u, v): mark for u, v, mark in row.marks},
    )


def _serves_in(given: list[int] | _Serves, classes: Classes, where: str) -> Serves:
    if isinstance(given, _Serves):
        parts = (given.classes, given.at, given.region)
        if len({len(part) for part in parts}) > 1:
            raise PlanError("not a plan:", [f"{where}: entries are one class, one broker, one region each"])
        return Serves(*(_ints(part, where) for part in parts))
    ids = _ints(given, where)
    if len(ids) and not (ids.min() >= 0 and ids.max() < len(classes)):
        raise PlanError("not a plan:", [f"{where} serves a class outside 0..{len(classes) - 1}"])
    return Serves(ids, classes.broker[ids], np.full(len(ids), -1, dtype=np.int32))


def _content_in(given: Any, where: str) -> Content:
    if isinstance(given, str) and given in _PLAIN:
        return _PLAIN[given]
    if isinstance(given, dict) and len(given) == 1:
        if isinstance(given.get("cells"), list):
            return Cells(_ints(given["cells"], where))
        if "holds" in given:
            return Holds(_expression_in(given["holds"], where))
    choices = ", ".join([*_PLAIN, '{"cells": [...]}', '{"holds": ...}'])
    raise PlanError("not a plan:", [f"{where} admits {str(given)[:60]}. Choose one of: {choices}"])


def _expression_in(given: Any, where: str, depth: int = 0) -> Expression:
    if isinstance(given, dict) and len(given) == 1 and depth < 100:
        ((name, value),) = given.items()
        if name == "any" and isinstance(value, list) and _whole(value):
            return Match(tuple(value))
        if name == "not":
            return Negation(_expression_in(value, where, depth + 1))
        if name in ("all", "some") and isinstance(value, list):
            parts = tuple(_expression_in(part, where, depth + 1) for part in value)
            return All(parts) if name == "all" else Some(parts)
    raise PlanError(
        "not a plan:", [f"{where} has a bad expression {str(given)[:60]}: use any, all, some or not"]
    )


def _entry_in(given: int | list[int] | None, brokers: int, where: str) -> Entry:
    if given is None:
        return Entry()
    targets = _ints([given] * brokers if isinstance(given, int) else given, where)
    return Entry(targets)


def _axis_in(row: _Axis) -> Axis:
    if row.kind not in ("number", "string", "time"):
        raise PlanError("not a plan:", [f"axis {row.path} has edges of the unknown kind {row.kind!r}"])
    if row.kind != "time":
        return Axis(row.path, tuple(row.edges))
    try:
        times = [datetime.fromisoformat(edge) for edge in row.edges]
    except (TypeError, ValueError) as error:
        raise PlanError(
            "not a plan:", [f"axis {row.path} has an edge that is not a time ({error})"]
        ) from error
    return Axis(row.path, tuple(time if time.tzinfo else time.replace(tzinfo=UTC) for time in times))


def _whole(values: Sequence[Any]) -> bool:
    """Whether all are whole numbers; to Python true and false are numbers too."""
    return all(type(value) is int for value in values)


def _ints(values: Sequence[Any], where: str) -> npt.NDArray[np.int32]:
    if not _whole(values):
        raise PlanError("not a plan:", [f"{where}: expected whole numbers"])
    try:
        array = np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise PlanError("not a plan:", [f"{where}: a number is too large"]) from error
    if len(array) and not (array.min() >= -(2**31) and array.max() < 2**31):
        raise PlanError("not a plan:", [f"{where}: a number is too large"])
    return array.astype(np.int32)


def _long_enough(paths: list[list[int]]) -> list[list[int]]:
    if any(len(path) < 2 for path in paths):
        raise PlanError("not a plan:", ["a path has fewer than two brokers"])
    return paths


def _rule(given: str) -> Any:
    if given not in ("hops", "price", "mean_price", "latency"):
        raise PlanError("not a plan:", [f"unknown rule {given!r}"])
    return given


def _other_schema(found: str) -> PlanError:
    return PlanError(f"its schema is {found!r}; this version reads {PLAN_SCHEMA!r}. Plan again.", ())


def _schema_of(content: bytes) -> str | None:
    """The schema that a document names, when it is another one."""
    found = re.match(rb'\s*\{\s*"schema"\s*:\s*"([^"]{1,60})"', content)
    name = found[1].decode(errors="replace") if found else PLAN_SCHEMA
    return None if name == PLAN_SCHEMA else name
