"""Rules that any plan must keep: latency, capacity, quota, residency.

Owns the rules, the file they are read from, and which of them a priced plan breaks.

    latency      of a subscription (its own `latency_ms`): the longest time that any event took to it
    capacity     of a broker: bytes received and sent per second over links, headers included. What its own
                 clients send and receive is not on a link and not counted
    quota        of a link: bytes per month of 30 days, both directions together, headers included
    residency    events that match a filter and the brokers where they may not be, in transit neither

A rule is judged on a demand, so what a demand does not show is not judged. Residency needs a demand that
was tallied with the tags of the same rules, in their order (`Rules.tags`):

    rules = read_rules("rules.json", overlay)
    demand = tally(batches, classes, overlay, attachments, tags=rules.tags(schema))
    broken(price(plan, demand), rules)

The file is JSON; every part may be left out:

    {"capacity_bytes_per_s": {"aws-us-east-1": 2e8},
     "quota_bytes_per_month": [{"a": "aws-us-east-1", "b": "gcp-us-east4", "bytes": 5e12}],
     "residency": [{"name": "gdpr", "events": "personal = true", "not_in": {"regions": ["Asia"]}}]}
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType
from ramify.content.filters.filters import Filter
from ramify.content.filters.sql import parse_sql
from ramify.errors import FilterError, InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.demand import MAX_TAGS
from ramify.planning.plans.legs import ROUNDING
from ramify.planning.pricing.price import MONTH_SECONDS, Price

__all__ = ["LATENCY", "BrokenRule", "Residency", "Rules", "broken", "read_rules"]

LATENCY = "latency: "
"""How the names of broken latency bounds begin."""

RULES_FILE_BYTES = 1 << 24
BROKEN_SHOWN = 8

_PARTS = ("capacity_bytes_per_s", "quota_bytes_per_month", "residency")
_PLACES = ("brokers", "regions", "providers")


@dataclass(frozen=True, slots=True)
class Residency:
    """Events that match the SQL filter `events` may not be at these brokers, nor at any broker whose site
    is in one of these regions or of one of these providers."""

    name: str
    events: str
    brokers: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    providers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"a residency rule has the name {self.name!r}. Give a non-empty string.")
        if not (self.brokers or self.regions or self.providers):
            raise InputError(
                f"residency {self.name!r} forbids no place. Name some in not_in: {', '.join(_PLACES)}."
            )
        try:
            parse_sql(self.events)
        except FilterError as error:
            raise InputError(f"residency {self.name!r}: its events are not a filter: {error}") from error

    def forbids(self, overlay: Overlay) -> npt.NDArray[np.bool_]:
        """bool[n]: the brokers where its events may not be."""
        rows = zip(overlay.brokers, overlay.sites, strict=True)
        return np.array(
            [
                name in self.brokers or site.region in self.regions or site.provider in self.providers
                for name, site in rows
            ],
            dtype=np.bool_,
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """See the module. Latency bounds are not here: subscriptions carry their own.

    Attributes
    ----------
    capacity     broker -> bytes per second
    quotas       (broker, broker) of a link, in either order -> bytes per month
    residency    in the order of their tags
    """

    capacity: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[tuple[str, str], float] = field(default_factory=dict)
    residency: tuple[Residency, ...] = ()

    def __post_init__(self) -> None:
        for broker, limit in self.capacity.items():
            _require_limit(limit, f"the capacity of {broker}")
        seen: set[frozenset[str]] = set()
        for (a, b), limit in self.quotas.items():
            _require_limit(limit, f"the quota of {a} - {b}")
            if frozenset((a, b)) in seen:
                raise InputError(
                    f"two quotas for the link {a} - {b}. A quota is for both directions: keep one."
                )
            seen.add(frozenset((a, b)))
        names = [rule.name for rule in self.residency]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"two residency rules are named {twice!r}. Rename one.")
        if len(names) > MAX_TAGS:
            raise InputError(
                f"{len(names)} residency rules; a demand can keep {MAX_TAGS} apart. Merge some."
            )

    def __bool__(self) -> bool:
        """Whether anything is asked."""
        return bool(self.capacity or self.quotas or self.residency)

    @property
    def names(self) -> tuple[str, ...]:
        """Each rule by the name that `broken` calls it by."""
        return (
            *(f"capacity: {broker}" for broker in self.capacity),
            *(f"quota: {a} - {b}" for a, b in self.quotas),
            *(f"residency: {rule.name}" for rule in self.residency),
        )

    def document(self) -> dict[str, Any]:
        """The rules in the form of their file; `Rules.read` gives them back."""
        places = [
            {place: sorted(getattr(rule, place)) for place in _PLACES if getattr(rule, place)}
            for rule in self.residency
        ]
        parts: dict[str, Any] = {
            "capacity_bytes_per_s": dict(self.capacity),
            "quota_bytes_per_month": [{"a": a, "b": b, "bytes": n} for (a, b), n in self.quotas.items()],
            "residency": [
                {"name": rule.name, "events": rule.events, "not_in": where}
                for rule, where in zip(self.residency, places, strict=True)
            ],
        }
        return {name: part for name, part in parts.items() if part}

    @staticmethod
    def read(document: Any, overlay: Overlay | None = None) -> "Rules":
        """The rules of a document in the form of their file. `InputError` with the place in it.

        With an overlay, names are checked against it.
        """
        rules = _rules(document)
        return rules if overlay is None else rules.require_known(overlay)

    def tags(self, schema: Mapping[str, AttributeType] | None = None) -> list[Filter]:
        """The filters of the residency rules, in order: bit t of a demand's tags is for filter t."""
        return [parse_sql(rule.events, schema, strict=True) for rule in self.residency]

    def require_known(self, overlay: Overlay) -> "Rules":
        """These rules, or `InputError` for a broker, link, region or provider outside the overlay."""
        for broker in self.capacity:
            _require_one_of(broker, overlay.brokers, f"capacity_bytes_per_s: broker {broker!r}", overlay)
        for at, (a, b) in enumerate(self.quotas):
            for end in (a, b):
                _require_one_of(
                    end, overlay.brokers, f"quota_bytes_per_month[{at}]: broker {end!r}", overlay
                )
            _require_link(a, b, at, overlay)
        for at, rule in enumerate(self.residency):
            known = {
                "brokers": (rule.brokers, overlay.brokers),
                "regions": (rule.regions, {site.region for site in overlay.sites}),
                "providers": (rule.providers, {site.provider for site in overlay.sites}),
            }
            for place, (named, choices) in known.items():
                for name in sorted(named):
                    what = f"residency[{at}] ({rule.name}): not_in.{place}: {name!r}"
                    _require_one_of(name, choices, what, overlay)
        return self


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that a plan breaks: its short name, and a sentence with limit, finding and place."""

    rule: str
    sentence: str
    unavoidable: bool = False
    """No plan could keep it: events are published at a forbidden broker."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


