"""Classes: the subscriptions with equal filter and equal broker, which routing cannot tell apart.

Owns the collapse of subscriptions to classes and the table that plans carry: where each class is hosted,
how its filter is spelled, and its members. Class ids are positions in this table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType
from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, OverlayError
from ramify.memo import is_known, preset
from ramify.network.graphs.overlay import Overlay

__all__ = ["Classes"]


@dataclass(frozen=True)
class Classes:
    """The classes of a set of subscriptions on one overlay.

    Attributes
    ----------
    spelled     one subscription per class, which spells its filter
    members     the subscriptions of each class; they share its filter and broker. Empty when all have been
                deleted: the class is vacant and keeps its number, so that the others keep theirs
    broker      int32[c], the host of each class
    schema      the attribute types that the filters were read with
    """

    spelled: tuple[Subscription, ...]
    members: tuple[tuple[Subscription, ...], ...]
    broker: npt.NDArray[np.int32]
    schema: Mapping[str, AttributeType]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Classes)
            and (self.spelled, self.members, self.schema) == (other.spelled, other.members, other.schema)
            and np.array_equal(self.broker, other.broker)
        )

    def __len__(self) -> int:
        """How many classes there are."""
        return len(self.broker)

    @staticmethod
    def hosts_alone(broker: npt.NDArray[np.int32], schema: Mapping[str, AttributeType]) -> "Classes":
        """Classes of which only the host is known: what routing asks. Members and filters raise."""
        return _HostsAlone((), (), broker, schema)

    @classmethod
    def collapse(
        cls,
        subscriptions: Iterable[Subscription],
        overlay: Overlay,
        schema: Mapping[str, AttributeType],
        filters: Sequence[Filter] | None = None,
    ) -> "Classes":
        """Group subscriptions by filter and broker, in order of first appearance.

        `filters` saves parsing them again. Raises `OverlayError` for a broker outside the overlay,
        `InputError` for an id given twice, `FilterError` for a filter that cannot be read.
        """
        rows = tuple(subscriptions)
        parsed = [row.parse(schema) for row in rows] if filters is None else list(filters)
        groups: dict[tuple[bytes, int], list[Subscription]] = {}
        kept: list[Filter] = []
        ids: set[str] = set()
        for row, filter_ in zip(rows, parsed, strict=True):
            if row.id in ids:
                raise InputError(f"subscription id {row.id!r} is given twice. Ids must be unique.")
            ids.add(row.id)
            group = groups.setdefault((filter_.key, _host(row, overlay)), [])
            if not group:
                kept.append(filter_)
            group.append(row)
        broker = np.array([host for _, host in groups], dtype=np.int32)
        spelled = tuple(group[0] for group in groups.values())
        made = cls(spelled, tuple(map(tuple, groups.values())), broker, dict(schema))
        preset(made, filters=tuple(kept))
        return made

    @cached_property
    def filters(self) -> tuple[Filter, ...]:
        """The filter of each class. Parsed on first use when the classes come from a file."""
        return tuple(row.parse(self.schema) for row in self.spelled)

    def filter_of(self, k: int) -> Filter:
        """The filter of one class, without parsing those of the others."""
        if is_known(self, "filters"):
            return self.filters[k]
        if k not in self._parsed:
            self._parsed[k] = self.spelled[k].parse(self.schema)
        return self._parsed[k]

    @cached_property
    def _parsed(self) -> dict[int, Filter]:
        """What `filter_of` has parsed. Revisions with the same classes share it."""
        return {}

    @cached_property
    def vacant(self) -> npt.NDArray[np.bool_]:
        """bool[c]: which classes have no member left."""
        return np.array([not members for members in self.members], dtype=np.bool_)

    @cached_property
    def latency_ms(self) -> npt.NDArray[np.float64]:
        """float64[c]: the strictest latency bound among the members; inf where none has one."""
        bounds = [
            min((row.latency_ms or np.inf for row in members), default=np.inf) for members in self.members
        ]
        return np.array(bounds, dtype=np.float64)

    @cached_property
    def class_of(self) -> Mapping[str, int]:
        """The class of each subscription id."""
        return {row.id: k for k, members in enumerate(self.members) for row in members}

    def with_subscription(self, row: Subscription, overlay: Overlay) -> tuple["Classes", int]:
        """These classes with one more subscription, and its class. Other ids keep their meaning.

        It joins the class of its filter and broker, vacant or not; a new class comes last.
        """
        if row.id in self.class_of:
            raise InputError(f"subscription {row.id!r} exists already. Delete it first, or use another id.")
        host, filter_ = _host(row, overlay), row.parse(self.schema)
        hosted = np.flatnonzero(self.broker == host).tolist()
        found = next((k for k in hosted if self.filter_of(k).key == filter_.key), None)
        if found is not None:
            return self._with(found, (*self.members[found], row)), found
        return self._with_class(row, host, filter_), len(self)

    def with_member(self, row: Subscription, k: int, overlay: Overlay) -> "Classes":
        """These classes with one more subscription in class `k`, as `with_subscription` chose it elsewhere.

        A `k` that comes after the last makes a class. Nothing is compared: O(classes), no parsing but for a
        new class. Raises `InputError` for an id that exists, or a class at another broker.
        """
        host = _host(row, overlay)
        if row.id in self.class_of:
            raise InputError(f"subscription {row.id!r} exists already. Delete it first, or use another id.")
        if not 0 <= k <= len(self) or (k < len(self) and self.broker[k] != host):
            raise InputError(
                f"subscription {row.id!r} cannot join class {k}: that is not at {row.broker!r}"
            )
        if k < len(self):
            return self._with(k, (*self.members[k], row))
        return self._with_class(row, host)

    def _with_class(self, row: Subscription, host: int, filter_: Filter | None = None) -> "Classes":
        made = replace(
            self,
            spelled=(*self.spelled, row),
            members=(*self.members, (row,)),
            broker=np.append(self.broker, np.int32(host)).astype(np.int32),
        )
        # a copy: another revision of these classes may give the same number to another filter
        preset(made, _parsed={**self._parsed} | ({} if filter_ is None else {len(self): filter_}))
        if is_known(self, "filters"):
            parsed = row.parse(self.schema) if filter_ is None else filter_
            preset(made, filters=(*self.filters, parsed))
        return made

    def without_subscription(self, id_: str) -> tuple["Classes", int]:
        """These classes with one subscription less, and the class it was in, which may now be vacant."""
        if id_ not in self.class_of:
            raise InputError(f"there is no subscription {id_!r}. Check its id.")
        k = self.class_of[id_]
        return self._with(k, tuple(row for row in self.members[k] if row.id != id_)), k

    def _with(self, k: int, members: tuple[Subscription, ...]) -> "Classes":
        made = replace(self, members=(*self.members[:k], members, *self.members[k + 1 :]))
        preset(made, _parsed=self._parsed)
        if is_known(self, "filters"):
            preset(made, filters=self.filters)
        return made


class _HostsAlone(Classes):
    """See `Classes.hosts_alone`."""

    @property
    def _unknown(self) -> InputError:
        return InputError("these classes have neither members nor filters: read the plan itself for them.")

    @cached_property
    def filters(self) -> tuple[Filter, ...]:
        """Raises."""
        raise self._unknown

    @cached_property
    def vacant(self) -> npt.NDArray[np.bool_]:
        """Raises."""
        raise self._unknown

    @cached_property
    def latency_ms(self) -> npt.NDArray[np.float64]:
        """Raises."""
        raise self._unknown

    @cached_property
    def class_of(self) -> Mapping[str, int]:
        """Raises."""
        raise self._unknown


def _host(row: Subscription, overlay: Overlay) -> int:
    host = overlay.index.get(row.broker)
    if host is None:
        raise OverlayError(
            f"subscription {row.id!r} is at {row.broker!r}. Overlay {overlay.name} has no such broker. "
            "Correct the name or add the broker."
        )
    return host
