"""Arguments of use cases: paths, names or objects in, objects out.

Owns what a caller may write for an overlay, a plan, rules, attachments or a schema, so that
every use case takes the same. Nothing here reads an event.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ramify.content.events.events import EventSchema
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.planning.plans.files import read_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import Rules, read_rules

__all__ = [
    "AnyAttachments",
    "AnyOverlay",
    "AnyPath",
    "AnyPlan",
    "AnyRules",
    "AnySchema",
    "as_attachments",
    "as_overlay",
    "as_plan",
    "as_rules",
    "as_schema",
    "check_writable",
]

AnyPath: TypeAlias = str | os.PathLike[str]
AnyOverlay: TypeAlias = Overlay | AnyPath
"""An overlay, a file with one, or a name such as `cloud-regions` or `ring:5`."""
AnyPlan: TypeAlias = Plan | AnyPath
AnyRules: TypeAlias = Rules | Mapping[str, Any] | AnyPath
"""Rules, a mapping in the form of a rule file, or the file."""
AnyAttachments: TypeAlias = Mapping[str, str] | AnyPath
"""Client -> broker, or a JSON file with that."""
AnySchema: TypeAlias = EventSchema | Mapping[str, str] | AnyPath
"""Attribute -> type, or a JSON file with that."""


def as_overlay(given: AnyOverlay) -> Overlay:
    """The overlay. `OverlayError` for what is none."""
    return given if isinstance(given, Overlay) else overlay_from(os.fspath(given))


def as_plan(given: AnyPlan) -> Plan:
    """The plan; a file is read. `PlanError` or another `InputError` for what is none."""
    return given if isinstance(given, Plan) else read_plan(given)


def as_rules(given: AnyRules | None, overlay: Overlay) -> Rules:
    """The rules, their names checked against the overlay; none where none are given."""
    if given is None:
        return Rules()
    if isinstance(given, Rules):
        return given.require_known(overlay)
    if isinstance(given, Mapping):
        return Rules.read(dict(given), overlay)
    return read_rules(given, overlay)


def as_attachments(given: AnyAttachments | None) -> tuple[dict[str, str], str | None]:
    """Client -> broker, and the file that it comes from."""
    if given is None:
        return {}, None
    if isinstance(given, Mapping):
        return dict(given), None
    return _json_object(given, '{"shop-1": "aws-us-east-1"}'), os.fspath(given)


def as_schema(given: AnySchema | None) -> EventSchema | None:
    """The schema; None where the events' own types are to be found."""
    if given is None or isinstance(given, EventSchema):
        return given
    types = given if isinstance(given, Mapping) else _json_object(given, '{"price": "double"}')
    try:
        return EventSchema(dict(types))  # type: ignore[arg-type]  # checked there
    except (ValueError, RecursionError) as error:
        raise InputError(f"the schema cannot be used: {error}") from None


def check_writable(path: AnyPath | None) -> None:
    """Refuse a file that cannot be made, before the work for it is done."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        parent = Path(path).parent
        raise InputError(f"there is no directory {parent} to write to. Make it first.", path=str(path))


def _json_object(path: AnyPath, example: str) -> dict[str, str]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}. Check the path.", path=str(path)) from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}", path=str(path)) from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError(f"must be a JSON object such as {example}", path=str(path))
    return found