def broken(price: Price, rules: Rules) -> list[BrokenRule]:
    """The rules that a priced plan breaks: latencies by class, then in the order of the rules.

    `InputError` for a place that is not in the plan's overlay, and where a rate is asked of a demand whose
    time span is not known. O(classes + brokers * residency rules).
    """
    rules.require_known(price.overlay)
    if (rules.capacity or rules.quotas) and price.volume.events and not price.volume.seconds > 0:
        raise InputError(
            "capacity and quota are rates, but the time that these events span is not known. Say how long "
            "it was (--hours), or use events that carry a time."
        )
    if len(rules.residency) > price.volume.tag_filters and price.volume.events:
        raise InputError(
            f"{len(rules.residency)} residency rules, but the events were held against "
            f"{price.volume.tag_filters} of them. Tally them with the rules' tags."
        )
    found = list(_latencies(price))
    if price.volume.events:
        found += _capacities(price, rules)
        found += _quotas(price, rules)
        for tag, rule in enumerate(rules.residency):
            found += _residencies(price, rule, tag)
    return found


# ----------------------------------------------------------------------------------------------- rules


def _latencies(price: Price) -> Iterator[BrokenRule]:
    classes, worst = price.plan.classes, price.class_ms
    for k in np.flatnonzero(_above(worst, classes.latency_ms)).tolist():
        host = price.overlay.brokers[classes.broker[k]]
        for row in classes.members[k]:
            if row.latency_ms is not None and _above(worst[k], row.latency_ms):
                yield BrokenRule(
                    f"{LATENCY}subscription {row.id}",
                    f"an event takes {worst[k]:g} ms to {row.id} at {host}; allowed: {row.latency_ms:g} ms",
                )


def _capacities(price: Price, rules: Rules) -> Iterator[BrokenRule]:
    per_second = price.per_month / MONTH_SECONDS
    for broker, limit in rules.capacity.items():
        rate = float(price.broker_bytes[price.overlay.index[broker]]) * per_second
        if _above(rate, limit):
            yield BrokenRule(
                f"capacity: {broker}",
                f"{broker} receives and sends {rate:,.6g} bytes per second; allowed: {limit:,.6g}",
            )


def _quotas(price: Price, rules: Rules) -> Iterator[BrokenRule]:
    for (a, b), limit in rules.quotas.items():
        carried = float(price.wire[price.overlay.link_between(a, b)].sum()) * price.per_month
        if _above(carried, limit):
            yield BrokenRule(
                f"quota: {a} - {b}",
                f"the link {a} - {b} carries {carried:,.6g} bytes per month; allowed: {limit:,.6g}",
            )


def _residencies(price: Price, rule: Residency, tag: int) -> Iterator[BrokenRule]:
    """One sentence that tells apart where events are published, wanted, and merely passed through."""
    bit = np.uint64(1) << np.uint64(tag)
    forbidden = rule.forbids(price.overlay) & (price.entered & bit != 0)
    if not forbidden.any():
        return
    published, wanted = price.published & bit != 0, price.wanted & bit != 0
    parts = {
        "published at {}, where no plan can keep them out": forbidden & published,
        "wanted by subscriptions at {}, where no plan can keep them out": forbidden & ~published & wanted,
        "passing through {}": forbidden & ~published & ~wanted,
    }
    names = price.overlay.brokers
    said = [
        text.format(_some([names[b] for b in np.flatnonzero(at).tolist()]))
        for text, at in parts.items()
        if at.any()
    ]
    yield BrokenRule(
        f"residency: {rule.name}",
        f"events where {rule.events} are at {int(forbidden.sum())} of the brokers that they may not be at: "
        + "; ".join(said),
        unavoidable=not (forbidden & ~published).any(),
    )


def _above(found: Any, limit: Any) -> Any:
    return found > limit * (1 + ROUNDING)


# ------------------------------------------------------------------------------------------------ file


def read_rules(path: str | os.PathLike[str], overlay: Overlay | None = None) -> Rules:
    """The rules in a JSON file (form: see the module). With an overlay, names are checked against it.

    `InputError` with the file, the place in it, and what is allowed there.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(RULES_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be read: {reason}. Check the path.", path=str(path)) from error
    try:
        if len(content) > RULES_FILE_BYTES:
            raise InputError(f"larger than {RULES_FILE_BYTES:,} bytes. Merge rules.")
        return Rules.read(_decoded(content), overlay)
    except InputError as error:
        raise InputError(str(error), path=str(path)) from error


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start}). Save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno}).") from error
    except RecursionError as error:
        raise InputError("not a rule file: nested too deeply.") from error
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"not a rule file: {error}.") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{twice!r} appears twice in one object. Keep one.")
    return dict(pairs)


def _rules(document: Any) -> Rules:
    parts = _object(document, "the file", _PARTS)
    quotas: dict[tuple[str, str], float] = {}
    for at, row in enumerate(_list(parts.get("quota_bytes_per_month", []), "quota_bytes_per_month")):
        where = f"quota_bytes_per_month[{at}]"
        given = _object(row, where, ("a", "b", "bytes"), all_needed=True)
        ends = (_string(given["a"], f"{where}.a"), _string(given["b"], f"{where}.b"))
        if ends in quotas:
            _refuse(where, f"a second quota for {ends[0]} - {ends[1]}", "one per link, for both directions")
        quotas[ends] = _number(given["bytes"], f"{where}.bytes")
    capacity = parts.get("capacity_bytes_per_s", {})
    if not isinstance(capacity, dict):
        _refuse("capacity_bytes_per_s", _shown(capacity), "an object of broker names and bytes per second")
    rows = _list(parts.get("residency", []), "residency")
    return Rules(
        {name: _number(limit, f"capacity_bytes_per_s.{name}") for name, limit in capacity.items()},
        quotas,
        tuple(_residency(row, f"residency[{at}]") for at, row in enumerate(rows)),
    )


def _residency(row: Any, where: str) -> Residency:
    given = _object(row, where, ("name", "events", "not_in"), all_needed=True)
    name, events = _string(given["name"], f"{where}.name"), _string(given["events"], f"{where}.events")
    places = _object(given["not_in"], f"{where}.not_in", _PLACES)
    named = {
        place: frozenset(
            _string(item, f"{where}.not_in.{place}") for item in _list(items, f"{where}.not_in.{place}")
        )
        for place, items in places.items()
    }
    try:
        return Residency(name, events, **named)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _object(
    value: Any, where: str, allowed: tuple[str, ...], *, all_needed: bool = False
) -> dict[str, Any]:
    choices = f"an object with {', '.join(allowed)}"
    if not isinstance(value, dict):
        _refuse(where, _shown(value), choices)
    for name in value:
        if name not in allowed:
            _refuse(where, f"the unknown field {name!r}", choices)
    missing = [name for name in allowed if all_needed and name not in value]
    if missing:
        _refuse(where, f"no {missing[0]}", choices)
    return dict(value)


def _list(value: Any, where: str) -> list[Any]:
    return value if isinstance(value, list) else _refuse(where, _shown(value), "a list")


def _string(value: Any, where: str) -> str:
    return (
        value if isinstance(value, str) and value else _refuse(where, _shown(value), "a non-empty string")
    )


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_limit(value):
        _refuse(where, _shown(value), "a number, 0 or more")
    return float(value)


def _refuse(where: str, found: str, allowed: str) -> NoReturn:
    raise InputError(f"{where}: found {found}. Allowed: {allowed}.")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:60] + "..."


def _is_limit(limit: float) -> bool:
    try:
        return isfinite(limit) and limit >= 0
    except OverflowError:  # an integer beyond all floats
        return False


def _require_limit(limit: float, what: str) -> None:
    if not _is_limit(limit):
        raise InputError(f"{what} is {limit!r}. Allowed: a number, 0 or more.")


def _require_one_of(name: str, choices: Iterable[str | None], what: str, overlay: Overlay) -> None:
    known = {choice for choice in choices if choice is not None}
    if name not in known:
        allowed = _some(sorted(known)) or "none: its sites do not say"
        raise InputError(f"{what} is unknown in overlay {overlay.name}. Allowed: {allowed}.")


def _require_link(a: str, b: str, at: int, overlay: Overlay) -> None:
    near = sorted({*_ends_at(overlay, a)})
    if b not in near:
        raise InputError(
            f"quota_bytes_per_month[{at}]: no link joins {a} and {b} in overlay {overlay.name}. "
            f"Allowed: a link, such as {a} with {_some(near) or 'none'}."
        )


def _ends_at(overlay: Overlay, broker: str) -> Iterator[str]:
    start, neighbor, _, _ = overlay.adjacency
    i = overlay.index[broker]
    return (overlay.brokers[j] for j in neighbor[start[i] : start[i + 1]].tolist())


def _some(names: list[str]) -> str:
    more = len(names) - BROKEN_SHOWN
    return ", ".join(names[:BROKEN_SHOWN]) + (f" and {more} more" if more > 0 else "")
